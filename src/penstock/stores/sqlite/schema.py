"""Creates the schema of a SQLite file and brings it up to date."""

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from penstock.core.errors import StoreError, StoreMissing
from penstock.runtime import SYSTEM, Runtime
from penstock.stores import Migrate
from penstock.stores.sql.schema import (
    ROUTINES,
    Program,
    Progress,
    SchemaStatus,
    Scripts,
    Versions,
    load_scripts,
    stages,
    transitions,
    unreported,
)
from penstock.stores.sqlite.connection import DAMAGED, connect, enter_wal
from penstock.stores.sqlite.presence import Presence, keep_out, programs

SCRIPTS = load_scripts("penstock.stores.sqlite")

BACKUP_MARK = "backup"
"""The single number that a backup has, and a store has not: the moment that the backup shows."""

# Mirrors are made by applications, see `mirrors.py`; views of schemas are no routines.
_ROUTINES = """
    SELECT type, name FROM sqlite_schema
    WHERE type IN ('trigger', 'view') AND name LIKE 'penstock\\_%' ESCAPE '\\'
    AND name NOT LIKE 'penstock\\_mirror\\_%' ESCAPE '\\'
    AND name NOT LIKE 'penstock\\_schema\\_%' ESCAPE '\\'
    ORDER BY type
"""


def prepared(
    path: Path,
    *,
    create: bool,
    migrate: Migrate = "auto",
    scripts: Scripts = SCRIPTS,
    runtime: Runtime = SYSTEM,
) -> sqlite3.Connection:
    """Open a file in WAL mode and bring its schema up to date; safe when many do at once.

    A new store is always created. Raises `SchemaMismatch` if an existing one has to be migrated,
    and `migrate` is manual.
    """
    if not create and not runtime.files.exists(path):
        raise StoreMissing(f"there is no store at {path}")
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(contextlib.closing(connect(path, runtime=runtime)))
        found = _versions(connection, path)
        if not found.schema and not create:
            raise StoreMissing(f"{path} is a file without a store in it")
        scripts.check(found, str(path))
        if found.schema and migrate == "manual":
            scripts.check_current(found, str(path))
        enter_wal(connection, runtime)
        if not scripts.is_current(found):
            _upgrade(connection, path, scripts)
        stack.pop_all()  # all went well: it stays open
    return connection


def enter(
    connection: sqlite3.Connection,
    path: Path,
    *,
    migrate: Migrate = "auto",
    scripts: Scripts = SCRIPTS,
    runtime: Runtime = SYSTEM,
) -> tuple[Presence, bool]:
    """Make this program known to others, and switch what can be switched now.

    Returns whether older programs hold something up, too. Raises `SchemaMismatch` if this program
    may not use the store any more.
    """
    presence = Presence(path, scripts.version, runtime)
    held_up_by = None
    try:
        # Read behind the lock: from now on, no switch passes over this program.
        found = _versions(connection, path)
        scripts.check(found, str(path))
        if migrate == "auto" and scripts.pending(found):
            held_up_by = switch(connection, path, scripts=scripts, runtime=runtime)
    except BaseException:
        presence.close()
        raise
    return presence, held_up_by is not None


def status(path: Path, *, scripts: Scripts = SCRIPTS, runtime: Runtime = SYSTEM) -> SchemaStatus:
    """Return what a store needs, and change nothing."""
    if not runtime.files.exists(path):
        raise StoreMissing(f"there is no store at {path}")
    with contextlib.closing(connect(path, runtime=runtime)) as connection:
        found = _versions(connection, path)
        if not found.schema:
            raise StoreMissing(f"{path} is a file without a store in it")
        scripts.check(found, str(path))

        def present(schemas: Sequence[int]) -> list[Program]:
            return programs(path, schemas, runtime)

        return scripts.status(found, present)


def apply(
    path: Path,
    progress: Progress,
    *,
    force: bool = False,
    scripts: Scripts = SCRIPTS,
    runtime: Runtime = SYSTEM,
) -> None:
    """Migrate or create a store, and switch what no older program holds up."""
    with contextlib.closing(connect(path, runtime=runtime)) as connection:
        enter_wal(connection, runtime)
        _upgrade(connection, path, scripts, progress)
        switch(connection, path, progress, force=force, scripts=scripts, runtime=runtime)


def switch(
    connection: sqlite3.Connection,
    path: Path,
    progress: Progress = unreported,
    *,
    force: bool = False,
    scripts: Scripts = SCRIPTS,
    runtime: Runtime = SYSTEM,
) -> int | None:
    """Switch what no older program holds up; return the schema that holds up the rest, if any.

    Programs that know an older schema can neither open the file nor write meanwhile. With `force`,
    those that have it open hold up nothing, and are refused from now on.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        with contextlib.ExitStack() as stack:
            found = _versions(connection, path)
            held_up_by = None
            for number in scripts.pending(found):
                older = scripts.known_before(number)
                present = stack.enter_context(keep_out(path, older, runtime))
                if present and not force:
                    held_up_by = min(present)
                    break
                progress(f"switch of migration {number}")
                _run(connection, scripts.migrations[number].switches)
                after = replace(found, oldest_program=number)
                _note(connection, scripts, found, after)
                found = after
            connection.execute("COMMIT")
            return held_up_by
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def statements(script: str) -> Iterator[str]:
    """Split a script into its statements; `executescript` would commit before the first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _upgrade(
    connection: sqlite3.Connection, path: Path, scripts: Scripts, progress: Progress = unreported
) -> None:
    """Bring a file up to date in one transaction, which keeps all other writers waiting."""
    connection.execute("BEGIN IMMEDIATE")
    found = _versions(connection, path)  # another process may have been faster
    scripts.check(found, str(path))
    if not scripts.is_current(found):
        for step, script in scripts.steps_from(found).items():
            progress(step)
            if step == ROUTINES:
                _replace_routines(connection, script)
            else:
                _run(connection, script)
        _note(connection, scripts, found, scripts.reached(found))
    connection.execute("COMMIT")


def _note(
    connection: sqlite3.Connection, scripts: Scripts, before: Versions, after: Versions
) -> None:
    """Write the versions of a store, and the views of the schemas that programs may know."""
    connection.executemany(
        "INSERT OR REPLACE INTO penstock_meta (name, value) VALUES (?, ?)",
        after.by_name().items(),
    )
    for schema, is_allowed in scripts.views(before, after).items():
        connection.execute(f"DROP VIEW IF EXISTS penstock_schema_{schema}")
        if is_allowed:
            connection.execute(
                f"CREATE VIEW penstock_schema_{schema} (oldest_program) AS "
                f"SELECT {after.oldest_program}"
            )


def _replace_routines(connection: sqlite3.Connection, script: str) -> None:
    # Triggers come first: those on a view go with it, and could not be dropped by name then.
    for kind, name in connection.execute(_ROUTINES).fetchall():
        connection.execute(f"DROP {kind} {name}")
    _run(connection, script)
    for table, rows in (("stage", stages()), ("transition", transitions())):
        marks = ", ".join("?" * len(rows[0]))
        connection.execute(f"DELETE FROM penstock_{table}")  # noqa: S608 - our own names
        connection.executemany(f"INSERT INTO penstock_{table} VALUES ({marks})", rows)  # noqa: S608 - our own names


def _run(connection: sqlite3.Connection, script: str) -> None:
    for statement in statements(script):
        connection.execute(statement)


def _versions(connection: sqlite3.Connection, path: Path) -> Versions:
    if not connection.execute(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'penstock_meta'"
    ).fetchone():
        return Versions()
    numbers = dict(connection.execute("SELECT name, value FROM penstock_meta"))
    if not all(isinstance(number, int) for number in numbers.values()):
        raise StoreError(f"{path} cannot be used: {DAMAGED}")
    if BACKUP_MARK in numbers:
        raise StoreError(
            f"{path} is a backup, and would assign the tokens of its store again; make a store of "
            f"it: penstock restore {path} --store sqlite:///FILE"
        )
    return Versions.of(numbers)
