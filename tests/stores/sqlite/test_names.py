"""Names of queues in a file: what a claim costs beside them, and files of earlier versions."""

from pathlib import Path
from typing import Any

import pytest

from penstock.core.store import Clock
from penstock.stores.sqlite import connection as opening
from penstock.stores.sqlite.connection import MIGRATIONS, connect, statements
from penstock.stores.sqlite.store import SqliteStore
from tests.contract.support import ManualClock, drive, everything, ids, new, take


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


@pytest.mark.parametrize("n", [3, 50])
def test_file_of_an_earlier_version_keeps_its_jobs_and_loses_empty_queues(
    n: int, path: Path, clock: ManualClock
) -> None:
    old = connect(path)
    opening._enter_wal(old)
    for number, script in MIGRATIONS:
        if number < 17:
            for statement in statements(script):
                old.execute(statement)
    old.execute("INSERT INTO penstock_meta VALUES ('schema', 16)")
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
