"""Backups of a SQLite file: one consistent copy, written while the file is in use."""

import contextlib
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from penstock.core.errors import ConfigurationError, SchemaMismatch, StoreError, StoreMissing
from penstock.core.recovery import Backup, BackupProgress, RestoredStore
from penstock.core.times import from_micros
from penstock.runtime import Runtime
from penstock.stores import Migrate
from penstock.stores.backups import (
    Continue,
    draft,
    finish,
    publish,
    refuse_existing,
)
from penstock.stores.sql.store import SqlStore
from penstock.stores.sqlite import schema
from penstock.stores.sqlite.connection import DAMAGED, DRIVER_ERRORS, connect, translated
from penstock.stores.sqlite.database import SqliteDatabase
from penstock.stores.sqlite.transaction import SQL

# Pages between two reports of progress: 4 MiB.
_PORTION = 1_024
_SHOWN = 3
"""How many of the findings of SQLite a message quotes."""


def back_up(source: Path, target: Path, runtime: Runtime, progress: BackupProgress) -> Backup:
    """See `BackupKind.back_up`. The copy is not a store until it is restored: it carries a mark."""
    if not source.is_file():
        raise StoreMissing(f"there is no store at {source}")
    with draft(target, ".backup") as folder:
        copy = folder / target.name
        taken_at = runtime.clock()  # what was committed by now is in the copy
        _copy(source, copy, runtime, progress)
        with translated(target), _opened(copy, runtime) as connection:
            connection.execute(
                "INSERT OR REPLACE INTO penstock_meta (name, value) VALUES (?, ?)",
                (schema.BACKUP_MARK, taken_at),
            )
        with translated(target), _opened(copy, runtime, reads=True) as connection:
            _check(connection, copy, progress)
            (jobs,) = connection.execute("SELECT count(*) FROM penstock_job").fetchone()
            _, last_log = connection.execute(SQL["last_ids"]).fetchone()
        size = copy.stat().st_size
        copy.chmod(0o600)
        publish(copy, target, runtime)
    return Backup(
        path=str(target), bytes=size, taken_at=from_micros(taken_at), jobs=jobs, last_log=last_log
    )


def restore(
    backup: Path,
    target: Path,
    proceed: Continue,
    *,
    replace: bool,
    migrate: Migrate,
    runtime: Runtime,
    progress: BackupProgress,
) -> RestoredStore:
    """See `BackupKind.restore`.

    A store that exists is overwritten in one transaction: processes that have it open go on with
    the restored one, and their leases are void.
    """
    if target.exists() and not replace:
        refuse_existing(target)
    if not target.exists():
        for ending in ("-wal", "-shm", "-journal"):
            left = target.with_name(target.name + ending)
            if left.exists():
                raise ConfigurationError(
                    f"{left} is left from a store that is gone, and SQLite would apply it to the "
                    "restored one; move it away first"
                )
    with draft(target, ".restore") as folder:
        copy = folder / target.name
        _copy(backup, copy, runtime, progress)
        with translated(backup), _opened(copy, runtime) as connection:
            _check(connection, backup, progress)
            taken_at = _unmark(connection)
        _bring_up_to_date(copy, backup, migrate, runtime)
        store = SqlStore(SqliteDatabase(copy, runtime, create=False, migrate="manual"))
        try:
            cut = proceed(store, taken_at, _highest_id(target, runtime) if target.exists() else 0)
        finally:
            finish(store.close())
        if replace and target.exists():
            _overwrite(copy, target, runtime, progress)
        else:
            publish(copy, target, runtime)
    return RestoredStore(taken_at=taken_at, cut=cut)


def _bring_up_to_date(copy: Path, backup: Path, migrate: Migrate, runtime: Runtime) -> None:
    """Migrate a copy of an earlier schema, and switch nothing."""
    if not schema.status(copy, runtime=runtime).migrations:
        return
    if migrate == "manual":
        raise SchemaMismatch(
            f"{backup} has an earlier schema, and migrations are manual; restore it with the "
            "Penstock that wrote it, or add ?migrate=auto to the URL of the store"
        )
    schema.prepared(copy, create=False, runtime=runtime).close()


def _copy(source: Path, copy: Path, runtime: Runtime, progress: BackupProgress) -> None:
    """Copy one moment of a file in use to a new one."""
    with contextlib.ExitStack() as stack:
        with translated(source):
            reader = stack.enter_context(
                contextlib.closing(connect(source, runtime=runtime, reads=True))
            )
            # As long as this transaction lasts, the copy need not start over when others write.
            reader.execute("BEGIN")
            if not reader.execute(
                "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'penstock_meta'"
            ).fetchone():
                raise StoreMissing(f"{source} is a file without a store in it")
        with translated(copy):
            writer = stack.enter_context(_opened(copy, runtime))
            _transfer(reader, writer, progress)


def _transfer(
    source: sqlite3.Connection, target: sqlite3.Connection, progress: BackupProgress
) -> None:
    def show(_status: int, remaining: int, total: int) -> None:
        progress("copying", total - remaining, total)

    source.backup(target, pages=_PORTION, progress=show)


def _overwrite(copy: Path, target: Path, runtime: Runtime, progress: BackupProgress) -> None:
    """Write a whole file over another one, in one transaction of the other."""
    with translated(copy), contextlib.closing(connect(copy, runtime=runtime, reads=True)) as source:
        source.execute("BEGIN")
        source.execute("SELECT 1 FROM sqlite_schema").fetchone()
        with translated(target), contextlib.closing(connect(target, runtime=runtime)) as written:
            _transfer(source, written, progress)
            written.execute("PRAGMA wal_checkpoint(PASSIVE)")


@contextlib.contextmanager
def _opened(path: Path, runtime: Runtime, *, reads: bool = False) -> Iterator[sqlite3.Connection]:
    """Open a file that nobody else uses; what is written is durable when it is published."""
    connection = runtime.sqlite(
        f"{path.absolute().as_uri()}{'?mode=ro' if reads else ''}", uri=True, isolation_level=None
    )
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        yield connection
    finally:
        connection.close()


def _check(connection: sqlite3.Connection, path: Path, progress: BackupProgress) -> None:
    """Read everything in a file: tables, their indexes and constraints."""
    names = [
        name
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
        )
    ]
    for done, name in enumerate(names):
        progress("checking", done, len(names))
        quoted = name.replace('"', '""')
        found = connection.execute(f'PRAGMA integrity_check("{quoted}")').fetchmany(_SHOWN)
        if found != [("ok",)]:
            what = "; ".join(str(row[0]) for row in found)
            raise StoreError(f"{path} cannot be used: {DAMAGED} ({what:.200})")
    progress("checking", len(names), len(names))


def _unmark(connection: sqlite3.Connection) -> datetime | None:
    """Make a store of a backup; returns the moment that it shows, if it is known."""
    row = connection.execute(
        "DELETE FROM penstock_meta WHERE name = ? RETURNING value", (schema.BACKUP_MARK,)
    ).fetchone()
    return from_micros(row[0]) if row is not None and isinstance(row[0], int) else None


def _highest_id(path: Path, runtime: Runtime) -> int:
    """Return the highest id that a store has assigned, as far as it can be read."""
    try:
        with contextlib.closing(connect(path, runtime=runtime, reads=True)) as connection:
            connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
            with contextlib.suppress(*DRIVER_ERRORS):
                return int(max(connection.execute(SQL["last_ids"]).fetchone()))
            return 0
    except DRIVER_ERRORS as error:
        raise ConfigurationError(
            f"{path} is too damaged to be replaced ({error}); move it away together with its -wal "
            "and -shm files, and restore without --replace"
        ) from error
