"""Names of queues in a file: what a claim costs beside them, and files of earlier versions."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.core.store import Clock
from penstock.stores.sqlite import connection as opening
from penstock.stores.sqlite.connection import MIGRATIONS, connect, statements
from penstock.stores.sqlite.store import SqliteStore
from tests.contract.support import ManualClock, drive, everything, ids, new, retry_all, take


def steps_of_a_claim(store: SqliteStore, **wanted: Any) -> int:
    """How many hundreds of steps SQLite makes for a claim of ten jobs."""
    steps = [0]

    def count() -> int:
        steps[0] += 1
        return 0

    writing = store._writer._connection
    writing.set_progress_handler(count, 100)
    assert len(drive(take(store, limit=10, **wanted))) == 10
    writing.set_progress_handler(None, 0)
    return steps[0]


@pytest.mark.parametrize("wanted", [{}, {"tags": ("red",)}, {"queues": ("single",)}])
def test_claim_costs_the_same_beside_many_queues(
    wanted: dict[str, Any], tmp_path: Path, clock: Clock
) -> None:
    costs = []
    for n in (100, 2_000):
        store = SqliteStore(tmp_path / f"{n}.db", clock)
        drive(store.add([new(queue=f"q-{i}", tags=("red",)) for i in range(n)], actor="p"))
        drive(store.add([new(queue="single")] * 10, actor="p"))
        costs.append(steps_of_a_claim(store, **wanted))
        drive(store.close())
    assert costs[1] <= 1.2 * costs[0] + 5, costs


def test_claim_by_tag_costs_the_same_beside_many_tags(tmp_path: Path, clock: Clock) -> None:
    costs = []
    for n in (100, 2_000):
        store = SqliteStore(tmp_path / f"{n}.db", clock)
        drive(store.add([new(tags=(f"tag-{i}", "red")) for i in range(n)], actor="p"))
        costs.append(steps_of_a_claim(store, tags=("red",)))
        drive(store.close())
    assert costs[1] <= 1.2 * costs[0] + 5, costs


def before_names(path: Path) -> sqlite3.Connection:
    """A file of the last version in which each queue had a line of its own."""
    old = connect(path)
    opening._enter_wal(old)
    for number, script in MIGRATIONS:
        if number < 17:
            for statement in statements(script):
                old.execute(statement)
    old.execute("INSERT INTO penstock_meta VALUES ('schema', 16)")
    return old


@pytest.mark.parametrize("n", [3, 50])
def test_file_of_an_earlier_version_keeps_its_jobs_and_loses_empty_queues(
    n: int, path: Path, clock: ManualClock
) -> None:
    old = before_names(path)
    for i in range(n):
        old.execute(
            "INSERT INTO penstock_add (queue, task, body, priority, at) "
            "VALUES (?, 't', '{}', ?, 1)",
            (f"q-{i}", i % 3),
        )
    old.execute("INSERT INTO penstock_queue (name) VALUES ('stale')")
    old.execute("INSERT INTO penstock_queue (name, max_pending) VALUES ('limited', 5)")
    old.execute("INSERT INTO penstock_total VALUES ('stale', 4, 0)")
    old.close()
    store = SqliteStore(path, clock)
    names = {queue.name for queue in drive(store.queues())}
    assert names == {"limited", *(f"q-{i}" for i in range(n))}
    expected = sorted(drive(everything(store)), key=lambda job: (-job.priority, job.id))
    assert ids(drive(take(store))) == ids(expected)
    drive(store.close())


def failed_before(path: Path, jobs: Sequence[tuple[str, str | None]], clock: ManualClock) -> None:
    """Jobs of these queues and tenants, all of which have failed in a file of that version."""
    old = before_names(path)
    for queue, tenant in jobs:
        old.execute(
            "INSERT INTO penstock_add (queue, task, body, tenant, at) VALUES (?, 't', '{}', ?, ?)",
            (queue, tenant, clock()),
        )
    old.execute("UPDATE penstock_job SET stage = 5, finished_at = ?", (clock(),))
    old.execute("UPDATE penstock_total SET stage = 5")
    old.close()


def test_jobs_that_failed_before_the_upgrade_run_when_retried(
    path: Path, clock: ManualClock
) -> None:
    failed_before(path, [(f"q-{i}", None) for i in range(40)], clock)
    store = SqliteStore(path, clock)
    retried = drive(retry_all(store))
    assert ids(drive(take(store))) == ids(retried)
    drive(store.close())


def test_tenants_whose_jobs_failed_before_the_upgrade_take_turns_when_retried(
    path: Path, clock: ManualClock
) -> None:
    others: list[tuple[str, str | None]] = [(f"q-{i}", None) for i in range(40)]
    failed_before(path, [*others, *(("shared", tenant) for tenant in "aaabb")], clock)
    store = SqliteStore(path, clock)
    drive(retry_all(store))
    found = [job.tenant for job in drive(take(store)) if job.queue == "shared"]
    assert {*found[:2]} == {*found[2:4]} == {"a", "b"}
    drive(store.close())
