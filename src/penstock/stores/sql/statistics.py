"""Statistics: the log summed up by minute and queue.

A reader sums up a portion of the log; a transaction writes the sums unless another process has
written them in the meantime.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from penstock.core.statistics import (
    BOUNDS_IN_MICROS,
    FORGOTTEN_AT_ONCE,
    KEPT,
    MINUTE,
    MINUTE_IN_MICROS,
    NAMED_QUEUES,
    OTHER_QUEUES,
    Counters,
    Interval,
    Sum,
    added_up,
    intervals,
    summed,
)
from penstock.core.times import span_to_micros, to_micros
from penstock.stores.sql.database import Reader, Transaction
from penstock.stores.sql.rows import encoded

_END_OF_TIME = 2**62


class Summary(NamedTuple):
    """The sums of a portion of the log: the entries after `start`, up to `end`."""

    start: int
    end: int
    passed: int
    sums: list[Sum]
    forget_before: int | None
    """The minute before which sums have expired, if there are any."""


def sum_up(reader: Reader, limit: int) -> Summary:
    """Sum up the next portion of the log.

    A portion is a range of ids, which have few gaps, so that finding its end costs nothing. No
    statement sees less of the log than the one before, so that they need no transaction.
    """
    reader.fold_totals()
    (complete,) = reader.execute("complete_log").fetchone()
    start, first, newest = reader.execute("rolled_up", (complete,)).fetchone()
    oldest = (reader.clock() - span_to_micros(KEPT)) // MINUTE_IN_MICROS
    any_old = reader.execute("any_old_history", (oldest,)).fetchone()
    forget_before = oldest if any_old else None
    if first is None or limit < 1:
        return Summary(start, start, 0, [], forget_before)
    end = min(newest, first + limit - 1)
    found = reader.execute("sums", (first, end, *BOUNDS_IN_MICROS))
    sums = [Sum(*row) for row in found]
    passed = sum(one.n for one in sums)
    if passed <= end - first:  # some were restored, or removed
        (passed,) = reader.execute("log_size", (first, end)).fetchone()
    return Summary(start, end, passed, sums, forget_before)


def write(tx: Transaction, summaries: Sequence[Summary]) -> list[int]:
    """Write the sums of portions that no other process has written; return their lengths."""
    return [_write_one(tx, summary) for summary in summaries]


def _write_one(tx: Transaction, summary: Summary) -> int:
    if summary.forget_before is not None:
        tx.execute("drop_old_history", (summary.forget_before, FORGOTTEN_AT_ONCE))
        tx.written = True
    if not tx.execute("set_rolled_up", (summary.start, summary.end)).fetchone():
        return 0
    _assign_series(tx)
    tx.execute("add_history", (encoded([*summary.sums, *added_up(summary.sums)]),))
    tx.execute("add_counters", (encoded(summary.sums),))
    tx.written = True
    return summary.passed


def series(reader: Reader) -> list[str]:
    """See `Store.series`; the queues with counters of their own."""
    return [queue for (queue,) in reader.execute("series")]


def lacks_series(reader: Reader, limit: int | None) -> bool:
    """Return whether queues lack counters, counted queues are gone, or the limit is new."""
    (set_to,) = reader.execute("meta", ("series",)).fetchone()
    room = set_to or NAMED_QUEUES
    return (
        limit not in {None, set_to}
        or reader.execute("any_gone_series").fetchone() is not None
        or bool(reader.execute("without_series", (room, OTHER_QUEUES)).fetchone())
    )


def assign_series(tx: Transaction, limits: Sequence[int | None]) -> list[None]:
    """Give queues counters of their own, up to the limit; set the limit where it is given."""
    for limit in limits:
        if limit is not None:
            tx.execute("limit_series", (limit,))
        _assign_series(tx)
    tx.written = True
    return [None] * len(limits)


def _assign_series(tx: Transaction) -> None:
    (set_to,) = tx.execute("series_limit").fetchone()
    if tx.execute("any_gone_series").fetchone() is not None:
        tx.execute("drop_counters")
        tx.execute("drop_series")
    if found := tx.execute("without_series", (set_to or NAMED_QUEUES, OTHER_QUEUES)).fetchall():
        tx.execute("add_series", (encoded([name for (name,) in found]),))


def find(
    reader: Reader,
    since: datetime,
    until: datetime | None,
    queue: str | Collection[str] | None,
    step: timedelta,
) -> list[Interval]:
    """See `Store.intervals`."""
    end = _END_OF_TIME if until is None else _minute_from(until)
    time = (step // MINUTE, _minute_from(since), end)
    if queue is None:
        found = reader.execute("history", time)
    else:
        names = [queue] if isinstance(queue, str) else sorted({*queue})
        found = reader.execute("history_of", (*time, encoded(names)))
    return intervals(Sum(*row) for row in found)


def counters(reader: Reader) -> list[Counters]:
    """See `Store.counters`."""
    return summed(Sum(*row) for row in reader.execute("counters"))


def _minute_from(instant: datetime) -> int:
    """Return the first minute that begins at an instant or later."""
    return -(-to_micros(instant) // MINUTE_IN_MICROS)
