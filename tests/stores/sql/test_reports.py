"""What only the SQLite store can show of notes: what is in its file, and what it does not ask."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.core.job import Retention
from penstock.core.lifecycle import Done, Failed, Outcome, Snoozed, reset
from penstock.core.progress import Line, Progress, Report
from penstock.stores.sql.store import SqlStore
from tests.contract.support import (
    HOUR,
    ManualClock,
    add,
    add_one,
    drive,
    move,
    new,
    settle,
    take,
    take_one,
)
from tests.stores.support import database_of, sqlite_store, writing_connection

TABLES = ("penstock_progress", "penstock_checkpoint", "penstock_line")


@pytest.fixture
def store(path: Path, clock: ManualClock) -> Iterator[SqlStore]:
    opened = sqlite_store(path, clock)
    yield opened
    drive(opened.close())


def rows(path: Path) -> dict[str, int]:
    """How many rows each table has, those without any left out."""
    with closing(sqlite3.connect(path)) as connection:
        found = {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 - names of our own
            for table in TABLES
        }
    return {table: n for table, n in found.items() if n}


async def test_checkpoint_is_removed_in_the_transaction_that_ends_the_job(
    store: SqlStore, path: Path
) -> None:
    await add(store, *[new()] * 3)
    done, failed, plain = await take(store)
    await store.report([Report(lease=job.lease, state="1") for job in (done, failed)])
    assert rows(path) == {"penstock_checkpoint": 2}
    await settle(store, done, Done())
    await settle(store, plain, Done())
    assert rows(path) == {"penstock_checkpoint": 1}
    await settle(store, failed, Failed("no", permanent=True))
    assert rows(path) == {"penstock_checkpoint": 1}


async def test_checkpoint_of_another_process_is_removed_by_the_one_that_read_it(
    store: SqlStore, path: Path, clock: ManualClock
) -> None:
    await add_one(store)
    job = await take_one(store)
    await store.report([Report(lease=job.lease, state="1")])
    await settle(store, job, Snoozed())
    other = sqlite_store(path, clock)
    job = await take_one(other)
    assert await other.checkpoint(job.id) == "1"
    await settle(other, job, Done())
    await other.close()
    assert rows(path) == {}


async def test_leftover_checkpoint_is_not_shown_when_the_job_is_done(
    store: SqlStore, path: Path, clock: ManualClock
) -> None:
    await add_one(store)
    job = await take_one(store)
    await store.report([Report(lease=job.lease, state="1")])
    await settle(store, job, Snoozed())
    other = sqlite_store(path, clock)
    await settle(other, await take_one(other), Done())
    assert await other.checkpoint(job.id) is None
    assert await store.checkpoint(job.id) is None
    clock.advance(9999 * HOUR)
    assert await other.prune(Retention(), 10) == 1
    await other.close()
    assert rows(path) == {}


async def test_store_does_not_remember_jobs_that_have_moved_on(store: SqlStore) -> None:
    await add(store, *[new()] * 4)
    jobs = await take(store)
    await store.report([Report(lease=job.lease, state="1") for job in jobs])
    outcomes: list[Outcome] = [Done(), Snoozed(HOUR), Failed("no"), Failed("no", permanent=True)]
    for job, outcome in zip(jobs, outcomes, strict=True):
        await settle(store, job, outcome)
        assert await store.checkpoint(job.id) is None or outcome != Done()
    assert database_of(store)._resumable == set()


async def test_whatever_removes_a_job_removes_its_notes(
    store: SqlStore, path: Path, clock: ManualClock
) -> None:
    await add_one(store)
    job = await take_one(store)
    progress = Progress(1, None, None, clock.now, clock.now)
    lines = (Line(0, clock.now, "INFO", "hello", 1),)
    await store.report([Report(lease=job.lease, progress=progress, state="1", lines=lines)])
    assert rows(path) == dict.fromkeys(TABLES, 1)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM penstock_job")
        connection.commit()
    assert rows(path) == {}


async def test_job_that_says_nothing_costs_no_statement(store: SqlStore) -> None:
    statements: list[str] = []
    writing_connection(store).set_trace_callback(statements.append)
    await add_one(store)
    job = await settle(store, await take_one(store), Failed("no", permanent=True))
    notes = ("penstock_progress", "penstock_checkpoint", "penstock_line")
    assert statements
    assert not [sql for sql in statements if any(table in sql for table in notes)]
    job = await move(store, job, reset(job))
    assert [sql for sql in statements if "penstock_checkpoint" in sql], "the trace sees them"
    writing_connection(store).set_trace_callback(None)
