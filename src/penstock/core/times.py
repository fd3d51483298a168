"""Conversion of instants and durations to microseconds, as stores have them, and back."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(instant: datetime) -> int:
    """Return an aware datetime as microseconds since 1970."""
    return (instant - _EPOCH) // _MICROSECOND


# The jobs of a batch share most of their times.
@lru_cache(4096)
def from_micros(micros: int) -> datetime:
    """Return the instant that many microseconds after 1970, in UTC."""
    return _EPOCH + timedelta(microseconds=micros)


def span_to_micros(span: timedelta) -> int:
    """Return a duration in microseconds."""
    return span // _MICROSECOND


def span_from_micros(micros: int) -> timedelta:
    """Return a duration of that many microseconds."""
    return timedelta(microseconds=micros)
