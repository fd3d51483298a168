"""Chains, batches, superseding jobs and awaited results, with a real worker."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    InvalidJob,
    Job,
    JobFailed,
    JobId,
    JobNotFound,
    NewJob,
    OnFailure,
    Penstock,
    State,
    Verdict,
    Worker,
    chain,
    results,
    run_sync,
)
from penstock.stores.sqlite import bell
from tests.contract.support import SOON
from tests.worker.support import AT_ONCE, ONCE, work_off

SECONDS = timedelta(seconds=SOON)
LONG = 3600


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


def test_chains_can_be_put_together() -> None:
    one = NewJob(task="t", payload="{}")
    inner = chain(one, one)
    assert [job.follows for job in chain(one, inner, one)] == [(), (0,), (1,), (2,)]
    assert [job.follows for job in chain([one, one], one)] == [(), (), (0, 1)]
    with pytest.raises(InvalidJob):
        chain()


async def test_job_cannot_follow_itself_or_a_later_one(app: Penstock) -> None:
    for place in (1, 2, -1):
        jobs = [NewJob(task="t", payload="{}"), NewJob(task="t", payload="{}", follows=(place,))]
        with pytest.raises(InvalidJob, match="not before it"):
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


async def test_explain_says_what_a_job_waits_for(app: Penstock) -> None:
    @app.task
    async def step() -> None: ...

    first, second = await step.enqueue(), await step.enqueue()
    waiting = await step.using(after=[first, second]).enqueue()
    explanation = await app.explain(waiting.id)
    assert explanation.reason == "blocked"
    assert explanation.blocked_by == first.id
    assert explanation.text == f"it waits for job {first.id}, which is pending, and for 1 more"


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

    await app.limit("default", 2)
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
    assert await app.children(job.id) == {State.PENDING: 3}
    await work_off(app)
    assert await app.children(job.id) == {State.DONE: 3}


# Superseding


def merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any] | Verdict:
    match old["op"], new["op"]:
        case "create", "delete":
            return Verdict.DROP
        case _, "move":
            return Verdict.KEEP
        case op, "update":
            return {"op": op, "text": new["text"]}
    return new


async def test_pending_jobs_of_a_key_are_merged(app: Penstock) -> None:
    ran: list[tuple[str, str]] = []

    @app.task(key="file", supersede=True, merge=merge)
    async def write(op: str, text: str = "") -> None:
        ran.append((op, text))

    await write.enqueue("create", "a")
    await write.enqueue("update", "b")
    await write.enqueue("update", "c")
    await work_off(app)
    assert ran == [("create", "c")]
    assert {state for _, state, _ in await app.count()} == {State.DONE, State.SUPERSEDED}


async def test_merge_rule_may_drop_both_or_keep_both(app: Penstock) -> None:
    ran: list[str] = []

    @app.task(key="file", supersede=True, merge=merge)
    async def write(op: str, text: str = "") -> None:
        ran.append(op)

    first = await write.enqueue("create", "a")
    undone = await write.enqueue("delete")
    assert (undone.id, undone.state) == (first.id, State.SUPERSEDED)
    await write.enqueue("update", "b")
    await write.enqueue("move")
    await work_off(app)
    assert ran == ["update", "move"]


async def test_without_a_rule_the_newest_wins(app: Penstock) -> None:
    ran: list[int] = []

    @app.task(supersede=True, key="k")
    async def draw(n: int) -> None:
        ran.append(n)

    for n in range(5):
        await draw.enqueue(n)
    await work_off(app)
    assert ran == [4]


async def test_superseding_needs_a_key_and_stands_alone(app: Penstock) -> None:
    @app.task
    async def draw(n: int) -> None: ...

    with pytest.raises(InvalidJob, match="key"):
        await draw.using(supersede=True).enqueue(1)
    alone = draw.using(supersede=True, key="k")
    with pytest.raises(InvalidJob, match="alone"):
        await app.enqueue_many([alone.new(1), alone.new(2)])


def test_many_producers_leave_one_pending_job(app: Penstock) -> None:
    @app.task(supersede=True, key="k", merge=lambda old, new: {"n": old["n"] + new["n"]})
    async def add(n: int) -> None: ...

    def produce() -> None:
        for _ in range(20):
            run_sync(add.enqueue(1))

    threads = [threading.Thread(target=produce) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [job] = run_sync(app.claim(worker="w", limit=10))
    assert job.args == {"n": 80}


# Results


async def test_result_is_awaited(app: Penstock) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    job = await double.enqueue(21)
    waiting = asyncio.create_task(job.result(timeout=SECONDS))
    await work_off(app)
    assert await waiting == 42
    assert await app.result(job.id) == await app.result(job) == 42
    assert job.returned is None  # it is what it was
    assert (await app.get(job.id)).returned == 42


async def test_failure_is_raised_with_the_job(app: Penstock) -> None:
    @app.task(retry=ONCE)
    async def bad() -> None:
        raise ValueError("boom")

    job = await bad.enqueue()
    await work_off(app)
    with pytest.raises(JobFailed, match="ValueError: boom") as failure:
        await job.result()
    assert failure.value.job.state is State.FAILED


async def test_waiting_ends_with_its_time(app: Penstock) -> None:
    @app.task
    async def never() -> None: ...

    job = await never.enqueue()
    with pytest.raises(TimeoutError):
        await job.result(timeout=timedelta(0))
    with pytest.raises(InvalidJob, match="timeout is a timedelta"):
        await job.result(timeout=3)  # type: ignore[arg-type] # is what is refused
    with pytest.raises(JobNotFound):
        await app.result(10_000)
    assert not app._ends._waiters


def test_result_without_an_event_loop(app: Penstock) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    job = run_sync(double.enqueue(1))
    with pytest.raises(TimeoutError):
        run_sync(job.result(timeout=timedelta(0)))
    worker = threading.Thread(target=lambda: asyncio.run(Worker(app).run(until_empty=True)))
    worker.start()
    assert run_sync(job.result(timeout=SECONDS)) == 2
    worker.join()


async def test_every_job_that_is_handed_out_can_be_waited_for(app: Penstock) -> None:
    @app.task(retry=ONCE, key="k", merge=lambda old, new: Verdict.DROP)
    async def same(n: int) -> int:
        return n

    await app.schedule("s", same.new(1), every=timedelta(days=1))
    jobs = [
        await same.enqueue(1),
        *await app.enqueue_many([same.new(1), same.using(dedupe="d").new(1)]),
        *await app.enqueue_many([same.using(dedupe="d").new(2)]),
        *await app.enqueue_batch([same.new(1)]),
        await app.run_now("s"),
        await same.using(supersede=True).enqueue(2),  # dropped, and another with it
        await same.using(supersede=True, key="other").enqueue(1),
        await app.get(1),
        *await app.find(),
    ]
    jobs += [await app.cancel(2), await app.retry(2)]
    await work_off(app)
    ends = {job.id: job for job in await app.find()}
    assert {ends[job.id].state for job in jobs} == {State.DONE, State.SUPERSEDED}
    for job in jobs:
        if ends[job.id].state is State.DONE:
            assert await job.result() == 1
        else:
            with pytest.raises(JobFailed, match="superseded") as failure:
                await job.result()
            with pytest.raises(JobFailed):
                await failure.value.job.result()


async def test_many_wait_for_their_results(app: Penstock) -> None:
    @app.task(retry=AT_ONCE)
    async def same(n: int) -> int:
        return n

    jobs = await app.enqueue_many([same.new(n) for n in range(300)])
    waiting = [asyncio.create_task(job.result(timeout=SECONDS)) for job in jobs]
    await work_off(app)
    assert await asyncio.gather(*waiting) == list(range(300))


async def test_result_may_be_asked_for_while_others_are_looked_at(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no job that is gone, only one that the look was not for."""

    @app.task
    async def same(n: int) -> int:
        return n

    first, second = await app.enqueue_many([same.new(1), same.new(2)])
    get, late = app.store.get, list[asyncio.Task[Any]]()

    async def meanwhile(ids: Sequence[JobId]) -> list[Job]:
        found = await get(ids)
        if not late:
            late.append(asyncio.create_task(app.result(second, timeout=SECONDS)))
            while second.id not in app._ends._waiters:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0)
        return found

    monkeypatch.setattr(app.store, "get", meanwhile)
    waiting = asyncio.create_task(app.result(first, timeout=SECONDS))
    async with asyncio.timeout(SOON):
        while not late:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
    await work_off(app)
    assert [await waiting, await late[0]] == [1, 2]


async def test_end_between_a_look_and_the_wait_is_not_missed(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Looking from time to time would be too late.
    monkeypatch.setattr(bell, "_POLL", LONG)
    monkeypatch.setattr(results, "_LOOK_AGAIN", LONG)
    watch, queues = app.store.watch, ("first", "second")
    seen = asyncio.Event()

    @app.task
    async def same(n: int) -> int:
        return n

    other, job = [await same.using(queue=queue).enqueue(n) for n, queue in enumerate(queues)]
    watching = asyncio.create_task(app.result(other, timeout=SECONDS))

    async def slowly(ids: Sequence[JobId]) -> list[Job]:
        found = await watch(ids)
        if job.id in ids:
            await work_off(app, queues=["second"])
            await asyncio.wait_for(seen.wait(), SOON)
        return found

    get = app.store.get

    async def noticed(ids: Sequence[JobId]) -> list[Job]:
        found = await get(ids)
        if (await get([job.id]))[0].state.final:
            asyncio.get_running_loop().call_soon(seen.set)
        return found

    monkeypatch.setattr(app.store, "get", noticed)
    monkeypatch.setattr(app.store, "watch", slowly)
    assert await app.result(job, timeout=SECONDS) == 1
    await work_off(app)
    assert await watching == 0


WORKER = """
import asyncio, sys
from penstock import Penstock, Worker

app = Penstock(sys.argv[1])

@app.task
async def double(n: int) -> int:
    return 2 * n

asyncio.run(Worker(app).run(until_empty=True))
"""


async def test_result_of_another_process_is_rung_for(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Looking from time to time would be too late.
    monkeypatch.setattr(bell, "_POLL", LONG)
    monkeypatch.setattr(results, "_LOOK_AGAIN", LONG)
    async with Penstock(url) as app:

        @app.task
        async def double(n: int) -> int:
            raise AssertionError

        job = await app.get((await double.enqueue(4)).id)
        waiting = asyncio.create_task(job.result(timeout=3 * SECONDS))
        await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", WORKER, url], check=True, timeout=2 * SOON
        )
        assert await waiting == 8
