"""What `Penstock.queues` and `Penstock.limits` take and return."""

from penstock.core.limits import (
    Limit,
)
from penstock.core.queue import Queue, QueueQuery, QueueStatus, QueueSummary
from penstock.engine.queues import (
    Drained,
)

__all__ = [
    "Drained",
    "Limit",
    "Queue",
    "QueueQuery",
    "QueueStatus",
    "QueueSummary",
]
