import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from penstock import ConfigurationError, Job, Penstock, RetryPolicy, State, context, run_sync
from penstock.core.times import from_micros
from penstock.engine.leases import Leases
from penstock.engine.schedules import Schedules
from penstock.jobs import Event
from penstock.testing import Clock, NotDrained, UnexpectedFailure, drain, run_until_empty
from tests.contract.support import HOUR, SECOND

ONCE = RetryPolicy(attempts=1)
HOURLY = RetryPolicy(attempts=3, delay=HOUR, factor=1, jitter=0)


def test_runs_everything_and_what_that_enqueues(app: Penstock) -> None:
    @app.task
    def child() -> int:
        return 7

    @app.task
    async def parent() -> None:
        await child.enqueue()

    run_sync(parent.enqueue())
    ran = drain(app)
    assert [(job.task, job.state, job.returned) for job in ran] == [
        ("parent", State.DONE, None),
        ("child", State.DONE, 7),
    ]
    assert drain(app) == []


async def test_in_an_event_loop(app: Penstock) -> None:
    task = app.task("t", lambda: None)
    await task.enqueue()
    assert [job.state for job in await run_until_empty(app)] == [State.DONE]


async def test_synchronous_twin_says_what_to_await(app: Penstock) -> None:
    with pytest.raises(ConfigurationError, match="await run_until_empty"):
        drain(app)


def test_leaves_the_event_loop_of_the_thread_alone(app: Penstock) -> None:
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        drain(app)
        assert asyncio.get_event_loop_policy().get_event_loop() is loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def broken(what: str) -> None:
    raise KeyError(f"no {what}")


def test_failure_is_raised_with_its_traceback(app: Penstock) -> None:
    job = run_sync(app.task("t", broken, retry=ONCE).enqueue("milk"))
    with pytest.raises(UnexpectedFailure) as raised:
        drain(app)
    text = str(raised.value)
    assert f"job {job.id}: t(what='milk') failed, attempt 1 of 1, and is failed" in text
    assert "in broken" in text
    assert "KeyError: 'no milk'" in text
    assert [job.state for job in raised.value.jobs] == [State.FAILED]


def test_failure_that_would_be_tried_again_is_one_too(app: Penstock) -> None:
    run_sync(app.task("t", broken, retry=HOURLY).enqueue("milk"))
    with pytest.raises(UnexpectedFailure, match="attempt 1 of 3, and is pending"):
        drain(app)


def test_failures_can_be_allowed(app: Penstock) -> None:
    run_sync(app.task("t", broken, retry=ONCE).enqueue("milk"))
    [job] = drain(app, allow_failures=True)
    assert job.state is State.FAILED


def test_old_failures_are_not_raised_again(app: Penstock) -> None:
    run_sync(app.task("t", broken, retry=ONCE).enqueue("milk"))
    drain(app, allow_failures=True)
    assert drain(app) == []


def test_retry_that_succeeds_is_no_failure(app: Penstock, time: Clock) -> None:
    attempts = []

    @app.task(retry=HOURLY)
    def flaky() -> None:
        attempts.append(time.now)
        if context().attempt < 3:
            raise OSError("not yet")

    start = time.now
    run_sync(flaky.enqueue())
    [job] = drain(app, advance=True)
    assert job.state is State.DONE
    assert [round((at - start) / HOUR, 3) for at in attempts] == [0, 1, 2]


def test_advance_runs_scheduled_jobs_in_their_order(app: Penstock, time: Clock) -> None:
    seen: list[tuple[int, datetime]] = []

    @app.task
    def note(n: int) -> None:
        seen.append((n, time.now))

    start = time.now
    for n in (3, 1, 2):
        run_sync(note.using(delay=n * HOUR).enqueue(n))
    drain(app, advance=True)
    assert [n for n, _ in seen] == [1, 2, 3]
    assert all(SECOND > at - (start + n * HOUR) >= timedelta(0) for n, at in seen)


def test_advance_goes_so_far_and_stays_there(app: Penstock, time: Clock) -> None:
    @app.task
    async def again() -> None:
        await again.using(delay=HOUR).enqueue()

    start = time.now
    run_sync(again.enqueue())
    ran = drain(app, advance=timedelta(hours=2, minutes=30))
    assert len(ran) == 3
    assert time.now == start + timedelta(hours=2, minutes=30)


class Hourly(Penstock):
    """A Penstock with a schedule, as far as draining can tell."""

    next_run: datetime

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.leases = HourlyLeases(self)
        self.schedules = HourlySchedules(self)


class HourlyLeases(Leases):
    """Sweeps, and fires: a worker does both when it begins."""

    def __init__(self, app: Hourly) -> None:
        super().__init__(app.connection, app.limits)
        self._app = app

    async def reclaim(self, limit: int = 1000) -> int:
        while self._app.next_run <= from_micros(self._app.clock()):
            self._app.next_run += HOUR
            await self._app.enqueue("strike")
        return await super().reclaim(limit)


class HourlySchedules(Schedules):
    """Tells when the next run is due."""

    def __init__(self, app: Hourly) -> None:
        super().__init__(app.connection, app.tasks)
        self._app = app

    async def fire_due(self) -> timedelta | None:
        return self._app.next_run - from_micros(self._app.clock())


def test_schedules_are_fired_while_so_much_time_passes(time: Clock) -> None:
    app = Hourly("memory://", clock=time)
    app.next_run = time.now + HOUR
    struck = []
    app.task("strike", lambda: struck.append(time.now))
    start = time.now
    drain(app, advance=HOUR * 3.5)
    assert [round((at - start) / HOUR, 3) for at in struck] == [1, 2, 3]
    assert drain(app, advance=True) == []


def test_no_retention_takes_away_what_a_long_time_has_done(app: Penstock) -> None:
    task = app.task("t", lambda n: None)
    for n in range(4):
        run_sync(task.using(delay=timedelta(days=100 * n)).enqueue(n))
    assert [job.args["n"] for job in drain(app, advance=timedelta(days=1000))] == [0, 1, 2, 3]


def test_advance_needs_a_clock_that_moves() -> None:
    app = Penstock("memory://")
    with pytest.raises(ConfigurationError, match=r"penstock\.testing\.Clock"):
        drain(app, advance=True)


def test_advance_ends_the_lease_of_a_worker_that_is_gone(app: Penstock) -> None:
    run_sync(app.task("t", lambda: None).enqueue())
    run_sync(app.leases.claim(worker="gone"))
    assert drain(app) == []
    [job] = drain(app, advance=True)
    assert (job.state, job.attempt) == (State.DONE, 2)
    events = [entry.event for entry in run_sync(app.log(job.id))]
    assert events == [Event.ENQUEUED, Event.CLAIMED, Event.EXPIRED, Event.CLAIMED, Event.DONE]


def test_other_queues_stay(app: Penstock) -> None:
    task = app.task("t", lambda: None)
    run_sync(task.using(queue="mail").enqueue())
    assert drain(app, queues=["post"]) == []
    assert len(drain(app, queues=["mail"])) == 1


async def test_gives_up_when_a_handler_does_not_end(app: Penstock) -> None:
    @app.task
    async def endless() -> None:
        await asyncio.Event().wait()

    job = await endless.enqueue()
    timeout = timedelta(milliseconds=100)
    running: list[Job] = []
    while not running:  # on a busy machine it may take longer until it has begun
        timeout *= 2
        with pytest.raises(NotDrained) as raised:
            await run_until_empty(app, timeout=timeout)
        running = raised.value.jobs
    assert f"running: job {job.id}: endless" in str(raised.value)
    assert [job.id for job in running] == [job.id]
    assert (await app.get(job.id)).state is State.PENDING


async def test_gives_up_when_there_is_always_more(app: Penstock) -> None:
    @app.task
    async def again() -> None:
        await again.enqueue()

    await again.enqueue()
    with pytest.raises(NotDrained, match=r"still work after 0\.2 s"):
        await run_until_empty(app, timeout=timedelta(milliseconds=200))


def test_paused_queue_is_left_alone(app: Penstock) -> None:
    task = app.task("t", lambda: None)
    run_sync(task.enqueue())
    run_sync(app.queues.pause("default"))
    assert drain(app) == []


def test_many_jobs_are_all_returned(app: Penstock) -> None:
    task = app.task("t", lambda n: None)
    run_sync(app.enqueue_many([task.new(n) for n in range(1_100)]))
    assert [job.args["n"] for job in drain(app)] == list(range(1_100))


@pytest.mark.parametrize("moves", [False, True])
def test_clock_moves_to_when_a_rate_lets_the_next_one_start(app: Penstock, moves: bool) -> None:
    task = app.task("t", lambda: None)
    run_sync(app.limits.queue("default", rate=(1, HOUR)))
    run_sync(app.enqueue_many([task.new()] * 3))
    before = from_micros(app.clock())
    assert len(drain(app, advance=moves)) == (3 if moves else 1)
    gone = from_micros(app.clock()) - before
    assert (gone >= 2 * HOUR) is moves
