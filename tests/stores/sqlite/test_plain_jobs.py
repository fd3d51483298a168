"""Plain jobs: one statement each, unless the store has more to decide."""

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import PenstockError, QueueFull, StoreError
from penstock.core.job import NewJob
from penstock.core.migration_lock import MigrationLock, MigrationPhase
from penstock.core.query import JobQuery
from penstock.core.queue import QueueSettings
from penstock.core.retry import RetryPolicy
from penstock.stores.sql.store import SqlStore
from tests.contract.support import ManualClock, drive, tables_of, take
from tests.stores.filled import PAGES, insert_page
from tests.stores.support import database_of, sqlite_store, writing_connection

PLAIN = NewJob(task="t", payload='{"a":1}')


def is_one_statement(store: SqlStore, job: NewJob) -> bool:
    """Add a job; return whether the writer did so in one statement."""
    seen: list[str] = []
    connection = writing_connection(store)
    connection.set_trace_callback(seen.append)  # also called by triggers, with the whole text
    drive(store.add([job], actor="p"))
    connection.set_trace_callback(None)
    return all(sql.startswith(("INSERT INTO penstock_plain", "--")) for sql in seen)


@pytest.mark.parametrize(
    "job",
    [
        PLAIN,
        NewJob(task="t", payload="{}", timeout=timedelta(seconds=1), correlation="c"),
        NewJob(task="t", payload="{}", retry=RetryPolicy(attempts=1), priority=9),
    ],
)
def test_plain_job_is_one_statement(store: SqlStore, job: NewJob) -> None:
    drive(store.add([job], actor="p"))  # makes the queue
    assert is_one_statement(store, job)
    first, second = drive(store.find(JobQuery(newest_first=False)))
    assert (second.id, second.version) == (first.id + 1, first.version + 1)


@pytest.mark.parametrize(
    "options",
    [
        {"key": "k"},
        {"dedupe": "d"},
        {"tags": ("x",)},
        {"tenant": "t"},
        {"throttle": "t"},
        {"after": (1,)},
        {"delay": timedelta(0)},
        {"queue": "new"},
    ],
)
def test_other_jobs_are_decided_in_python(store: SqlStore, options: dict[str, Any]) -> None:
    drive(store.add([PLAIN], actor="p"))
    job = NewJob(task="t", payload="{}", **options)
    assert not is_one_statement(store, job)
    assert drive(store.count(["default", "new"])) == drive(store.count())


def test_queue_that_may_become_full_is_decided_in_python(store: SqlStore) -> None:
    drive(store.configure(QueueSettings(name="default", max_pending=1)))
    drive(store.add([PLAIN], actor="p"))
    with pytest.raises(QueueFull):
        drive(store.add([PLAIN], actor="p"))


def test_nothing_is_added_while_jobs_move_away(store: SqlStore) -> None:
    drive(store.add([PLAIN], actor="p"))
    lock = MigrationLock(phase=MigrationPhase.LEAVING, peer=1, place="elsewhere")
    assert drive(store.set_migration_lock(lock, expected=None))
    with pytest.raises(PenstockError):
        drive(store.add([PLAIN], actor="p"))
    assert len(drive(store.find(JobQuery()))) == 1


def test_rows_that_were_inserted_before_get_their_jobs_first(
    store: SqlStore, clock: ManualClock
) -> None:
    drive(tables_of(store).prepare_tables("pages", PAGES))
    drive(store.add([PLAIN], actor="p"))
    drive(tables_of(store).transact(lambda tx: insert_page(tx, 1, clock())))
    [added] = drive(store.add([PLAIN], actor="p"))
    assert [job.task for job in drive(store.find(JobQuery()))] == ["t", "render", "t"]
    assert added.id == 3


def test_ids_of_removed_jobs_are_not_given_again(store: SqlStore, look: sqlite3.Connection) -> None:
    drive(store.add([PLAIN], actor="p"))
    with look:
        look.execute("UPDATE penstock_meta SET value = 70 WHERE name = 'last_job'")
        look.execute("UPDATE penstock_meta SET value = 90 WHERE name = 'last_log'")
    [added] = drive(store.add([PLAIN], actor="p"))
    assert (added.id, added.version) == (71, 91)


def test_two_processes_take_turns(store: SqlStore, path: Path, clock: ManualClock) -> None:
    with closing(_Second(path, clock)) as second:
        for turn in (store, second.store) * 3:
            drive(turn.add([PLAIN], actor="p"))
        assert [job.id for job in drive(take(store))] == [1, 2, 3, 4, 5, 6]
        assert [entry.id for entry in drive(store.log())] == [*range(1, 13)]


class _Second:
    """The same file, opened once more."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self.store = sqlite_store(path, clock)

    def close(self) -> None:
        drive(self.store.close())


def test_while_another_program_writes_the_store_waits_for_its_turn(
    store: SqlStore, look: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive(store.add([PLAIN], actor="p"))
    begin = database_of(store)._begin

    def begin_after(patience: float) -> None:
        look.rollback()
        begin(patience)

    monkeypatch.setattr(database_of(store), "_begin", begin_after)
    look.execute("BEGIN IMMEDIATE")
    [added] = drive(store.add([PLAIN], actor="p"))
    assert added.id == 2


def test_statement_that_fails_changes_nothing(store: SqlStore, look: sqlite3.Connection) -> None:
    drive(store.add([PLAIN], actor="p"))
    with look:
        look.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON penstock_total"
            " BEGIN SELECT RAISE(ABORT, 'no more'); END"
        )
    with pytest.raises(StoreError, match="no more"):
        drive(store.add([PLAIN], actor="p"))
    assert len(drive(store.find(JobQuery()))) == len(drive(store.log())) == 1
    assert not writing_connection(store).in_transaction
