"""Results of jobs: awaited in this process, in threads and from other processes."""

import asyncio
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    InvalidJob,
    Job,
    JobFailed,
    JobNotFound,
    NewJob,
    Penstock,
    State,
    Worker,
    run_sync,
)
from penstock.engine import results
from penstock.jobs import JobId, Verdict
from penstock.leases import Cancelled, Failed
from penstock.stores.sqlite import notifier
from tests.environment import SOON
from tests.worker.support import AT_ONCE, ONCE, work_off

SECONDS = timedelta(seconds=SOON)
LONG = 3600


async def test_result_is_awaited(app: Penstock) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    job = await double.enqueue(21)
    waiting = asyncio.create_task(job.result(timeout=SECONDS))
    await work_off(app)
    assert await waiting == 42
    assert await app.result(job.id) == await app.result(job) == 42
    assert job.returned is None  # the value does not change
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


async def test_failure_carries_the_traceback_of_the_handler(app: Penstock) -> None:
    def divide(by: int) -> float:
        return 1 / by

    @app.task(retry=ONCE)
    async def in_loop() -> float:
        return divide(0)

    @app.task(retry=ONCE)
    def in_thread() -> float:
        return divide(0)

    for task in (await in_loop.enqueue(), await in_thread.enqueue()):
        await work_off(app)
        with pytest.raises(JobFailed) as failure:
            await task.result()
        error = failure.value
        assert error.traceback is not None
        assert error.traceback.startswith("Traceback (most recent call last):\n")
        assert "in divide\n    return 1 / by\n" in error.traceback
        assert error.traceback.endswith("ZeroDivisionError: division by zero")
        assert "divide" not in str(error)  # one line, as it is shown over HTTP
        assert error.traceback in "".join(traceback.format_exception(error))
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - its own
        assert (again.traceback, again.__notes__) == (error.traceback, error.__notes__)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, None),
        ("no luck", None),
        ("no luck\n\nbecause of the weather", None),
        ("TimeoutError: it ran longer than 1 s", None),
        (
            "E: x\n\nTraceback (most recent call last):\nE: x",
            "Traceback (most recent call last):\nE: x",
        ),
        (
            "Traceback (most recent call last):\n\nE: x",
            "Traceback (most recent call last):\n\nE: x",
        ),
        ("E: x\n\n…  File\nE: x", "…  File\nE: x"),
    ],
)
async def test_traceback_is_found_in_the_error_of_any_worker(
    text: str | None, found: str | None
) -> None:
    app = Penstock("memory://")
    [job] = await app.enqueue_many([NewJob(task="t", payload="{}", retry=ONCE)])
    [job] = await app.leases.claim(worker="w")
    outcome = Cancelled() if text is None else Failed(text, permanent=True)
    await app.leases.settle([(job, outcome)])
    with pytest.raises(JobFailed) as failure:
        await app.result(job.id)
    assert failure.value.traceback == found
    assert getattr(failure.value, "__notes__", []) == (
        [] if found is None else [f"The traceback of job {job.id}, where it ran:\n\n{found}"]
    )
    await app.close()


async def test_waiting_for_a_result_times_out(app: Penstock) -> None:
    @app.task
    async def never() -> None: ...

    job = await never.enqueue()
    with pytest.raises(TimeoutError):
        await job.result(timeout=timedelta(0))
    with pytest.raises(InvalidJob, match="timeout must be a timedelta"):
        await job.result(timeout=3)  # type: ignore[arg-type] # is what is refused
    with pytest.raises(JobNotFound):
        await app.result(10_000)
    [watch] = app.connection.results._watches.values()
    assert not watch._waiters


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


async def test_every_job_that_is_returned_can_be_waited_for(app: Penstock) -> None:
    @app.task(retry=ONCE, key="k", merge=lambda old, new: Verdict.DROP)
    async def same(n: int) -> int:
        return n

    await app.schedules.put("s", same.new(1), every=timedelta(days=1))
    jobs = [
        await same.enqueue(1),
        *await app.enqueue_many([same.new(1), same.using(dedupe="d").new(1)]),
        *await app.enqueue_many([same.using(dedupe="d").new(2)]),
        *await app.enqueue_batch([same.new(1)]),
        await app.schedules.run_now("s"),
        await same.using(supersede=True).enqueue(2),  # dropped together with the pending one
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


async def test_result_may_be_requested_while_others_are_read(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that such a read did not include has not been removed."""

    @app.task
    async def same(n: int) -> int:
        return n

    first, second = await app.enqueue_many([same.new(1), same.new(2)])
    get, late = app.store.get, list[asyncio.Task[Any]]()

    async def meanwhile(ids: Sequence[JobId]) -> list[Job]:
        found = await get(ids)
        if not late:
            late.append(asyncio.create_task(app.result(second, timeout=SECONDS)))
            [watch] = app.connection.results._watches.values()
            while second.id not in watch._waiters:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0)
        return found

    monkeypatch.setattr(app.store, "get", meanwhile)
    waiting = asyncio.create_task(app.result(first, timeout=SECONDS))
    async with asyncio.timeout(SOON):
        while not late:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
    await work_off(app)
    assert [await waiting, await late[0]] == [1, 2]


async def test_end_between_a_read_and_the_wait_is_not_missed(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Polling would be too late.
    monkeypatch.setattr(notifier, "_POLL", LONG)
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
from penstock import (Penstock, Worker)

app = Penstock(sys.argv[1])

@app.task
async def double(n: int) -> int:
    return 2 * n

asyncio.run(Worker(app).run(until_empty=True))
"""


async def test_result_of_another_process_is_notified(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Polling would be too late.
    monkeypatch.setattr(notifier, "_POLL", LONG)
    monkeypatch.setattr(results, "_LOOK_AGAIN", LONG)
    url = f"sqlite:///{path}"
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


async def test_every_event_loop_has_one_watch(app: Penstock) -> None:
    """However its waiters alternate with those of other loops."""

    @app.task
    def one() -> int:
        return 1

    jobs = await app.enqueue_many([one.new() for _ in range(6)])
    started = threading.Semaphore(0)

    async def wait_for_all() -> tuple[list[int], int]:
        waiting = []
        for job in jobs:
            waiting.append(asyncio.create_task(app.result(job, timeout=SECONDS)))
            await asyncio.sleep(0)
            started.release()
        results = await asyncio.gather(*waiting)
        return results, len(app.connection.results._watches)

    with ThreadPoolExecutor(2) as threads:
        found = [threads.submit(lambda: asyncio.run(wait_for_all())) for _ in range(2)]
        for _ in range(2 * len(jobs)):
            await asyncio.to_thread(started.acquire)
        await work_off(app)
        answers = [await asyncio.wrap_future(one) for one in found]
    assert [results for results, _ in answers] == [[1] * len(jobs)] * 2
    assert all(watches <= 2 for _, watches in answers)
