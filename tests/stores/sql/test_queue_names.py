"""Names of queues in a file: the cost of a claim with many, and files of earlier versions."""

from pathlib import Path
from typing import Any

import pytest

from penstock.core.store import Clock
from penstock.stores.sql.store import SqlStore
from tests.contract.support import drive, new, take
from tests.stores.support import sqlite_store, writing_connection


def steps_of_a_claim(store: SqlStore, **wanted: Any) -> int:
    """How many hundreds of steps SQLite makes for a claim of ten jobs."""
    steps = [0]

    def count() -> int:
        steps[0] += 1
        return 0

    writing = writing_connection(store)
    writing.set_progress_handler(count, 100)
    assert len(drive(take(store, limit=10, **wanted))) == 10
    writing.set_progress_handler(None, 0)
    return steps[0]


@pytest.mark.parametrize("wanted", [{}, {"tags": ("red",)}, {"queues": ("single",)}])
def test_claim_costs_the_same_with_many_queues(
    wanted: dict[str, Any], tmp_path: Path, clock: Clock
) -> None:
    costs = []
    for n in (100, 2_000):
        store = sqlite_store(tmp_path / f"{n}.db", clock)
        drive(store.add([new(queue=f"q-{i}", tags=("red",)) for i in range(n)], actor="p"))
        drive(store.add([new(queue="single")] * 10, actor="p"))
        costs.append(steps_of_a_claim(store, **wanted))
        drive(store.close())
    assert costs[1] <= 1.2 * costs[0] + 5, costs


def test_claim_costs_the_same_with_tenants_in_many_queues(tmp_path: Path, clock: Clock) -> None:
    costs = []
    for n in (200, 2_000):
        store = sqlite_store(tmp_path / f"{n}.db", clock)
        drive(store.add([new(queue=f"q-{i}", tenant=f"t-{i}") for i in range(n)], actor="p"))
        drive(take(store, limit=10))  # moves jobs of the first queues to their own indexes
        costs.append(steps_of_a_claim(store))
        drive(store.close())
    assert costs[1] <= 1.2 * costs[0] + 5, costs


def test_claim_by_tag_costs_the_same_with_many_tags(tmp_path: Path, clock: Clock) -> None:
    costs = []
    for n in (100, 2_000):
        store = sqlite_store(tmp_path / f"{n}.db", clock)
        drive(store.add([new(tags=(f"tag-{i}", "red")) for i in range(n)], actor="p"))
        costs.append(steps_of_a_claim(store, tags=("red",)))
        drive(store.close())
    assert costs[1] <= 1.2 * costs[0] + 5, costs
