"""Every exception of the package.

```
PenstockError
├── ConfigurationError     fix the settings or the registration
│   └── NotOffered         a server has no route for the call
├── InvalidJob             the job cannot be stored as requested
│   ├── PayloadTooLarge
│   └── Unreadable          a value that could not be read back
├── UnknownTask            no handler has that name
├── JobNotFound
├── ScheduleNotFound
├── TokenNotFound
├── TokenExists             the name is taken
├── QueueFull              the queue is at its limit; try later
├── QueueInUse             the queue has unfinished jobs and cannot be removed
├── TooManyQueues          the store has reached its limit of queues
├── TransitionRefused      not allowed from this state
├── Overtaken              a job that was to be replaced has changed
├── JobFailed              the awaited job did not succeed
├── LeaseLost              another worker owns the job now
├── NotAuthorised          the server requires a token, another scope, or another name
├── MigrationRefused       jobs cannot move between these stores; nothing moved
├── EmbeddingRefused       an embedder rejects the request for good
├── EmbedderUnavailable    an embedder did not answer; try later
├── IndexUnavailable       a search index cannot be read or written; try later
└── StoreError
    ├── StoreUnavailable   nothing was changed; safe to try again
    ├── SchemaMismatch     it has to be migrated, or needs a newer program
    ├── StoreMissing       the store does not exist yet
    ├── StoreMoved         its jobs are in another store now, or on their way there
    └── ServerUnreachable  the server did not answer; the call may have arrived
```

`Snooze` and `Cancel` are signals that a handler raises; they are not errors.
"""

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from penstock.core.job import Job

_TRACEBACK = "Traceback (most recent call last)"


class PenstockError(Exception):
    """The root of every error this package raises."""


class ConfigurationError(PenstockError):
    """A setting, a URL or a registration is wrong."""


class NotOffered(ConfigurationError):
    """A server has no route for this call; the message says how to make it on the store itself."""


class InvalidJob(PenstockError, ValueError):
    """A job was refused before anything was stored; the message names the field."""


class PayloadTooLarge(InvalidJob):
    """The encoded arguments of a job exceed the limit."""


class Unreadable(InvalidJob):
    """A value that could not be read back; `field` is the part of it that is the reason."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field} {reason}" if field else reason)
        self.field = field
        self.reason = reason


class UnknownTask(PenstockError, LookupError):
    """No handler is registered under that name."""


class JobNotFound(PenstockError, LookupError):
    """No job has that id: it never existed, or retention removed it."""


class ScheduleNotFound(PenstockError, LookupError):
    """No schedule has that name."""


class TokenNotFound(PenstockError, LookupError):
    """No access token has that name."""


class TokenExists(PenstockError):
    """An access token already has that name; nothing was stored."""


class QueueFull(PenstockError):
    """The queue holds as many pending jobs as its limit allows; none of the call was stored.

    `retry_after` is the delay that a server suggests before a retry; None without a server.
    """

    def __init__(self, queue: str, limit: int, retry_after: timedelta | None = None) -> None:
        super().__init__(
            f"queue {queue!r} is full: its limit is {limit} pending jobs; try again later"
        )
        self.queue = queue
        self.limit = limit
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type[Self], tuple[str, int, timedelta | None]]:
        return type(self), (self.queue, self.limit, self.retry_after)


class TooManyQueues(PenstockError):
    """The store has reached its limit of queues; none of the call was stored."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the store has reached its limit of {limit} queues: use fewer queue names (tags, keys "
            "and tenants are not limited), remove queues, or raise the limit"
        )
        self.limit = limit

    def __reduce__(self) -> tuple[type[Self], tuple[int]]:
        return type(self), (self.limit,)


class QueueInUse(PenstockError):
    """The queue has unfinished jobs and cannot be removed; nothing changed."""

    def __init__(self, queue: str, unfinished: int) -> None:
        super().__init__(
            f"queue {queue!r} has {unfinished} unfinished jobs and cannot be removed; let them "
            "finish, or cancel them, first"
        )
        self.queue = queue
        self.unfinished = unfinished

    def __reduce__(self) -> tuple[type[Self], tuple[str, int]]:
        return type(self), (self.queue, self.unfinished)


class TransitionRefused(PenstockError):
    """The state of the job does not allow the requested change; nothing changed."""


class Overtaken(PenstockError):
    """A job to be replaced has changed in the meantime; nothing was stored."""


class JobFailed(PenstockError):
    """The awaited job ended without a result; `job` is the job as it ended.

    `traceback` is the traceback of its last attempt, as text; None if no handler raised. It is also
    a note of this error, so that Python prints it with an uncaught one.
    """

    def __init__(self, text: str, job: "Job") -> None:
        super().__init__(text)
        self.job = job
        self.traceback = _traceback_in(job.error or "")
        if self.traceback is not None:
            self.add_note(f"The traceback of job {job.id}, where it ran:\n\n{self.traceback}")

    def __reduce__(self) -> tuple[type[Self], tuple[str, "Job"]]:
        return type(self), (str(self), self.job)


def _traceback_in(error: str) -> str | None:
    """Return the part of a job's error below its first line, or all of a bare traceback."""
    summary, _, rest = error.partition("\n\n")
    if summary.startswith(_TRACEBACK):
        return error
    is_shortened = rest.startswith("…")
    return rest if is_shortened or _TRACEBACK in rest else None


class LeaseLost(PenstockError):
    """The caller's lease is over: it expired, or another worker holds the job now."""

    def __init__(self, job_id: int, token: int) -> None:
        super().__init__(
            f"the lease on job {job_id} with token {token} was lost; "
            "discard the result: the job runs or ran elsewhere"
        )
        self.job_id = job_id
        self.token = token

    def __reduce__(self) -> tuple[type[Self], tuple[int, int]]:
        return type(self), (self.job_id, self.token)


class NotAuthorised(PenstockError):
    """A server rejects the token, or a name that belongs to an application."""


class MigrationRefused(PenstockError):
    """Jobs cannot move from one store to the other at present; nothing moved."""


class EmbeddingRefused(PenstockError):
    """An embedder rejects these texts or options; repeating the call fails again."""


class EmbedderUnavailable(PenstockError):
    """An embedding service did not answer, or is busy; the call may be repeated."""


class IndexUnavailable(PenstockError):
    """A search index could not be read or written; the call may be repeated.

    A write was made completely or not at all.
    """


class StoreError(PenstockError):
    """The store cannot be used in its present condition."""


class StoreMissing(StoreError):
    """The store does not exist, and it was opened with `create=False`."""


class SchemaMismatch(StoreError):
    """The store needs a newer program, or has to be migrated first; nothing was changed."""


class StoreUnavailable(StoreError):
    """The store is temporarily unavailable; nothing was changed and the call may be repeated."""


class StoreMoved(StoreError):
    """The jobs of the store have moved to another one, or are moving; nothing was changed."""


class ServerUnreachable(StoreError):
    """A server could not be reached, or did not answer.

    If `arrived` is false, the call has certainly not arrived; otherwise that is unknown.
    """

    def __init__(self, text: str, *, arrived: bool = True) -> None:
        super().__init__(text)
        self.arrived = arrived

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), arrived=self.arrived), (str(self),)


class Snooze(Exception):
    """Raised by a handler to run the job again later, without using up an attempt."""

    def __init__(self, delay: timedelta, reason: str = "snoozed by its handler") -> None:
        super().__init__(reason)
        self.delay = delay
        self.reason = reason

    def __reduce__(self) -> tuple[type[Self], tuple[timedelta, str]]:
        return type(self), (self.delay, self.reason)


class Cancel(Exception):
    """Raised by a handler to end the job as cancelled, without another attempt."""

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        super().__init__(reason)
        self.reason = reason
