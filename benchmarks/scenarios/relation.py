"""What `unified_queue` costs programs that have SQL alone: inserts beside a bare table."""

import asyncio
import json
import sqlite3
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import psycopg

from benchmarks import postgres
from benchmarks.contenders import Contender
from benchmarks.scenarios import Figures, Load, Scenario
from penstock import Penstock
from penstock.apps.ingest import unified_queue

BATCHES = (1, 100, 1_000)
"""Rows of a transaction."""

_BARE = "bare_queue"
_OURS = "unified_queue"
_INSERT = (
    "INSERT INTO {} (queue_id, item_type, op, tenant_id, collection, priority, status, "
    "created_at, updated_at, idempotency_key, payload_json) "
    "VALUES ({}, 'file', 'ingest', {}, 'code', 5, 'pending', {}, {}, {}, {})"
)
_AT = "2026-01-01T00:00:00.000Z"
_TURNS = 5

Insert = Callable[[str, Sequence[tuple[str, ...]]], None]
"""Inserts rows into a table, in one transaction that is durable when it returns."""


def sqlite(_: Contender, place: Path, load: Load) -> Figures:
    """Inserts into a SQLite file, each commit on disk."""
    path = place / "items.db"
    asyncio.run(_prepare(f"sqlite:///{path}"))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(_bare(unified_queue.TABLES.sqlite[0]))
        connection.execute("PRAGMA synchronous = FULL")

        def insert(table: str, rows: Sequence[tuple[str, ...]]) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_INSERT.format(table, *"??????"), rows)
            connection.execute("COMMIT")

        return _shares(insert, load)


def on_postgres(_: Contender, place: Path, load: Load) -> Figures:
    """Inserts into PostgreSQL, by `executemany` of psycopg."""
    url = postgres.url_of(place)
    asyncio.run(_prepare(url))
    with psycopg.connect(url) as connection:
        connection.execute("SET search_path = penstock")
        connection.execute(_bare(unified_queue.TABLES.postgres[0]).encode())
        connection.commit()

        def insert(table: str, rows: Sequence[tuple[str, ...]]) -> None:
            with connection.cursor() as cursor:
                cursor.executemany(_INSERT.format(table, *["%s"] * 6).encode(), rows)
            connection.commit()

        return _shares(insert, load)


async def _prepare(url: str) -> None:
    async with Penstock(url) as app:
        await unified_queue.prepare(app)


def _bare(step: str) -> str:
    """The table and its indexes, and nothing that follows it."""
    begin = step.index("CREATE TABLE unified_queue (")
    return step[begin : step.index("-- Which job a row has")].replace(_OURS, _BARE)


def _shares(insert: Insert, load: Load) -> Figures:
    """By turns, so that a slow moment of the machine hits both; the best turn of each counts."""
    figures: dict[str, float] = {}
    for batch in BATCHES:
        n = max(batch, min(load.jobs, 100 * batch) // _TURNS)
        rates = dict.fromkeys((_BARE, _OURS), 0.0)
        for _ in range(_TURNS):
            for table, best in rates.items():
                rates[table] = max(best, _rate(insert, table, n, batch))
        figures |= {f"bare_{batch}": rates[_BARE], f"ours_{batch}": rates[_OURS]}
        figures[f"share_{batch}"] = rates[_OURS] / rates[_BARE]
    return figures


def _rate(insert: Insert, table: str, n: int, batch: int) -> float:
    rows = [_row(number) for number in range(n)]
    began = time.perf_counter()
    for start in range(0, n, batch):
        insert(table, rows[start : start + batch])
    return n / (time.perf_counter() - began)


def _row(number: int) -> tuple[str, ...]:
    item = str(uuid.uuid4())
    body = {"file_path": f"/src/module_{item}.py", "file_type": "code", "size_bytes": number}
    return item, f"tenant {number % 10}", _AT, _AT, f"file:code:{item}", json.dumps(body)


SQLITE = Scenario("sql-inserts", sqlite, ("penstock",), interleaves=False)
POSTGRES = Scenario("sql-inserts", on_postgres, ("penstock",), interleaves=False)
