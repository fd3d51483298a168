"""Sums in the file: what a reader has counted is written only where nobody came first."""

import sqlite3
from pathlib import Path

from penstock.core.lifecycle import Event
from penstock.core.statistics import BOUNDS_IN_MICROS, bucket_of
from penstock.stores.sql import statistics
from penstock.stores.sql.store import SqlStore
from penstock.stores.sqlite.connection import connect
from penstock.stores.sqlite.transaction import SQL, SqliteReader, SqliteTransaction
from tests.contract.support import add, drive, new


def beginning() -> int:
    """A time before everything, so that no sum is past its time."""
    return 0


def counted(connection: sqlite3.Connection, limit: int) -> statistics.Summary:
    return statistics.sum_up(SqliteReader(connection, beginning, set()), limit)


def written(path: Path, *summaries: statistics.Summary) -> list[int]:
    connection = connect(path)
    connection.execute("BEGIN IMMEDIATE")
    answers = statistics.write(SqliteTransaction(connection, beginning, set()), summaries)
    connection.execute("COMMIT")
    connection.close()
    return answers


def test_of_two_that_have_counted_the_same_one_writes(
    store: SqlStore, look: sqlite3.Connection, path: Path
) -> None:
    drive(add(store, *[new()] * 3))
    first, second = (counted(look, 10) for _ in range(2))
    assert written(path, first, second) == [3, 0]
    [counters] = drive(store.counters())
    assert counters.counts == {Event.ENQUEUED: 3}


def test_what_was_counted_from_an_old_place_is_not_written(
    store: SqlStore, look: sqlite3.Connection, path: Path
) -> None:
    drive(add(store, *[new()] * 3))
    late = counted(look, 2)
    drive(add(store, *[new()] * 3))
    assert drive(store.roll_up(10)) == 6
    assert written(path, late) == [0]
    [counters] = drive(store.counters())
    assert counters.counts == {Event.ENQUEUED: 6}


def test_counting_needs_no_turn(store: SqlStore, path: Path) -> None:
    """It reads while another transaction is open, and sees what was committed."""
    drive(add(store, *[new()] * 3))
    other, reader = connect(path), connect(path)
    other.execute("BEGIN IMMEDIATE")
    other.execute("UPDATE penstock_log SET event = 'done'")
    [found] = counted(reader, 10).sums
    assert (found.event, found.n) == ("enqueued", 3)
    other.execute("ROLLBACK")
    for connection in (other, reader):
        connection.close()


def test_buckets_are_those_of_the_core(store: SqlStore, look: sqlite3.Connection) -> None:
    durations = [0, 1, *(bound + late for bound in BOUNDS_IN_MICROS for late in (0, 1))]
    [job] = drive(add(store, new()))
    for n, duration in enumerate(durations, 100):
        look.execute(
            "INSERT INTO penstock_log (id, job_id, at, event, state, actor, duration) "
            "VALUES (?, ?, 0, 'done', 'done', 'w', ?)",
            (n, job.id, duration),
        )
        [found] = look.execute(SQL["sums"], (n, n, *BOUNDS_IN_MICROS)).fetchall()
        assert found == (0, "default", "done", bucket_of(duration), 1, duration)
