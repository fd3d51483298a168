import asyncio
import logging
import re
import threading
from collections.abc import Awaitable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Cancel,
    ConfigurationError,
    Context,
    Event,
    Job,
    LeaseLost,
    NewJob,
    Note,
    Penstock,
    Progress,
    Snooze,
    State,
    StoreError,
    StoreUnavailable,
    Worker,
    context,
    run_sync,
)
from penstock.worker import notebook as notebook_module
from penstock.worker.notebook import Notebook
from tests.contract.support import HOUR, SECOND, SOON, STORES, ManualClock
from tests.worker.support import AT_ONCE, ONCE, eventually, soon, take_away, work_off, working


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
    assert [(await app.get(job.id)).returned for job in jobs] == [job.id for job in jobs]


async def test_runs_at_the_same_time_have_contexts_of_their_own(app: Penstock) -> None:
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


async def test_run_is_not_cancelled_unless_told(app: Penstock) -> None:
    @app.task
    def look() -> bool:
        return context().cancelled

    job = await look.enqueue()
    await work_off(app)
    assert (await app.get(job.id)).returned is False


# Progress


def said(progress: Progress | None) -> float | None:
    return None if progress is None else progress.done


class Heard(Penstock):
    """A Penstock that remembers what its workers wrote of their runs, and can refuse to."""

    def __init__(self, url: str, clock: ManualClock) -> None:
        super().__init__(url, clock=clock)
        self.heard: list[list[float | None]] = []
        self.troubles: list[Exception] = []

    async def note(self, notes: Sequence[Note]) -> list[bool]:
        if self.troubles:
            raise self.troubles.pop()
        self.heard.append([said(note.progress) for note in notes])
        return await super().note(notes)


@pytest.fixture(params=STORES)
def heard(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Heard]:
    app = Heard(STORES[request.param](tmp_path), clock)
    yield app
    run_sync(app.close())


async def done(app: Penstock, job: Job) -> float | None:
    return said(await app.progress(job.id))


async def test_coroutine_tells_its_progress(app: Penstock, clock: ManualClock) -> None:
    began = clock.now

    @app.task
    async def count() -> None:
        context().progress(10, 40)
        clock.advance(5 * SECOND)
        context().progress(20, 40, "half")

    job = await count.enqueue()
    assert await app.progress(job.id) is None
    await work_off(app)
    said = await app.progress(job.id)
    assert said == Progress(20, 40, "half", clock.now, began, 10)
    assert (said.fraction, said.rate, said.left) == (0.5, 2, 10 * SECOND)


async def test_thread_tells_its_progress(app: Penstock) -> None:
    @app.task
    def count(n: int) -> None:
        for i in range(n):
            context().progress(i + 1, n)

    jobs = [await count.enqueue(n) for n in (1, 100, 0)]
    await work_off(app)
    told = await app.progress([job.id for job in jobs])
    assert {key: said.done for key, said in told.items()} == {jobs[0].id: 1, jobs[1].id: 100}


@pytest.mark.parametrize(
    "end", [ValueError("no"), Snooze(HOUR), Cancel("enough"), asyncio.CancelledError()]
)
async def test_last_word_is_written_however_the_run_ends(app: Penstock, end: BaseException) -> None:
    @app.task(retry=ONCE)
    async def count() -> None:
        for i in range(100):
            context().progress(i)
        raise end

    job = await count.enqueue()
    await work_off(app)
    assert await done(app, job) == 99


async def test_progress_is_seen_while_the_run_goes_on(app: Penstock) -> None:
    finish = asyncio.Event()

    @app.task
    async def wait() -> None:
        context().progress(1, 2)
        await finish.wait()

    job = await wait.enqueue()
    async with working(app):
        await eventually(lambda: _is_done(app, job, 1))
        finish.set()


async def _is_done(app: Penstock, job: Job, wanted: float) -> bool:
    return await done(app, job) == wanted


async def test_progress_is_seen_while_a_handler_blocks_the_event_loop(app: Penstock) -> None:
    def look(job_id: int) -> bool:
        while run_sync(app.progress(job_id)) is None:  # SOON ends the test, not this loop
            pass
        return True

    @app.task
    async def block() -> bool:
        context().progress(1, 2)
        with ThreadPoolExecutor(1) as aside:
            return aside.submit(look, context().job.id).result(SOON)

    job = await block.enqueue()
    await work_off(app)
    assert (await app.get(job.id)).returned is True


async def test_progress_is_not_written_more_often_than_its_pace(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time stands still here, until the test moves it."""
    now = 0.0
    monkeypatch.setattr(notebook_module, "PACE", 0.01)
    notebook = Notebook(heard, clock=lambda: now)
    first, second = await _running(heard, 2)
    say(notebook, first, 1)
    await eventually(lambda: _is_done(heard, first, 1))
    for n in range(2, 1000):
        say(notebook, first, n)
        say(notebook, second, n)
        assert notebook.pause() == 0.01
    now = 0.004
    assert notebook.pause() == pytest.approx(0.006)
    assert heard.heard == [[1]]
    now = 0.01
    await eventually(lambda: _is_done(heard, first, 999))
    assert heard.heard == [[1], [999, 999]], "the newest values of both, in one transaction"
    assert notebook.pause() is None
    notebook.close()


async def test_run_that_ends_is_written_at_once_and_others_are_not(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = Notebook(heard, clock=lambda: 0.0)
    first, second = await _running(heard, 2)
    say(notebook, first, 1)
    await eventually(lambda: _is_done(heard, first, 1))
    say(notebook, first, 2)
    say(notebook, second, 3)
    await notebook.write_now([second.token, 99])
    assert heard.heard == [[1], [3]]
    say(notebook, second, 4)
    notebook.close()
    assert heard.heard == [[1], [3], [2, 4]], "what is left is written at the end"


async def test_end_of_a_run_waits_for_words_that_are_being_written(app: Penstock) -> None:
    """Were it settled meanwhile, its lease would be over, and its last words refused."""
    begun, go_on = asyncio.Event(), threading.Event()
    loop, note = asyncio.get_running_loop(), app.note

    async def slowly(notes: Sequence[Note]) -> list[bool]:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(SOON)
        return await note(notes)

    (job,) = await _running(app, 1)
    app.note = slowly  # type: ignore[method-assign] # replaced for the test
    notebook = Notebook(app)
    say(notebook, job, 1)
    await soon(begun)
    ending = asyncio.create_task(notebook.write_now([job.token]))
    for _ in range(3):  # it gets its turns
        await asyncio.sleep(0)
    await notebook.write_now([job.token + 1])  # another run need not wait
    assert not ending.done()
    go_on.set()
    async with asyncio.timeout(SOON):
        await ending
    assert await done(app, job) == 1
    notebook.close()


async def test_many_words_of_a_run_are_few_writes(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook_module, "PACE", 3600)

    @heard.task
    async def count() -> None:
        for i in range(1000):
            context().progress(i)
            await asyncio.sleep(0)

    await count.enqueue()
    await work_off(heard)
    assert len(heard.heard) <= 2
    assert heard.heard[-1] == [999]


async def _running(app: Penstock, n: int) -> list[Job]:
    await app.enqueue_many([NewJob(task="t", payload="{}")] * n)
    return await app.claim(worker="w", limit=n)


def notebook_of(run: Context) -> Notebook:
    assert isinstance(run.book, Notebook)
    return run.book


def say(notebook: Notebook, job: Job, n: float) -> None:
    Context(job, notebook).progress(n)


async def test_last_word_is_written_when_the_store_answers_again(heard: Heard) -> None:
    @heard.task
    async def count() -> None:
        context().progress(7)
        context().logger.info("seven")

    job = await count.enqueue()
    heard.troubles = [StoreUnavailable("not now"), StoreUnavailable("not now")]
    await work_off(heard)
    assert not heard.troubles
    assert await done(heard, job) == 7
    assert [line.text for line in await heard.lines(job.id)] == ["seven"]
    assert (await heard.get(job.id)).state is State.DONE


@pytest.mark.parametrize("trouble", [ValueError("unforeseen"), StoreError("of no use")])
async def test_job_ends_although_its_progress_cannot_be_written(
    heard: Heard, trouble: Exception
) -> None:
    @heard.task
    async def count() -> None:
        context().progress(7)

    job = await count.enqueue()
    heard.troubles = [trouble] * 2
    await work_off(heard)
    assert (await heard.get(job.id)).state is State.DONE


async def test_job_that_says_nothing_costs_no_thread(app: Penstock) -> None:
    @app.task
    def nothing() -> int:
        return context().attempt

    await nothing.enqueue()
    worker = Worker(app)
    await worker.run(until_empty=True)
    assert not worker._notebook


@pytest.mark.parametrize("count", ["1", None, float("nan"), float("inf"), 2**63, [1]])
async def test_progress_is_a_number(app: Penstock, count: Any) -> None:
    (job,) = await _running(app, 1)
    with pytest.raises(ConfigurationError, match="plain numbers"):
        say(Notebook(app), job, count)


async def test_context_without_a_worker_says_so(app: Penstock) -> None:
    (job,) = await _running(app, 1)
    run = Context(job)
    with pytest.raises(ConfigurationError, match="no worker"):
        run.progress(1)
    with pytest.raises(ConfigurationError, match="no worker"):
        _ = run.state
    run.logger.info("this goes to the logging only")


async def test_late_words_of_a_thread_are_dropped(app: Penstock) -> None:
    left: list[Context] = []

    @app.task
    async def leave() -> None:
        context().progress(1)
        left.append(context())

    job = await leave.enqueue()
    await work_off(app)
    left[0].progress(2)
    left[0].logger.warning("too late")
    assert notebook_of(left[0]).pause() is None
    assert await done(app, job) == 1
    assert await app.lines(job.id) == []


# Checkpoints


async def test_next_attempt_goes_on_where_the_last_one_stopped(app: Penstock) -> None:
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


async def test_thread_goes_on_where_the_last_one_stopped(app: Penstock) -> None:
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


async def test_checkpoint_is_what_it_was_when_it_was_made(app: Penstock) -> None:
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
async def test_unfit_checkpoint_fails_the_job_for_good(
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


async def test_retry_by_hand_begins_at_the_beginning(app: Penstock) -> None:
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


async def test_largest_checkpoint_comes_back(app: Penstock) -> None:
    @app.task(retry=AT_ONCE)
    def walk() -> int:
        if context().state is None:
            context().checkpoint("x" * 999_998)
            raise ValueError
        return len(context().state)

    job = await walk.enqueue()
    await work_off(app)
    assert (await app.get(job.id)).returned == 999_998


async def test_checkpoint_in_a_thread_can_be_awaited_by_whoever_likes(app: Penstock) -> None:
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
    async with working(app, sweep=HOUR, concurrency=1):  # it has no room to take its job back
        await soon(started)
        await take_away(app, job, clock)
        (mine,) = await app.claim(worker="another")
        assert await app.checkpoint(job.id) == "old"
        said = Progress(1, 2, None, clock.now, clock.now)
        assert await app.note([Note(lease=mine.lease, progress=said, state='"mine"')]) == [True]
        finish.set()
        await eventually(lambda: _was_refused(app, job, 2))
    assert [(one.job_id, one.token < mine.token) for one in lost] == [(job.id, True)]
    assert await app.progress(job.id) == said
    assert await app.checkpoint(job.id) == "mine"
    assert await app.lines(job.id) == []
    assert (await app.get(job.id)).token == mine.token


async def _was_refused(app: Penstock, job: Job, times: int) -> bool:
    """The checkpoint, and then what the run came to."""
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


async def test_thread_that_is_out_of_time_has_failed(app: Penstock) -> None:
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


async def test_debug_lines_are_kept_where_the_logging_wants_them(
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


async def test_newest_lines_of_a_talkative_job_are_kept(app: Penstock) -> None:
    @app.task
    def speak() -> None:
        for n in range(1500):
            context().logger.info("%d", n)

    job = await speak.enqueue()
    await work_off(app)
    lines = [one.text for one in await app.lines(job.id, limit=5000)]
    assert lines == [str(n) for n in range(500, 1500)]


async def test_context_can_be_handed_to_a_thread_of_ones_own(app: Penstock) -> None:
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
    assert await done(app, job) == 3
    assert await app.checkpoint(job.id) == "kept"
    assert [one.text for one in await app.lines(job.id)] == ["from elsewhere"]
