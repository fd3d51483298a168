"""The context of a running handler: its job, checkpoints and log lines, and how it ends."""

import asyncio
import logging
import re
import threading
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import Job, LeaseLost, Penstock, State, context, run_sync
from penstock.jobs import Event, Progress
from penstock.leases import Report
from tests.contract.support import HOUR, SECOND, ManualClock
from tests.environment import SOON
from tests.worker.support import AT_ONCE, ONCE, eventually, soon, take_away, work_off, working


def test_context_outside_of_a_run_raises() -> None:
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
    assert [(await app.get(job.id)).returned for job in jobs] == [job.id for job in jobs]


async def test_concurrent_runs_have_different_contexts(app: Penstock) -> None:
    both_inside = asyncio.Barrier(2)

    @app.task
    async def look() -> int:
        async with asyncio.timeout(SOON):
            await both_inside.wait()
        return context().job.id

    jobs = [await look.enqueue() for _ in range(2)]
    await work_off(app)
    assert [(await app.get(job.id)).returned for job in jobs] == [job.id for job in jobs]


async def test_context_reaches_what_the_handler_calls_and_starts(app: Penstock) -> None:
    async def deep_inside() -> int:
        return context().job.id

    @app.task
    async def look() -> list[int]:
        in_thread = await asyncio.to_thread(lambda: context().job.id)
        return [await deep_inside(), await asyncio.create_task(deep_inside()), in_thread]

    job = await look.enqueue()
    await work_off(app)
    assert (await app.get(job.id)).returned == [job.id] * 3


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


async def test_run_is_not_cancelled_unless_requested(app: Penstock) -> None:
    @app.task
    def look() -> bool:
        return context().cancelled

    job = await look.enqueue()
    await work_off(app)
    assert (await app.get(job.id)).returned is False


# Checkpoints


async def test_next_attempt_continues_from_the_last_checkpoint(app: Penstock) -> None:
    steps: list[int] = []
    seen: list[Any] = []

    @app.task(retry=AT_ONCE)
    async def walk() -> None:
        run = context()
        seen.append(run.state)
        for step in range((run.state or {"next": 0})["next"], 9):
            steps.append(step)
            if step in (3, 6) and run.attempt < 3 and seen[-1] != {"next": step}:
                raise ValueError(step)
            await run.checkpoint({"next": step + 1})
            assert run.state == {"next": step + 1}

    job = await walk.enqueue()
    await work_off(app)
    assert steps == [0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8]
    assert seen == [None, {"next": 3}, {"next": 6}]
    assert (await app.get(job.id)).state is State.DONE
    assert await app.checkpoint(job.id) is None


async def test_thread_continues_from_the_last_checkpoint(app: Penstock) -> None:
    steps: list[int] = []

    @app.task(retry=AT_ONCE)
    def walk() -> None:
        run = context()
        for step in range(run.state or 0, 6):
            steps.append(step)
            if step == 3 and run.attempt == 1:
                raise ValueError(step)
            run.checkpoint(step + 1)

    await walk.enqueue()
    await work_off(app)
    assert steps == [0, 1, 2, 3, 3, 4, 5]


async def test_state_survives_a_snooze_of_the_first_attempt(
    app: Penstock, clock: ManualClock
) -> None:
    seen: list[tuple[int, Any]] = []

    @app.task
    async def poll() -> None:
        run = context()
        seen.append((run.attempt, run.state))
        if run.state is None:
            await run.checkpoint(["begun"])
            run.snooze(SECOND, "not yet")

    job = await poll.enqueue()
    await work_off(app)
    assert (await app.log(job.id))[-1].reason == "not yet"
    clock.advance(2 * SECOND)
    await work_off(app)
    assert seen == [(1, None), (1, ["begun"])]


async def test_checkpoint_is_stored_on_return(app: Penstock) -> None:
    @app.task
    async def walk() -> bool:
        await context().checkpoint({"a": [1, 2.5, None, "ü"]})
        return bool(await app.checkpoint(context().job.id) == {"a": [1, 2.5, None, "ü"]})

    @app.task
    def plain() -> bool:
        context().checkpoint("x")
        return bool(run_sync(app.checkpoint(context().job.id)) == "x")

    jobs = [await walk.enqueue(), await plain.enqueue()]
    await work_off(app)
    assert [(await app.get(job.id)).returned for job in jobs] == [True, True]


async def test_checkpoint_is_a_copy_of_the_state(app: Penstock) -> None:
    @app.task
    async def walk() -> list[int]:
        state = [1]
        await context().checkpoint(state)
        state.append(2)
        found: list[int] = context().state
        return found

    job = await walk.enqueue()
    await work_off(app)
    assert (await app.get(job.id)).returned == [1]


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (object(), "plain JSON"),
        ({"at": datetime(2030, 1, 1, tzinfo=UTC)}, "would come back as '2030-01-01T00:00:00Z'"),
        ({1: "x"}, "would come back"),
        (float("nan"), "nan, which JSON does not have"),
        ("x" * 1_000_000, "1000002 bytes.*limit is 1000000"),
    ],
)
async def test_invalid_checkpoint_is_a_permanent_failure(
    app: Penstock, state: Any, error: str
) -> None:
    @app.task(retry=AT_ONCE)
    async def walk() -> None:
        await context().checkpoint("good")
        await context().checkpoint(state)

    job = await walk.enqueue()
    await work_off(app)
    failed = await app.get(job.id)
    assert (failed.state, failed.attempt) == (State.FAILED, 1)
    assert re.search(error, failed.error or "")
    assert await app.checkpoint(job.id) == "good", "kept on failure"


async def test_manual_retry_starts_without_a_checkpoint(app: Penstock) -> None:
    seen: list[Any] = []

    @app.task(retry=ONCE)
    async def walk() -> None:
        seen.append(context().state)
        context().progress(5)
        await context().checkpoint(5)
        raise ValueError

    job = await walk.enqueue()
    await work_off(app)
    await app.retry(job.id)
    assert await app.progress(job.id) is None
    await work_off(app)
    assert seen == [None, None]


async def test_largest_checkpoint_is_restored(app: Penstock) -> None:
    @app.task(retry=AT_ONCE)
    def walk() -> int:
        if context().state is None:
            context().checkpoint("x" * 999_998)
            raise ValueError
        return len(context().state)

    job = await walk.enqueue()
    await work_off(app)
    assert (await app.get(job.id)).returned == 999_998


async def test_checkpoint_in_a_thread_can_be_awaited(app: Penstock) -> None:
    saved: list[Awaitable[None]] = []

    @app.task
    def plain() -> None:
        saved.append(context().checkpoint(1))

    await plain.enqueue()
    await work_off(app)
    await saved[0]


async def test_stale_run_overwrites_nothing_of_the_new_one(
    app: Penstock, clock: ManualClock
) -> None:
    started, finish = asyncio.Event(), asyncio.Event()
    lost: list[LeaseLost] = []

    @app.task(lease=HOUR)  # too long to be renewed meanwhile
    async def walk() -> None:
        await context().checkpoint("old")
        started.set()
        await finish.wait()
        context().progress(99)
        context().logger.warning("from the past")
        with pytest.raises(LeaseLost) as refused:
            await context().checkpoint("stale")
        lost.append(refused.value)

    job = await walk.enqueue()
    async with working(app, sweep=HOUR, concurrency=1):  # it has no free slot for its own job
        await soon(started)
        await take_away(app, job, clock)
        (mine,) = await app.leases.claim(worker="another")
        assert await app.checkpoint(job.id) == "old"
        theirs = Progress(1, 2, None, clock.now, clock.now)
        report = Report(lease=mine.lease, progress=theirs, state='"mine"')
        assert await app.store.report([report]) == [True]
        finish.set()
        await eventually(lambda: _was_refused(app, job, 2))
    assert [(one.job_id, one.token < mine.token) for one in lost] == [(job.id, True)]
    assert await app.progress(job.id) == theirs
    assert await app.checkpoint(job.id) == "mine"
    assert await app.lines(job.id) == []
    assert (await app.get(job.id)).token == mine.token


async def _was_refused(app: Penstock, job: Job, times: int) -> bool:
    """The checkpoint, and then the outcome of the run."""
    return sum(entry.event is Event.REFUSED for entry in await app.log(job.id)) == times


# Ending


async def test_thread_ends_when_it_is_cancelled(app: Penstock) -> None:
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.task
    def loops() -> None:
        context().raise_if_cancelled()
        loop.call_soon_threadsafe(started.set)
        while True:
            context().raise_if_cancelled()

    job = await loops.enqueue()
    async with working(app):
        await soon(started)
        await app.cancel(job.id)
        await eventually(lambda: _is_in(app, job, State.CANCELLED))


async def test_thread_that_timed_out_has_failed(app: Penstock) -> None:
    @app.task(timeout=timedelta(milliseconds=20), retry=ONCE)
    def loops() -> None:
        while True:
            context().raise_if_cancelled()

    job = await loops.enqueue()
    await work_off(app)
    failed = await app.get(job.id)
    assert failed.state is State.FAILED
    assert "TimeoutError" in (failed.error or "")


async def _is_in(app: Penstock, job: Job, state: State) -> bool:
    return (await app.get(job.id)).state is state


# Lines


async def test_lines_are_kept_with_the_job(
    app: Penstock, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(retry=AT_ONCE)
    async def speak() -> None:
        run = context()
        run.logger.info("attempt %d of %s", run.attempt, "many")
        run.logger.debug("details")
        if run.attempt == 1:
            raise ValueError

    @app.task
    def plain() -> None:
        context().logger.warning("from a thread")

    job, other = await speak.enqueue(), await plain.enqueue()
    with caplog.at_level(logging.WARNING):
        await work_off(app)
    lines = await app.lines(job.id)
    assert [(one.id, one.at, one.level, one.text, one.attempt) for one in lines] == [
        (1, clock.now, "INFO", "attempt 1 of many", 1),
        (2, clock.now, "INFO", "attempt 2 of many", 2),
    ]
    assert await app.lines(job.id, after=1) == lines[1:]
    assert await app.lines(job.id, limit=1) == lines[:1]
    assert [one.text for one in await app.lines(other.id)] == ["from a thread"]
    logged = [record.getMessage() for record in caplog.records if record.name == "penstock.task"]
    assert logged == ["from a thread"]


async def test_debug_lines_are_kept_if_the_logger_is_enabled_for_them(
    app: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def speak() -> None:
        context().logger.debug("details")

    job = await speak.enqueue()
    with caplog.at_level(logging.DEBUG, "penstock.task"):
        await work_off(app)
    assert [one.text for one in await app.lines(job.id)] == ["details"]


async def test_record_names_the_line_that_logged_it(
    app: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def speak() -> None:
        context().logger.warning("hello")
        context().logger.log(logging.ERROR, "hello")

    await speak.enqueue()
    await work_off(app)
    records = [record for record in caplog.records if record.name == "penstock.task"]
    assert [record.funcName for record in records] == ["speak", "speak"]


async def test_traceback_is_kept(app: Penstock) -> None:
    @app.task
    async def speak() -> None:
        try:
            raise KeyError("missing")  # noqa: TRY301 - as any code might
        except KeyError as error:
            context().logger.exception("it is not there")
            context().logger.warning("nor here", exc_info=error)

    job = await speak.enqueue()
    await work_off(app)
    first, second = await app.lines(job.id)
    assert first.text.startswith("it is not there\nTraceback")
    assert first.text.endswith("KeyError: 'missing'")
    assert second.text.endswith("KeyError: 'missing'")
    assert first.level == "ERROR"


async def test_any_line_can_be_kept(app: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)

    @app.task
    async def speak() -> None:
        log = context().logger
        log.info("%d items", "no number")
        log.info("%s and %s", "too few")  # noqa: PLE1206 - that is the point
        log.info("bad \udc80 name")
        log.info("x" * 5000)
        log.info({"not": "text"})
        log.info("%(name)s", {"name": "by name"})

    job = await speak.enqueue()
    await work_off(app)
    assert [one.text for one in await app.lines(job.id)] == [
        "%d items",
        "%s and %s",
        "bad \\udc80 name",
        "x" * 1999 + "…",
        "{'not': 'text'}",
        "by name",
    ]


async def test_only_the_newest_lines_of_a_job_are_kept(app: Penstock) -> None:
    @app.task
    def speak() -> None:
        for n in range(1500):
            context().logger.info("%d", n)

    job = await speak.enqueue()
    await work_off(app)
    lines = [one.text for one in await app.lines(job.id, limit=5000)]
    assert lines == [str(n) for n in range(500, 1500)]


async def test_context_can_be_passed_to_another_thread(app: Penstock) -> None:
    @app.task
    async def share() -> None:
        run = context()

        def elsewhere() -> None:
            run.progress(3)
            run.logger.info("from elsewhere")
            run.checkpoint("kept")

        with ThreadPoolExecutor(1) as pool:
            await asyncio.wrap_future(pool.submit(elsewhere))
        run.snooze(HOUR)

    job = await share.enqueue()
    await work_off(app)
    progress = await app.progress(job.id)
    assert progress is not None
    assert progress.done == 3
    assert await app.checkpoint(job.id) == "kept"
    assert [one.text for one in await app.lines(job.id)] == ["from elsewhere"]
