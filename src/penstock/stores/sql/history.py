"""Sums of the log in the file: counted by a reader, written by the writer if nobody else was."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from penstock.core.history import (
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
from penstock.stores.sql.rows import encoded
from penstock.stores.sql.transaction import Reading, Transaction

_END_OF_TIME = 2**62


class Digest(NamedTuple):
    """What a portion of the log adds up to: the entries behind `start`, up to `end`."""

    start: int
    end: int
    passed: int
    sums: list[Sum]
    forget_before: int | None
    """The minute before which sums are past their time, where there are any."""


def digest(reading: Reading, limit: int, complete: int | None = None) -> Digest:
    """Count the next portion of the log.

    Only entries up to `complete` count, where it is known. A portion is a span of ids, which have
    few gaps: finding its end costs nothing. No statement
    sees less of the log than the one before, so that they need no transaction.
    """
    start, first, newest = reading.execute(
        "digested", () if complete is None else (complete,)
    ).fetchone()
    oldest = (reading.now() - span_to_micros(KEPT)) // MINUTE_IN_MICROS
    any_old = reading.execute("any_old_history", (oldest,)).fetchone()
    forget_before = oldest if any_old else None
    if first is None or limit < 1:
        return Digest(start, start, 0, [], forget_before)
    end = min(newest, first + limit - 1)
    found = reading.execute("sums", (first, end, *BOUNDS_IN_MICROS))
    sums = [Sum(*row) for row in found]
    passed = sum(one.n for one in sums)
    if passed <= end - first:  # some were taken over, or removed
        (passed,) = reading.execute("log_size", (first, end)).fetchone()
    return Digest(start, end, passed, sums, forget_before)


def write(tx: Transaction, digests: Sequence[Digest]) -> list[int]:
    """Write those sums whose portion nobody else has counted meanwhile; how many entries each."""
    return [_write_one(tx, digest) for digest in digests]


def _write_one(tx: Transaction, digest: Digest) -> int:
    if digest.forget_before is not None:
        tx.execute("drop_old_history", (digest.forget_before, FORGOTTEN_AT_ONCE))
        tx.written = True
    if not tx.execute("note_digested", (digest.start, digest.end)).fetchone():
        return 0
    _give_series(tx)
    tx.execute("add_history", (encoded([*digest.sums, *added_up(digest.sums)]),))
    tx.execute("add_counters", (encoded(digest.sums),))
    tx.written = True
    return digest.passed


def series(reading: Reading) -> list[str]:
    """The queues that have counters of their own."""
    return [queue for (queue,) in reading.execute("series")]


def lacks_series(reading: Reading, limit: int | None) -> bool:
    """Whether a queue could have counters of its own, or has them and is gone; or a new limit."""
    (set_to,) = reading.execute("meta", ("series",)).fetchone()
    room = set_to or NAMED_QUEUES
    return (
        limit not in {None, set_to}
        or reading.execute("any_gone_series").fetchone() is not None
        or bool(reading.execute("without_series", (room, OTHER_QUEUES)).fetchone())
    )


def give_series(tx: Transaction, limits: Sequence[int | None]) -> list[None]:
    """Give queues counters of their own, up to the limit, which is set where it is given."""
    for limit in limits:
        if limit is not None:
            tx.execute("limit_series", (limit,))
        _give_series(tx)
    tx.written = True
    return [None] * len(limits)


def _give_series(tx: Transaction) -> None:
    (set_to,) = tx.execute("series_limit").fetchone()
    if tx.execute("any_gone_series").fetchone() is not None:
        tx.execute("drop_counters")
        tx.execute("drop_series")
    if found := tx.execute("without_series", (set_to or NAMED_QUEUES, OTHER_QUEUES)).fetchall():
        tx.execute("add_series", (encoded([name for (name,) in found]),))


def find(
    reading: Reading,
    since: datetime,
    until: datetime | None,
    queue: str | Collection[str] | None,
    step: timedelta,
) -> list[Interval]:
    """What has happened in this time."""
    end = _END_OF_TIME if until is None else _minute_from(until)
    time = (step // MINUTE, _minute_from(since), end)
    if queue is None:
        found = reading.execute("history", time)
    else:
        names = [queue] if isinstance(queue, str) else sorted({*queue})
        found = reading.execute("history_of", (*time, encoded(names)))
    return intervals(Sum(*row) for row in found)


def counters(reading: Reading) -> list[Counters]:
    """What has happened for ever."""
    return summed(Sum(*row) for row in reading.execute("counters"))


def _minute_from(instant: datetime) -> int:
    """The first minute that begins at an instant or later."""
    return -(-to_micros(instant) // MINUTE_IN_MICROS)
