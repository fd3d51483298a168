"""Penstock: a durable job queue that starts as one file.

These are the names that most programs need. The others are in `penstock.errors`, `penstock.jobs`,
`penstock.queues`, `penstock.schedules`, `penstock.statistics`, `penstock.tokens`,
`penstock.leases` and `penstock.tables`.
"""

from penstock.core.errors import (
    Cancel,
    ConfigurationError,
    InvalidJob,
    JobFailed,
    JobNotFound,
    LeaseLost,
    PenstockError,
    QueueFull,
    Snooze,
    StoreError,
    StoreUnavailable,
    TransitionRefused,
    UnknownTask,
)
from penstock.core.job import Job, NewJob, Retention
from penstock.core.lifecycle import State
from penstock.core.query import JobQuery
from penstock.core.retry import RetryPolicy
from penstock.core.schedule import Schedule
from penstock.engine.batch import chain
from penstock.engine.penstock import Penstock, run_sync
from penstock.engine.task import Task
from penstock.worker.context import Context, context
from penstock.worker.worker import Worker

__all__ = [
    "Cancel",
    "ConfigurationError",
    "Context",
    "InvalidJob",
    "Job",
    "JobFailed",
    "JobNotFound",
    "JobQuery",
    "LeaseLost",
    "NewJob",
    "Penstock",
    "PenstockError",
    "QueueFull",
    "Retention",
    "RetryPolicy",
    "Schedule",
    "Snooze",
    "State",
    "StoreError",
    "StoreUnavailable",
    "Task",
    "TransitionRefused",
    "UnknownTask",
    "Worker",
    "chain",
    "context",
    "run_sync",
]
