"""Pausing, limiting and draining queues."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    ConfigurationError,
    InvalidJob,
    Penstock,
    QueueFull,
)
from penstock.leases import Done
from penstock.queues import Queue, QueueQuery
from tests.contract.support import SECOND, ManualClock, new
from tests.engine.support import LONG, add_one, claim_one
from tests.environment import SOON


async def test_paused_queue_gives_nothing_until_it_is_resumed(app: Penstock) -> None:
    await add_one(app)
    assert (await app.queues.pause("default")).paused
    assert await app.leases.claim(worker="w") == []
    assert not (await app.queues.resume("default")).paused
    assert len(await app.leases.claim(worker="w")) == 1


async def test_pause_with_a_duration_ends_by_itself(app: Penstock, clock: ManualClock) -> None:
    job = await add_one(app)
    paused = await app.queues.pause("default", duration=10 * SECOND)
    assert paused.paused_until == clock.now + 10 * SECOND
    assert (await app.explain(job.id)).text == (
        "queue 'default' is paused until 2030-01-01 00:00:10 UTC; resume it to start its jobs"
    )
    clock.advance(9 * SECOND)
    await app.queues.pause("default", duration=10 * SECOND)
    clock.advance(9 * SECOND)
    assert await app.leases.claim(worker="w") == []
    clock.advance(SECOND)
    assert (await app.explain(job.id)).reason == "ready"
    assert not any(queue.paused for queue in await app.queues.list())
    assert len(await app.leases.claim(worker="w")) == 1


@pytest.mark.parametrize("duration", [timedelta(0), -SECOND, timedelta.max, 5])
async def test_duration_of_a_pause_is_checked(app: Penstock, duration: Any) -> None:
    with pytest.raises(InvalidJob, match="duration"):
        await app.queues.pause("default", duration=duration)


async def test_limit_is_kept_until_it_is_lifted(app: Penstock) -> None:
    assert (await app.limits.queue("default", 1)).max_pending == 1
    await add_one(app)
    with pytest.raises(QueueFull) as full:
        await add_one(app)
    assert (full.value.queue, full.value.limit) == ("default", 1)
    await app.leases.claim(worker="w")
    await add_one(app)
    await app.limits.queue("default", None)
    await add_one(app)
    assert len(await app.find()) == 3


async def test_pause_and_limit_leave_each_other_alone(app: Penstock) -> None:
    await app.limits.queue("q", 5)
    await app.queues.pause("q")
    [queue] = await app.queues.list()
    assert (queue.name, queue.paused, queue.max_pending) == ("q", True, 5)


async def test_limit_of_zero_takes_nothing(app: Penstock) -> None:
    await app.limits.queue("default", 0)
    with pytest.raises(QueueFull):
        await add_one(app)


async def test_negative_limit_is_refused(app: Penstock) -> None:
    with pytest.raises(ConfigurationError):
        await app.limits.queue("default", -1)
    assert await app.queues.list() == []


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", None])
async def test_wrong_queue_names_are_refused(app: Penstock, name: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: app.queues.pause(name),
        lambda: app.queues.resume(name),
        lambda: app.limits.queue(name, 1),
    ]
    for call in calls:
        with pytest.raises(InvalidJob, match="queue"):
            await call()
    assert await app.queues.list() == []


# Draining


async def test_drain_of_nothing_is_drained(app: Penstock) -> None:
    drained = await app.queues.drain(timeout=LONG)
    assert (drained.status, drained.remaining) == ("drained", 0)


async def test_drain_waits_for_pending_and_running_jobs(app: Penstock) -> None:
    await app.enqueue_many([new()] * 2)
    first = await claim_one(app)
    draining = asyncio.create_task(app.queues.drain(timeout=LONG))
    for job in (first, await claim_one(app)):
        await asyncio.sleep(0)
        assert not draining.done()
        await app.leases.settle([(job, Done())])
    async with asyncio.timeout(SOON):
        drained = await draining
    assert (drained.status, drained.remaining) == ("drained", 0)
    assert drained.elapsed < LONG


async def test_drain_does_not_wait_for_later_jobs(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_one(app)
    first = await claim_one(app)
    wait = app.store.wait

    async def later_jobs_come(seen: int, timeout: float) -> int:
        await add_one(app)
        await app.leases.settle_held([(first, Done())])
        return await wait(seen, timeout)

    monkeypatch.setattr(app.store, "wait", later_jobs_come)
    async with asyncio.timeout(SOON):
        drained = await app.queues.drain(timeout=LONG)
    assert drained.status == "drained"
    assert (await app.store.backlog())[0] == 1


async def test_drain_of_one_queue_does_not_wait_for_others(app: Penstock) -> None:
    await add_one(app, queue="other")
    assert (await app.queues.drain("default", timeout=LONG)).status == "drained"


async def test_drain_ends_with_its_timeout_and_says_what_is_left(app: Penstock) -> None:
    await app.enqueue_many([new()] * 3)
    drained = await app.queues.drain(timeout=timedelta(milliseconds=10))
    assert (drained.status, drained.remaining) == ("timeout", 3)
    assert drained.elapsed >= timedelta(milliseconds=10)


async def test_drain_without_time_just_looks(app: Penstock) -> None:
    await add_one(app)
    assert (await app.queues.drain(timeout=timedelta(0))).status == "timeout"


async def test_drain_ends_at_once_when_the_backlog_is_paused(app: Penstock) -> None:
    await app.enqueue_many([new(queue="a"), new(queue="b")])
    await app.queues.pause("a")
    async with asyncio.timeout(SOON):
        drained = await app.queues.drain("a", timeout=LONG)
    assert (drained.status, drained.remaining) == ("paused", 1)


async def test_drain_waits_for_running_jobs_of_a_paused_queue(app: Penstock) -> None:
    await add_one(app)
    job = await claim_one(app)
    await app.queues.pause("default")
    draining = asyncio.create_task(app.queues.drain(timeout=LONG))
    await asyncio.sleep(0)
    await app.leases.settle([(job, Done())])
    async with asyncio.timeout(SOON):
        assert (await draining).status == "drained"


async def test_drain_sees_a_pause_that_comes_meanwhile(app: Penstock) -> None:
    await add_one(app)
    draining = asyncio.create_task(app.queues.drain(timeout=LONG))
    await asyncio.sleep(0)
    await app.queues.pause("default")
    async with asyncio.timeout(SOON):
        assert (await draining).status == "paused"


async def test_jobs_that_finish_while_drain_looks_are_drained_not_paused(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_one(app)
    job = await claim_one(app)
    queues = app.store.queues

    async def meanwhile(query: QueueQuery) -> list[Queue]:
        await app.leases.settle_held([(job, Done())])
        return await queues(query)

    monkeypatch.setattr(app.store, "queues", meanwhile)
    assert (await app.queues.drain(timeout=LONG)).status == "drained"


async def test_later_jobs_elsewhere_do_not_hide_that_the_backlog_is_paused(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.queues.pause("a")
    await app.enqueue_many([new(queue="a"), new(queue="b")])
    [running] = await app.leases.claim(worker="w", queues=["b"])
    wait = app.store.wait

    async def later_jobs_come(seen: int, timeout: float) -> int:
        await add_one(app, queue="b")
        await app.leases.settle_held([(running, Done())])
        return await wait(seen, timeout)

    monkeypatch.setattr(app.store, "wait", later_jobs_come)
    drained = await app.queues.drain(timeout=SOON * SECOND)
    assert (drained.status, drained.remaining) == ("paused", 1)
