"""What `Penstock.statistics` returns."""

from penstock.core.statistics import (
    Counters,
    Interval,
    Spread,
)

__all__ = [
    "Counters",
    "Interval",
    "Spread",
]
