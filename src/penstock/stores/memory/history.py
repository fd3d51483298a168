"""Sums of the log in memory."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from itertools import islice

from penstock.core.history import (
    FORGOTTEN_AT_ONCE,
    KEPT,
    MINUTE,
    MINUTE_IN_MICROS,
    TIMED,
    UNTIMED,
    Counters,
    Interval,
    Sum,
    bucket_of,
    intervals,
    summed,
)
from penstock.core.job import LogEntry, LogId
from penstock.core.times import span_to_micros, to_micros
from penstock.stores.memory.batch import Batch

Kind = tuple[int, str, str, int]
"""The minute, queue, event and bucket of entries that are counted together."""


class Sums:
    """What was counted so far, and up to which entry."""

    def __init__(self) -> None:
        self.digested = LogId(0)
        # How many entries, and their durations together.
        self._minutes: dict[Kind, tuple[int, int]] = {}
        # The same for ever: their minute is 0.
        self._ever: dict[Kind, tuple[int, int]] = {}

    def apply(self, batch: Batch) -> None:
        """Take over what a batch says, but the entries that are still to be counted."""
        for sums, taken in ((self._minutes, batch.minutes), (self._ever, batch.ever)):
            for one in taken:
                sums[one.minute, one.queue, one.event, one.bucket] = (one.n, one.micros)
        self.digested = max(self.digested, batch.counted)
        if batch.forgotten:
            self._forget(batch.forgotten)

    def digest(
        self, entries: Iterable[LogEntry], queue_of: Callable[[LogEntry], str | None]
    ) -> None:
        """Count these entries, the next ones; those without a queue are only passed."""
        for entry in entries:
            self.digested = entry.id
            if (queue := queue_of(entry)) is not None:
                self._count(entry, queue)

    def _count(self, entry: LogEntry, queue: str) -> None:
        bucket, micros = UNTIMED, 0
        if entry.duration is not None and entry.event in TIMED:
            micros = max(0, span_to_micros(entry.duration))
            bucket = bucket_of(micros)
        minute = to_micros(entry.at) // MINUTE_IN_MICROS
        for sums, when in ((self._minutes, minute), (self._ever, 0)):
            kind = (when, queue, entry.event, bucket)
            n, total = sums.get(kind, (0, 0))
            sums[kind] = (n + 1, total + micros)

    def oldest_kept(self, now: datetime) -> int:
        """The first of the minutes that stay, if one has to go; else 0."""
        oldest = to_micros(now - KEPT) // MINUTE_IN_MICROS
        return oldest if any(kind[0] < oldest for kind in self._minutes) else 0

    def _forget(self, oldest: int) -> None:
        """Remove some of the minutes that are past their time."""
        old = islice((kind for kind in self._minutes if kind[0] < oldest), FORGOTTEN_AT_ONCE)
        for kind in list(old):
            del self._minutes[kind]

    def all(self) -> tuple[list[Sum], list[Sum]]:
        """The sums of single minutes, and those of all time."""
        minutes, ever = (
            [Sum(*kind, *sums) for kind, sums in counted.items()]
            for counted in (self._minutes, self._ever)
        )
        return minutes, ever

    def find(
        self, since: datetime, until: datetime | None, queue: str | None, step: timedelta
    ) -> list[Interval]:
        """What has happened in this time."""
        size = step // MINUTE
        return intervals(
            Sum(minute - minute % size, name, event, bucket, n, micros)
            for (minute, name, event, bucket), (n, micros) in self._minutes.items()
            if queue in (None, name)
            and minute * MINUTE_IN_MICROS >= to_micros(since)
            and (until is None or minute * MINUTE_IN_MICROS < to_micros(until))
        )

    def counters(self) -> list[Counters]:
        """What has happened for ever."""
        return summed(Sum(*kind, *sums) for kind, sums in self._ever.items())
