"""Counts of past events, in memory."""

from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from heapq import nsmallest
from itertools import islice

from penstock.core.job import LogEntry, LogId
from penstock.core.statistics import (
    FORGOTTEN_AT_ONCE,
    KEPT,
    MINUTE,
    MINUTE_IN_MICROS,
    NAMED_QUEUES,
    OTHER_QUEUES,
    TIMED,
    TOGETHER,
    UNTIMED,
    Counters,
    Interval,
    Sum,
    added_up,
    bucket_of,
    intervals,
    summed,
)
from penstock.core.times import span_to_micros, to_micros
from penstock.stores.memory.batch import WriteBatch

Kind = tuple[str, str, int]
"""The queue, event and bucket of entries that are counted together."""

Totals = dict[Kind, tuple[int, int]]
"""The number of entries of each kind, and the sum of their durations."""


class StoredStatistics:
    """Sums per minute and in total, and up to which log entry they reach.

    `queues` has the names of the existing queues: counters of others are dropped.
    """

    def __init__(self, queues: Collection[str]) -> None:
        self._queues = queues
        self.rolled_up_to = LogId(0)
        self._minutes: dict[int, Totals] = {}
        self._totals: Totals = {}
        self.series: set[str] = set()
        self.limit = NAMED_QUEUES

    def apply(self, batch: WriteBatch) -> None:
        """Apply the sums of a batch, except the entries that it asks to roll up."""
        for one in batch.minutes:
            self._minutes.setdefault(one.minute, {})[one[1:4]] = one[4:]
        if batch.minutes and not any(one.queue == TOGETHER for one in batch.minutes):
            # Written before the sums of all queues were kept.
            for one in added_up(batch.minutes):
                self._minutes[one.minute][one[1:4]] = one[4:]
        for one in batch.totals:
            self._totals[one[1:4]] = one[4:]
            self.series |= {one.queue} - {TOGETHER}
        self.limit = batch.series_limit or self.limit
        self.series |= {*batch.series}
        self.rolled_up_to = max(self.rolled_up_to, batch.rolled_up_to)
        if batch.forget_before:
            self._forget(batch.forget_before)

    def roll_up(
        self, entries: Iterable[LogEntry], queue_of: Callable[[LogEntry], str | None]
    ) -> None:
        """Count the next entries; those without a queue are only skipped."""
        self._assign_series()
        for entry in entries:
            self.rolled_up_to = entry.id
            if (queue := queue_of(entry)) is not None:
                self._count(entry, queue)

    def _assign_series(self) -> None:
        """Drop the counters of removed queues, and let others have counters of their own.

        Depends only on the batches applied before, so that replaying a journal has the same
        result.
        """
        if gone := self.series.difference(self._queues):
            self.series -= gone
            self._totals = {kind: n for kind, n in self._totals.items() if kind[0] not in gone}
        self.series.update(self.candidates(self.limit))

    def candidates(self, limit: int) -> list[str]:
        """Return the queues that could get counters of their own now."""
        room = limit - len(self.series.intersection(self._queues))
        if room <= 0:
            return []
        without = (name for name in self._queues if name not in self.series)
        return nsmallest(room, (name for name in without if name != OTHER_QUEUES))

    def _count(self, entry: LogEntry, queue: str) -> None:
        bucket, micros = UNTIMED, 0
        if entry.duration is not None and entry.event in TIMED:
            micros = max(0, span_to_micros(entry.duration))
            bucket = bucket_of(micros)
        minute = self._minutes.setdefault(to_micros(entry.at) // MINUTE_IN_MICROS, {})
        shown = queue if queue in self.series else TOGETHER
        for sums, name in ((minute, queue), (minute, TOGETHER), (self._totals, shown)):
            kind = (name, entry.event, bucket)
            n, total = sums.get(kind, (0, 0))
            sums[kind] = (n + 1, total + micros)

    def oldest_kept(self, now: datetime) -> int:
        """Return the first minute to keep if an older one is stored; 0 otherwise."""
        oldest = to_micros(now - KEPT) // MINUTE_IN_MICROS
        return oldest if min(self._minutes, default=oldest) < oldest else 0

    def _forget(self, oldest: int) -> None:
        """Remove some of the minutes that are no longer kept."""
        left = FORGOTTEN_AT_ONCE
        for minute in sorted(minute for minute in self._minutes if minute < oldest):
            for kind in list(islice(self._minutes[minute], left)):
                del self._minutes[minute][kind]
                left -= 1
            if self._minutes[minute]:
                return
            del self._minutes[minute]

    def all(self) -> tuple[list[Sum], list[Sum]]:
        """Return the sums of single minutes, and the totals."""
        minutes = [
            Sum(minute, *kind, *sums)
            for minute, totals in self._minutes.items()
            for kind, sums in totals.items()
        ]
        return minutes, [Sum(0, *kind, *sums) for kind, sums in self._totals.items()]

    def find(
        self,
        since: datetime,
        until: datetime | None,
        queue: str | Collection[str] | None,
        step: timedelta,
    ) -> list[Interval]:
        """See `Store.intervals`."""
        size = step // MINUTE
        names = {queue} if isinstance(queue, str) else None if queue is None else {*queue}
        return intervals(
            Sum(minute - minute % size, *kind, *sums)
            for minute, totals in self._minutes.items()
            if minute * MINUTE_IN_MICROS >= to_micros(since)
            and (until is None or minute * MINUTE_IN_MICROS < to_micros(until))
            for kind, sums in totals.items()
            if (kind[0] != TOGETHER if names is None else kind[0] in names)
        )

    def counters(self) -> list[Counters]:
        """See `Store.counters`."""
        return summed(Sum(0, *kind, *sums) for kind, sums in self._totals.items())
