"""Penstock: a durable job queue that starts as one file."""

from penstock.core.errors import (
    Cancel,
    ConfigurationError,
    InvalidJob,
    JobNotFound,
    LeaseLost,
    PayloadTooLarge,
    PenstockError,
    QueueFull,
    Snooze,
    StoreError,
    StoreUnavailable,
    TransitionRefused,
    UnknownTask,
)
from penstock.core.job import (
    Job,
    JobId,
    JobQuery,
    Lease,
    LogEntry,
    NewJob,
    Queue,
    Retention,
    Scope,
)
from penstock.core.lifecycle import (
    Cancelled,
    Done,
    Event,
    Failed,
    Outcome,
    Snoozed,
    State,
    Waiting,
)
from penstock.core.limits import Limit
from penstock.core.retry import RetryPolicy
from penstock.engine import Drained, Explanation, Penstock, run_sync
from penstock.task import Task
from penstock.worker.context import Context, context
from penstock.worker.worker import Worker

__all__ = [
    "Cancel",
    "Cancelled",
    "ConfigurationError",
    "Context",
    "Done",
    "Drained",
    "Event",
    "Explanation",
    "Failed",
    "InvalidJob",
    "Job",
    "JobId",
    "JobNotFound",
    "JobQuery",
    "Lease",
    "LeaseLost",
    "Limit",
    "LogEntry",
    "NewJob",
    "Outcome",
    "PayloadTooLarge",
    "Penstock",
    "PenstockError",
    "Queue",
    "QueueFull",
    "Retention",
    "RetryPolicy",
    "Scope",
    "Snooze",
    "Snoozed",
    "State",
    "StoreError",
    "StoreUnavailable",
    "Task",
    "TransitionRefused",
    "UnknownTask",
    "Waiting",
    "Worker",
    "context",
    "run_sync",
]
