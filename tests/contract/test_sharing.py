"""Stores that outlive a process: opened again, or by two at once."""

import asyncio
from collections.abc import Iterator

import pytest

from penstock.core.errors import QueueFull
from penstock.core.job import Retention
from penstock.core.lifecycle import Done
from penstock.core.queue import QueueSettings
from penstock.core.store import Store
from penstock.runtime import Runtime
from penstock.stores import open_store
from tests.contract.support import (
    HOUR,
    ManualClock,
    add,
    add_one,
    drive,
    everything,
    ids,
    new,
    settle,
    take,
    take_one,
    totals,
)
from tests.environment import SOON


@pytest.fixture
def pair(shared_url: str, clock: ManualClock) -> Iterator[tuple[Store, Store]]:
    stores = (
        open_store(shared_url, runtime=Runtime(clock)),
        open_store(shared_url, runtime=Runtime(clock)),
    )
    yield stores
    for store in stores:
        drive(store.close())


async def test_acknowledged_jobs_are_there_when_the_store_is_opened_again(
    lasting_url: str, clock: ManualClock
) -> None:
    store = open_store(lasting_url, runtime=Runtime(clock))
    await add(store, new(key="k"), new(key="k"), new(delay=HOUR), new(tags=("x",)))
    await take(store, limit=2)
    await store.configure(QueueSettings(name="default", max_pending=9))
    before = await everything(store), await store.log(), await totals(store), await store.queues()
    await store.close()
    store = open_store(lasting_url, runtime=Runtime(clock))
    assert before == (
        await everything(store),
        await store.log(),
        await totals(store),
        await store.queues(),
    )
    await store.close()


async def test_ids_and_tokens_grow_on_after_everything_was_removed(
    lasting_url: str, clock: ManualClock
) -> None:
    store = open_store(lasting_url, runtime=Runtime(clock))
    await add_one(store)
    ended = await settle(store, await take_one(store), Done())
    clock.advance(48 * HOUR)
    assert await store.prune(Retention(), 10) == 1
    await store.close()
    store = open_store(lasting_url, runtime=Runtime(clock))
    fresh = await add_one(store)
    assert fresh.id > ended.id
    assert (await take_one(store)).token > fresh.version > ended.version
    await store.close()


async def test_two_that_remove_whole_days_at_once_remove_each_job_once(
    pair: tuple[Store, Store], clock: ManualClock
) -> None:
    retention = Retention(finished=HOUR, failed=HOUR)
    for _ in range(20):
        await add(pair[0], new(), new())
        for job in await take(pair[0]):
            await settle(pair[0], job, Done())
        clock.advance(48 * HOUR)
        removed = await asyncio.gather(
            *[store.prune(retention, 100, whole_days=True) for store in pair]
        )
        assert sum(removed) == 2
    assert await everything(pair[0]) == []
    assert sum((await totals(pair[0])).values()) == 0


async def test_two_openers_see_one_store(pair: tuple[Store, Store]) -> None:
    one, other = pair
    job = await add_one(one, dedupe="d")
    assert (await add_one(other, dedupe="d")).id == job.id
    running = await take_one(other)
    assert await take(one) == []
    assert await one.get([job.id]) == [running]
    await settle(one, running, Done())
    assert await totals(other) == await totals(one)


async def test_settings_are_obeyed_by_every_opener(pair: tuple[Store, Store]) -> None:
    one, other = pair
    await add_one(one)
    await one.configure(QueueSettings(name="default", paused=True, max_pending=1))
    assert await take(other) == []
    with pytest.raises(QueueFull):
        await add_one(other)


async def test_openers_share_the_work_without_overlap(pair: tuple[Store, Store]) -> None:
    async def work(store: Store) -> list[int]:
        given: list[int] = []
        while batch := await take(store, limit=3):
            given += ids(batch)
        return given

    added = [job for store in pair for job in await add(store, *[new()] * 50)]
    one, other = await asyncio.gather(*map(work, pair))
    assert sorted(one + other) == ids(added)


async def test_change_by_another_opener_ends_the_wait(pair: tuple[Store, Store]) -> None:
    one, other = pair
    seen = await one.wait(-1, 0)
    task = asyncio.create_task(one.wait(seen, 60))
    await add_one(other)
    async with asyncio.timeout(SOON):
        assert await task != seen


def test_change_by_another_opener_ends_a_wait_without_event_loop(
    pair: tuple[Store, Store],
) -> None:
    one, other = pair
    seen = drive(one.wait(-1, 0))
    drive(add_one(other))
    assert drive(one.wait(seen, SOON)) != seen
