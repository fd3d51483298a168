"""Jobs whose queue gets a line of its own while limits hold them, or while they are finished."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.job import Job
from penstock.core.lifecycle import Done, Failed, reset
from penstock.core.limits import Limit
from penstock.core.queue import QueueSettings
from penstock.core.store import Store
from tests.contract.support import (
    HOUR,
    MERGED,
    STORES,
    ManualClock,
    add,
    add_one,
    drive,
    ids,
    look,
    move,
    new,
    open_named,
    settle,
    take,
    take_one,
)

MANY = 40
"""More queues than have lines of their own in a store as it comes."""
PILE = 2500
"""More jobs than follow their queue at once."""
WORKERS: dict[str, dict[str, Any]] = {"all": {}, "named": {"queues": ("q",)}}


@pytest.fixture(params=[*STORES, *MERGED])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    """Every store in turn; also those in which every queue begins without a line of its own."""
    opened = open_named(request.param, tmp_path, clock)
    yield opened
    drive(opened.close())


@pytest.fixture(params=WORKERS)
def worker(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A worker on all queues, and one on the queue alone."""
    return WORKERS[request.param]


async def limit_task(store: Store, concurrency: int | None) -> None:
    await store.limit(Limit(kind="task", name="t", concurrency=concurrency))


async def run_all(store: Store, wanted: dict[str, Any]) -> list[int]:
    """Claim and finish until nothing comes any more; which jobs those were."""
    found: list[int] = []
    empty = 0
    while empty < 3:  # a claim may be empty while jobs follow their queue
        jobs = await take(store, **wanted)
        empty = 0 if jobs else empty + 1
        for job in jobs:
            found.append(job.id)
            await settle(store, job, Done())
    return sorted(found)


async def hold(store: Store, queue: str = "q") -> tuple[Job, list[int]]:
    """Start one of three jobs, so that a limit holds the others."""
    await limit_task(store, 1)
    jobs = await add(store, *(new(queue=queue) for _ in range(3)))
    running = await take_one(store)
    assert await take(store) == []
    assert running.id == jobs[0].id
    return running, ids(jobs[1:])


# Held jobs


async def test_held_jobs_of_a_queue_that_is_configured_run(
    store: Store, worker: dict[str, Any]
) -> None:
    running, held = await hold(store)
    await store.configure(QueueSettings(name="q", concurrency=50))
    await settle(store, running, Done())
    assert await run_all(store, worker) == held


async def test_held_jobs_of_a_configured_queue_run_along_with_another_queue(
    store: Store, worker: dict[str, Any]
) -> None:
    await add_one(store, queue="other", task="u", delay=HOUR)
    running, held = await hold(store)
    await store.configure(QueueSettings(name="q", concurrency=50))
    await settle(store, running, Done())
    assert await run_all(store, worker) == held


async def test_held_jobs_of_a_queue_that_was_paused_run(
    store: Store, worker: dict[str, Any]
) -> None:
    running, held = await hold(store)
    await store.configure(QueueSettings(name="q", paused=True))
    await store.configure(QueueSettings(name="q", paused=False))
    await limit_task(store, None)
    await settle(store, running, Done())
    assert await run_all(store, worker) == held


async def test_held_jobs_of_a_queue_that_gets_a_tenant_run(
    store: Store, worker: dict[str, Any]
) -> None:
    running, held = await hold(store)
    other = await add_one(store, queue="q", tenant="a", task="u")
    await settle(store, running, Done())
    assert await run_all(store, worker) == [*held, other.id]


async def test_jobs_that_a_throttle_holds_run_along_with_a_tenant(
    store: Store, worker: dict[str, Any]
) -> None:
    jobs = await add(store, *(new(queue="q", throttle="host") for _ in range(4)))
    running = await take_one(store)
    assert await take(store) == []
    other = await add_one(store, queue="q", tenant="a", task="u")
    await settle(store, running, Done())
    assert await run_all(store, worker) == [*ids(jobs[1:]), other.id]


async def test_held_jobs_of_one_of_many_queues_run_once_it_is_configured(store: Store) -> None:
    await add(store, *(new(queue=f"q-{n:02}", task="u", delay=HOUR) for n in range(MANY)))
    last = f"q-{MANY - 1:02}"
    running, held = await hold(store, last)
    await store.configure(QueueSettings(name=last, concurrency=50))
    await settle(store, running, Done())
    assert await run_all(store, {"queues": (last,)}) == held


async def test_tenant_and_plain_job_of_one_call_run(store: Store, worker: dict[str, Any]) -> None:
    await limit_task(store, 1)
    await add_one(store, queue="q")
    running = await take_one(store)
    jobs = await add(store, new(queue="q"), new(queue="q", tenant="a"))
    assert await take(store) == []
    await settle(store, running, Done())
    assert await run_all(store, worker) == ids(jobs)


async def test_jobs_that_were_retried_after_their_queue_was_configured_run(
    store: Store, worker: dict[str, Any]
) -> None:
    jobs = await add(store, new(queue="q"), new(queue="q"))
    for job in await take(store):
        await settle(store, job, Failed("no", permanent=True))
    await store.configure(QueueSettings(name="q", concurrency=50))
    assert await take(store) == []
    await limit_task(store, 1)
    for job in jobs:
        failed = await look(store, job)
        await move(store, failed, reset(failed))
    running = await take_one(store, **worker)
    assert await take(store, **worker) == []
    await settle(store, running, Done())
    [left] = {*ids(jobs)} - {running.id}
    assert await run_all(store, worker) == [left]


# Held jobs in numbers


async def pile_up(store: Store, *queues: str) -> tuple[Job, list[Job]]:
    """Hold many jobs of the first queue and one of each other; the one that runs, and those."""
    await limit_task(store, 1)
    await add(store, *(new(queue=queues[0]) for _ in range(PILE)))
    others = [await add_one(store, queue=queue) for queue in queues[1:]]
    running = await take_one(store)
    assert await take(store) == []
    return running, others


async def test_many_held_jobs_are_found_by_a_worker_that_names_their_queue(store: Store) -> None:
    running, _ = await pile_up(store, "q")
    await limit_task(store, None)
    await settle(store, running, Done())
    found = 0
    for _ in range(2 * PILE // 500 + 2):
        found += len(await take(store, limit=500, queues=("q",)))
    assert found == PILE - 1


async def test_pile_of_a_configured_queue_delays_no_worker_of_another(store: Store) -> None:
    running, others = await pile_up(store, "q", "other")
    await store.configure(QueueSettings(name="q", concurrency=50))
    await settle(store, running, Done())
    assert ids(await take(store, queues=("other",))) == ids(others)


async def test_pile_of_a_queue_that_is_left_out_delays_no_other(store: Store) -> None:
    running, others = await pile_up(store, "q", "other")
    await settle(store, running, Done())
    assert ids(await take(store, except_queues=frozenset({"q"}))) == ids(others)


async def test_pile_of_a_paused_queue_delays_no_other(store: Store) -> None:
    running, others = await pile_up(store, "q", "other")
    await store.configure(QueueSettings(name="q", paused=True))
    await settle(store, running, Done())
    assert ids(await take(store)) == ids(others)
