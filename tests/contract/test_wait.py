import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from penstock.core.job import Retention
from penstock.core.lifecycle import Done, cancel
from penstock.core.queue import QueueSettings
from penstock.core.store import Store
from tests.contract.support import (
    HOUR,
    ManualClock,
    add_one,
    drive,
    move,
    new,
    settle,
    take,
    take_one,
)
from tests.environment import SOON

LONG = 60.0
BRIEF = timedelta(milliseconds=20)


async def current(store: Store) -> int:
    return await store.wait(-1, 0)


async def waiting(store: Store, seen: int) -> "asyncio.Task[int]":
    """A wait that has begun, as far as an event loop can tell."""
    task = asyncio.create_task(store.wait(seen, LONG))
    for _ in range(20):
        await asyncio.sleep(0)
    return task


@pytest.mark.usefixtures("quiet")
async def test_answer_is_the_next_seen(store: Store) -> None:
    seen = await current(store)
    assert await store.wait(seen, 0) == seen
    await add_one(store)
    later = await store.wait(seen, LONG)
    assert later != seen
    assert await store.wait(later, 0) == later


async def test_change_before_the_wait_is_not_lost(store: Store) -> None:
    seen = await current(store)
    await add_one(store)
    async with asyncio.timeout(SOON):
        assert await store.wait(seen, LONG) != seen


@pytest.mark.usefixtures("quiet")
async def test_wait_ends_after_its_timeout(store: Store) -> None:
    seen = await current(store)
    async with asyncio.timeout(SOON):
        assert await store.wait(seen, BRIEF.total_seconds()) == seen


@pytest.mark.usefixtures("quiet")
async def test_jobs_added_in_the_same_loop_end_the_wait(store: Store) -> None:
    seen = await current(store)
    task = await waiting(store, seen)
    assert not task.done()
    await add_one(store)
    async with asyncio.timeout(SOON):
        assert await task != seen


async def test_jobs_added_by_another_thread_end_the_wait(store: Store) -> None:
    seen = await current(store)
    task = await waiting(store, seen)
    thread = threading.Thread(target=lambda: drive(store.add([new()], actor="thread")))
    thread.start()
    async with asyncio.timeout(SOON):
        assert await task != seen
    thread.join()


def test_jobs_added_by_another_thread_end_a_wait_without_event_loop(store: Store) -> None:
    seen = drive(current(store))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: drive(store.wait(seen, LONG)))
        drive(store.add([new()], actor="thread"))
        assert answer.result(SOON) != seen


@pytest.mark.usefixtures("quiet")
def test_wait_without_event_loop_ends_after_its_timeout(store: Store) -> None:
    seen = drive(current(store))
    assert drive(store.wait(seen, BRIEF.total_seconds())) == seen


async def test_every_waiter_is_woken(store: Store) -> None:
    seen = await current(store)
    tasks = [await waiting(store, seen) for _ in range(5)]
    with ThreadPoolExecutor(3) as pool:
        blocked = [pool.submit(lambda: drive(store.wait(seen, LONG))) for _ in range(3)]
        await add_one(store)
        async with asyncio.timeout(SOON):
            answers = await asyncio.gather(*tasks, *map(asyncio.wrap_future, blocked))
    assert seen not in answers


@pytest.mark.parametrize("change", ["settle", "cancel", "pause"])
async def test_other_changes_end_the_wait_too(store: Store, change: str) -> None:
    job = await add_one(store)
    running = await take_one(store)
    seen = await current(store)
    task = await waiting(store, seen)
    if change == "settle":
        await settle(store, running, Done())
    elif change == "cancel":
        await move(store, running, cancel(running))
    else:
        await store.configure(QueueSettings(name=job.queue, paused=True))
    async with asyncio.timeout(SOON):
        assert await task != seen


@pytest.mark.usefixtures("quiet")
async def test_looking_without_finding_wakes_nobody(store: Store, clock: ManualClock) -> None:
    """Else two idle workers would wake each other for ever."""
    await add_one(store, delay=HOUR)
    seen = await current(store)
    assert await take(store) == []
    assert await store.expired(10) == []
    assert await store.renew([]) == []
    assert await store.prune(Retention(), 10) == 0
    assert await store.transition([], actor="w") == []
    assert await store.add([], actor="p") == []
    assert await store.wait(seen, 0) == seen


async def test_wait_ends_when_a_scheduled_job_falls_due(store: Store, clock: ManualClock) -> None:
    await add_one(store, delay=BRIEF)
    seen = await current(store)
    task = await waiting(store, seen)
    clock.advance(BRIEF)
    async with asyncio.timeout(SOON):
        await task
    assert len(await take(store)) == 1


async def test_wait_ends_when_a_pause_does(store: Store, clock: ManualClock) -> None:
    await add_one(store)
    until = clock.now + BRIEF
    await store.configure(QueueSettings(name="default", paused=True, paused_until=until))
    seen = await current(store)
    task = await waiting(store, seen)
    clock.advance(BRIEF)
    async with asyncio.timeout(SOON):
        await task
    assert len(await take(store)) == 1


@pytest.mark.usefixtures("quiet")
async def test_pause_that_is_over_ends_the_wait_only_once(store: Store, clock: ManualClock) -> None:
    until = clock.now + HOUR
    await store.configure(QueueSettings(name="default", paused=True, paused_until=until))
    clock.advance(2 * HOUR)
    seen = await store.wait(await current(store), 0)
    for _ in range(3):
        assert await take(store) == []
        assert await store.wait(seen, 0) == seen


def test_wait_without_event_loop_ends_when_a_scheduled_job_falls_due(
    store: Store, clock: ManualClock
) -> None:
    drive(add_one(store, delay=BRIEF))
    seen = drive(current(store))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: drive(store.wait(seen, LONG)))
        clock.advance(BRIEF)
        answer.result(SOON)
    assert len(drive(take(store))) == 1


async def test_wait_ends_at_once_for_a_job_already_due(store: Store, clock: ManualClock) -> None:
    await add_one(store, delay=HOUR)
    seen = await current(store)
    clock.advance(2 * HOUR)
    async with asyncio.timeout(SOON):
        await store.wait(seen, LONG)


@pytest.mark.usefixtures("quiet")
async def test_due_job_that_nobody_may_take_ends_the_wait_only_once(
    store: Store, clock: ManualClock
) -> None:
    await store.configure(QueueSettings(name="default", paused=True))
    await add_one(store, delay=HOUR)
    clock.advance(2 * HOUR)
    for _ in range(3):
        seen = await current(store)
        assert await take(store) == []
    task = await waiting(store, seen)
    assert not task.done()
    task.cancel()


async def test_retry_that_falls_due_sooner_shortens_a_wait(
    store: Store, clock: ManualClock
) -> None:
    await add_one(store, delay=HOUR)
    seen = await current(store)
    task = await waiting(store, seen)
    await add_one(store, delay=BRIEF)
    async with asyncio.timeout(SOON):
        seen = await task
    task = await waiting(store, seen)
    clock.advance(BRIEF)
    async with asyncio.timeout(SOON):
        await task


async def test_cancelled_wait_disturbs_nobody(store: Store) -> None:
    seen = await current(store)
    gone, stays = await waiting(store, seen), await waiting(store, seen)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await add_one(store)
    async with asyncio.timeout(SOON):
        assert await stays != seen


def test_waiter_whose_loop_is_gone_disturbs_nobody(store: Store) -> None:
    async def abandon() -> None:
        task = await waiting(store, await current(store))
        task.cancel()

    asyncio.run(abandon())
    drive(store.add([new()], actor="p"))


async def test_close_can_be_repeated(store: Store) -> None:
    await add_one(store)
    await store.close()
    await store.close()
