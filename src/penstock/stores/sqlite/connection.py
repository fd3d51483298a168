"""Connections to a SQLite file, and the errors of its driver."""

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.runtime import SYSTEM, Runtime
from penstock.stores.sql.schema import too_old

# How many seconds a writer waits for the transactions of other programs.
BUSY_TIMEOUT = 60.0
MINIMUM_SQLITE = (3, 38, 0)  # the ->> operator; RETURNING and UPDATE FROM are older

# The page cache of a connection, in KiB: enough for the inner pages of a few million jobs.
_CACHE = 8_000
# The log file is truncated to this size: overwriting a file is faster than extending it.
_LOG_KEPT = 16 * 1024 * 1024

DAMAGED = "it is damaged; restore a backup, or save what is readable with sqlite3 FILE .recover"

_RETRYABLE = {
    sqlite3.SQLITE_BUSY: "the file is locked by another program",
    sqlite3.SQLITE_LOCKED: "a table is locked by another connection",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "reading or writing failed",
}
_BROKEN = {
    sqlite3.SQLITE_NOTADB: "it is not a SQLite file",
    sqlite3.SQLITE_CORRUPT: DAMAGED,
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; does its folder exist, and may it be written?",
    sqlite3.SQLITE_READONLY: "it may not be written",
    sqlite3.SQLITE_PERM: "it may not be opened",
    sqlite3.SQLITE_AUTH: "it may not be opened",
}


# The view of the schema that this program knows: the store has dropped it.
_NO_VIEW = re.compile(r"no such table: (?:main\.)?penstock_schema_(\d+)$")

# The driver cannot decode a message that quotes the catalogue of a damaged file.
DRIVER_ERRORS = (sqlite3.Error, UnicodeDecodeError)


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise a `StoreError` that says what to do, in place of an error of the driver."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise translate(error, path) from error


def translate(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> StoreError:
    """Return the `StoreError` for an error of the driver."""
    if isinstance(error, UnicodeDecodeError):
        return StoreError(f"{path} cannot be used: {DAMAGED} ({error})")
    if isinstance(error, sqlite3.IntegrityError):
        return StoreError(f"{path} refuses a statement: {error}")
    if (found := _NO_VIEW.search(str(error))) is not None:
        return too_old(str(path), int(found[1]))
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _RETRYABLE:
        return StoreUnavailable(
            f"{path}: {_RETRYABLE[code]}; nothing was changed, try again ({error})"
        )
    return StoreError(f"{path} cannot be used: {_BROKEN.get(code, 'SQLite reported')} ({error})")


def connect(
    path: Path,
    *,
    runtime: Runtime = SYSTEM,
    busy_timeout: float = BUSY_TIMEOUT,
    reads: bool = False,
) -> sqlite3.Connection:
    """Open a connection in autocommit mode, with durable writes, for use by any thread."""
    if sqlite3.sqlite_version_info < MINIMUM_SQLITE:
        needed = ".".join(map(str, MINIMUM_SQLITE))
        raise StoreError(f"SQLite {needed} or newer is needed, not {sqlite3.sqlite_version}")
    connection = runtime.sqlite(
        path,
        timeout=busy_timeout,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{_CACHE}")
        # The `Checkpointer` runs checkpoints in its own thread.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_KEPT}")
        if reads:
            connection.execute("PRAGMA query_only = ON")
    except DRIVER_ERRORS:
        connection.close()
        raise
    return connection


def enter_wal(connection: sqlite3.Connection, runtime: Runtime = SYSTEM) -> None:
    """Switch the file to WAL mode, permanently."""
    # SQLite does not wait here: while others open the file, it reports a lock at once.
    deadline = runtime.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or runtime.monotonic() > deadline:
                raise
            runtime.sleep(0.01)
        else:
            if mode != "wal":
                raise StoreError(f"the file system does not support WAL mode (it stays {mode!r})")
            return
