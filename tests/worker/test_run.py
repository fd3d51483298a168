"""The outcome of a run, whatever its handler does."""

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import Cancel, Job, NewJob, Penstock, RetryPolicy, Snooze, State, context
from penstock.jobs import Event, Waiting
from tests.contract.support import HOUR, SECOND, STEADY, ManualClock
from tests.environment import SOON
from tests.worker.support import AT_ONCE, ONCE, eventually, soon, work_off, working

MOMENT = timedelta(milliseconds=20)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


async def result_of(app: Penstock, handler: Callable[[], Any], **options: Any) -> Job:
    """Run one job of this handler and return it."""
    task = app.task("t", handler, **options)
    job = await task.enqueue()
    await work_off(app)
    return await app.get(job.id)


async def keeps_working(app: Penstock) -> None:
    """Check that a worker with the same handlers still works."""

    async def next_one() -> str:
        return "fine"

    job = await app.task("next", next_one).enqueue()
    await work_off(app, concurrency=1)
    assert (await app.get(job.id)).returned == "fine"


def both(raised: Callable[[], BaseException]) -> list[Callable[[], Any]]:
    """Return a coroutine function and a plain function that raise it."""

    async def in_the_loop() -> None:
        raise raised()

    def in_a_thread() -> None:
        raise raised()

    return [in_the_loop, in_a_thread]


async def test_result_of_a_coroutine_is_kept(app: Penstock) -> None:
    async def handler() -> dict[str, int]:
        await asyncio.sleep(0)
        return {"n": 1}

    job = await result_of(app, handler)
    assert (job.state, job.returned, job.error) == (State.DONE, {"n": 1}, None)


async def test_plain_function_runs_in_a_thread_and_its_result_is_kept(app: Penstock) -> None:
    here = threading.get_ident()
    job = await result_of(app, lambda: [threading.get_ident() != here])
    assert (job.state, job.returned) == (State.DONE, [True])


async def test_handler_that_returns_nothing_has_no_result(app: Penstock) -> None:
    job = await result_of(app, lambda: None)
    assert (job.state, job.result_json) == (State.DONE, None)


async def test_arguments_have_the_types_of_the_handler(app: Penstock) -> None:
    seen: list[object] = []

    @app.task
    async def remember(at: datetime, span: timedelta, note: str = "none") -> None:
        seen.extend((at, span, note))

    at = datetime(2030, 5, 1, tzinfo=UTC)
    await remember.enqueue(at, span=HOUR)
    await work_off(app)
    assert seen == [at, HOUR, "none"]


async def test_failure_is_retried_after_its_delay_until_attempts_are_used_up(
    app: Penstock, clock: ManualClock
) -> None:
    attempts: list[int] = []

    async def handler() -> None:
        attempts.append(context().attempt)
        raise ValueError("wrong number")

    job = await result_of(app, handler, retry=STEADY)
    assert (job.state, job.waiting, job.attempt) == (State.PENDING, Waiting.SCHEDULED, 1)
    assert job.run_at == clock.now + 10 * SECOND
    await work_off(app)
    assert attempts == [1]
    clock.advance(10 * SECOND)
    await work_off(app)
    job = await app.get(job.id)
    assert (job.state, attempts) == (State.FAILED, [1, 2])


async def test_backoff_grows_from_attempt_to_attempt(app: Penstock, clock: ManualClock) -> None:
    policy = RetryPolicy(attempts=4, delay=SECOND, factor=3, jitter=0)
    rests: list[timedelta] = []
    [handler, _] = both(lambda: ValueError("no"))
    job = await result_of(app, handler, retry=policy)
    while job.state is State.PENDING:
        rests.append(job.run_at - clock.now)
        clock.advance(rests[-1])
        await work_off(app)
        job = await app.get(job.id)
    assert rests == [SECOND, 3 * SECOND, 9 * SECOND]


@pytest.mark.parametrize("kind", [0, 1], ids=["coroutine", "function"])
async def test_error_is_kept_with_its_traceback(app: Penstock, kind: int) -> None:
    handler = both(lambda: ValueError("wrong number"))[kind]
    job = await result_of(app, handler, retry=ONCE)
    assert job.state is State.FAILED
    assert job.error is not None
    assert job.error.endswith("ValueError: wrong number")
    assert handler.__name__ in job.error
    *_, entry = await app.log(job.id)
    assert (entry.event, entry.error) == (Event.FAILED, job.error)


async def test_permanent_error_is_not_retried(app: Penstock) -> None:
    [handler, _] = both(lambda: KeyError("gone"))
    job = await result_of(app, handler, permanent=(LookupError,))
    assert (job.state, job.attempt) == (State.FAILED, 1)


async def test_other_errors_of_a_task_with_permanent_ones_are_retried(app: Penstock) -> None:
    [handler, _] = both(lambda: ValueError("later"))
    job = await result_of(app, handler, permanent=(LookupError,))
    assert job.state is State.PENDING


async def test_snooze_puts_the_job_back_without_using_up_an_attempt(
    app: Penstock, clock: ManualClock
) -> None:
    [handler, _] = both(lambda: Snooze(HOUR, "not yet"))
    job = await result_of(app, handler, retry=ONCE)
    assert (job.state, job.attempt, job.run_at) == (State.PENDING, 0, clock.now + HOUR)
    *_, entry = await app.log(job.id)
    assert (entry.event, entry.reason) == (Event.SNOOZED, "not yet")


async def test_cancel_ends_the_job_with_its_reason(app: Penstock) -> None:
    _, handler = both(lambda: Cancel("nobody needs it"))
    job = await result_of(app, handler)
    assert (job.state, job.attempt) == (State.CANCELLED, 1)
    *_, entry = await app.log(job.id)
    assert (entry.event, entry.reason) == (Event.CANCELLED, "nobody needs it")


@pytest.mark.parametrize("payload", ["{}", '{"n": "one"}', "[1]", "null", '{"n":'])
async def test_stored_arguments_that_do_not_match_are_a_permanent_failure(
    app: Penstock, payload: str
) -> None:
    calls: list[int] = []

    @app.task
    async def count(n: int) -> None:
        calls.append(n)

    # As another program would store it, without the checks of this one.
    [job] = await app.store.add([NewJob(task="count", payload=payload)], actor="elsewhere")
    await work_off(app)
    job = await app.get(job.id)
    assert (job.state, job.attempt, calls) == (State.FAILED, 1, [])
    assert "count" in (job.error or "")
    await keeps_working(app)


@pytest.mark.parametrize(
    "result",
    [object(), 1j, "\ud800", {(1, 2): object()}, 10**5_000, {"a": float("nan")}, nested(200)],
    ids=["object", "complex", "surrogate", "key", "digits", "nan", "deep"],
)
async def test_result_that_cannot_be_stored_is_a_permanent_failure(
    app: Penstock, result: object
) -> None:
    """Running it again would repeat its effects for nothing."""
    job = await result_of(app, lambda: result)
    assert (job.state, job.attempt) == (State.FAILED, 1)
    assert "it ran, but its result" in (job.error or "")
    await keeps_working(app)


class Strange(BaseException):
    pass


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("kind", [0, 1], ids=["coroutine", "function"])
@pytest.mark.parametrize(
    "raised",
    [
        SystemExit(3),
        Strange("base"),
        StopIteration(1),
        asyncio.CancelledError("own"),
        TimeoutError("own"),
        ExceptionGroup("two", [ValueError(1), KeyError(2)]),
        Unspeakable(),
        ValueError("a\0b"),
        ValueError("\udcff in a file's name"),
        Cancel("\udcff"),
    ],
    ids=lambda raised: (
        f"{type(raised).__name__}-{str(raised)[:3]!a}"
        if not isinstance(raised, Unspeakable)
        else "Unspeakable"
    ),
)
async def test_whatever_a_handler_raises_ends_only_its_own_run(
    app: Penstock, raised: BaseException, kind: int
) -> None:
    handler = both(lambda: raised)[kind]
    job = await result_of(app, handler, retry=ONCE)
    assert job.state is (State.CANCELLED if isinstance(raised, Cancel) else State.FAILED)
    assert job.error or isinstance(raised, Cancel)
    await keeps_working(app)


@pytest.mark.parametrize(
    "raised",
    [Snooze(60), Snooze(timedelta.max), Snooze(-HOUR), Cancel(None), Cancel({"not": "text"})],  # type: ignore[arg-type] # is what is refused
    ids=["number", "endless", "negative", "nothing", "no-text"],
)
async def test_signal_with_a_wrong_value_ends_only_its_own_run(
    app: Penstock, raised: Exception
) -> None:
    runs: list[int] = []

    async def handler() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise raised

    await app.task("t", handler).enqueue()
    await work_off(app)
    await keeps_working(app)


async def test_failing_run_leaves_the_others_of_its_batch_alone(app: Penstock) -> None:
    async def bad() -> None:
        raise ValueError("\udcff")

    async def good() -> None:
        pass

    jobs = [
        await app.task("bad", bad, retry=ONCE).enqueue(),
        await app.task("good", good).enqueue(),
    ]
    await work_off(app, concurrency=10)
    assert [(await app.get(job.id)).state for job in jobs] == [State.FAILED, State.DONE]


async def test_long_error_keeps_its_end(app: Penstock) -> None:
    [handler, _] = both(lambda: ValueError("x" * 100_000 + "!"))
    job = await result_of(app, handler, retry=ONCE)
    assert job.error is not None
    assert len(job.error) < 30_000
    assert job.error.endswith("x!")


async def test_coroutine_that_times_out_is_stopped_and_retried(app: Penstock) -> None:
    stopped: list[int] = []

    async def handler() -> None:
        if context().attempt == 2:
            return
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(1)

    job = await result_of(app, handler, timeout=MOMENT, retry=AT_ONCE)
    assert (job.state, job.attempt, stopped) == (State.DONE, 2, [1])
    failed = [entry for entry in await app.log(job.id) if entry.event is Event.FAILED]
    assert [entry.error for entry in failed] == ["TimeoutError: it ran longer than 0.02 s"]


async def test_thread_that_times_out_sees_it_and_fails_whatever_it_returns(app: Penstock) -> None:
    def handler() -> str:
        until = threading.Event()
        for _ in range(SOON * 100):
            if context().cancelled:
                return "too late"
            until.wait(0.01)
        return "not cancelled"

    job = await result_of(app, handler, timeout=MOMENT, retry=ONCE)
    assert (job.state, job.returned) == (State.FAILED, None)
    assert "TimeoutError" in (job.error or "")


async def test_run_within_its_timeout_is_left_alone(app: Penstock) -> None:
    async def handler() -> int:
        await asyncio.sleep(0)
        return 1

    job = await result_of(app, handler, timeout=HOUR)
    assert (job.state, job.returned) == (State.DONE, 1)


async def test_timeout_raised_by_the_handler_is_an_ordinary_error(app: Penstock) -> None:
    async def handler() -> None:
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()

    job = await result_of(app, handler, retry=ONCE)
    assert job.state is State.FAILED
    assert "TimeoutError" in (job.error or "")
    await keeps_working(app)


async def test_handler_that_swallows_its_timeout_has_failed_nevertheless(app: Penstock) -> None:
    async def handler() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "went on"

    job = await result_of(app, handler, timeout=MOMENT, retry=ONCE)
    assert (job.state, job.returned) == (State.FAILED, None)
    await keeps_working(app)


async def test_handler_that_swallows_a_cancel_request_and_succeeds_is_done(app: Penstock) -> None:
    started = asyncio.Event()

    @app.task
    async def stubborn() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "went on"

    job = await stubborn.enqueue()
    async with working(app):
        await soon(started)
        await app.cancel(job.id)
        await eventually(lambda: _final(app, job))
    assert (await app.get(job.id)).returned == "went on"


async def test_handler_that_fails_while_being_cancelled_is_cancelled(app: Penstock) -> None:
    started = asyncio.Event()

    @app.task
    async def clumsy() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while cleaning up")

    job = await clumsy.enqueue()
    async with working(app):
        await soon(started)
        await app.cancel(job.id)
        await eventually(lambda: _final(app, job))
    assert (await app.get(job.id)).state is State.CANCELLED


async def _final(app: Penstock, job: Job) -> bool:
    return (await app.get(job.id)).state.final


async def test_awaitable_handler_objects_are_awaited(app: Penstock) -> None:
    class Greeting:
        __name__ = "greeting"

        async def __call__(self) -> str:
            return "hello"

    job = await result_of(app, Greeting())
    assert job.returned == "hello"
