"""Penstock: a durable job queue that starts as one file.

These are the names that most programs need. The others are in `penstock.errors`, `penstock.jobs`,
`penstock.queues`, `penstock.schedules`, `penstock.statistics`, `penstock.tokens`,
`penstock.leases` and `penstock.tables`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_MODULES = {
    "core.errors": (
        "Cancel",
        "ConfigurationError",
        "InvalidJob",
        "JobFailed",
        "JobNotFound",
        "LeaseLost",
        "PenstockError",
        "QueueFull",
        "Snooze",
        "StoreError",
        "StoreUnavailable",
        "TransitionRefused",
        "UnknownTask",
    ),
    "core.job": ("Job", "NewJob", "Retention"),
    "core.lifecycle": ("State",),
    "core.query": ("JobQuery",),
    "core.retry": ("RetryPolicy",),
    "core.schedule": ("Schedule",),
    "engine.batch": ("chain",),
    "engine.penstock": ("Penstock", "run_sync"),
    "engine.task": ("Task",),
    "worker.context": ("Context", "context"),
    "worker.worker": ("Worker",),
}
"""Where the names are defined. They are imported when they are used first, so that a program that
enqueues does not load workers, and a command loads only what it needs."""

if not TYPE_CHECKING:  # checkers would accept any name

    def __getattr__(name: str) -> object:
        for module, names in _MODULES.items():
            if name in names:
                found = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
