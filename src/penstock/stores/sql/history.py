"""Sums of the log in the file: counted by a reader, written by the writer if nobody else was."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from penstock.core.history import (
    BOUNDS_IN_MICROS,
    FORGOTTEN_AT_ONCE,
    KEPT,
    MINUTE,
    MINUTE_IN_MICROS,
    Counters,
    Interval,
    Sum,
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
    sums = encoded(digest.sums)
    tx.execute("add_history", (sums,))
    tx.execute("add_counters", (sums,))
    tx.written = True
    return digest.passed


def find(
    reading: Reading,
    since: datetime,
    until: datetime | None,
    queue: str | None,
    step: timedelta,
) -> list[Interval]:
    """What has happened in this time."""
    end = _END_OF_TIME if until is None else _minute_from(until)
    parameters = (step // MINUTE, _minute_from(since), end, queue)
    return intervals(Sum(*row) for row in reading.execute("history", parameters))


def counters(reading: Reading) -> list[Counters]:
    """What has happened for ever."""
    return summed(Sum(*row) for row in reading.execute("counters"))


def _minute_from(instant: datetime) -> int:
    """The first minute that begins at an instant or later."""
    return -(-to_micros(instant) // MINUTE_IN_MICROS)
