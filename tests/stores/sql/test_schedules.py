"""Firing a schedule is one transaction, and looking for what is due reads only that."""

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.core.errors import StoreError
from penstock.core.job import NewJob
from penstock.core.schedule import Rhythm, Schedule, plan
from penstock.stores.sql.store import SqlStore
from penstock.stores.sqlite.schema import prepared
from penstock.stores.sqlite.transaction import SQL
from tests.contract.support import HOUR, ManualClock, drive, everything, totals


@pytest.mark.parametrize(
    ("write", "table"),
    [
        ("INSERT", "penstock_queue"),
        ("UPDATE", "penstock_meta"),
        ("UPDATE", "penstock_schedule"),
        ("INSERT", "penstock_job"),
        ("INSERT", "penstock_payload"),
        ("INSERT", "penstock_log"),
        ("INSERT", "penstock_total"),
        ("UPDATE", "penstock_log"),
    ],
)
def test_firing_that_fails_at_any_write_changes_nothing(
    store: SqlStore, path: Path, clock: ManualClock, write: str, table: str
) -> None:
    job, every = NewJob(task="t", payload="{}", queue="q"), Rhythm(every=HOUR)
    first = clock.now + HOUR
    schedule = drive(
        store.put_schedule(Schedule(name="s", job=job, rhythm=every, next=first, overlap=False))
    )
    assert schedule is not None
    clock.advance(HOUR + timedelta(seconds=1))
    firing = plan(schedule, clock.now)
    with closing(sqlite3.connect(path)) as other:
        other.execute(
            f"CREATE TRIGGER broken BEFORE {write} ON {table} "
            "BEGIN SELECT RAISE(ABORT, 'broken'); END"
        )
        with pytest.raises(StoreError, match="broken"):
            drive(store.fire(firing, actor="w"))
        assert drive(store.schedules()) == [schedule]
        assert drive(everything(store)) == []
        assert drive(totals(store)) == {}
        assert drive(store.log()) == []
        other.execute("DROP TRIGGER broken")
    assert drive(store.fire(firing, actor="w")) == drive(everything(store))
    assert len(drive(everything(store))) == 1


@pytest.mark.parametrize("query", ["due_schedules", "next_schedule"])
def test_due_schedules_come_in_order_from_their_index(path: Path, query: str) -> None:
    with closing(prepared(path, create=True)) as connection:
        parameters = [None] * (4 if query == "due_schedules" else 3)
        found = connection.execute(f"EXPLAIN QUERY PLAN {SQL[query]}", parameters).fetchall()
    steps = [detail for *_, detail in found]
    assert any("USING INDEX penstock_schedule_next (next_at" in step for step in steps), steps
    assert not [step for step in steps if "TEMP B-TREE" in step], steps
