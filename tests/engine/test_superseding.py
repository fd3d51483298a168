"""Superseding jobs: pending jobs of a key that are merged with newer ones."""

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from penstock import InvalidJob, Penstock, State, run_sync
from penstock.jobs import Verdict
from tests.worker.support import work_off


def merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any] | Verdict:
    match old["op"], new["op"]:
        case "create", "delete":
            return Verdict.DROP
        case _, "move":
            return Verdict.KEEP
        case op, "update":
            return {"op": op, "text": new["text"]}
    return new


async def test_pending_jobs_of_a_key_are_merged(app: Penstock) -> None:
    ran: list[tuple[str, str]] = []

    @app.task(key="file", supersede=True, merge=merge)
    async def write(op: str, text: str = "") -> None:
        ran.append((op, text))

    await write.enqueue("create", "a")
    await write.enqueue("update", "b")
    await write.enqueue("update", "c")
    await work_off(app)
    assert ran == [("create", "c")]
    assert {state for _, state, _ in await app.count()} == {State.DONE, State.SUPERSEDED}


async def test_merge_rule_may_drop_both_or_keep_both(app: Penstock) -> None:
    ran: list[str] = []

    @app.task(key="file", supersede=True, merge=merge)
    async def write(op: str, text: str = "") -> None:
        ran.append(op)

    first = await write.enqueue("create", "a")
    undone = await write.enqueue("delete")
    assert (undone.id, undone.state) == (first.id, State.SUPERSEDED)
    await write.enqueue("update", "b")
    await write.enqueue("move")
    await work_off(app)
    assert ran == ["update", "move"]


async def test_without_a_rule_the_newest_wins(app: Penstock) -> None:
    ran: list[int] = []

    @app.task(supersede=True, key="k")
    async def draw(n: int) -> None:
        ran.append(n)

    for n in range(5):
        await draw.enqueue(n)
    await work_off(app)
    assert ran == [4]


async def test_superseding_job_needs_a_key_and_is_enqueued_alone(app: Penstock) -> None:
    @app.task
    async def draw(n: int) -> None: ...

    with pytest.raises(InvalidJob, match="key"):
        await draw.using(supersede=True).enqueue(1)
    alone = draw.using(supersede=True, key="k")
    with pytest.raises(InvalidJob, match="by itself"):
        await app.enqueue_many([alone.new(1), alone.new(2)])


def test_many_producers_leave_one_pending_job(app: Penstock) -> None:
    @app.task(supersede=True, key="k", merge=lambda old, new: {"n": old["n"] + new["n"]})
    async def add(n: int) -> None: ...

    def produce() -> None:
        for _ in range(20):
            run_sync(add.enqueue(1))

    threads = [threading.Thread(target=produce) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [job] = run_sync(app.leases.claim(worker="w", limit=10))
    assert job.args == {"n": 80}
