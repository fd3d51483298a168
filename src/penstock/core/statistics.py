"""Counts of past events, per minute and queue, and how long jobs waited and ran.

The counts are derived from the log afterwards and in portions, so that enqueueing, claiming and
settling do not pay for them. A sum has the log entries of one queue and event, and of one bucket
of durations:

- A claim is timed by how long its job had been due: since it was enqueued, or since its `run_at`
  if that is later; after a failure, a snooze or a reset, since the time that it was put off to.
  Waiting for a key, for other jobs, for a limit or for the end of a pause counts.
- The end of a run (done, failed, expired, cancelled) is timed by how long the run took.
- Other events, and the cancelling of a job that did not run, are not timed.

Both durations are part of the log entry, so that a sum does not depend on when it was counted.
Entries of imported jobs are not counted: they happened elsewhere, or were counted here before.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from operator import add
from typing import NamedTuple

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.core.lifecycle import Event
from penstock.core.times import from_micros, span_from_micros, span_to_micros

BOUNDS = tuple(
    timedelta(seconds=seconds)
    for seconds in (
        *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
        *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
    )
)
"""The longest duration of each bucket; another bucket has all longer ones."""

BOUNDS_IN_MICROS = tuple(map(span_to_micros, BOUNDS))
UNTIMED = 0
"""The bucket of entries without a duration; the others are numbered from 1."""

RUNS = frozenset({Event.DONE, Event.FAILED, Event.EXPIRED, Event.CANCELLED})
TIMED = RUNS | {Event.CLAIMED}

MINUTE = timedelta(minutes=1)
MINUTE_IN_MICROS = span_to_micros(MINUTE)
KEPT = timedelta(days=8)
"""How long the sums of single minutes are kept; totals stay."""

TOGETHER = ""
"""Stands for several queues together; no queue has this name."""

OTHER_QUEUES = "(other)"
"""The name of all queues without own counters in metrics; a queue of this name has none."""

NAMED_QUEUES = 100
"""How many queues have counters of their own by default."""

FORGOTTEN_AT_ONCE = 1_000
"""How many outdated sums of minutes one `roll_up` removes at most."""


class Sum(NamedTuple):
    """The number of entries of one kind, and the sum of their durations."""

    minute: int
    """Minutes since 1970, UTC."""
    queue: str
    event: str
    bucket: int
    n: int
    micros: int


def bucket_of(micros: int) -> int:
    """Return the bucket of a duration: the first whose bound it does not exceed."""
    return bisect_left(BOUNDS_IN_MICROS, micros) + 1


class Spread(msgspec.Struct, frozen=True, gc=False):
    """A histogram of durations: their number, their sum, and the number in each bucket.

    `buckets` has a number for each of `BOUNDS`, of the durations up to it and above the previous
    bound, and another for those above the last. Histograms can be added.
    """

    count: int = 0
    total: timedelta = timedelta(0)
    buckets: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)

    def __add__(self, other: "Spread") -> "Spread":
        return Spread(
            self.count + other.count,
            self.total + other.total,
            tuple(map(add, self.buckets, other.buckets)),
        )

    def quantile(self, p: float) -> timedelta | None:
        """Return the `p`-quantile of the durations; None if there are none.

        An estimate: exact to the bucket, and interpolated inside it. Above the last bound, it is
        that bound.
        """
        if not 0 <= p <= 1:
            raise ConfigurationError(f"a quantile must be from 0 to 1, not {p!r}")
        if not self.count:
            return None
        rank = p * self.count
        below = 0
        for n, lower, upper in zip(self.buckets, (timedelta(0), *BOUNDS), BOUNDS, strict=False):
            if n and below + n >= rank:
                return lower + (upper - lower) * ((rank - below) / n)
            below += n
        return BOUNDS[-1]


class Counters(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The total counts of a queue; these numbers never decrease.

    `TOGETHER` stands for all queues while they had no counters of their own. `counts` has the
    events that happened at all. `wait` is how long claimed jobs had been due, `run` how long the
    runs took that ended.
    """

    queue: str
    counts: Mapping[Event, int]
    wait: Spread
    run: Spread


class Interval(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The counts of a queue from `at` on, for the requested `step`.

    `TOGETHER` stands for all queues.
    """

    at: datetime
    queue: str
    counts: Mapping[Event, int]
    wait: Spread
    run: Spread


def intervals(sums: Iterable[Sum]) -> list[Interval]:
    """Return the intervals of these sums, by time and queue; `minute` is the start of one."""
    gathered: dict[tuple[int, str], list[Sum]] = {}
    for one in sums:
        gathered.setdefault((one.minute, one.queue), []).append(one)
    return [
        Interval(
            at=from_micros(minute * MINUTE_IN_MICROS),
            queue=queue,
            counts=_counts(found),
            wait=_spread(found, frozenset({Event.CLAIMED})),
            run=_spread(found, RUNS),
        )
        for (minute, queue), found in sorted(gathered.items())
    ]


def added_up(sums: Iterable[Sum]) -> list[Sum]:
    """Return the sums of all queues together."""
    totals: dict[tuple[int, str, int], tuple[int, int]] = {}
    for one in sums:
        kind = one.minute, one.event, one.bucket
        n, micros = totals.get(kind, (0, 0))
        totals[kind] = n + one.n, micros + one.micros
    return [
        Sum(minute, TOGETHER, event, bucket, n, micros)
        for (minute, event, bucket), (n, micros) in totals.items()
    ]


def summed(sums: Iterable[Sum]) -> list[Counters]:
    """Return the total counts of each queue, by name."""
    together = intervals(one._replace(minute=0) for one in sums)
    return [
        Counters(queue=one.queue, counts=one.counts, wait=one.wait, run=one.run) for one in together
    ]


def _counts(sums: Iterable[Sum]) -> dict[Event, int]:
    counts: dict[str, int] = {}
    for one in sums:
        counts[one.event] = counts.get(one.event, 0) + one.n
    return {event: counts[event] for event in Event if event in counts}


def _spread(sums: Iterable[Sum], events: frozenset[Event]) -> Spread:
    timed = [one for one in sums if one.bucket != UNTIMED and one.event in events]
    buckets = [0] * (len(BOUNDS) + 1)
    for one in timed:
        buckets[one.bucket - 1] += one.n
    return Spread(
        count=sum(buckets),
        total=span_from_micros(sum(one.micros for one in timed)),
        buckets=tuple(buckets),
    )
