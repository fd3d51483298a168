"""What `Penstock.schedules` takes and returns."""

from penstock.core.schedule import (
    Missed,
    Schedule,
)

__all__ = [
    "Missed",
    "Schedule",
]
