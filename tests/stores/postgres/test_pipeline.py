"""Transactions in one round trip: what they write, what they return, and what breaks them."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors

from penstock.core.job import Claim, NewJob
from penstock.core.store import Store
from penstock.stores import open_store
from penstock.stores.postgres.arrays import Texts
from penstock.stores.postgres.connection import address, connect
from penstock.stores.postgres.pipeline import NAME, Pipeline
from tests.contract.support import drive

INSERT = "INSERT INTO pg_temp.note VALUES ($1) RETURNING note"


@pytest.fixture
def connection(postgres_url: str) -> Iterator["psycopg.Connection[Any]"]:
    with connect(address(postgres_url)) as opened:
        opened.execute("CREATE TEMPORARY TABLE note (note text)")
        yield opened


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    opened = open_store(postgres_url)
    yield opened
    drive(opened.close())


def notes(connection: "psycopg.Connection[Any]") -> list[str]:
    return [note for (note,) in connection.execute("SELECT note FROM note ORDER BY note")]


def prepared(connection: "psycopg.Connection[Any]") -> set[str]:
    """The statements of pipelines that the server keeps for a connection."""
    found = connection.execute("SELECT name FROM pg_prepared_statements", prepare=False)
    return {name for (name,) in found if name.startswith(NAME)}


def test_statements_are_committed_together(connection: "psycopg.Connection[Any]") -> None:
    found = Pipeline(connection).run([(INSERT, ("a",)), (INSERT, ("b",))])
    assert found == [[("a",)], [("b",)]]
    assert notes(connection) == ["a", "b"]


def test_nothing_is_written_if_one_fails(connection: "psycopg.Connection[Any]") -> None:
    pipeline = Pipeline(connection)
    with pytest.raises(errors.DivisionByZero):
        pipeline.run([(INSERT, ("a",)), ("SELECT 1 / $1::bigint", (0,)), (INSERT, ("c",))])
    assert notes(connection) == []
    assert pipeline.run([("SELECT 1 / $1::bigint", (1,)), (INSERT, ("d",))]) == [[(1,)], [("d",)]]


def test_statements_and_answers_may_be_large(connection: "psycopg.Connection[Any]") -> None:
    """More than the buffers between both sides take: each has to read while it writes."""
    many = Texts(["x" * 1000] * 10_000)
    echo = "SELECT unnest($1::text[])"
    found = Pipeline(connection).run([(echo, (many,)), (echo, (many,))])
    assert [len(rows) for rows in found] == [10_000, 10_000]


def test_statements_that_the_server_has_dropped_are_prepared_again(
    connection: "psycopg.Connection[Any]",
) -> None:
    pipeline = Pipeline(connection)
    pipeline.run([(INSERT, ("a",))])
    connection.execute("DEALLOCATE ALL", prepare=False)
    assert pipeline.run([(INSERT, ("b",))]) == [[("b",)]]
    assert notes(connection) == ["a", "b"]


def test_claim_that_finds_nothing_drops_no_statements(store: Store) -> None:
    """The driver drops them all after a ROLLBACK: the next claim would be planned again."""
    drive(store.add([NewJob(task="t", payload="{}")], actor="test"))
    for _ in range(2):
        drive(store.add([NewJob(task="t", payload="{}")], actor="test"))
    connection = vars(store)["database"]._writer._connection
    before = prepared(connection)
    assert before
    for _ in range(5):
        drive(store.claim(Claim(worker="w", limit=10)))
    assert before <= prepared(connection)


def test_client_leaves_one_receipt(store: Store, postgres_url: str) -> None:
    where = address(postgres_url)
    for _ in range(4):
        drive(store.add([NewJob(task="t", payload="{}")], actor="test"))
    with psycopg.connect(where.conninfo) as other:
        query = f"SELECT number FROM {where.schema}.receipt"  # noqa: S608 - our own name
        receipts = other.execute(query.encode()).fetchall()
    assert [number > 0 for (number,) in receipts] == [True]
