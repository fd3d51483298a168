"""Instants as microseconds since 1970, UTC, which stores count in, and back."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(instant: datetime) -> int:
    """Microseconds since 1970 of an aware instant."""
    return (instant - _EPOCH) // _MICROSECOND


# The jobs of a batch share most of their times.
@lru_cache(4096)
def from_micros(micros: int) -> datetime:
    """The instant that many microseconds after 1970, in UTC."""
    return _EPOCH + timedelta(microseconds=micros)


def span_to_micros(span: timedelta) -> int:
    """A duration in microseconds."""
    return span // _MICROSECOND


def span_from_micros(micros: int) -> timedelta:
    """A duration of that many microseconds."""
    return timedelta(microseconds=micros)
