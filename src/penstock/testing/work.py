"""Runs a real worker until there is nothing left to do."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TypedDict, Unpack

from penstock.core.errors import ConfigurationError
from penstock.core.job import Job, JobId, JobQuery, LogEntry, LogId, Retention, bind, headline
from penstock.core.lifecycle import Event, State
from penstock.core.times import from_micros
from penstock.engine import Penstock
from penstock.testing.calls import run
from penstock.testing.clock import Clock
from penstock.testing.reading import every_entry, every_job, next_due, shown
from penstock.worker.worker import Worker

SOON = timedelta(seconds=30)
# However far a test moves the clock, it finds the jobs that ran.
_FOREVER = Retention(finished=timedelta(days=36_500), failed=timedelta(days=36_500))
_FAILURES = frozenset({Event.FAILED, Event.EXPIRED})


class WorkOptions(TypedDict, total=False):
    """What `run_until_empty` can be told."""

    timeout: timedelta
    advance: bool | timedelta
    allow_failures: bool
    queues: Sequence[str] | None
    concurrency: int


class JobFailed(AssertionError):
    """Jobs ran and failed; the message has their tracebacks, `jobs` the jobs."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        super().__init__("\n\n".join(_failure(job) for job in jobs))
        self.jobs = list(jobs)


class NotDrained(AssertionError):
    """Work was still going on when the time was up; `jobs` are those that were running."""

    def __init__(self, jobs: Sequence[Job], timeout: timedelta) -> None:
        running = "; ".join(shown(job) for job in jobs) or "none, but new ones keep coming"
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
    """Run a worker until nothing is ready and nothing runs; the jobs it ran, as they are then.

    Expired leases are taken back first. With `advance`, the app's `Clock` then jumps to whatever
    time alone would set going next (a scheduled job, a retry, the end of a lease, a rate), and so
    on: as long as there is anything, or until so much time has passed. Schedules, which never end,
    count only in the latter case.

    Raises `JobFailed` for jobs whose last attempt here failed, whether or not another would
    follow, unless `allow_failures`; `NotDrained` after `timeout` of real time.
    """
    clock = app.clock
    if advance is not False and not isinstance(clock, Clock):
        raise ConfigurationError(
            "advance moves the app's clock: make it Penstock(url, clock=penstock.testing.Clock())"
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
    """As `run_until_empty`, for synchronous tests."""
    work = run_until_empty(app, **options)
    return run(work, "await run_until_empty(app) instead of drain(app)")


class Work:
    """The fixture `penstock_worker`: runs the jobs of `penstock_app`, or of the app it is given.

    `penstock_worker()` in a synchronous test, `await penstock_worker.run_until_empty()` in an
    asynchronous one; with the options of `run_until_empty`.
    """

    def __init__(self, app: Penstock) -> None:
        self._app = app

    def __call__(self, app: Penstock | None = None, **options: Unpack[WorkOptions]) -> list[Job]:
        """As `drain`."""
        work = run_until_empty(app or self._app, **options)
        return run(work, "await penstock_worker.run_until_empty() instead of penstock_worker()")

    async def run_until_empty(
        self, app: Penstock | None = None, **options: Unpack[WorkOptions]
    ) -> list[Job]:
        """As the function of that name."""
        return await run_until_empty(app or self._app, **options)


class _Brisk(Worker):
    """Does not wait for the turn of jobs that a limit holds: the clock of a test stands still."""

    async def _is_empty(self) -> bool:
        return True


async def _work(
    app: Penstock,
    advance: bool | timedelta,  # noqa: FBT001 - as it was given
    horizon: datetime | None,
    queues: Sequence[str] | None,
    concurrency: int,
) -> None:
    while True:
        await app.reclaim()
        clock = app.clock
        kind = _Brisk if isinstance(clock, Clock) else Worker
        worker = kind(app, queues=queues, concurrency=concurrency, retention=_FOREVER)
        await worker.run(until_empty=True)
        if advance is False or not isinstance(clock, Clock):
            return
        due = await next_due(app.store)
        if horizon is not None:  # a schedule never ends: it counts as far as time goes
            due = _earlier(due, await _next_run(app, clock))
        if due is None or (horizon is not None and due > horizon):
            if horizon is not None:
                clock.set(max(horizon, clock.now))
            return
        # A microsecond later: a lease is over when its deadline is past.
        clock.set(max(due, clock.now) + timedelta(microseconds=1))


async def _next_run(app: Penstock, clock: Clock) -> datetime | None:
    """When a schedule of the app next has to be fired; None for an app without schedules."""
    until = await app.fire_due()
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
    """The jobs that were claimed, in that order; raises for those that failed last."""
    last: dict[JobId, LogEntry] = {entry.job_id: entry for entry in entries}
    ran = list(dict.fromkeys(entry.job_id for entry in entries if entry.event is Event.CLAIMED))
    jobs = bind(await app.store.get(ran), app)
    failed = [job for job in jobs if last[job.id].event in _FAILURES]
    if failed and not allow_failures:
        raise JobFailed(failed)
    return jobs


def _failure(job: Job) -> str:
    attempt = f"attempt {job.attempt} of {job.retry.attempts}"
    error = job.error or ""
    details = error.removeprefix(headline(error)).strip() or error
    return f"{shown(job)} failed, {attempt}, and is {job.state}:\n{details}"
