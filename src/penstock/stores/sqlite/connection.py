"""Opens connections, brings the file's schema up to date, translates the driver's errors."""

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.core.errors import StoreError, StoreMissing, StoreUnavailable
from penstock.stores.sql import load_migrations

# A writer waits this long for other programs' transactions before it gives up.
BUSY_TIMEOUT = 60.0
MINIMUM_SQLITE = (3, 38, 0)  # the ->> operator; RETURNING and UPDATE FROM are older
MIGRATIONS = load_migrations("penstock.stores.sqlite")
SCHEMA = MIGRATIONS[-1][0]

# The page cache of a connection, in KiB: enough for the inner pages of a few million jobs.
_CACHE = 8_000
# The log's file is kept up to this length: writing over it is faster than making it longer.
_LOG_KEPT = 16 * 1024 * 1024

_RETRYABLE = {
    sqlite3.SQLITE_BUSY: "another program keeps the file locked",
    sqlite3.SQLITE_LOCKED: "another connection keeps a table locked",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "reading or writing failed",
}
_BROKEN = {
    sqlite3.SQLITE_NOTADB: "it is not a SQLite file",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; does its folder exist, and may it be written?",
    sqlite3.SQLITE_READONLY: "it may not be written",
    sqlite3.SQLITE_PERM: "it may not be opened",
    sqlite3.SQLITE_AUTH: "it may not be opened",
}


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn the driver's errors into ours, with what to do next."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error


def translate(error: sqlite3.Error, path: Path) -> StoreError:
    """The error of ours that says what the driver's means for this file."""
    if isinstance(error, sqlite3.IntegrityError):
        return StoreError(f"{path} refuses a statement: {error}")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _RETRYABLE:
        return StoreUnavailable(
            f"{path}: {_RETRYABLE[code]}; nothing was changed, try again ({error})"
        )
    return StoreError(f"{path} cannot be used: {_BROKEN.get(code, 'SQLite reported')} ({error})")


def connect(
    path: Path, *, busy_timeout: float = BUSY_TIMEOUT, reads: bool = False
) -> sqlite3.Connection:
    """A connection in autocommit mode, set up for durable writes, usable from any thread."""
    if sqlite3.sqlite_version_info < MINIMUM_SQLITE:
        needed = ".".join(map(str, MINIMUM_SQLITE))
        raise StoreError(f"SQLite {needed} or newer is needed, not {sqlite3.sqlite_version}")
    connection = sqlite3.connect(
        path,
        timeout=busy_timeout,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{_CACHE}")
        # Checkpoints have a thread of their own: see Checkpointer.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        # When the log starts anew, what is beyond this length is cut off.
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_KEPT}")
        if reads:
            connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def prepared(path: Path, *, create: bool) -> sqlite3.Connection:
    """A connection to a file in WAL mode with the current schema; safe when many start at once."""
    if not create and not path.exists():
        raise StoreMissing(f"there is no store at {path}")
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(contextlib.closing(connect(path)))
        found = _schema(connection)
        if not found and not create:
            raise StoreMissing(f"{path} is a file without a store in it")
        _enter_wal(connection)
        if found != SCHEMA:
            _migrate(connection, path)
        stack.pop_all()  # all went well: it stays open
    return connection


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")
    found = _schema(connection)
    if found > SCHEMA:
        raise StoreError(
            f"{path} was written by a newer Penstock (schema {found}, this one knows {SCHEMA}); "
            "upgrade Penstock"
        )
    for number, script in MIGRATIONS:
        if number > found:
            for statement in statements(script):
                connection.execute(statement)
    connection.execute(
        "INSERT OR REPLACE INTO penstock_meta (name, value) VALUES ('schema', ?)", (SCHEMA,)
    )
    connection.execute("COMMIT")


def statements(script: str) -> Iterator[str]:
    """The single statements of a script; `executescript` would commit before the first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _schema(connection: sqlite3.Connection) -> int:
    if not connection.execute(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'penstock_meta'"
    ).fetchone():
        return 0
    row = connection.execute("SELECT value FROM penstock_meta WHERE name = 'schema'").fetchone()
    return int(row[0]) if row else 0


def _enter_wal(connection: sqlite3.Connection) -> None:
    # Switching the mode answers "locked" at once, without waiting, while others open the file.
    deadline = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            if mode != "wal":
                raise StoreError(f"the file system does not support WAL mode (it stays {mode!r})")
            return
