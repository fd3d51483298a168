"""Processes that find the same thing missing at once, and create it one after another."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import msgspec
import psycopg

from penstock.stores.postgres.connection import SCRIPTS, address
from penstock.stores.postgres.schema import prepare
from tests.crash.processes import until

_GATE = 7_001
_TABLES = """
CREATE TABLE penstock.meta (name text PRIMARY KEY, value bigint);
CREATE TABLE penstock.stage (stage integer, name text);
CREATE TABLE penstock.transition (event text, before text, after text);
"""
_ROUTINES = """
CREATE OR REPLACE FUNCTION penstock.now() RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint';
"""


@contextmanager
def gate(server: str) -> Iterator[psycopg.Connection]:
    """Hold a lock for which others wait; commit to let them go on."""
    with psycopg.connect(server) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_GATE,))
        yield connection


def wait_for_locks(server: str, waiting: int) -> None:
    """Return once so many connections wait for an advisory lock."""
    with psycopg.connect(server, autocommit=True) as connection:

        def all_wait() -> bool:
            found = connection.execute(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted "
                "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
                "AND pid IN (SELECT pid FROM pg_stat_activity WHERE application_name = 'racing')"
            )
            return found.fetchall() == [(waiting,)]

        until(all_wait, f"{waiting} connections do not wait")


def racing(url: str) -> str:
    """Return the address under which connections of these tests are known."""
    return url + ("&" if "?" in url else "?") + "application_name=racing"


def test_store_that_another_created_while_this_waited_is_taken(
    postgres_url: str, postgres_server: str
) -> None:
    # A few tables only: a server tells its connections of many changes at once, of few it does not.
    few = msgspec.structs.replace(SCRIPTS, tables=_TABLES, routines=_ROUTINES)
    slow = msgspec.structs.replace(few, tables=f"SELECT pg_advisory_xact_lock({_GATE});\n{_TABLES}")
    where = address(racing(postgres_url))
    with psycopg.connect(postgres_server) as connection:
        connection.execute(f"CREATE SCHEMA {where.schema}".encode())
    with ThreadPoolExecutor(2) as pool:
        with gate(postgres_server) as held:
            first = pool.submit(prepare, where, create=True, scripts=slow)
            wait_for_locks(postgres_server, 1)
            second = pool.submit(prepare, where, create=True, scripts=few)
            wait_for_locks(postgres_server, 2)
            held.commit()
        for done in (first, second):
            done.result().connection.close()


def test_partition_that_another_created_while_this_waited_is_taken(
    postgres_url: str, postgres_server: str
) -> None:
    schema = address(postgres_url).schema
    prepare(address(postgres_url), create=True).connection.close()
    make_room = f"SELECT {schema}.make_room(%s)".encode()
    tables = [f"{schema}.{name}" for name in ("log_2", "job_2_ended", "job_2_failed")]
    known, held = threading.Event(), threading.Event()

    def second() -> None:
        with psycopg.connect(racing(postgres_server), autocommit=True) as connection:
            for _ in range(2):  # the second time, all but the names below is remembered
                connection.execute(make_room, (1,))
            for table in tables:
                connection.execute("SELECT to_regclass(%s)", (table,))
            known.set()
            held.wait()
            connection.execute(make_room, (2,))

    with ThreadPoolExecutor(1) as pool, psycopg.connect(postgres_server) as first:
        waiting: Future[None] = pool.submit(second)
        known.wait()
        first.execute(make_room, (1,))  # for its lock
        for table in tables:
            first.execute(f"CREATE TABLE {table} ()".encode())
        held.set()
        wait_for_locks(postgres_server, 1)
        first.commit()
        waiting.result()
