"""Runs a real worker until there is nothing left to do, for tests."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TypedDict, Unpack

from penstock.core.errors import ConfigurationError
from penstock.core.job import Job, JobId, LogEntry, LogId, Retention, bind, headline
from penstock.core.lifecycle import Event, State
from penstock.core.query import JobQuery
from penstock.core.times import from_micros
from penstock.engine.penstock import Penstock
from penstock.testing.calls import run
from penstock.testing.clock import Clock
from penstock.testing.jobs import every_entry, every_job, next_due, shown
from penstock.worker.worker import Worker

SOON = timedelta(seconds=30)
# Keeps the jobs that ran however far a test moves the clock.
FOREVER = Retention(finished=timedelta(days=36_500), failed=timedelta(days=36_500))
_FAILURES = frozenset({Event.FAILED, Event.EXPIRED})


class WorkOptions(TypedDict, total=False):
    """The options of `run_until_empty`."""

    timeout: timedelta
    advance: bool | timedelta
    allow_failures: bool
    queues: Sequence[str] | None
    concurrency: int


class UnexpectedFailure(AssertionError):
    """Jobs failed; the message has their tracebacks, `jobs` the jobs."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        super().__init__("\n\n".join(_failure(job) for job in jobs))
        self.jobs = list(jobs)


class NotDrained(AssertionError):
    """Work remained when the timeout passed; `jobs` are those that were running."""

    def __init__(self, jobs: Sequence[Job], timeout: timedelta) -> None:
        running = "; ".join(shown(job) for job in jobs) or "none, but new jobs keep being enqueued"
        super().__init__(
            f"there was still work after {timeout.total_seconds():g} s; running: {running}"
        )
        self.jobs = list(jobs)


async def run_until_empty(
    app: Penstock,
    *,
    timeout: timedelta = SOON,
    advance: bool | timedelta = False,
    allow_failures: bool = False,
    queues: Sequence[str] | None = None,
    concurrency: int = 20,
) -> list[Job]:
    """Run a worker until no job is ready or running; return the jobs that ran, as they are then.

    Expired leases are reclaimed first. With `advance`, the app's `Clock` then moves to the next
    instant at which work becomes available (a scheduled job, a retry, an expired lease, a rate),
    again and again: with True until nothing is left to wait for, with a `timedelta` until that time
    has passed. Schedules never end, so they only fire with a `timedelta`.

    Raises `UnexpectedFailure` for jobs whose last attempt failed, even if another would follow,
    unless `allow_failures`; and `NotDrained` after `timeout` of real time.
    """
    clock = app.clock
    if advance is not False and not isinstance(clock, Clock):
        raise ConfigurationError(
            "advance needs a clock that can be moved: Penstock(url, clock=penstock.testing.Clock())"
        )
    last = await _last_entry(app)
    horizon = from_micros(clock()) + advance if isinstance(advance, timedelta) else None
    working = asyncio.create_task(_work(app, advance, horizon, queues, concurrency))
    try:
        done, _ = await asyncio.wait({working}, timeout=timeout.total_seconds())
        if not done:
            raise NotDrained(await _running(app), timeout)
        working.result()
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
    entries = [entry async for entry in every_entry(app.store, last)]
    return await _outcome(app, entries, allow_failures=allow_failures)


def drain(app: Penstock, **options: Unpack[WorkOptions]) -> list[Job]:
    """Do the same as `run_until_empty`, for synchronous tests."""
    work = run_until_empty(app, **options)
    return run(work, "await run_until_empty(app) instead of drain(app)")


class Work:
    """The fixture `penstock_worker`: runs the jobs of `penstock_app`, or of a given app.

    Call `penstock_worker()` in a synchronous test and `await penstock_worker.run_until_empty()` in
    an asynchronous one, with the options of `run_until_empty`.
    """

    def __init__(self, app: Penstock) -> None:
        self._app = app

    def __call__(self, app: Penstock | None = None, **options: Unpack[WorkOptions]) -> list[Job]:
        """See `drain`."""
        work = run_until_empty(app or self._app, **options)
        return run(work, "await penstock_worker.run_until_empty() instead of penstock_worker()")

    async def run_until_empty(
        self, app: Penstock | None = None, **options: Unpack[WorkOptions]
    ) -> list[Job]:
        """See the function `run_until_empty`."""
        return await run_until_empty(app or self._app, **options)


class _ImpatientWorker(Worker):
    """Does not wait for jobs that a limit holds back, since the clock of a test stands still."""

    async def _is_empty(self) -> bool:
        return True


async def _work(
    app: Penstock,
    advance: bool | timedelta,  # noqa: FBT001 - passed on as given
    horizon: datetime | None,
    queues: Sequence[str] | None,
    concurrency: int,
) -> None:
    while True:
        await app.leases.reclaim()
        clock = app.clock
        kind = _ImpatientWorker if isinstance(clock, Clock) else Worker
        worker = kind(app, queues=queues, concurrency=concurrency, retention=FOREVER)
        await worker.run(until_empty=True)
        if advance is False or not isinstance(clock, Clock):
            return
        due = await next_due(app.store)
        if horizon is not None:  # schedules never end, so they only count up to a horizon
            due = _earlier(due, await _next_run(app, clock))
        if due is None or (horizon is not None and due > horizon):
            if horizon is not None:
                clock.set(max(horizon, clock.now))
            return
        # One microsecond later: a lease expires after its deadline, not at it.
        clock.set(max(due, clock.now) + timedelta(microseconds=1))


async def _next_run(app: Penstock, clock: Clock) -> datetime | None:
    """Return when a schedule of the app next fires; None if it has none."""
    until = await app.schedules.fire_due()
    return None if until is None else clock.now + until


def _earlier(*times: datetime | None) -> datetime | None:
    return min((time for time in times if time is not None), default=None)


async def _last_entry(app: Penstock) -> LogId | None:
    last = None
    async for entry in every_entry(app.store):
        last = entry.id
    return last


async def _running(app: Penstock) -> list[Job]:
    return [job async for job in every_job(app.store, JobQuery(states=frozenset({State.RUNNING})))]


async def _outcome(
    app: Penstock, entries: Sequence[LogEntry], *, allow_failures: bool
) -> list[Job]:
    """Return the jobs that were claimed, in order; raise if the last attempt of any failed."""
    last: dict[JobId, LogEntry] = {entry.job_id: entry for entry in entries}
    ran = list(dict.fromkeys(entry.job_id for entry in entries if entry.event is Event.CLAIMED))
    jobs = bind(await app.store.get(ran), app)
    failed = [job for job in jobs if last[job.id].event in _FAILURES]
    if failed and not allow_failures:
        raise UnexpectedFailure(failed)
    return jobs


def _failure(job: Job) -> str:
    attempt = f"attempt {job.attempt} of {job.retry.attempts}"
    error = job.error or ""
    details = error.removeprefix(headline(error)).strip() or error
    return f"{shown(job)} failed, {attempt}, and is {job.state}:\n{details}"
