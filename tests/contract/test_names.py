"""Queues by the hundred: what names cost, when they go, and how many there may be."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from penstock.core.errors import QueueInUse, TooManyQueues
from penstock.core.job import Retention
from penstock.core.lifecycle import Done, Failed, cancel, reset
from penstock.core.limits import Limit
from penstock.core.queue import QueueSettings
from penstock.core.store import Store
from penstock.stores import open_store
from tests.contract.support import (
    HOUR,
    ManualClock,
    add,
    add_one,
    drive,
    ids,
    move,
    new,
    settle,
    take,
)

MANY = 80
"""More than have lines of their own, on the stores where that makes a difference."""
KEEP = Retention(finished=HOUR, failed=HOUR)


def name_of(n: int) -> str:
    return f"queue-{n:03}"


async def names(store: Store) -> list[str]:
    return [queue.name for queue in await store.queues()]


async def limit_names(store: Store, most: int | None) -> None:
    await store.limit(Limit(kind="queues", name="", concurrency=most))


# The order


async def test_jobs_of_many_queues_start_in_one_order(store: Store, clock: ManualClock) -> None:
    added = []
    for n in range(MANY):
        clock.advance(timedelta(seconds=1))
        added.append(await add_one(store, queue=name_of(n * 7 % MANY), priority=n % 3))
    expected = sorted(added, key=lambda job: (-job.priority, job.run_at, job.id))
    found = []
    while jobs := await take(store, limit=7):
        found += jobs
    assert ids(found) == ids(expected)


async def test_job_of_a_queue_with_a_line_comes_between_those_of_others(store: Store) -> None:
    await add(store, *(new(queue=name_of(n)) for n in range(MANY)))
    first = await add_one(store, queue=name_of(0), priority=9)
    later = await add_one(store, queue=name_of(MANY - 1), priority=8)
    assert ids(await take(store, limit=2)) == ids([first, later])


async def test_paused_queue_among_many_starts_nothing(store: Store) -> None:
    jobs = await add(store, *(new(queue=name_of(n)) for n in range(MANY)))
    await store.configure(QueueSettings(name=name_of(MANY - 1), paused=True))
    await store.configure(QueueSettings(name=name_of(1), paused=True))
    assert ids(await take(store)) == ids([jobs[0], *jobs[2:-1]])
    await store.configure(QueueSettings(name=name_of(MANY - 1), paused=False))
    assert ids(await take(store)) == [jobs[-1].id]


async def test_limited_queue_among_many_keeps_its_limit(store: Store) -> None:
    await add(store, *(new(queue=name_of(n)) for n in range(MANY)))
    last = name_of(MANY - 1)
    await add(store, new(queue=last), new(queue=last))
    await store.configure(QueueSettings(name=last, concurrency=1))
    running = await take(store, limit=2 * MANY)
    assert len(running) == MANY
    await settle(store, next(job for job in running if job.queue == last), Done())
    assert [job.queue for job in await take(store)] == [last]


async def test_worker_that_names_one_of_many_gets_its_jobs_alone(store: Store) -> None:
    jobs = await add(store, *(new(queue=name_of(n)) for n in range(MANY)))
    assert ids(await take(store, queues=(name_of(MANY - 2),))) == [jobs[-2].id]
    assert await take(store, queues=(name_of(MANY - 2),)) == []


async def test_worker_that_leaves_out_one_of_many_gets_the_others(store: Store) -> None:
    jobs = await add(store, *(new(queue=name_of(n)) for n in range(MANY)))
    besides = frozenset({name_of(0), name_of(MANY - 1)})
    assert ids(await take(store, except_queues=besides)) == ids(jobs[1:-1])
    assert ids(await take(store)) == ids([jobs[0], jobs[-1]])


async def test_tags_are_found_in_many_queues(store: Store) -> None:
    jobs = await add(store, *(new(queue=name_of(n), tags=("red", f"tag-{n}")) for n in range(MANY)))
    assert ids(await take(store, tags=(f"tag-{MANY - 3}", "tag-2"))) == ids([jobs[2], jobs[-3]])
    red = [job for n, job in enumerate(jobs) if n not in {2, MANY - 3}]
    assert ids(await take(store, tags=("red",))) == ids(red)


async def test_tenants_take_turns_in_one_of_many_queues(store: Store) -> None:
    await add(store, *(new(queue=name_of(n)) for n in range(MANY)))
    await take(store)
    last = name_of(MANY - 1)
    await add(
        store,
        new(queue=last),
        *(new(queue=last, tenant="a") for _ in range(2)),
        *(new(queue=last, tenant="b") for _ in range(2)),
    )
    turns = [job.tenant for job in await take(store)]
    assert {*turns[:3]} == {"a", "b", None}
    assert {*turns[3:]} == {"a", "b"}


async def test_tenants_of_hundreds_of_queues_start_by_priority_and_take_turns_where_named(
    store: Store,
) -> None:
    queues = [name_of(n) for n in range(3 * MANY)]
    for tenant, priority in (("a", 1), ("a", 1), ("b", 1), ("a", 7)):
        await add(store, *(new(queue=q, tenant=tenant, priority=priority) for q in queues))
    last = await take(store, queues=queues[-1:])
    assert [job.tenant for job in last[:3]] == ["a", "a", "b"]  # the first has a higher priority
    assert [job.tenant for job in last[3:]] == ["a"]
    found = []
    while jobs := await take(store, limit=100):
        found += jobs
    assert [job.priority for job in found] == [7] * (len(queues) - 1) + [1] * 3 * (len(queues) - 1)
    assert len({job.id for job in found}) == len(found)


async def test_throttle_holds_jobs_of_many_queues(store: Store) -> None:
    jobs = await add(store, *(new(queue=name_of(n), throttle="host") for n in range(MANY)))
    assert ids(await take(store)) == [jobs[0].id]
    assert await take(store) == []
    await settle(store, (await store.get([jobs[0].id]))[0], Done())
    assert ids(await take(store, queues=(name_of(MANY - 1),))) == [jobs[-1].id]
    await settle(store, (await store.get([jobs[-1].id]))[0], Done())
    assert ids(await take(store)) == [jobs[1].id]


async def test_jobs_of_many_queues_come_back_after_a_failure(
    store: Store, clock: ManualClock
) -> None:
    jobs = await add(store, *(new(queue=name_of(n)) for n in range(MANY)))
    for job in await take(store):
        await settle(store, job, Failed("no"))
    assert await take(store) == []
    clock.advance(HOUR)
    assert sorted(ids(await take(store))) == ids(jobs)


async def test_finished_jobs_of_many_queues_run_again_when_reset(store: Store) -> None:
    jobs = await add(store, *(new(queue=name_of(n)) for n in range(MANY)))
    for job in await take(store):
        failed = await settle(store, job, Failed("no", permanent=True))
        await move(store, failed, reset(failed))
    assert sorted(ids(await take(store))) == ids(jobs)


# When they go


async def test_queue_goes_when_its_last_job_is_deleted(store: Store) -> None:
    one, two = await add(store, new(queue="q"), new(queue="q"))
    await add_one(store, queue="other")
    gone = [await move(store, job, cancel(job)) for job in (one, two)]
    await store.delete(gone[:1])
    assert await names(store) == ["other", "q"]
    await store.delete(gone[1:])
    assert await names(store) == ["other"]
    assert not any(queue == "q" for queue, _, _ in await store.count())


async def test_queue_comes_back_with_its_next_job(store: Store) -> None:
    job = await add_one(store, queue="q", tenant="t")
    await store.delete([await move(store, job, cancel(job))])
    again = await add_one(store, queue="q")
    assert await names(store) == ["q"]
    assert ids(await take(store)) == [again.id]


async def test_hundreds_of_queues_are_gone_after_their_jobs(
    store: Store, clock: ManualClock
) -> None:
    await add(store, *(new(queue=name_of(n)) for n in range(MANY)))
    for job in await take(store, limit=MANY):
        await settle(store, job, Done())
    clock.advance(2 * HOUR)
    assert await store.prune(KEEP, MANY + 1) == MANY
    assert await names(store) == []
    assert await store.count() == {}


async def test_configured_queue_stays_without_jobs(store: Store, clock: ManualClock) -> None:
    await store.configure(QueueSettings(name="limited", max_pending=5))
    await store.configure(QueueSettings(name="paused", paused=True))
    await store.configure(QueueSettings(name="soon", paused=True, paused_until=clock.now + HOUR))
    jobs = await add(store, *(new(queue=name) for name in ("limited", "paused", "soon")))
    gone = [await move(store, job, cancel(job)) for job in jobs]
    await store.delete(gone)
    assert await names(store) == ["limited", "paused", "soon"]


async def test_queue_goes_with_its_last_setting(store: Store) -> None:
    await store.configure(QueueSettings(name="q", concurrency=2))
    await store.configure(QueueSettings(name="q", paused=True))
    await store.configure(QueueSettings(name="q", concurrency=None))
    assert await names(store) == ["q"]
    await store.configure(QueueSettings(name="q", paused=False))
    assert await names(store) == []


async def test_configured_queue_is_removed_when_asked(store: Store) -> None:
    await store.configure(QueueSettings(name="q", max_pending=5, paused=True))
    assert await store.remove_queue("q")
    assert await names(store) == []
    assert not await store.remove_queue("q")


async def test_queue_with_unfinished_jobs_is_not_removed(store: Store) -> None:
    await store.configure(QueueSettings(name="q", paused=True))
    job = await add_one(store, queue="q")
    with pytest.raises(QueueInUse, match="1 unfinished"):
        await store.remove_queue("q")
    assert [queue.paused for queue in await store.queues()] == [True]
    ended = await move(store, job, cancel(job))
    assert await store.remove_queue("q")
    assert [queue.paused for queue in await store.queues()] == [False]  # its job is still there
    await store.delete([ended])
    assert await names(store) == []


# How many there may be


async def test_job_of_one_queue_too_many_is_refused(store: Store) -> None:
    await limit_names(store, 2)
    await add(store, new(queue="a"), new(queue="b"))
    with pytest.raises(TooManyQueues, match="limit of 2") as refused:
        await add(store, new(queue="a"), new(queue="c"))
    assert refused.value.limit == 2
    assert await names(store) == ["a", "b"]
    assert len(await take(store)) == 2  # nothing of that call was stored
    await add_one(store, queue="b")


async def test_queues_of_one_call_count_together(store: Store) -> None:
    await limit_names(store, 2)
    with pytest.raises(TooManyQueues):
        await add(store, *(new(queue=name) for name in "abc"))
    assert await names(store) == []
    await add(store, *(new(queue=name) for name in "abab"))


async def test_limit_of_names_counts_configured_queues(store: Store) -> None:
    await limit_names(store, 1)
    await store.configure(QueueSettings(name="a", paused=True))
    with pytest.raises(TooManyQueues):
        await store.configure(QueueSettings(name="b", paused=True))
    await store.configure(QueueSettings(name="a", max_pending=1))
    assert await names(store) == ["a"]


async def test_queue_that_went_makes_room(store: Store) -> None:
    await limit_names(store, 1)
    job = await add_one(store, queue="a")
    await store.delete([await move(store, job, cancel(job))])
    await add_one(store, queue="b")
    assert await names(store) == ["b"]


async def test_higher_limit_of_names_lets_more_in(store: Store) -> None:
    await limit_names(store, 1)
    await add_one(store, queue="a")
    await limit_names(store, None)
    await add_one(store, queue="b")
    await limit_names(store, 1)  # those that are there stay
    assert await names(store) == ["a", "b"]
    assert len(await take(store)) == 2


def test_limit_of_names_holds_under_concurrent_producers(shared_url: str) -> None:
    stores = [open_store(shared_url) for _ in range(3)]
    drive(limit_names(stores[0], 10))

    def produce(n: int) -> int:
        refused = 0
        for job in range(12):
            try:
                drive(add(stores[n], new(queue=f"{job % 4}-{n}-{job}")))
            except TooManyQueues:
                refused += 1
        return refused

    with ThreadPoolExecutor(3) as threads:
        refused = sum(threads.map(produce, range(3)))
    assert len(drive(stores[0].queues())) == 10
    assert refused == 3 * 12 - 10
    for store in stores:
        drive(store.close())


def test_jobs_that_come_while_queues_go_are_kept(shared_url: str) -> None:
    """With few names, again and again: enqueued jobs are found, whatever removes their queue."""
    stores = [open_store(shared_url) for _ in range(2)]

    def produce() -> list[int]:
        return [drive(add_one(stores[0], queue=f"q-{n % 2}")).id for n in range(60)]

    async def work(found: list[int]) -> None:
        for job in await take(stores[1]):
            found.append(job.id)
            await stores[1].delete([await settle(stores[1], job, Done())])

    found: list[int] = []
    with ThreadPoolExecutor(1) as threads:
        producing = threads.submit(produce)
        while not producing.done():
            drive(work(found))
    drive(work(found))
    assert sorted(found) == producing.result()
    assert drive(stores[0].queues()) == []
    for store in stores:
        drive(store.close())
