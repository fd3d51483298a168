"""Leases while handlers run: renewed whatever they do, and what happens when one is lost."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock import (
    Done,
    Event,
    Job,
    Lease,
    LeaseLost,
    NewJob,
    Penstock,
    State,
    StoreUnavailable,
    context,
    run_sync,
)
from penstock.worker.execute import Run
from penstock.worker.leases import LeaseKeeper
from tests.contract.support import HOUR, SOON, ManualClock
from tests.worker.support import ONCE, eventually, soon, take_away, work_off, working

SHORT = timedelta(seconds=0.3)


async def test_lease_is_renewed_while_a_coroutine_runs(app: Penstock, clock: ManualClock) -> None:
    started, finish = asyncio.Event(), asyncio.Event()

    @app.task(lease=SHORT)
    async def wait() -> None:
        started.set()
        await finish.wait()

    job = await wait.enqueue()
    async with working(app):
        await soon(started)
        for _ in range(2):
            clock.advance(SHORT / 2)
            await eventually(lambda: _leased_until(app, job, clock))
        finish.set()
        await eventually(lambda: _is(app, job, State.DONE))
    assert (await app.get(job.id)).attempt == 1


async def _leased_until(app: Penstock, job: Job, clock: ManualClock) -> bool:
    return (await app.get(job.id)).expires_at == clock.now + SHORT


async def _is(app: Penstock, job: Job, state: State) -> bool:
    return (await app.get(job.id)).state is state


async def test_lease_is_renewed_while_a_handler_blocks_the_event_loop(
    app: Penstock, clock: ManualClock
) -> None:
    """Else it would lose its job, and every other running one."""
    renewed = threading.Event()
    running: list[Job] = []
    swept: list[int] = []

    def watch() -> None:
        for _ in range(3):
            clock.advance(SHORT / 2)
            run_sync(_seen_renewed(app, running[0], clock))
            swept.append(run_sync(app.reclaim()))
        renewed.set()

    @app.task(lease=SHORT, retry=ONCE)
    async def block() -> bool:
        running.append(context().job)
        threading.Thread(target=watch).start()
        return renewed.wait(SOON)  # blocks the event loop: that is the point

    job = await block.enqueue()
    await work_off(app)
    job = await app.get(job.id)
    assert (job.state, job.attempt, job.returned, swept) == (State.DONE, 1, True, [0, 0, 0])


async def _seen_renewed(app: Penstock, job: Job, clock: ManualClock) -> None:
    """Drivable without an event loop."""
    pause = threading.Event()
    for _ in range(SOON * 100):
        if await _leased_until(app, job, clock):
            return
        pause.wait(0.01)
    raise AssertionError("the lease was not renewed")


async def test_short_lease_behind_a_long_one_is_renewed_in_time(
    app: Penstock, clock: ManualClock
) -> None:
    started, finish = asyncio.Semaphore(0), asyncio.Event()

    async def wait() -> None:
        started.release()
        await finish.wait()

    task = app.task("wait", wait)
    await task.using(lease=HOUR).enqueue()
    async with working(app):
        async with asyncio.timeout(SOON):
            await started.acquire()
        short = await task.using(lease=SHORT).enqueue()
        async with asyncio.timeout(SOON):
            await started.acquire()
        clock.advance(SHORT / 2)
        await eventually(lambda: _leased_until(app, short, clock))
        finish.set()


class Runs(dict[int, Run]):
    """The runs of a worker, of which another begins while they are looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.begins: Callable[[], None] | None = None

    def values(self) -> Any:
        found = list(super().values())
        if self.begins is not None:
            begins, self.begins = self.begins, None
            begins()
        return found


async def test_lease_that_begins_while_others_are_looked_at_is_renewed(app: Penstock) -> None:
    """It is as short as the last one was, but that one has ended."""
    await app.enqueue_many([NewJob(task="t", payload="{}", lease=SHORT)] * 2)
    first, second = map(Run, await app.claim(worker="w", limit=2))
    runs, renewed = Runs(), threading.Event()

    def begin() -> None:
        runs[second.job.token] = second
        keeper.heed(SHORT)

    def note(run: Run, job: Job | None) -> None:
        if run is second:
            renewed.set()
        elif runs.pop(first.job.token, None):
            runs.begins = begin

    runs[first.job.token] = first
    keeper = LeaseKeeper(app, runs, note)
    try:
        assert await asyncio.to_thread(renewed.wait, SOON)
    finally:
        keeper.stop()


async def test_handler_whose_lease_was_lost_is_stopped_and_its_result_thrown_away(
    app: Penstock, clock: ManualClock
) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @app.task(lease=SHORT)
    async def work() -> str:
        if context().attempt == 2:
            return "second"
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
        return "first"

    job = await work.enqueue()
    async with working(app, concurrency=1):
        await soon(started)
        await take_away(app, job, clock)
        await soon(stopped)
        await eventually(lambda: _is(app, job, State.DONE))
    assert (await app.get(job.id)).returned == "second"
    assert [entry.event for entry in await app.log(job.id)] == [
        Event.ENQUEUED, Event.CLAIMED, Event.EXPIRED, Event.CLAIMED, Event.DONE,
    ]  # fmt: skip


async def test_thread_whose_lease_was_lost_is_told(app: Penstock, clock: ManualClock) -> None:
    started, told = threading.Event(), threading.Event()

    @app.task(lease=SHORT)
    def work() -> str:
        if context().attempt == 2:
            return "second"
        started.set()
        pause = threading.Event()
        for _ in range(SOON * 100):
            if context().cancelled:
                told.set()
                break
            pause.wait(0.01)
        return "first"

    job = await work.enqueue()
    async with working(app, concurrency=1):
        assert await asyncio.to_thread(started.wait, SOON)
        await take_away(app, job, clock)
        await eventually(lambda: _is(app, job, State.DONE))
    assert told.is_set()
    assert (await app.get(job.id)).returned == "second"


async def test_result_that_comes_after_the_lease_is_refused_and_noted(
    app: Penstock, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker had not heard yet that its lease was over."""

    @app.task
    async def steal() -> str:
        clock.advance(HOUR)
        await app.reclaim()
        [thief] = await app.claim(worker="thief")
        await app.settle([(thief, Done('"stolen"'))])
        return "late"

    job = await steal.enqueue()
    with caplog.at_level(logging.WARNING, "penstock"):
        await work_off(app, concurrency=1)
    assert (await app.get(job.id)).returned == "stolen"
    *_, entry = await app.log(job.id)
    assert (entry.event, entry.state) == (Event.REFUSED, State.DONE)
    assert f"job {job.id}" in caplog.text


async def test_renewal_goes_on_after_the_store_did_not_answer(
    app: Penstock,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    started, finish = asyncio.Event(), asyncio.Event()
    renew, failures = app.store.renew, iter([StoreUnavailable("the disk is full")])

    async def failing(leases: Sequence[Lease]) -> list[Job]:
        for failure in failures:
            raise failure
        return await renew(leases)

    @app.task(lease=SHORT)
    async def wait() -> None:
        started.set()
        await finish.wait()

    monkeypatch.setattr(app.store, "renew", failing)
    job = await wait.enqueue()
    with caplog.at_level(logging.WARNING, "penstock"):
        async with working(app):
            await soon(started)
            clock.advance(SHORT / 2)
            await eventually(lambda: _leased_until(app, job, clock))
            finish.set()
    assert "the disk is full" in caplog.text
    assert (await app.get(job.id)).state is State.DONE


async def test_lease_of_a_thread_out_of_time_is_not_renewed(
    app: Penstock, clock: ManualClock
) -> None:
    """It cannot be stopped; another worker may have its job when the lease is over."""
    out_of_time, finish = threading.Event(), threading.Event()
    over = asyncio.Event()

    @app.task(lease=SHORT, timeout=timedelta(milliseconds=10))
    def stuck() -> None:
        pause = threading.Event()
        while not context().cancelled:
            pause.wait(0.01)
        out_of_time.set()
        finish.wait(SOON)

    @app.task(lease=SHORT)
    async def healthy() -> None:
        await over.wait()

    late, beside = await stuck.enqueue(), await healthy.enqueue()
    async with working(app):
        assert await asyncio.to_thread(out_of_time.wait, SOON)
        for _ in range(2):  # the first renewal may have begun before it was out of time
            deadline = (await app.get(late.id)).expires_at
            clock.advance(SHORT / 4)
            await eventually(lambda: _leased_until(app, beside, clock))
        assert (await app.get(late.id)).expires_at == deadline
        finish.set()
        over.set()


async def test_lost_lease_cannot_be_settled(app: Penstock, clock: ManualClock) -> None:
    @app.task
    async def nothing() -> None:
        pass

    await nothing.enqueue()
    [job] = await app.claim(worker="slow")
    clock.advance(HOUR)
    await work_off(app, sweep=timedelta(milliseconds=1))
    await app.reclaim()
    with pytest.raises(LeaseLost):
        await app.settle([(job, Done())])


async def test_renewal_of_a_run_that_was_just_settled_leaves_no_entry(app: Penstock) -> None:
    """The thread may look at the runs a moment before they end: nobody came late."""
    await app.enqueue_many([NewJob(task="t", payload="{}")])
    [job] = await app.claim(worker="w")
    run = cast("Run", SimpleNamespace(job=job, lost=False, unstoppable=False))
    told: list[Job | None] = []
    keeper = LeaseKeeper(app, {1: run}, lambda _, found: told.append(found))
    try:
        await app.settle([(job, Done())])
        await asyncio.to_thread(keeper._renew)
    finally:
        keeper.stop()
    assert told == [None]
    assert [entry.event for entry in await app.log(job.id)][-1] is Event.DONE
