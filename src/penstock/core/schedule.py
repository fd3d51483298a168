"""Schedules: when periodic jobs run, and what happens to missed runs.

Everything is arithmetic on instants that are passed in; the store writes the result if nothing has
changed. `zoneinfo` has the time zones; `cronsim` reads cron expressions, always without a time
zone (see `_cron_after`).
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from penstock.core.errors import ConfigurationError
from penstock.core.job import JobId, NewJob
from penstock.core.retry import LONGEST

CATCH_UP_LIMIT = 1_000
"""How many missed runs `missed="all"` catches up on at most: the newest ones."""

PUNCTUAL = timedelta(minutes=1)
"""A run that starts within this time of its planned time was not missed."""

SHORTEST = timedelta(seconds=1)

_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_FIELDS = 5
_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class Missed(StrEnum):
    """What happens to runs that were due while no worker was running."""

    ONCE = "once"
    ALL = "all"
    SKIP = "skip"


class Rhythm(msgspec.Struct, frozen=True, kw_only=True):
    """When a schedule runs: by a cron expression in a time zone, or at a fixed interval."""

    cron: str | None = None
    every: timedelta | None = None
    timezone: str = "UTC"

    @property
    def words(self) -> str:
        """The rhythm in words."""
        if self.every is not None:
            return f"Every {_span(self.every)}"
        from cronsim import CronSim, CronSimError

        cron = self.cron or ""
        try:
            return CronSim(_expression(cron), datetime.min.replace(tzinfo=UTC)).explain()
        except CronSimError:  # stored by a program with another version of cronsim
            return cron

    def after(self, instant: datetime, anchor: datetime) -> datetime | None:
        """Return the first run after an instant; None if there is none.

        With `every`, runs are whole multiples of it after `anchor`, an earlier run.
        """
        if self.every is not None:
            return anchor + ((instant - anchor) // self.every + 1) * self.every
        from zoneinfo import ZoneInfo

        return _cron_after(_expression(self.cron or ""), ZoneInfo(self.timezone), instant)


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is enqueued periodically.

    `next` is the planned time of the next run, `last` that of the newest one, whose job is
    `last_job`. `declared` means that it is declared in code, with its task. `known` says whether
    the program that listed it would fire it. `version` changes with every write.
    """

    name: str
    job: NewJob
    rhythm: Rhythm
    missed: Missed = Missed.ONCE
    overlap: bool = True
    declared: bool = False
    paused: bool = False
    next: datetime | None = None
    last: datetime | None = None
    last_job: JobId | None = None
    version: int = 0
    known: bool = True

    @property
    def task(self) -> str:
        """The task of the job."""
        return self.job.task

    @property
    def spec(self) -> str:
        """When the schedule runs, in words."""
        return self.rhythm.words

    @property
    def timezone(self) -> str:
        """The time zone of its cron expression."""
        return self.rhythm.timezone

    def run(self, planned: datetime) -> NewJob:
        """Return the job of one run, with the planned time as `run_at` and in its correlation."""
        job = replace(self.job, run_at=planned)
        if job.correlation is None:
            job = replace(job, correlation=f"{self.name}@{planned:%Y-%m-%dT%H:%M:%SZ}")
        return self.alone(job)

    def alone(self, job: NewJob) -> NewJob:
        """Return the job with a dedupe key that prevents overlapping runs, if they may not."""
        if self.overlap or job.dedupe is not None:
            return job
        return replace(job, dedupe=f"schedule:{self.name}")

    def reason(self, planned: datetime) -> str:
        """Return the reason in the log for enqueueing the job of a run."""
        return f"schedule {self.name}, planned for {planned:%Y-%m-%d %H:%M:%S} UTC"


class Firing(msgspec.Struct, frozen=True, kw_only=True):
    """What to write for a due schedule, if it is unchanged."""

    schedule: Schedule
    jobs: tuple[NewJob, ...]
    next: datetime | None
    left_out: bool = False
    """Whether older runs are skipped."""


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """The schedules that are due by the store's clock, and when the next one is."""

    now: datetime
    schedules: list[Schedule]
    next: datetime | None


def plan(schedule: Schedule, now: datetime) -> Firing:
    """Return what to write for a due schedule, according to its policy for missed runs."""
    if schedule.next is None or schedule.next > now:
        raise ValueError(f"schedule {schedule.name} is not due")
    limit = CATCH_UP_LIMIT if schedule.missed is Missed.ALL else 1
    runs = _latest(schedule.rhythm, schedule.next, now, limit + 1)
    left_out = len(runs) > limit
    runs = runs[-limit:]
    if schedule.missed is Missed.SKIP and now - runs[-1] > PUNCTUAL:
        runs, left_out = [], True
    return Firing(
        schedule=schedule,
        jobs=tuple(schedule.run(planned) for planned in runs),
        next=schedule.rhythm.after(now, schedule.next),
        left_out=left_out,
    )


def redefined(stored: Schedule | None, wanted: Schedule, now: datetime) -> Schedule:
    """Return a schedule as it is to be stored; `stored` itself if nothing changes.

    A new rhythm starts now. An unchanged one keeps its next run, whatever else has changed.
    """
    if stored is None:
        return replace(wanted, next=wanted.rhythm.after(now, now), version=0)
    kept = replace(
        wanted,
        paused=stored.paused,
        next=stored.next,
        last=stored.last,
        last_job=stored.last_job,
        version=stored.version,
    )
    if wanted.rhythm != stored.rhythm:
        kept = replace(kept, next=wanted.rhythm.after(now, now))
    return stored if kept == stored else kept


def resumed(stored: Schedule, now: datetime) -> Schedule:
    """Return a schedule without its pause; runs that were due during the pause are skipped."""
    if not stored.paused:
        return stored
    following = stored.next
    if following is not None and following <= now:
        following = stored.rhythm.after(now, following)
    return replace(stored, paused=False, next=following)


def check_rhythm(
    cron: object = None, every: object = None, timezone: object = None, *, name: str
) -> Rhythm:
    """Return the requested rhythm; raises `ConfigurationError` if it is invalid."""
    what = f"schedule {name!r}"
    if (cron is None) == (every is None):
        raise ConfigurationError(f"{what}: give either cron or every")
    if every is not None:
        if timezone is not None:
            raise ConfigurationError(f"{what}: timezone needs cron; every counts elapsed time")
        if not isinstance(every, timedelta) or not SHORTEST <= every <= LONGEST:
            raise ConfigurationError(
                f"{what}: every must be a timedelta from {SHORTEST.seconds} second to "
                f"{LONGEST.days} days, not {every!r:.80}"
            )
        return Rhythm(every=every)
    zone = _checked_zone("UTC" if timezone is None else timezone, what)
    return Rhythm(cron=_checked_cron(cron, what), timezone=zone)


def _checked_cron(cron: object, what: str) -> str:
    from cronsim import CronSimError

    if not isinstance(cron, str):
        raise ConfigurationError(
            f"{what}: cron must be text such as '*/5 * * * *', not {cron!r:.80}"
        )
    text = " ".join(cron.split())
    expression = _expression(text)
    if len(expression.split()) != _FIELDS:
        raise ConfigurationError(
            f"{what}: cron {cron!r:.80} needs five fields: minute, hour, day of month, month, "
            "day of week; for less than a minute, use every"
        )
    try:
        if _cron_after(expression, UTC, datetime(2000, 1, 1, tzinfo=UTC)) is None:
            raise ConfigurationError(f"{what}: cron {cron!r:.80} never matches a date")
    except (CronSimError, ValueError, AssertionError) as error:
        raise ConfigurationError(
            f"{what}: cron {cron!r:.80} is invalid: {error}; for example, "
            "'30 2 * * MON-FRI' means 02:30 on working days"
        ) from error
    return text


def _checked_zone(timezone: object, what: str) -> str:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(timezone).key  # type: ignore[arg-type] # the next line is for the others
    except (LookupError, ValueError, TypeError, AttributeError, OSError) as error:
        raise ConfigurationError(
            f"{what}: there is no time zone {timezone!r:.80}; name one such as 'Europe/Berlin' "
            "(where the system has none, install the package tzdata)"
        ) from error


# Runs between two instants


def _latest(rhythm: Rhythm, first: datetime, until: datetime, limit: int) -> list[datetime]:
    """Return the newest runs from `first`, which is one, up to an instant; oldest first.

    Looks back twice as far each time, so that the cost does not grow with the missed runs.
    """
    reach = (rhythm.every or timedelta(minutes=1)) * limit
    while True:
        since = max(first - _SECOND, until - reach)
        runs = list(_between(rhythm, since, first, until))
        if since < first or len(runs) >= limit:
            return runs[-limit:]
        reach *= 2


def _between(
    rhythm: Rhythm, since: datetime, anchor: datetime, until: datetime
) -> Iterator[datetime]:
    """Yield the runs after `since`, up to `until`."""
    if since < anchor:
        yield anchor
        since = anchor
    while (run := rhythm.after(since, anchor)) is not None and run <= until:
        yield run
        since = run


# Cron and clock changes


def _expression(cron: str) -> str:
    return _MACROS.get(cron.lower(), cron)


def _cron_after(expression: str, zone: tzinfo, after: datetime) -> datetime | None:
    """Return the first run of a cron expression after an instant.

    Clock changes are handled as in Debian's cron. An expression whose minute or hour starts with
    an asterisk follows the wall clock: it runs in both of two repeated hours, and not in a skipped
    one. Any other expression names times of day, which occur once a day: a skipped time runs at
    the moment of the change, a repeated one the first time.
    """
    minute, hour, *_ = expression.split()
    by_wall = minute.startswith("*") or hour.startswith("*")
    following = _next_by_the_wall if by_wall else _next_time_of_day
    return following(expression, zone, after.astimezone(UTC))


def _next_time_of_day(expression: str, zone: tzinfo, after: datetime) -> datetime | None:
    for local in _matches(expression, after.astimezone(zone)):
        # A skipped time has one interpretation before the change and one after it.
        before = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
        run = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
        if before < run:
            run = _change(zone, before, run) or run
        if run > after:
            return run
    return None


def _next_by_the_wall(expression: str, zone: tzinfo, after: datetime) -> datetime | None:
    """Go from one clock change to the next: between them, the clock runs evenly."""
    offset = _offset(zone, after)
    local = after + offset
    while (match := next(_matches(expression, local), None)) is not None:
        run = match.replace(tzinfo=UTC) - offset
        change = _change(zone, after, run)
        if change is None:
            return run
        after, offset = change, _offset(zone, change)
        local = after + offset - _SECOND  # a run at the moment of the change counts
    return None


def _matches(expression: str, local: datetime) -> Iterator[datetime]:
    """Return the matches of an expression after a local time, on a clock that never changes.

    With a time zone, cronsim 2.8 skips runs where a clock changes by half an hour, and returns a
    past one in the second of two repeated hours.
    """
    from cronsim import CronSim

    return CronSim(expression, local.replace(tzinfo=None, fold=0))


def _change(zone: tzinfo, after: datetime, until: datetime) -> datetime | None:
    """Return when the clock of a zone changes first in a period, to the second."""
    before = _offset(zone, after)
    while after < until:
        step = min(after + _DAY, until)
        if _offset(zone, step) != before:
            return _bisect(zone, after.replace(microsecond=0), step)
        after = step
    return None


def _bisect(zone: tzinfo, after: datetime, until: datetime) -> datetime:
    before = _offset(zone, after)
    while until - after > _SECOND:
        middle = after + (until - after) // _SECOND // 2 * _SECOND
        if _offset(zone, middle) == before:
            after = middle
        else:
            until = middle
    return until


def _offset(zone: tzinfo, instant: datetime) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta(0)


@lru_cache(64)
def _span(span: timedelta) -> str:
    for unit, size in (("day", _DAY), ("hour", timedelta(hours=1)), ("minute", PUNCTUAL)):
        if not span % size:
            n = span // size
            return unit if n == 1 else f"{n} {unit}s"
    seconds = span.total_seconds()
    return "second" if seconds == 1 else f"{seconds:g} seconds"
