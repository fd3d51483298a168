"""Lease renewal while handlers run, and what happens when a lease is lost."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock import Job, LeaseLost, NewJob, Penstock, State, StoreUnavailable, context, run_sync
from penstock.jobs import Event
from penstock.leases import Done, Lease
from penstock.runtime import Background, Step
from penstock.worker.leases import LeaseRenewal
from penstock.worker.run import Run
from tests.contract.support import HOUR, ManualClock
from tests.environment import SOON
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
    """Otherwise it would lose its job, and every other running one."""
    renewed = threading.Event()
    running: list[Job] = []
    swept: list[int] = []

    def watch() -> None:
        for _ in range(3):
            clock.advance(SHORT / 2)
            run_sync(_seen_renewed(app, running[0], clock))
            swept.append(run_sync(app.leases.reclaim()))
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
    """Wait until the lease is renewed, without an event loop."""
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


class ManualBackground(Background):
    """Background work that a test runs by hand."""

    def __init__(self, step: Step, name: str) -> None:
        super().__init__(step, name)
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def run(self) -> float | None:
        return self._step()


async def test_renewal_keeps_the_pace_of_the_shortest_lease(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it rests while nothing runs."""
    now, renewed, made = 0.0, list[int](), list[ManualBackground]()

    def background(step: Step, name: str) -> ManualBackground:
        made.append(ManualBackground(step, name))
        return made[-1]

    leases = [600 * HOUR, timedelta(seconds=30)]
    await app.enqueue_many([NewJob(task="t", payload="{}", lease=lease) for lease in leases])
    long, short = map(Run, await app.leases.claim(worker="w", limit=2))
    runs: dict[int, Run] = {}
    monkeypatch.setattr(app.runtime, "background", background)
    monkeypatch.setattr(app.runtime, "monotonic", lambda: now)
    renewal = LeaseRenewal(app, runs, lambda run, _: renewed.append(run.job.id))
    [manual] = made

    async def step() -> float | None:
        return await asyncio.to_thread(manual.run)

    assert await step() is None
    runs[long.job.token] = long
    renewal.added(long.job.lease_time)
    assert manual.woken == 1, "however long the lease is"
    assert await step() == 200 * 3600
    runs[short.job.token] = short
    renewal.added(short.job.lease_time)
    renewal.added(short.job.lease_time)
    assert (manual.woken, await step(), renewed) == (3, 10, [])
    renewal.added(short.job.lease_time)
    assert manual.woken == 3, "the pace is known"
    now = 9.0
    assert (await step(), renewed) == (1, []), "being woken does not postpone a renewal"
    now = 10.0
    assert (await step(), renewed) == (10, [long.job.id, short.job.id])
    runs.clear()
    now = 20.0
    assert await step() is None
    assert len(renewed) == 2


class Runs(dict[int, Run]):
    """The runs of a worker, to which one is added while they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.begins: Callable[[], None] | None = None

    def values(self) -> Any:
        found = list(super().values())
        if self.begins is not None:
            begins, self.begins = self.begins, None
            begins()
        return found


async def test_lease_of_a_run_added_while_others_are_read_is_renewed(app: Penstock) -> None:
    """It is as short as that of the last run, which has ended."""
    await app.enqueue_many([NewJob(task="t", payload="{}", lease=SHORT)] * 2)
    first, second = map(Run, await app.leases.claim(worker="w", limit=2))
    runs, renewed = Runs(), threading.Event()

    def begin() -> None:
        runs[second.job.token] = second
        renewal.added(SHORT)

    def renewed_one(run: Run, job: Job | None) -> None:
        if run is second:
            renewed.set()
        elif runs.pop(first.job.token, None):
            runs.begins = begin

    runs[first.job.token] = first
    renewal = LeaseRenewal(app, runs, renewed_one)
    renewal.added(SHORT)
    try:
        assert await asyncio.to_thread(renewed.wait, SOON)
    finally:
        renewal.close()


async def test_handler_whose_lease_was_lost_is_stopped_and_its_result_discarded(
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


async def test_thread_whose_lease_was_lost_is_cancelled(app: Penstock, clock: ManualClock) -> None:
    started, cancelled = threading.Event(), threading.Event()

    @app.task(lease=SHORT)
    def work() -> str:
        if context().attempt == 2:
            return "second"
        started.set()
        pause = threading.Event()
        for _ in range(SOON * 100):
            if context().cancelled:
                cancelled.set()
                break
            pause.wait(0.01)
        return "first"

    job = await work.enqueue()
    async with working(app, concurrency=1):
        assert await asyncio.to_thread(started.wait, SOON)
        await take_away(app, job, clock)
        await eventually(lambda: _is(app, job, State.DONE))
    assert cancelled.is_set()
    assert (await app.get(job.id)).returned == "second"


async def test_result_after_the_lease_expired_is_refused_and_logged(
    app: Penstock, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker did not know yet that its lease had expired."""

    @app.task
    async def steal() -> str:
        clock.advance(HOUR)
        await app.leases.reclaim()
        [thief] = await app.leases.claim(worker="thief")
        await app.leases.settle([(thief, Done('"stolen"'))])
        return "late"

    job = await steal.enqueue()
    with caplog.at_level(logging.WARNING, "penstock"):
        await work_off(app, concurrency=1)
    assert (await app.get(job.id)).returned == "stolen"
    *_, entry = await app.log(job.id)
    assert (entry.event, entry.state) == (Event.REFUSED, State.DONE)
    assert f"job {job.id}" in caplog.text


async def test_renewal_continues_after_the_store_did_not_answer(
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


async def test_lease_of_a_thread_that_timed_out_is_not_renewed(
    app: Penstock, clock: ManualClock
) -> None:
    """It cannot be stopped; another worker may run its job when the lease expires."""
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

    late, healthy_job = await stuck.enqueue(), await healthy.enqueue()
    async with working(app):
        assert await asyncio.to_thread(out_of_time.wait, SOON)
        for _ in range(2):  # the first renewal may have begun before the timeout
            deadline = (await app.get(late.id)).expires_at
            clock.advance(SHORT / 4)
            await eventually(lambda: _leased_until(app, healthy_job, clock))
        assert (await app.get(late.id)).expires_at == deadline
        finish.set()
        over.set()


async def test_lost_lease_cannot_be_settled(app: Penstock, clock: ManualClock) -> None:
    @app.task
    async def nothing() -> None:
        pass

    await nothing.enqueue()
    [job] = await app.leases.claim(worker="slow")
    clock.advance(HOUR)
    await work_off(app, sweep=timedelta(milliseconds=1))
    await app.leases.reclaim()
    with pytest.raises(LeaseLost):
        await app.leases.settle([(job, Done())])


async def test_renewal_of_a_run_that_was_just_settled_leaves_no_entry(app: Penstock) -> None:
    """The runs may be read a moment before they end: that is not a stale write."""
    await app.enqueue_many([NewJob(task="t", payload="{}")])
    [job] = await app.leases.claim(worker="w")
    run = cast("Run", SimpleNamespace(job=job, lost=False, unstoppable=False))
    answers: list[Job | None] = []
    renewal = LeaseRenewal(app, {1: run}, lambda _, found: answers.append(found))
    await app.leases.settle([(job, Done())])
    await asyncio.to_thread(renewal._renew)
    assert answers == [None]
    assert [entry.event for entry in await app.log(job.id)][-1] is Event.DONE
