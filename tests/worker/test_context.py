import asyncio
import logging
import threading

import pytest

from penstock import Penstock, context
from tests.contract.support import SOON
from tests.worker.support import AT_ONCE, work_off


def test_there_is_no_context_outside_of_a_run() -> None:
    with pytest.raises(LookupError, match="no job is running here"):
        context()


async def test_coroutine_sees_its_own_job_token_and_attempt(app: Penstock) -> None:
    seen: list[tuple[int, int, int]] = []

    @app.task(retry=AT_ONCE)
    async def look() -> None:
        await asyncio.sleep(0)
        run = context()
        seen.append((run.job.id, run.attempt, run.token))
        if run.attempt == 1:
            raise ValueError("once more")

    job = await look.enqueue()
    await work_off(app)
    tokens = [entry.token for entry in await app.log(job.id) if entry.event == "claimed"]
    assert seen == [(job.id, 1, tokens[0]), (job.id, 2, tokens[1])]
    assert tokens[0] is not None
    assert tokens[1] is not None
    assert tokens[0] < tokens[1]


async def test_thread_sees_its_own_job(app: Penstock) -> None:
    both_inside = threading.Barrier(2, timeout=SOON)

    @app.task
    def look() -> int:
        both_inside.wait()
        return context().job.id

    jobs = [await look.enqueue() for _ in range(2)]
    await work_off(app)
    assert [(await app.get(job.id)).result for job in jobs] == [job.id for job in jobs]


async def test_runs_at_the_same_time_have_contexts_of_their_own(app: Penstock) -> None:
    both_inside = asyncio.Barrier(2)

    @app.task
    async def look() -> int:
        async with asyncio.timeout(SOON):
            await both_inside.wait()
        return context().job.id

    jobs = [await look.enqueue() for _ in range(2)]
    await work_off(app)
    assert [(await app.get(job.id)).result for job in jobs] == [job.id for job in jobs]


async def test_context_reaches_what_the_handler_calls_and_starts(app: Penstock) -> None:
    async def deep_inside() -> int:
        return context().job.id

    @app.task
    async def look() -> list[int]:
        in_thread = await asyncio.to_thread(lambda: context().job.id)
        return [await deep_inside(), await asyncio.create_task(deep_inside()), in_thread]

    job = await look.enqueue()
    await work_off(app)
    assert (await app.get(job.id)).result == [job.id] * 3


async def test_context_ends_with_the_worker(app: Penstock) -> None:
    @app.task
    async def nothing() -> None:
        pass

    await nothing.enqueue()
    await work_off(app)
    with pytest.raises(LookupError):
        context()


async def test_logger_carries_job_task_and_attempt(
    app: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def speak() -> None:
        context().logger.warning("hello")

    job = await speak.enqueue()
    with caplog.at_level(logging.WARNING, "penstock.task"):
        await work_off(app)
    [record] = [record for record in caplog.records if record.name == "penstock.task"]
    carried = {name: vars(record)[name] for name in ("job_id", "task", "attempt")}
    assert carried == {"job_id": job.id, "task": "speak", "attempt": 1}


async def test_run_is_not_cancelled_unless_told(app: Penstock) -> None:
    @app.task
    def look() -> bool:
        return context().cancelled

    job = await look.enqueue()
    await work_off(app)
    assert (await app.get(job.id)).result is False
