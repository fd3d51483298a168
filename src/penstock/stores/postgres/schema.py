"""Creates the schema of a PostgreSQL store and brings it up to date."""

import contextlib
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import psycopg
from msgspec.structs import replace
from psycopg import errors

from penstock.core.errors import StoreMissing
from penstock.stores import Migrate
from penstock.stores.postgres import presence
from penstock.stores.postgres.connection import SCRIPTS, Address, connect, renamed
from penstock.stores.sql.schema import (
    ROUTINES,
    Program,
    Progress,
    SchemaStatus,
    Scripts,
    Versions,
    stages,
    transitions,
    unreported,
)

T = TypeVar("T")

# How long to wait for tables that other transactions write. New writers queue up behind a waiting
# upgrade, and the server ends a transaction that waits for it in turn after a second, as a
# deadlock. So the upgrade gives up before that, and tries again.
_LOCK_TIMEOUT = "300ms"
_PATIENCE = 60.0
_PAUSE = 0.1

# Applications have functions in the same schema, so ours are marked. Replacing a function keeps its
# identity: a program that is about to call it never finds it missing. A marked function or trigger
# that this transaction has not written is left over from earlier routines.
_TIDY_UP = """
DO $do$
DECLARE
    home oid := (SELECT relnamespace FROM pg_class WHERE oid = 'penstock.meta'::regclass);
    mark text := 'routine of Penstock';
    ours xid := pg_current_xact_id()::xid;
    statement text;
BEGIN
    FOR statement IN
        SELECT format('COMMENT ON FUNCTION %s IS %L', oid::regprocedure, mark) FROM pg_proc
        WHERE pronamespace = home AND xmin = ours
    LOOP
        EXECUTE statement;
    END LOOP;
    FOR statement IN
        SELECT format('DROP TRIGGER %I ON %s', t.tgname, t.tgrelid::regclass)
        FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
        WHERE p.pronamespace = home AND obj_description(p.oid, 'pg_proc') = mark AND t.xmin <> ours
        UNION ALL
        SELECT format('DROP FUNCTION %s', oid::regprocedure) FROM pg_proc
        WHERE pronamespace = home AND obj_description(oid, 'pg_proc') = mark AND xmin <> ours
    LOOP
        EXECUTE statement;
    END LOOP;
END $do$
"""


class Prepared(NamedTuple):
    """A store that can be used."""

    connection: "psycopg.Connection[Any]"
    """An open connection, on which this program is known to others."""
    ahead: int
    """How far the server's clock is ahead of this machine's, in microseconds."""
    is_held_up: bool
    """Whether older programs hold up a switch."""


def prepare(
    where: Address, *, create: bool, migrate: Migrate = "manual", scripts: Scripts = SCRIPTS
) -> Prepared:
    """Make sure that the schema exists and is up to date; safe when many do at once.

    A new store is always created. Raises `SchemaMismatch` if an existing one has to be migrated and
    `migrate` is manual, or if this program may not use it any more.
    """
    with contextlib.ExitStack() as stack:
        connection = connect(where)
        stack.callback(connection.close)
        found = _versions(connection, where.schema)
        if not found.schema and not create:
            raise StoreMissing(f"there is no store at {where.name}")
        scripts.check(found, where.name)
        if found.schema and migrate == "manual":
            scripts.check_current(found, where.name)
        if not scripts.is_current(found):
            patiently(connection, lambda: _upgrade(connection, where, scripts))
        presence.announce(connection, where, scripts.version)
        # Read behind the lock: from now on, no switch passes over this program.
        found = _versions(connection, where.schema)
        scripts.check(found, where.name)
        held_up_by = None
        if migrate == "auto" and scripts.pending(found):
            held_up_by = switch(connection, where, scripts=scripts)
        now = connection.execute(f"SELECT {where.schema}.now()").fetchall()[0][0]
        stack.pop_all()  # all went well: it stays open
    return Prepared(connection, int(now) - time.time_ns() // 1000, held_up_by is not None)


def status(where: Address, *, scripts: Scripts = SCRIPTS) -> SchemaStatus:
    """Return what a store needs, and change nothing."""
    with connect(where) as connection:
        found = _versions(connection, where.schema)
        if not found.schema:
            raise StoreMissing(f"there is no store at {where.name}")
        scripts.check(found, where.name)

        def present(schemas: Sequence[int]) -> list[Program]:
            return presence.programs(connection, where, schemas)

        return scripts.status(found, present)


def apply(
    where: Address, progress: Progress, *, force: bool = False, scripts: Scripts = SCRIPTS
) -> None:
    """Migrate or create a store, and switch what no older program holds up."""
    with connect(where) as connection:
        patiently(connection, lambda: _upgrade(connection, where, scripts, progress))
        switch(connection, where, progress, force=force, scripts=scripts)


def switch(
    connection: "psycopg.Connection[Any]",
    where: Address,
    progress: Progress = unreported,
    *,
    force: bool = False,
    scripts: Scripts = SCRIPTS,
) -> int | None:
    """Switch what no older program holds up; return the schema that holds up the rest, if any.

    Programs that know an older schema can neither open the store nor write meanwhile, and their
    transactions that are under way have ended before. With `force`, those that have it open hold up
    nothing, and are refused from now on.
    """
    return patiently(connection, lambda: _switch(connection, where, scripts, progress, force=force))


def patiently(connection: "psycopg.Connection[Any]", work: Callable[[], T]) -> T:
    """Do work in a transaction, again and again while others hold the tables that it needs."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            with connection.transaction():
                return work()
        except errors.LockNotAvailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)


def _lock(connection: "psycopg.Connection[Any]", where: Address) -> Versions:
    """Let nobody else change the schema until the end of the transaction; return its versions."""
    lock = zlib.crc32(f"penstock {where.schema}".encode()) - 2**31
    connection.execute("SELECT pg_advisory_xact_lock($1)", (lock,))
    connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
    return _versions(connection, where.schema)  # another process may have been faster


def _upgrade(
    connection: "psycopg.Connection[Any]",
    where: Address,
    scripts: Scripts,
    progress: Progress = unreported,
) -> None:
    found = _lock(connection, where)
    scripts.check(found, where.name)
    if scripts.is_current(found):
        return
    if not found.schema:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {where.schema}")
    for step, script in scripts.steps_from(found).items():
        progress(step)
        if step == ROUTINES:
            _replace_routines(connection, script, where)
        else:
            _run(connection, script, where)
    _note(connection, where, scripts, found, scripts.reached(found))


def _switch(
    connection: "psycopg.Connection[Any]",
    where: Address,
    scripts: Scripts,
    progress: Progress,
    *,
    force: bool,
) -> int | None:
    found = _lock(connection, where)
    for number in scripts.pending(found):
        present = presence.keep_out(connection, where, scripts.known_before(number))
        if present and not force:
            return min(present)
        progress(f"switch of migration {number}")
        _run(connection, scripts.migrations[number].switches, where)
        after = replace(found, oldest_program=number)
        _note(connection, where, scripts, found, after)
        found = after
    return None


def _note(
    connection: "psycopg.Connection[Any]",
    where: Address,
    scripts: Scripts,
    before: Versions,
    after: Versions,
) -> None:
    """Write the versions of a store, and the views of the schemas that programs may know.

    Transactions that read a view keep it from being dropped or replaced until they end.
    """
    for name, value in after.by_name().items():
        connection.execute(
            f"INSERT INTO {where.schema}.meta (name, value) VALUES ($1, $2) "  # noqa: S608 - checked
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )
    for schema, is_allowed in scripts.views(before, after).items():
        view = f"{where.schema}.schema_{schema}"
        if is_allowed:
            connection.execute(
                f"CREATE OR REPLACE VIEW {view} AS "
                f"SELECT {after.oldest_program} AS oldest_program".encode(),
                prepare=False,
            )
        else:
            connection.execute(f"DROP VIEW IF EXISTS {view}".encode(), prepare=False)


def _replace_routines(connection: "psycopg.Connection[Any]", script: str, where: Address) -> None:
    _run(connection, script, where)
    _run(connection, _TIDY_UP, where)
    for table, rows in (("stage", stages()), ("transition", transitions())):
        marks = ", ".join(f"${n}" for n in range(1, len(rows[0]) + 1))
        connection.execute(f"DELETE FROM {where.schema}.{table}")  # noqa: S608 - checked
        connection.cursor().executemany(
            f"INSERT INTO {where.schema}.{table} VALUES ({marks})",  # noqa: S608 - checked
            rows,
        )


def _run(connection: "psycopg.Connection[Any]", script: str, where: Address) -> None:
    connection.execute(renamed(script, where.schema).encode(), prepare=False)


def _versions(connection: "psycopg.Connection[Any]", schema: str) -> Versions:
    # Not `to_regclass`: behind the lock it may still answer from before the wait for that lock.
    tables = connection.execute(
        "SELECT 1 FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE n.nspname = $1 AND c.relname = 'meta'",
        (schema,),
    )
    if not tables.fetchall():
        return Versions()
    numbers = connection.execute(f"SELECT name, value FROM {schema}.meta")  # noqa: S608 - checked
    return Versions.of(dict(numbers.fetchall()))
