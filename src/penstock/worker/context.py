"""What a running handler can ask about its own run."""

import logging
from contextvars import ContextVar

from penstock.core.job import Job

_current: ContextVar["Context"] = ContextVar("penstock_context")


class Context:
    """The run that the calling code belongs to; `penstock.context()` returns it."""

    __slots__ = ("cancelled", "job")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.cancelled = False
        """Whether the run should end: cancelled, out of time, or its lease is lost."""

    @property
    def token(self) -> int:
        """The lease token: grows with every claim in the store, for fencing side effects."""
        return self.job.token

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.job.attempt

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry the job's id, task and attempt."""
        extra = {"job_id": self.job.id, "task": self.job.task, "attempt": self.job.attempt}
        return logging.LoggerAdapter(logging.getLogger("penstock.task"), extra)


def context() -> Context:
    """The context of the job that is running here; raises `LookupError` outside of one."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError("no job is running here") from None


def enter(context: Context) -> None:
    """Make this the current run of the calling task or thread."""
    _current.set(context)
