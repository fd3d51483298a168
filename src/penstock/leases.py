"""What `Penstock.leases` and `Penstock.workers` take and return: leases, outcomes, reports."""

from penstock.core.job import (
    Lease,
)
from penstock.core.lifecycle import (
    Cancelled,
    Done,
    Failed,
    Outcome,
    Snoozed,
)
from penstock.core.progress import (
    Report,
)
from penstock.core.tasks import (
    AnnouncedTask,
    KnownTasks,
)
from penstock.core.workers import (
    WaitingTask,
    WorkerInfo,
)

__all__ = [
    "AnnouncedTask",
    "Cancelled",
    "Done",
    "Failed",
    "KnownTasks",
    "Lease",
    "Outcome",
    "Report",
    "Snoozed",
    "WaitingTask",
    "WorkerInfo",
]
