"""Which programs have a store open, by the schema that they know.

Every connection of a program holds a shared lock with the number of the schema. The server releases
it when the connection ends, also that of a process that was killed; a process that is stopped keeps
it. Behind a pooler, connections are not a program's own, and there are no such locks.

Workers are known by their heartbeats, too: behind a pooler, and while connections are interrupted.
"""

from collections.abc import Sequence
from typing import Any

import psycopg

from penstock.core.workers import SILENT_AFTER
from penstock.stores.postgres.connection import SCRIPTS, Address, connect
from penstock.stores.sql.schema import Program

# Lower numbers are used otherwise.
_FIRST = 1_000

# Without a number, a worker knows less than any that has one.
_WORKERS = """
    SELECT schema_version, pid, host, name FROM {schema}.worker
    WHERE coalesce(schema_version, $2) BETWEEN $2 AND $3
    AND seen_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - $1
    ORDER BY name
"""

_SESSIONS = """
    SELECT l.objid::integer - {first}, a.pid, host(a.client_addr)
    FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND l.mode = 'ShareLock'
    AND l.classid = '{schema}.meta'::regclass
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.objid::integer - {first} BETWEEN $1 AND $2
    ORDER BY 1, 2
"""


def introduced(where: Address) -> "psycopg.Connection[Any]":
    """Open a connection on which this program is known to others."""
    connection = connect(where)
    try:
        announce(connection, where, SCRIPTS.version)
    except BaseException:
        connection.close()
        raise
    return connection


def announce(connection: "psycopg.Connection[Any]", where: Address, schema: int) -> None:
    """Hold the lock of a schema as long as the connection lives; wait for a switch under way."""
    if not where.pooled:
        connection.execute(f"SELECT pg_advisory_lock_shared({_key(where)}, {_FIRST + schema})")


def keep_out(
    connection: "psycopg.Connection[Any]", where: Address, schemas: Sequence[int]
) -> list[int]:
    """Keep programs that know these schemas from opening the store until the transaction ends.

    Returns the schemas of those that have it open.
    """
    present = {worker.schema or schemas[0] for worker in _workers(connection, where, schemas)}
    for schema in schemas:
        ((is_free,),) = connection.execute(
            f"SELECT pg_try_advisory_xact_lock({_key(where)}, {_FIRST + schema})"
        ).fetchall()
        if not is_free:
            present.add(schema)
    return sorted(present)


def programs(
    connection: "psycopg.Connection[Any]", where: Address, schemas: Sequence[int]
) -> list[Program]:
    """Return the programs that have the store open, of those that know these schemas.

    Workers by their heartbeats, and all by their connections: `process` is that of the server then.
    """
    if not schemas:
        return []
    text = _SESSIONS.format(schema=where.schema, first=_FIRST)
    found = connection.execute(text, (schemas[0], schemas[-1])).fetchall()
    sessions = [Program(schema=row[0], process=row[1], host=row[2]) for row in found]
    return [*_workers(connection, where, schemas), *sessions]


def _workers(
    connection: "psycopg.Connection[Any]", where: Address, schemas: Sequence[int]
) -> list[Program]:
    if not schemas:
        return []
    window = int(SILENT_AFTER.total_seconds() * 1e6)
    found = connection.execute(
        _WORKERS.format(schema=where.schema), (window, schemas[0], schemas[-1])
    ).fetchall()
    return [Program(schema=row[0], process=row[1], host=row[2], worker=row[3]) for row in found]


def _key(where: Address) -> str:
    return f"'{where.schema}.meta'::regclass::oid::integer"
