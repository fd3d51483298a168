"""Penstock: a durable job queue that starts as one file."""

from penstock.admin import Bulk
from penstock.compose import chain
from penstock.core.errors import (
    Cancel,
    ConfigurationError,
    InvalidJob,
    JobFailed,
    JobNotFound,
    LeaseLost,
    MigrationRefused,
    NotAuthorised,
    PayloadTooLarge,
    PenstockError,
    QueueFull,
    QueueInUse,
    ScheduleNotFound,
    ServerUnreachable,
    Snooze,
    StoreError,
    StoreMissing,
    StoreMoved,
    StoreUnavailable,
    TokenExists,
    TokenNotFound,
    TooManyQueues,
    TransitionRefused,
    UnknownTask,
)
from penstock.core.history import Counters, Interval, Spread
from penstock.core.job import (
    Edge,
    Job,
    JobId,
    JobQuery,
    KeyLine,
    Lease,
    LogEntry,
    NewJob,
    OnFailure,
    Queue,
    QueueQuery,
    Record,
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
from penstock.core.mirror import Mirror
from penstock.core.note import Line, Note, Progress
from penstock.core.retry import RetryPolicy
from penstock.core.schedule import Missed, Schedule
from penstock.core.tables import Statements, Tables
from penstock.core.token import Access, Token
from penstock.core.worker import WorkerInfo
from penstock.engine import Penstock, run_sync
from penstock.explaining import Explanation
from penstock.isolation import Origin
from penstock.looking import Batch
from penstock.queues import Drained
from penstock.tables import Transaction
from penstock.task import Task, Verdict
from penstock.worker.context import Context, context
from penstock.worker.worker import Worker

__all__ = [
    "Access",
    "Batch",
    "Bulk",
    "Cancel",
    "Cancelled",
    "ConfigurationError",
    "Context",
    "Counters",
    "Done",
    "Drained",
    "Edge",
    "Event",
    "Explanation",
    "Failed",
    "Interval",
    "InvalidJob",
    "Job",
    "JobFailed",
    "JobId",
    "JobNotFound",
    "JobQuery",
    "KeyLine",
    "Lease",
    "LeaseLost",
    "Limit",
    "Line",
    "LogEntry",
    "MigrationRefused",
    "Mirror",
    "Missed",
    "NewJob",
    "NotAuthorised",
    "Note",
    "OnFailure",
    "Origin",
    "Outcome",
    "PayloadTooLarge",
    "Penstock",
    "PenstockError",
    "Progress",
    "Queue",
    "QueueFull",
    "QueueInUse",
    "QueueQuery",
    "Record",
    "Retention",
    "RetryPolicy",
    "Schedule",
    "ScheduleNotFound",
    "Scope",
    "ServerUnreachable",
    "Snooze",
    "Snoozed",
    "Spread",
    "State",
    "Statements",
    "StoreError",
    "StoreMissing",
    "StoreMoved",
    "StoreUnavailable",
    "Tables",
    "Task",
    "Token",
    "TokenExists",
    "TokenNotFound",
    "TooManyQueues",
    "Transaction",
    "TransitionRefused",
    "UnknownTask",
    "Verdict",
    "Waiting",
    "Worker",
    "WorkerInfo",
    "chain",
    "context",
    "run_sync",
]
