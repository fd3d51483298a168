"""A server on another timeline than the store remembers, met by connections that were open before.

`tests/crash/test_failover.py` promotes a real standby. Here the store is told that its last
timeline was another one, which looks the same to everybody who does not open a connection.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from penstock import NewJob, Penstock, StoreUnavailable, run_sync
from penstock.stores.postgres.connection import address

STEP = 2**40
NEW = NewJob(task="t", payload="{}")


@pytest.fixture
def other(postgres_url: str) -> Iterator["psycopg.Connection[Any]"]:
    """A connection of another program."""
    where = address(postgres_url)
    with psycopg.connect(where.conninfo, autocommit=True) as connection:
        connection.execute(f"SET search_path = {where.schema}".encode())
        yield connection


@pytest.fixture
def app(postgres_url: str, request: pytest.FixtureRequest) -> Iterator[Penstock]:
    """Has written, so that its connections are open."""
    app = Penstock(postgres_url + getattr(request, "param", ""))
    run_sync(app.enqueue_many([NEW] * 5))
    assert run_sync(app.leases.claim(worker="w"))[0].token < STEP
    yield app
    run_sync(app.close())


def promote(connection: "psycopg.Connection[Any]") -> None:
    """Let the present timeline be another one than that of the last write."""
    found = connection.execute("UPDATE meta SET value = value + 7 WHERE name = 'timeline'")
    assert found.rowcount == 1


@pytest.mark.parametrize("app", ["&pooler=transaction"], indirect=True)
def test_pooled_connection_raises_the_floor_before_the_next_token(
    app: Penstock, other: "psycopg.Connection[Any]"
) -> None:
    """A pooler keeps the connections of its clients when it turns to another server."""
    promote(other)
    first, second = (run_sync(app.leases.claim(worker="w"))[0].token for _ in range(2))
    assert STEP < first < second < first + STEP // 2, "once"
    promote(other)
    assert run_sync(app.enqueue_many([NEW]))[0].version > 2 * STEP


def test_job_of_a_callers_transaction_gets_its_id_above_the_floor(
    app: Penstock, other: "psycopg.Connection[Any]", postgres_url: str
) -> None:
    promote(other)
    with psycopg.connect(address(postgres_url).conninfo) as own:
        (job,) = run_sync(app.enqueue_many([NEW], connection=own))
    assert job.id > STEP
    assert job.version > STEP
    assert run_sync(app.get(job.id)).task == "t"


def test_caller_that_reads_an_earlier_moment_is_told_to_try_again(
    app: Penstock, other: "psycopg.Connection[Any]", postgres_url: str
) -> None:
    with psycopg.connect(address(postgres_url).conninfo) as own:
        own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        own.execute("SELECT 1")
        promote(other)
        own.rollback()
        own.execute("SELECT 1")
        with pytest.raises(StoreUnavailable, match="try again in another transaction"):
            run_sync(app.enqueue_many([NEW], connection=own))
        own.rollback()
        assert run_sync(app.enqueue_many([NEW], connection=own))[0].id > STEP


def test_sql_verbs_wait_for_a_writer_that_raises_the_floor(
    app: Penstock, other: "psycopg.Connection[Any]", postgres_url: str
) -> None:
    promote(other)
    with pytest.raises(psycopg.Error, match="ids may come twice") as refused:
        other.execute("SELECT call_claim(2, 'sql', NULL)")
    assert refused.value.sqlstate == "PS004"
    again = Penstock(postgres_url)  # as every process connects anew after a failover
    run_sync(again.enqueue_many([NEW]))
    run_sync(again.close())
    ((token,),) = other.execute("SELECT call_claim(2, 'sql', NULL)").fetchall()
    assert token > STEP


def test_rows_of_other_programs_wait_for_a_writer_that_raises_the_floor(
    app: Penstock, other: "psycopg.Connection[Any]"
) -> None:
    other.execute("INSERT INTO newcomer (source, row_id, at) VALUES ('page', '1', 1)")
    promote(other)
    assert other.execute("SELECT adopt()").fetchone() == (None,)
    assert other.execute("SELECT count(*) FROM newcomer").fetchone() == (1,)
    run_sync(app.enqueue_many([NEW]))
