"""Figures of a queue: backlog, rates, utilisation and the time until it is empty."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from penstock.core.lifecycle import Event, State, Waiting
from penstock.core.queue import Queue, QueueStatus
from penstock.core.statistics import MINUTE, Interval
from penstock.core.workers import WorkerInfo

MINUTES_SHOWN = 20
"""Minutes in the sparkline of finished jobs."""

# The current minute alone starts at zero; with the one before, a rate covers 60 to 120 s.
_RATED = 2
_LONGEST = timedelta(days=999)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at one moment. Rates are jobs per second, over the last one to two minutes.

    `slots` is how many of its jobs can run at a time: its limit, or what the workers that are
    alive can run. `time_to_empty` is unknown while no more jobs are done than enqueued.
    """

    queue: str
    paused: bool = False
    full: bool = False
    pending: int = 0
    ready: int = 0
    scheduled: int = 0
    blocked: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    oldest_ready: timedelta | None = None
    rate_in: float = 0.0
    rate_out: float = 0.0
    slots: int = 0
    utilisation: float | None = None
    time_to_empty: timedelta | None = None
    done_per_minute: tuple[int, ...] = ()


def begin(now: datetime) -> datetime:
    """Return the start of the period that the figures need."""
    return now.replace(second=0, microsecond=0) - (MINUTES_SHOWN - 1) * MINUTE


def figures(
    queues: Sequence[QueueStatus],
    workers: Sequence[WorkerInfo],
    intervals: Sequence[Interval],
    now: datetime,
) -> list[Figures]:
    """Return the figures of these queues, by name."""
    by_queue: dict[str, list[Interval]] = {}
    for one in intervals:
        by_queue.setdefault(one.queue, []).append(one)
    alive = [worker for worker in workers if not worker.is_silent(now)]
    return [
        _figures(
            status.queue,
            status.totals,
            status.oldest_ready,
            _slots(status.queue, alive),
            by_queue.get(status.queue.name, ()),
            now,
        )
        for status in queues
    ]


def _figures(  # noqa: PLR0917 - the parts that a store reports
    queue: Queue,
    totals: Mapping[State | Waiting, int],
    oldest: datetime | None,
    slots: int,
    intervals: Sequence[Interval],
    now: datetime,
) -> Figures:
    pending = sum(totals[waiting] for waiting in Waiting)
    rate_in, rate_out = (_rate(intervals, event, now) for event in (Event.ENQUEUED, Event.DONE))
    running = totals[State.RUNNING]
    return Figures(
        queue=queue.name,
        paused=queue.paused,
        full=queue.max_pending is not None and pending >= queue.max_pending,
        pending=pending,
        ready=totals[Waiting.READY],
        scheduled=totals[Waiting.SCHEDULED],
        blocked=totals[Waiting.BLOCKED],
        running=running,
        done=totals[State.DONE],
        failed=totals[State.FAILED],
        oldest_ready=None if oldest is None else max(timedelta(0), now - oldest),
        rate_in=rate_in,
        rate_out=rate_out,
        slots=slots,
        utilisation=min(1.0, running / slots) if slots else None,
        time_to_empty=_time_to_empty(pending, rate_out - rate_in),
        done_per_minute=_per_minute(intervals, now),
    )


def _slots(queue: Queue, alive: Iterable[WorkerInfo]) -> int:
    able = sum(
        worker.concurrency or 0
        for worker in alive
        if worker.queues is None or queue.name in worker.queues
    )
    return able if queue.concurrency is None else min(able, queue.concurrency)


def _rate(intervals: Sequence[Interval], event: Event, now: datetime) -> float:
    since = now.replace(second=0, microsecond=0) - (_RATED - 1) * MINUTE
    n = sum(one.counts.get(event, 0) for one in intervals if one.at >= since)
    return n / (now - since).total_seconds()


def _time_to_empty(pending: int, falling: float) -> timedelta | None:
    if not pending:
        return timedelta(0)
    seconds = pending / falling if falling > 0 else _LONGEST.total_seconds()
    return timedelta(seconds=seconds) if seconds < _LONGEST.total_seconds() else None


def _per_minute(intervals: Sequence[Interval], now: datetime) -> tuple[int, ...]:
    done = [0] * MINUTES_SHOWN
    for one in intervals:
        place = (one.at - begin(now)) // MINUTE
        if 0 <= place < MINUTES_SHOWN:
            done[place] += one.counts.get(Event.DONE, 0)
    return tuple(done)
