"""Chains and batches, run by a real worker."""

import asyncio
from datetime import timedelta

import pytest

from penstock import (
    InvalidJob,
    JobNotFound,
    JobQuery,
    NewJob,
    Penstock,
    State,
    Worker,
    chain,
)
from penstock.jobs import OnFailure
from tests.environment import SOON
from tests.worker.support import ONCE, work_off

SECONDS = timedelta(seconds=SOON)


# Chains


async def test_chain_runs_step_by_step(app: Penstock) -> None:
    ran: list[str] = []

    @app.task
    async def step(name: str) -> None:
        ran.append(name)

    await app.enqueue_many(
        chain(step.new("load"), [step.new("left"), step.new("right")], step.new("send"))
    )
    await work_off(app)
    assert ran[0] == "load"
    assert sorted(ran[1:3]) == ["left", "right"]
    assert ran[3:] == ["send"]


def test_chains_can_be_nested() -> None:
    one = NewJob(task="t", payload="{}")
    inner = chain(one, one)
    assert [job.follows for job in chain(one, inner, one)] == [(), (0,), (1,), (2,)]
    assert [job.follows for job in chain([one, one], one)] == [(), (), (0, 1)]
    with pytest.raises(InvalidJob):
        chain()


async def test_job_cannot_follow_itself_or_a_later_one(app: Penstock) -> None:
    for place in (1, 2, -1):
        jobs = [NewJob(task="t", payload="{}"), NewJob(task="t", payload="{}", follows=(place,))]
        with pytest.raises(InvalidJob, match="does not precede it"):
            await app.enqueue_many(jobs)
    assert not await app.count()


async def test_task_waits_for_jobs_enqueued_before(app: Penstock) -> None:
    ran: list[int] = []

    @app.task(retry=ONCE)
    async def step(n: int) -> None:
        ran.append(n)
        if n < 0:
            raise ValueError

    bad = await step.enqueue(-1)
    await step.using(after=[bad]).enqueue(1)
    await step.using(after=[bad.id], on_failure=OnFailure.RUN).enqueue(2)
    await work_off(app)
    assert ran == [-1, 2]


@pytest.mark.timeout(600)
async def test_fan_in_of_ten_thousand_jobs(app: Penstock) -> None:
    ran: list[int] = []

    @app.task
    async def part(n: int) -> None:
        ran.append(n)

    @app.task
    async def whole() -> int:
        return len(ran)

    jobs = await app.enqueue_many(chain([part.new(n) for n in range(10_000)], whole.new()))
    await asyncio.wait_for(Worker(app, concurrency=500).run(until_empty=True), 10 * SOON)
    assert await jobs[-1].result(timeout=SECONDS) == 10_000
    assert len(ran) == 10_000


# Batches


async def test_batch_has_one_status(app: Penstock) -> None:
    @app.task(retry=ONCE)
    async def step(n: int) -> None:
        if n < 0:
            raise ValueError

    jobs = await app.enqueue_batch([step.new(1), step.new(2)], correlation="b")
    assert {job.correlation for job in jobs} == {"b"}
    assert ((await app.batch("b")).status, (await app.batch("b")).total) == ("running", 2)
    await work_off(app)
    assert (await app.batch("b")).status == "done"
    await app.enqueue_batch([step.new(-1)], correlation="b")
    await work_off(app)
    batch = await app.batch("b")
    assert (batch.status, batch.tally) == ("failed", {State.DONE: 2, State.FAILED: 1})
    with pytest.raises(JobNotFound):
        await app.batch("other")


async def test_ordered_batch_stops_at_the_first_failure(app: Penstock) -> None:
    ran: list[int] = []

    @app.task(retry=ONCE)
    async def step(n: int) -> None:
        ran.append(n)
        if n == 2:
            raise ValueError

    jobs = await app.enqueue_batch([step.new(n) for n in range(5)], ordered=True)
    await work_off(app)
    assert ran == [0, 1, 2]
    assert jobs[0].correlation is not None
    tally = (await app.batch(jobs[0].correlation)).tally
    assert tally == {State.DONE: 2, State.FAILED: 1, State.CANCELLED: 2}


async def test_refused_batch_leaves_nothing(app: Penstock) -> None:
    @app.task
    async def step() -> None: ...

    await app.limits.queue("default", 2)
    with pytest.raises(Exception, match="full"):
        await app.enqueue_batch([step.new()] * 3, correlation="b")
    with pytest.raises(JobNotFound):
        await app.batch("b")


async def test_children_are_counted(app: Penstock) -> None:
    @app.task
    async def child(n: int) -> None: ...

    @app.task
    async def parent() -> None: ...

    job = await parent.enqueue()
    await app.enqueue_many([child.using(parent=job.id).new(n) for n in range(3)])
    assert await app.bulk(JobQuery(parent=job.id)).tally() == {State.PENDING: 3}
    await work_off(app)
    assert await app.bulk(JobQuery(parent=job.id)).tally() == {State.DONE: 3}
