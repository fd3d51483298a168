import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from penstock import Event, Job, NewJob, Penstock, Retention, RetryPolicy, State, StoreUnavailable
from tests.contract.support import HOUR, SECOND, ManualClock
from tests.worker.support import eventually, work_off, working

OFTEN = timedelta(milliseconds=5)
ELSEWHERE = RetryPolicy(attempts=2)

A_DAY_LATER = 49 * HOUR
"""Past the day for which finished jobs are kept, also where they are removed by the day."""


async def abandoned(app: Penstock, **options: Any) -> Job:
    """A job whose worker was killed."""
    await app.enqueue_many([NewJob(task="t", payload="{}", retry=ELSEWHERE, **options)])
    [job] = await app.claim(worker="killed")
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
        [again] = await app.claim(worker="killed too")
        clock.advance(job.lease_time)
        await eventually(lambda: _is(app, job, State.FAILED))
    assert again.attempt == 2


@pytest.mark.parametrize(
    ("n", "text"), [(1, "took back 1 job whose lease ran out"), (2, "took back 2 jobs whose")]
)
async def test_what_was_taken_back_is_said(
    app: Penstock, clock: ManualClock, caplog: pytest.LogCaptureFixture, n: int, text: str
) -> None:
    for _ in range(n):
        await abandoned(app)
    clock.advance(HOUR)
    async with working(app, sweep=OFTEN, queues=["another"]):
        await eventually(lambda: _is_said(text, caplog))
    assert await _running(app, 0)


async def test_many_expired_leases_are_all_taken_back(app: Penstock, clock: ManualClock) -> None:
    await app.enqueue_many([NewJob(task="t", payload="{}")] * 1500)
    assert len(await app.claim(worker="killed", limit=1500)) == 1500
    clock.advance(HOUR)
    async with working(app, sweep=OFTEN, queues=["another"]):
        await eventually(lambda: _running(app, 0))


async def test_finished_jobs_past_their_time_are_removed_and_failed_ones_kept(
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


async def test_more_than_one_portion_is_removed_at_once(app: Penstock, clock: ManualClock) -> None:
    async def good() -> None:
        pass

    task = app.task("good", good)
    await app.enqueue_many([task.new()] * 1100)
    await work_off(app, concurrency=500)
    clock.advance(A_DAY_LATER)
    async with working(app):
        await eventually(lambda: _found(app, set()))


async def test_workers_sum_up_what_has_happened(app: Penstock) -> None:
    async def good() -> None:
        pass

    task = app.task("good", good)
    await app.enqueue_many([task.new()] * 3)
    await work_off(app)
    async with working(app):
        await eventually(lambda: _counted(app, {"enqueued": 3, "claimed": 3, "done": 3}))


async def test_what_retention_removes_was_summed_up_before(
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


async def test_upkeep_goes_on_after_the_store_did_not_answer(
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


async def _is(app: Penstock, job: Job, state: State) -> bool:
    return (await app.get(job.id)).state is state


async def _is_said(text: str, caplog: pytest.LogCaptureFixture) -> bool:
    return text in caplog.text


async def _running(app: Penstock, n: int) -> bool:
    counts = await app.count()
    return counts.get(("default", State.RUNNING, None), 0) == n


async def _found(app: Penstock, ids: set[int]) -> bool:
    found: Sequence[Job] = await app.find()
    return {job.id for job in found} == ids


async def _counted(app: Penstock, counts: dict[str, int]) -> bool:
    return [one.counts for one in await app.counters()] == [counts]
