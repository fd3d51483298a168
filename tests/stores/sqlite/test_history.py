"""Sums in the file: what a reader has counted is written only where nobody came first."""

import sqlite3
from pathlib import Path

from penstock.core.history import BOUNDS_IN_MICROS, bucket_of
from penstock.core.lifecycle import Done, Event
from penstock.engine import Penstock, run_sync
from penstock.stores.sql import history
from penstock.stores.sqlite import connection as opening
from penstock.stores.sqlite.connection import MIGRATIONS, connect, statements
from penstock.stores.sqlite.store import SqliteStore
from penstock.stores.sqlite.transaction import SQL, SqliteReading, SqliteTransaction
from tests.contract.support import add, drive, new, settle, take_one


def beginning() -> int:
    """A time before everything, so that no sum is past its time."""
    return 0


def counted(connection: sqlite3.Connection, limit: int) -> history.Digest:
    return history.digest(SqliteReading(connection, beginning), limit)


def written(path: Path, *digests: history.Digest) -> list[int]:
    connection = connect(path)
    connection.execute("BEGIN IMMEDIATE")
    answers = history.write(SqliteTransaction(connection, beginning), digests)
    connection.execute("COMMIT")
    connection.close()
    return answers


def test_of_two_that_have_counted_the_same_one_writes(
    store: SqliteStore, look: sqlite3.Connection, path: Path
) -> None:
    drive(add(store, *[new()] * 3))
    first, second = (counted(look, 10) for _ in range(2))
    assert written(path, first, second) == [3, 0]
    [counters] = drive(store.counters())
    assert counters.counts == {Event.ENQUEUED: 3}


def test_what_was_counted_from_an_old_place_is_not_written(
    store: SqliteStore, look: sqlite3.Connection, path: Path
) -> None:
    drive(add(store, *[new()] * 3))
    late = counted(look, 2)
    drive(add(store, *[new()] * 3))
    assert drive(store.digest(10)) == 6
    assert written(path, late) == [0]
    [counters] = drive(store.counters())
    assert counters.counts == {Event.ENQUEUED: 6}


def test_counting_needs_no_turn(store: SqliteStore, path: Path) -> None:
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


def test_buckets_are_those_of_the_core(store: SqliteStore, look: sqlite3.Connection) -> None:
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


def test_counting_begins_with_the_schema_that_knows_it(path: Path) -> None:
    """The claims of older entries do not say how long their jobs had waited."""
    old = connect(path)
    opening._enter_wal(old)
    for number, script in MIGRATIONS:
        if number < 9:
            for statement in statements(script):
                old.execute(statement)
    old.execute("INSERT INTO penstock_meta VALUES ('schema', 8)")
    old.execute("INSERT INTO penstock_queue (name) VALUES ('default')")
    old.execute(
        "INSERT INTO penstock_job (id, stage, version, run_at, queue, task, priority, enqueued_at, "
        "lease_time) VALUES (1, 0, 7, 0, 'default', 't', 5, 0, 1000000)"
    )
    old.execute("INSERT INTO penstock_payload VALUES (1, '{}')")
    old.execute("INSERT INTO penstock_total VALUES ('default', 0, 1)")
    old.execute(
        "INSERT INTO penstock_log (id, job_id, at, event, state, actor) "
        "VALUES (7, 1, 0, 'enqueued', 'pending', 'p')"
    )
    old.close()
    app = Penstock(f"sqlite:///{path}")
    assert run_sync(app.digest()) == 0
    drive(settle(app.store, drive(take_one(app.store)), Done()))
    assert run_sync(app.digest()) == 2
    [counters] = run_sync(app.counters())
    assert counters.counts == {Event.CLAIMED: 1, Event.DONE: 1}
    run_sync(app.close())
