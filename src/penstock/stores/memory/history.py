"""Sums of the log in memory."""

from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from heapq import nsmallest
from itertools import islice

from penstock.core.history import (
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
from penstock.core.job import LogEntry, LogId
from penstock.core.times import span_to_micros, to_micros
from penstock.stores.memory.batch import Batch

Kind = tuple[str, str, int]
"""The queue, event and bucket of entries that are counted together."""

Totals = dict[Kind, tuple[int, int]]
"""How many entries of each kind, and their durations together."""


class Sums:
    """What was counted so far, and up to which entry.

    `queues` has the queues that there are, by name: the counters of others are let go of.
    """

    def __init__(self, queues: Collection[str]) -> None:
        self._queues = queues
        self.digested = LogId(0)
        self._minutes: dict[int, Totals] = {}
        self._ever: Totals = {}
        self.named: set[str] = set()
        self.limit = NAMED_QUEUES

    def apply(self, batch: Batch) -> None:
        """Take over what a batch says, but the entries that are still to be counted."""
        for one in batch.minutes:
            self._minutes.setdefault(one.minute, {})[one[1:4]] = one[4:]
        if batch.minutes and not any(one.queue == TOGETHER for one in batch.minutes):
            # As they were written before sums of all queues were kept.
            for one in added_up(batch.minutes):
                self._minutes[one.minute][one[1:4]] = one[4:]
        for one in batch.ever:
            self._ever[one[1:4]] = one[4:]
            self.named |= {one.queue} - {TOGETHER}
        self.limit = batch.series or self.limit
        self.named |= {*batch.named}
        self.digested = max(self.digested, batch.counted)
        if batch.forgotten:
            self._forget(batch.forgotten)

    def digest(
        self, entries: Iterable[LogEntry], queue_of: Callable[[LogEntry], str | None]
    ) -> None:
        """Count these entries, the next ones; those without a queue are only passed."""
        self._give_series()
        for entry in entries:
            self.digested = entry.id
            if (queue := queue_of(entry)) is not None:
                self._count(entry, queue)

    def _give_series(self) -> None:
        """Let go of the counters of queues that are gone, and give others theirs.

        This depends on nothing but what was applied before: reading a journal again has the same
        result.
        """
        if gone := self.named.difference(self._queues):
            self.named -= gone
            self._ever = {kind: n for kind, n in self._ever.items() if kind[0] not in gone}
        self.named.update(self.unnamed(self.limit))

    def unnamed(self, limit: int) -> list[str]:
        """The queues that could get counters of their own."""
        room = limit - len(self.named.intersection(self._queues))
        if room <= 0:
            return []
        without = (name for name in self._queues if name not in self.named)
        return nsmallest(room, (name for name in without if name != OTHER_QUEUES))

    def _count(self, entry: LogEntry, queue: str) -> None:
        bucket, micros = UNTIMED, 0
        if entry.duration is not None and entry.event in TIMED:
            micros = max(0, span_to_micros(entry.duration))
            bucket = bucket_of(micros)
        minute = self._minutes.setdefault(to_micros(entry.at) // MINUTE_IN_MICROS, {})
        shown = queue if queue in self.named else TOGETHER
        for sums, name in ((minute, queue), (minute, TOGETHER), (self._ever, shown)):
            kind = (name, entry.event, bucket)
            n, total = sums.get(kind, (0, 0))
            sums[kind] = (n + 1, total + micros)

    def oldest_kept(self, now: datetime) -> int:
        """The first of the minutes that stay, if one has to go; else 0."""
        oldest = to_micros(now - KEPT) // MINUTE_IN_MICROS
        return oldest if min(self._minutes, default=oldest) < oldest else 0

    def _forget(self, oldest: int) -> None:
        """Remove some of the minutes that are past their time."""
        left = FORGOTTEN_AT_ONCE
        for minute in sorted(minute for minute in self._minutes if minute < oldest):
            for kind in list(islice(self._minutes[minute], left)):
                del self._minutes[minute][kind]
                left -= 1
            if self._minutes[minute]:
                return
            del self._minutes[minute]

    def all(self) -> tuple[list[Sum], list[Sum]]:
        """The sums of single minutes, and those of all time."""
        minutes = [
            Sum(minute, *kind, *sums)
            for minute, totals in self._minutes.items()
            for kind, sums in totals.items()
        ]
        return minutes, [Sum(0, *kind, *sums) for kind, sums in self._ever.items()]

    def find(
        self,
        since: datetime,
        until: datetime | None,
        queue: str | Collection[str] | None,
        step: timedelta,
    ) -> list[Interval]:
        """What has happened in this time."""
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
        """What has happened for ever."""
        return summed(Sum(0, *kind, *sums) for kind, sums in self._ever.items())
