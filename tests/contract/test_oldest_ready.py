"""How long the oldest ready job of each queue has been due."""

from datetime import datetime

from penstock.core.lifecycle import Done, Failed, reprioritise
from penstock.core.limits import Limit
from penstock.core.queue import QueueSettings
from penstock.core.store import Store
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    move,
    new,
    settle,
    take,
    take_one,
)


async def oldest(store: Store) -> datetime | None:
    return (await store.oldest_ready()).get("default")


async def test_each_queue_tells_since_when_its_oldest_ready_job_is_due(
    store: Store, clock: ManualClock
) -> None:
    assert await store.oldest_ready() == {}
    start = clock.now
    await add_one(store)
    clock.advance(SECOND)
    await add(store, new(), new(queue="other"))
    assert await store.oldest_ready() == {"default": start, "other": start + SECOND}
    await settle(store, await take_one(store, queues=("default",)), Done())
    assert await oldest(store) == start + SECOND
    await take(store)
    assert await store.oldest_ready() == {}


async def test_priority_does_not_hide_an_older_job(store: Store, clock: ManualClock) -> None:
    start = clock.now
    low = await add_one(store, priority=0)
    for priority in range(1, 11):
        clock.advance(SECOND)
        await add_one(store, priority=priority)
    assert await oldest(store) == start
    await move(store, low, reprioritise(low, 10))
    assert await oldest(store) == start
    await take(store, limit=2)  # both of the highest priority
    assert await oldest(store) == start + SECOND


async def test_what_is_not_ready_does_not_count(store: Store, clock: ManualClock) -> None:
    start = clock.now
    first = await add_one(store, key="k", priority=9)
    clock.advance(SECOND)
    await add(store, new(key="k"), new(after=(first.id,)), new(delay=HOUR))
    assert await oldest(store) == start
    await take_one(store)
    assert await oldest(store) is None


async def test_job_is_as_old_as_the_time_since_it_fell_due(
    store: Store, clock: ManualClock
) -> None:
    start = clock.now
    await add(store, new(delay=HOUR), new(delay=2 * HOUR))
    assert await oldest(store) is None
    clock.advance(3 * HOUR)
    assert await oldest(store) == start + HOUR
    failed = await settle(store, await take_one(store), Failed("boom"))
    assert await oldest(store) == start + 2 * HOUR
    await take_one(store)
    clock.advance(HOUR)
    assert await oldest(store) == failed.run_at


async def test_jobs_of_all_tenants_count(store: Store, clock: ManualClock) -> None:
    start = clock.now
    await add_one(store, tenant="b", priority=3)
    for n, tenant in enumerate(("a", "c", None), start=1):
        clock.advance(SECOND)
        await add_one(store, tenant=tenant, priority=3 + n)
    assert await oldest(store) == start
    await take(store)
    assert await oldest(store) is None


async def test_what_a_pause_or_a_limit_holds_counts(store: Store, clock: ManualClock) -> None:
    await store.limit(Limit(kind="task", name="t", concurrency=1))
    start = clock.now
    await add(store, new(priority=9), new(priority=2, tenant="a"), new(priority=1))
    clock.advance(SECOND)
    await add(store, new(task="free"))
    assert len(await take(store)) == 2  # one of the task, and the free one
    assert await oldest(store) == start
    await store.configure(QueueSettings(name="default", paused=True))
    assert await oldest(store) == start
