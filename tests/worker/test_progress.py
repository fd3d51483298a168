"""The progress buffer: what it writes, how often, and what happens if it cannot."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock import (
    Cancel,
    ConfigurationError,
    Context,
    Job,
    NewJob,
    Penstock,
    Snooze,
    State,
    StoreError,
    StoreUnavailable,
    Worker,
    context,
    run_sync,
)
from penstock.jobs import Progress
from penstock.leases import Report
from penstock.worker import progress as progress_module
from penstock.worker.progress import ProgressBuffer
from tests.contract.support import HOUR, SECOND, ManualClock
from tests.environment import SOON
from tests.worker.support import ONCE, eventually, soon, work_off, working


class Writes:
    """The reports written to a store; it can be made to fail."""

    def __init__(self, app: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[list[float | None]] = []
        self.failures: list[Exception] = []
        self._report = app.store.report
        monkeypatch.setattr(app.store, "report", self.report)

    async def report(self, reports: Sequence[Report]) -> list[bool]:
        if self.failures:
            raise self.failures.pop()
        self.done.append([_done(one.progress) for one in reports])
        return await self._report(reports)


@pytest.fixture
def writes(app: Penstock, monkeypatch: pytest.MonkeyPatch) -> Writes:
    return Writes(app, monkeypatch)


def _done(progress: Progress | None) -> float | None:
    return None if progress is None else progress.done


async def done(app: Penstock, job: Job) -> float | None:
    return _done(await app.progress(job.id))


async def is_done(app: Penstock, job: Job, expected: float) -> bool:
    return await done(app, job) == expected


async def running(app: Penstock, n: int) -> list[Job]:
    await app.enqueue_many([NewJob(task="t", payload="{}")] * n)
    return await app.leases.claim(worker="w", limit=n)


def buffer_at(app: Penstock, monotonic: Callable[[], float]) -> ProgressBuffer:
    """A buffer that measures intervals with this function."""
    buffer = ProgressBuffer(app)
    buffer._monotonic = monotonic
    return buffer


def buffer_of(run: Context) -> ProgressBuffer:
    assert isinstance(run.reporter, ProgressBuffer)
    return run.reporter


def report(buffer: ProgressBuffer, job: Job, n: float) -> None:
    Context(job, buffer).progress(n)


# Reporting


async def test_coroutine_reports_progress(app: Penstock, clock: ManualClock) -> None:
    began = clock.now

    @app.task
    async def count() -> None:
        context().progress(10, 40)
        clock.advance(5 * SECOND)
        context().progress(20, 40, "half")

    job = await count.enqueue()
    assert await app.progress(job.id) is None
    await work_off(app)
    progress = await app.progress(job.id)
    assert progress == Progress(20, 40, "half", clock.now, began, 10)
    assert (progress.fraction, progress.rate, progress.left) == (0.5, 2, 10 * SECOND)


async def test_thread_reports_progress(app: Penstock) -> None:
    @app.task
    def count(n: int) -> None:
        for i in range(n):
            context().progress(i + 1, n)

    jobs = [await count.enqueue(n) for n in (1, 100, 0)]
    await work_off(app)
    found = await app.progress([job.id for job in jobs])
    assert {key: one.done for key, one in found.items()} == {jobs[0].id: 1, jobs[1].id: 100}


@pytest.mark.parametrize(
    "end", [ValueError("no"), Snooze(HOUR), Cancel("enough"), asyncio.CancelledError()]
)
async def test_last_report_is_written_however_the_run_ends(
    app: Penstock, end: BaseException
) -> None:
    @app.task(retry=ONCE)
    async def count() -> None:
        for i in range(100):
            context().progress(i)
        raise end

    job = await count.enqueue()
    await work_off(app)
    assert await done(app, job) == 99


async def test_progress_is_visible_while_the_run_continues(app: Penstock) -> None:
    finish = asyncio.Event()

    @app.task
    async def wait() -> None:
        context().progress(1, 2)
        await finish.wait()

    job = await wait.enqueue()
    async with working(app):
        await eventually(lambda: is_done(app, job, 1))
        finish.set()


async def test_progress_is_visible_while_a_handler_blocks_the_event_loop(app: Penstock) -> None:
    def look(job_id: int) -> bool:
        while run_sync(app.progress(job_id)) is None:  # SOON ends the test, not this loop
            pass
        return True

    @app.task
    async def block() -> bool:
        context().progress(1, 2)
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(look, context().job.id).result(SOON)

    job = await block.enqueue()
    await work_off(app)
    assert (await app.get(job.id)).returned is True


@pytest.mark.parametrize("count", ["1", None, float("nan"), float("inf"), 2**63, 10**400, [1]])
async def test_progress_must_be_a_number(app: Penstock, count: object) -> None:
    (job,) = await running(app, 1)
    with pytest.raises(ConfigurationError, match="must be a finite number"):
        report(ProgressBuffer(app), job, count)  # type: ignore[arg-type] # that is the point


async def test_context_without_a_worker_cannot_report(app: Penstock) -> None:
    (job,) = await running(app, 1)
    run = Context(job)
    with pytest.raises(ConfigurationError, match="no worker"):
        run.progress(1)
    with pytest.raises(ConfigurationError, match="no worker"):
        _ = run.state
    run.logger.info("this is only logged")


async def test_reports_of_a_thread_that_outlives_its_worker_are_dropped(app: Penstock) -> None:
    left: list[Context] = []

    @app.task
    async def leave() -> None:
        context().progress(1)
        left.append(context())

    job = await leave.enqueue()
    await work_off(app)
    left[0].progress(2)
    left[0].logger.warning("too late")
    assert buffer_of(left[0]).until_due() is None
    assert await done(app, job) == 1
    assert await app.lines(job.id) == []


# Writing


async def test_progress_is_not_written_more_often_than_its_pace(
    app: Penstock, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time does not advance here until the test moves it."""
    now = 0.0
    monkeypatch.setattr(progress_module, "PACE", 0.01)
    buffer = buffer_at(app, lambda: now)
    first, second = await running(app, 2)
    report(buffer, first, 1)
    await eventually(lambda: is_done(app, first, 1))
    for n in range(2, 1000):
        report(buffer, first, n)
        report(buffer, second, n)
        assert buffer.until_due() == 0.01
    now = 0.004
    assert buffer.until_due() == pytest.approx(0.006)
    assert writes.done == [[1]]
    now = 0.01
    await eventually(lambda: is_done(app, first, 999))
    assert writes.done == [[1], [999, 999]], "the newest values of both, in one transaction"
    assert buffer.until_due() is None
    await buffer.close()


async def test_reports_of_an_ending_run_are_written_at_once_and_others_are_not(
    app: Penstock, writes: Writes
) -> None:
    buffer = buffer_at(app, lambda: 0.0)
    first, second = await running(app, 2)
    report(buffer, first, 1)
    await eventually(lambda: is_done(app, first, 1))
    report(buffer, first, 2)
    report(buffer, second, 3)
    await buffer.write_now([second.token, 99])
    assert writes.done == [[1], [3]]
    report(buffer, second, 4)
    await buffer.close()
    assert writes.done == [[1], [3], [2, 4]], "what is left is written at the end"


async def test_end_of_a_run_waits_for_reports_that_are_being_written(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it were settled meanwhile, its lease would have ended, and its last reports be refused."""
    begun, proceed = asyncio.Event(), threading.Event()
    loop, write = asyncio.get_running_loop(), app.store.report

    async def slowly(reports: Sequence[Report]) -> list[bool]:
        loop.call_soon_threadsafe(begun.set)
        assert proceed.wait(SOON)
        return await write(reports)

    (job,) = await running(app, 1)
    monkeypatch.setattr(app.store, "report", slowly)
    buffer = ProgressBuffer(app)
    report(buffer, job, 1)
    await soon(begun)
    ending = asyncio.create_task(buffer.write_now([job.token]))
    for _ in range(3):  # it gets its turns
        await asyncio.sleep(0)
    await buffer.write_now([job.token + 1])  # another run need not wait
    assert not ending.done()
    proceed.set()
    async with asyncio.timeout(SOON):
        await ending
    assert await done(app, job) == 1
    await buffer.close()


async def test_many_reports_of_a_run_are_few_writes(
    app: Penstock, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "PACE", 3600)

    @app.task
    async def count() -> None:
        for i in range(1000):
            context().progress(i)
            await asyncio.sleep(0)

    await count.enqueue()
    await work_off(app)
    assert len(writes.done) <= 2
    assert writes.done[-1] == [999]


async def test_last_report_is_written_when_the_store_answers_again(
    app: Penstock, writes: Writes
) -> None:
    @app.task
    async def count() -> None:
        context().progress(7)
        context().logger.info("seven")

    job = await count.enqueue()
    writes.failures = [StoreUnavailable("not now"), StoreUnavailable("not now")]
    await work_off(app)
    assert not writes.failures
    assert await done(app, job) == 7
    assert [line.text for line in await app.lines(job.id)] == ["seven"]
    assert (await app.get(job.id)).state is State.DONE


async def test_reports_put_back_are_written_in_time(
    app: Penstock, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed write at the end of one run, the reports of others must not wait for it."""
    monkeypatch.setattr(progress_module, "PACE", 0.01)
    first, second = await running(app, 2)
    buffer = ProgressBuffer(app)
    report(buffer, first, 1)
    await eventually(lambda: is_done(app, first, 1))
    buffer._unwritten[first.token] = progress_module._Unwritten(first.lease)
    writes.failures = [StoreUnavailable("not now")]
    with pytest.raises(StoreUnavailable):
        await buffer.write_now([first.token])
    report(buffer, second, 2)
    await eventually(lambda: is_done(app, second, 2))
    await buffer.close()


@pytest.mark.parametrize("failure", [ValueError("unexpected"), StoreError("permanent")])
async def test_job_ends_although_its_progress_cannot_be_written(
    app: Penstock, writes: Writes, failure: Exception
) -> None:
    @app.task
    async def count() -> None:
        context().progress(7)

    job = await count.enqueue()
    writes.failures = [failure] * 2
    await work_off(app)
    assert (await app.get(job.id)).state is State.DONE


async def test_reports_that_cannot_be_written_at_the_end_are_logged(
    app: Penstock, writes: Writes, caplog: pytest.LogCaptureFixture
) -> None:
    (job,) = await running(app, 1)
    buffer = buffer_at(app, lambda: 0.0)
    buffer._last_write = 0.0
    report(buffer, job, 1)
    writes.failures = [StoreUnavailable("the disk is full")]
    await buffer.close()
    assert "progress could not be written and is lost: the disk is full" in caplog.text


async def test_job_that_reports_nothing_costs_no_thread(app: Penstock) -> None:
    @app.task
    def nothing() -> int:
        return context().attempt

    await nothing.enqueue()
    worker = Worker(app)
    await worker.run(until_empty=True)
    assert not worker._progress.used
    assert "penstock-progress" not in [thread.name for thread in threading.enumerate()]
