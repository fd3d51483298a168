"""Upkeep: expired leases, retention, the roll-up of the log, and the registry of workers."""

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Job,
    NewJob,
    Penstock,
    Retention,
    RetryPolicy,
    State,
    StoreUnavailable,
    Worker,
    run_sync,
)
from penstock.jobs import Event
from penstock.leases import WorkerInfo
from penstock.testing import Clock, Faults, WorkerProcess, drain, faulty, fresh
from penstock.worker import upkeep
from tests.contract.support import HOUR, SECOND, ManualClock
from tests.environment import SOON
from tests.testing import program
from tests.worker.support import ended, eventually, soon, work_off, working

OFTEN = timedelta(milliseconds=5)
ELSEWHERE = RetryPolicy(attempts=2)

A_DAY_LATER = 49 * HOUR
"""Past the day for which finished jobs are kept, also on stores that remove whole days."""


async def abandoned(app: Penstock, **options: Any) -> Job:
    """A job whose worker was killed."""
    await app.enqueue_many([NewJob(task="t", payload="{}", retry=ELSEWHERE, **options)])
    [job] = await app.leases.claim(worker="killed")
    return job


async def test_job_of_a_silent_worker_runs_again(app: Penstock, clock: ManualClock) -> None:
    ran = asyncio.Event()

    async def handler() -> None:
        ran.set()

    app.task("t", handler)
    job = await abandoned(app)
    async with working(app, sweep=OFTEN):
        assert not ran.is_set()
        clock.advance(job.lease_time)
        await eventually(lambda: _is(app, job, State.DONE))
    events = [entry.event for entry in await app.log(job.id)]
    assert events == [Event.ENQUEUED, Event.CLAIMED, Event.EXPIRED, Event.CLAIMED, Event.DONE]


async def test_job_that_kills_its_workers_stops_at_its_attempt_limit(
    app: Penstock, clock: ManualClock
) -> None:
    job = await abandoned(app)
    async with working(app, sweep=OFTEN, queues=["another"]):
        clock.advance(job.lease_time)
        await eventually(lambda: _is(app, job, State.PENDING))
        [again] = await app.leases.claim(worker="killed too")
        clock.advance(job.lease_time)
        await eventually(lambda: _is(app, job, State.FAILED))
    assert again.attempt == 2


@pytest.mark.parametrize(
    ("n", "text"),
    [(1, "reclaimed 1 job whose lease expired"), (2, "reclaimed 2 jobs whose leases expired")],
)
async def test_reclaimed_jobs_are_logged(
    app: Penstock, clock: ManualClock, caplog: pytest.LogCaptureFixture, n: int, text: str
) -> None:
    for _ in range(n):
        await abandoned(app)
    clock.advance(HOUR)
    async with working(app, sweep=OFTEN, queues=["another"]):
        await eventually(lambda: _is_logged(text, caplog))
    assert await _running(app, 0)


async def test_many_expired_leases_are_all_reclaimed(app: Penstock, clock: ManualClock) -> None:
    await app.enqueue_many([NewJob(task="t", payload="{}")] * 1500)
    assert len(await app.leases.claim(worker="killed", limit=1500)) == 1500
    clock.advance(HOUR)
    async with working(app, sweep=OFTEN, queues=["another"]):
        await eventually(lambda: _running(app, 0))


async def test_finished_jobs_past_their_retention_are_removed_and_failed_ones_kept(
    app: Penstock, clock: ManualClock
) -> None:
    async def good() -> None:
        pass

    async def bad() -> None:
        raise ValueError

    kept = await app.task("bad", bad, retry=RetryPolicy(attempts=1)).enqueue()
    gone = await app.task("good", good).enqueue()
    await work_off(app)
    clock.advance(A_DAY_LATER)
    async with working(app):
        await eventually(lambda: _found(app, {kept.id}))
    assert await app.store.log(gone.id) == []
    clock.advance(6 * 24 * HOUR)
    async with working(app):
        await eventually(lambda: _found(app, set()))


async def test_retention_can_be_chosen(app: Penstock, clock: ManualClock) -> None:
    async def good() -> None:
        pass

    job = await app.task("good", good).enqueue()
    await work_off(app)
    clock.advance(SECOND)
    async with working(app, retention=Retention(finished=HOUR)):
        await eventually(lambda: _found(app, {job.id}))
    clock.advance(24 * HOUR)
    async with working(app, retention=Retention(finished=SECOND)):
        await eventually(lambda: _found(app, set()))


async def test_more_than_one_batch_is_removed_at_once(app: Penstock, clock: ManualClock) -> None:
    async def good() -> None:
        pass

    task = app.task("good", good)
    await app.enqueue_many([task.new()] * 1100)
    await work_off(app, concurrency=500)
    clock.advance(A_DAY_LATER)
    async with working(app):
        await eventually(lambda: _found(app, set()))


async def test_workers_roll_up_the_log(app: Penstock) -> None:
    async def good() -> None:
        pass

    task = app.task("good", good)
    await app.enqueue_many([task.new()] * 3)
    await work_off(app)
    async with working(app):
        await eventually(lambda: _counted(app, {"enqueued": 3, "claimed": 3, "done": 3}))


async def test_log_is_rolled_up_before_retention_removes_it(
    app: Penstock, clock: ManualClock
) -> None:
    async def good() -> None:
        pass

    await app.task("good", good).enqueue()
    await work_off(app)
    clock.advance(A_DAY_LATER)
    async with working(app):
        await eventually(lambda: _found(app, set()))
    assert await _counted(app, {"enqueued": 1, "claimed": 1, "done": 1})


async def test_upkeep_continues_after_the_store_did_not_answer(
    app: Penstock,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expired, failures = app.store.expired, iter([StoreUnavailable("the disk is full")])

    async def failing(limit: int) -> list[Job]:
        for failure in failures:
            raise failure
        return await expired(limit)

    job = await abandoned(app)
    clock.advance(job.lease_time)
    monkeypatch.setattr(app.store, "expired", failing)
    with caplog.at_level(logging.WARNING):
        async with working(app, sweep=OFTEN, queues=["another"]):
            await eventually(lambda: _is(app, job, State.PENDING))
    assert "the disk is full" in caplog.text


# The registry of workers


async def test_idle_worker_is_registered_until_it_stops(app: Penstock, clock: ManualClock) -> None:
    async with working(app, name="w", queues=["q"], tags=["x"], concurrency=3):
        await eventually(lambda: registered(app, 1))
        assert await app.workers.list() == [
            WorkerInfo(
                name="w",
                host=socket.gethostname(),
                pid=os.getpid(),
                queues=("q",),
                tags=("x",),
                concurrency=3,
                started_at=clock.now,
                seen_at=clock.now,
                tasks=(),
            )
        ]
    assert await app.workers.list() == []


async def test_worker_of_all_queues_is_registered_without_queues(app: Penstock) -> None:
    async with working(app):
        await eventually(lambda: registered(app, 1))
        [worker] = await app.workers.list()
        assert (worker.queues, worker.tags) == (None, ())


async def test_busy_worker_is_registered_with_its_leases(app: Penstock, clock: ManualClock) -> None:
    began, proceed = asyncio.Event(), asyncio.Event()

    @app.task
    async def long() -> None:
        began.set()
        await proceed.wait()

    job = await long.enqueue()
    async with working(app):
        await soon(began)
        await eventually(lambda: _has_host(app))
        [worker] = await app.workers.list()
        assert (worker.running, worker.oldest_start) == (1, clock.now)
        assert worker.expires_at == clock.now + job.lease_time
        proceed.set()
    assert await app.workers.list() == []


async def test_worker_sends_heartbeats(
    app: Penstock, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "HEARTBEAT_EVERY", OFTEN)
    started = clock.now
    async with working(app, sweep=HOUR):
        await eventually(lambda: registered(app, 1))
        clock.advance(10 * SECOND)
        await eventually(lambda: _seen_now(app, clock))
        [worker] = await app.workers.list()
        assert worker.started_at == started


async def test_heartbeats_do_not_depend_on_the_jobs(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor on the sweeps: heartbeats have an interval of their own."""
    monkeypatch.setattr(upkeep, "HEARTBEAT_EVERY", HOUR)

    @app.task
    async def brief() -> None: ...

    await app.enqueue_many([brief.new()] * 200)
    with faulty(app) as faults:
        await work_off(app, concurrency=5, sweep=OFTEN)
    assert faults.calls["claim"] > 20
    assert (faults.calls["heartbeat"], faults.calls["deregister"]) == (1, 1)


async def test_worker_that_is_cancelled_is_deregistered(app: Penstock) -> None:
    running = asyncio.create_task(Worker(app).run())
    await eventually(lambda: registered(app, 1))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await app.workers.list() == []


async def test_worker_that_leaves_a_job_behind_stays_registered(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.worker.worker._LAST_WAIT", 0.01)
    began, proceed = asyncio.Event(), asyncio.Event()

    @app.task
    async def stubborn() -> None:
        began.set()
        while not proceed.is_set():
            try:
                await proceed.wait()
            except asyncio.CancelledError:
                continue

    await stubborn.enqueue()
    worker = Worker(app, grace=timedelta(0))
    running = asyncio.create_task(worker.run())
    await soon(began)
    worker.stop()
    await eventually(lambda: _has_given_up(worker))
    [left] = await app.workers.list()
    assert (left.running, left.host) == (1, socket.gethostname())
    proceed.set()
    await ended(running)
    [left] = await app.workers.list()
    assert left.host == socket.gethostname()


async def test_worker_without_heartbeats_still_works(
    app: Penstock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upkeep, "HEARTBEAT_EVERY", OFTEN)
    ran = asyncio.Event()

    @app.task
    async def job() -> None:
        ran.set()

    await job.enqueue()
    with faulty(app) as faults, caplog.at_level(logging.WARNING):
        faults.fail("heartbeat", every=1)
        async with working(app, name="w"):
            await soon(ran)
            await eventually(lambda: _have_failed(faults, 3))
            faults.clear()
            await eventually(lambda: registered(app, 1))
            faults.fail("deregister", error=StoreUnavailable("the disk is full"))
    assert "upkeep failed, trying again: heartbeat failed" in caplog.text
    assert "worker w could not be deregistered: the disk is full" in caplog.text


async def test_worker_without_heartbeats_for_a_day_is_deregistered(
    app: Penstock, clock: ManualClock
) -> None:
    gone = WorkerInfo(name="gone", host="h", seen_at=clock.now)
    await app.store.heartbeat([gone])
    clock.advance(23 * HOUR)
    await app.store.heartbeat([WorkerInfo(name="silent", host="h", seen_at=clock.now)])
    clock.advance(2 * HOUR)
    async with working(app, name="w"):
        await eventually(lambda: _names(app, {"silent", "w"}))


async def test_silent_worker_stays_registered_while_it_holds_a_lease(
    app: Penstock, clock: ManualClock
) -> None:
    @app.task(lease=200 * HOUR)
    async def long() -> None: ...

    await app.store.heartbeat([WorkerInfo(name="gone", host="h", seen_at=clock.now)])
    await app.store.heartbeat([WorkerInfo(name="holder", host="h", seen_at=clock.now)])
    await long.enqueue()
    await app.leases.claim(worker="holder")
    clock.advance(48 * HOUR)
    async with working(app, name="w"):
        await eventually(lambda: _names(app, {"holder", "w"}))
    [holder] = await app.workers.list()
    assert holder.host == "h"


def test_worker_that_is_killed_stays_registered_as_silent(tmp_path: Path) -> None:
    clock, app = Clock(), program.app
    with fresh(app, url=f"sqlite:///{tmp_path}/jobs.db", clock=clock):
        with WorkerProcess(app) as process:
            asyncio.run(eventually(lambda: registered(app, 1)))
            pid = process.pid
            process.kill()
        started = clock.now
        clock.advance(2 * HOUR)
        [killed] = run_sync(app.workers.list())
        assert (killed.pid, killed.started_at, killed.seen_at) == (pid, started, started)
        assert killed.is_silent(clock.now)
        drain(app)  # another worker registers and deregisters
        assert run_sync(app.workers.list()) == [killed]


async def test_draining_worker_ends_when_its_running_jobs_have(
    app: Penstock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upkeep, "HEARTBEAT_EVERY", OFTEN)
    began, proceed = asyncio.Event(), asyncio.Event()

    @app.task
    async def long() -> None:
        began.set()
        await proceed.wait()

    first = await long.enqueue()
    worker = Worker(app, name="w", concurrency=5)
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(began.wait(), SOON)
    assert await app.workers.drain("w")
    await eventually(lambda: asyncio.sleep(0, worker.draining))
    second = await long.enqueue()
    assert not running.done()
    proceed.set()
    await asyncio.wait_for(running, SOON)
    assert (await app.get(first.id)).state == "done"
    assert (await app.get(second.id)).state == "pending"
    assert await app.workers.list() == []
    assert "worker w is draining" in caplog.text


async def test_draining_worker_can_still_be_stopped(app: Penstock) -> None:
    began = asyncio.Event()

    @app.task
    async def endless() -> None:
        began.set()
        await asyncio.Event().wait()

    job = await endless.enqueue()
    worker = Worker(app, grace=timedelta(0))
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(began.wait(), SOON)
    worker.drain()
    worker.stop()
    await asyncio.wait_for(running, SOON)
    assert (await app.get(job.id)).state == "pending"


async def registered(app: Penstock, n: int) -> bool:
    return len(await app.workers.list()) == n


async def _has_host(app: Penstock) -> bool:
    return [worker.host for worker in await app.workers.list()] == [socket.gethostname()]


async def _seen_now(app: Penstock, clock: ManualClock) -> bool:
    [worker] = await app.workers.list()
    return worker.seen_at == clock.now


async def _names(app: Penstock, names: set[str]) -> bool:
    return {worker.name for worker in await app.workers.list()} == names


async def _has_given_up(worker: Worker) -> bool:
    return worker._slots.closed


async def _have_failed(faults: Faults, n: int) -> bool:
    return len(faults.struck) >= n


async def _is(app: Penstock, job: Job, state: State) -> bool:
    return (await app.get(job.id)).state is state


async def _is_logged(text: str, caplog: pytest.LogCaptureFixture) -> bool:
    return text in caplog.text


async def _running(app: Penstock, n: int) -> bool:
    counts = await app.count()
    return counts.get(("default", State.RUNNING, None), 0) == n


async def _found(app: Penstock, ids: set[int]) -> bool:
    found: Sequence[Job] = await app.find()
    return {job.id for job in found} == ids


async def _counted(app: Penstock, counts: dict[str, int]) -> bool:
    return [one.counts for one in await app.statistics.counters()] == [counts]
