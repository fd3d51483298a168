"""A worker is in the list of workers from its start to its end, and longer if it is killed."""

import asyncio
import logging
import os
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from penstock import Penstock, StoreUnavailable, Worker, WorkerInfo, run_sync
from penstock.testing import Clock, Faults, WorkerProcess, drain, faulty, fresh
from penstock.worker import upkeep
from tests.contract.support import HOUR, SECOND, ManualClock
from tests.testing import program
from tests.worker.support import ended, eventually, soon, work_off, working

OFTEN = timedelta(milliseconds=5)


async def listed(app: Penstock, n: int) -> bool:
    return len(await app.workers()) == n


async def test_idle_worker_is_listed_until_it_stops(app: Penstock, clock: ManualClock) -> None:
    async with working(app, name="w", queues=["q"], tags=["x"], concurrency=3):
        await eventually(lambda: listed(app, 1))
        assert await app.workers() == [
            WorkerInfo(
                name="w",
                host=socket.gethostname(),
                pid=os.getpid(),
                queues=("q",),
                tags=("x",),
                concurrency=3,
                started_at=clock.now,
                seen_at=clock.now,
            )
        ]
    assert await app.workers() == []


async def test_worker_of_all_queues_says_so(app: Penstock) -> None:
    async with working(app):
        await eventually(lambda: listed(app, 1))
        [worker] = await app.workers()
        assert (worker.queues, worker.tags) == (None, ())


async def test_busy_worker_is_listed_with_its_leases(app: Penstock, clock: ManualClock) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def long() -> None:
        began.set()
        await go_on.wait()

    job = await long.enqueue()
    async with working(app):
        await soon(began)
        await eventually(lambda: _has_host(app))
        [worker] = await app.workers()
        assert (worker.running, worker.oldest_start) == (1, clock.now)
        assert worker.expires_at == clock.now + job.lease_time
        go_on.set()
    assert await app.workers() == []


async def test_worker_greets_again_and_again(
    app: Penstock, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "GREET_EVERY", OFTEN)
    started = clock.now
    async with working(app, sweep=HOUR):
        await eventually(lambda: listed(app, 1))
        clock.advance(10 * SECOND)
        await eventually(lambda: _seen_now(app, clock))
        [worker] = await app.workers()
        assert worker.started_at == started


async def test_greetings_do_not_follow_the_jobs(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the sweeps: however much happens, a worker greets by its own clock."""
    monkeypatch.setattr(upkeep, "GREET_EVERY", HOUR)

    @app.task
    async def brief() -> None: ...

    await app.enqueue_many([brief.new()] * 200)
    with faulty(app) as faults:
        await work_off(app, concurrency=5, sweep=OFTEN)
    assert faults.calls["claim"] > 20
    assert (faults.calls["greet"], faults.calls["dismiss"]) == (1, 1)


async def test_worker_that_is_cancelled_is_taken_off_the_list(app: Penstock) -> None:
    running = asyncio.create_task(Worker(app).run())
    await eventually(lambda: listed(app, 1))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await app.workers() == []


async def test_worker_that_leaves_a_job_behind_stays_listed(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.worker.worker._LAST_WAIT", 0.01)
    began, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def stubborn() -> None:
        began.set()
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue

    await stubborn.enqueue()
    worker = Worker(app, grace=timedelta(0))
    running = asyncio.create_task(worker.run())
    await soon(began)
    worker.stop()
    await eventually(lambda: _is_over(worker))
    [left] = await app.workers()
    assert (left.running, left.host) == (1, socket.gethostname())
    go_on.set()
    await ended(running)
    [left] = await app.workers()
    assert left.host == socket.gethostname()


async def test_worker_works_also_while_it_cannot_greet(
    app: Penstock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upkeep, "GREET_EVERY", OFTEN)
    ran = asyncio.Event()

    @app.task
    async def job() -> None:
        ran.set()

    await job.enqueue()
    with faulty(app) as faults, caplog.at_level(logging.WARNING):
        faults.fail("greet", every=1)
        async with working(app, name="w"):
            await soon(ran)
            await eventually(lambda: _has_struck(faults, 3))
            faults.clear()
            await eventually(lambda: listed(app, 1))
            faults.fail("dismiss", error=StoreUnavailable("the disk is full"))
    assert "upkeep failed, trying again: greet failed" in caplog.text
    assert "worker w stays in the list of workers: the disk is full" in caplog.text


async def test_worker_unseen_for_a_day_is_forgotten(app: Penstock, clock: ManualClock) -> None:
    gone = WorkerInfo(name="gone", host="h", seen_at=clock.now)
    await app.store.greet([gone])
    clock.advance(23 * HOUR)
    await app.store.greet([WorkerInfo(name="silent", host="h", seen_at=clock.now)])
    clock.advance(2 * HOUR)
    async with working(app, name="w"):
        await eventually(lambda: _names(app, {"silent", "w"}))


async def test_silent_worker_is_not_forgotten_while_it_holds_a_lease(
    app: Penstock, clock: ManualClock
) -> None:
    @app.task(lease=200 * HOUR)
    async def long() -> None: ...

    await app.store.greet([WorkerInfo(name="gone", host="h", seen_at=clock.now)])
    await app.store.greet([WorkerInfo(name="holder", host="h", seen_at=clock.now)])
    await long.enqueue()
    await app.claim(worker="holder")
    clock.advance(48 * HOUR)
    async with working(app, name="w"):
        await eventually(lambda: _names(app, {"holder", "w"}))
    [holder] = await app.workers()
    assert holder.host == "h"


def test_worker_that_is_killed_stays_listed_and_grows_old(tmp_path: Path) -> None:
    clock, app = Clock(), program.app
    with fresh(app, url=f"sqlite:///{tmp_path}/jobs.db", clock=clock):
        with WorkerProcess(app) as process:
            asyncio.run(eventually(lambda: listed(app, 1)))
            pid = process.pid
            process.kill()
        started = clock.now
        clock.advance(2 * HOUR)
        [killed] = run_sync(app.workers())
        assert (killed.pid, killed.started_at, killed.seen_at) == (pid, started, started)
        assert killed.is_silent(clock.now)
        drain(app)  # another worker comes and goes
        assert run_sync(app.workers()) == [killed]


async def _has_host(app: Penstock) -> bool:
    return [worker.host for worker in await app.workers()] == [socket.gethostname()]


async def _seen_now(app: Penstock, clock: ManualClock) -> bool:
    [worker] = await app.workers()
    return worker.seen_at == clock.now


async def _names(app: Penstock, names: set[str]) -> bool:
    return {worker.name for worker in await app.workers()} == names


async def _is_over(worker: Worker) -> bool:
    return worker._over


async def _has_struck(faults: Faults, n: int) -> bool:
    return len(faults.struck) >= n


async def test_worker_that_is_asked_to_drain_ends_with_the_jobs_it_has(
    app: Penstock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upkeep, "GREET_EVERY", OFTEN)
    began, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def long() -> None:
        began.set()
        await go_on.wait()

    first = await long.enqueue()
    worker = Worker(app, name="w", concurrency=5)
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(began.wait(), 30)
    assert await app.drain_worker("w")
    await eventually(lambda: asyncio.sleep(0, worker.draining))
    second = await long.enqueue()
    assert not running.done()
    go_on.set()
    await asyncio.wait_for(running, 30)
    assert (await app.get(first.id)).state == "done"
    assert (await app.get(second.id)).state == "pending"
    assert await app.workers() == []
    assert "asked to drain" in caplog.text


async def test_worker_that_drains_can_still_be_stopped(app: Penstock) -> None:
    began = asyncio.Event()

    @app.task
    async def endless() -> None:
        began.set()
        await asyncio.Event().wait()

    job = await endless.enqueue()
    worker = Worker(app, grace=timedelta(0))
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(began.wait(), 30)
    worker.drain()
    worker.stop()
    await asyncio.wait_for(running, 30)
    assert (await app.get(job.id)).state == "pending"
