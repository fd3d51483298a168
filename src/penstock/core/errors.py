"""Every exception of the package.

```
PenstockError
├── ConfigurationError     fix the settings or the registration
├── InvalidJob             the job cannot be stored as asked for
│   ├── PayloadTooLarge
│   └── Unreadable          a value that nobody could read back
├── UnknownTask            no handler has that name
├── JobNotFound
├── ScheduleNotFound
├── TokenNotFound
├── TokenExists             the name is taken
├── QueueFull              the queue is at its limit; try later
├── QueueInUse             it has unfinished jobs, and cannot be removed
├── TooManyQueues          the store has as many queues as it may have
├── TransitionRefused      not allowed from this state
├── Overtaken              a job that was to be replaced has changed
├── JobFailed              the awaited job did not succeed
├── LeaseLost              another worker owns the job now
├── NotAuthorised          the server wants a token, one with another scope, or another name
├── MigrationRefused       the stores are not such that jobs can move; nothing moved
├── EmbeddingRefused       an embedder cannot do it, also later
├── EmbedderUnavailable    an embedder did not answer; try later
├── IndexUnavailable       a search index cannot be read or written; try later
└── StoreError
    ├── StoreUnavailable   nothing was changed; safe to try again
    ├── StoreMissing       there is none yet
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


class PenstockError(Exception):
    """The root of every error this package raises."""


class ConfigurationError(PenstockError):
    """A setting, a URL or a registration is wrong."""


class InvalidJob(PenstockError, ValueError):
    """A job was refused before anything was stored; the message names the field."""


class PayloadTooLarge(InvalidJob):
    """The encoded arguments of a job exceed the limit."""


class Unreadable(InvalidJob):
    """A value that nobody could read back; `field` is where in it the reason lies."""

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
    """An access token has that name already; nothing was stored."""


class QueueFull(PenstockError):
    """The queue holds as many pending jobs as its limit allows; none of the call was stored.

    `retry_after` is when a server says that it is worth another try; None without a server.
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
    """The store has as many queues as its limit allows; none of the call was stored."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the store has as many queues as its limit of {limit} allows, and takes jobs of no "
            "further one: use fewer names (tags, keys and tenants are not limited), remove "
            "queues, or raise the limit"
        )
        self.limit = limit

    def __reduce__(self) -> tuple[type[Self], tuple[int]]:
        return type(self), (self.limit,)


class QueueInUse(PenstockError):
    """The queue has unfinished jobs and cannot be removed; nothing changed."""

    def __init__(self, queue: str, unfinished: int) -> None:
        super().__init__(
            f"queue {queue!r} has {unfinished} unfinished jobs and stays; let them finish, or "
            "cancel them, and remove it then"
        )
        self.queue = queue
        self.unfinished = unfinished

    def __reduce__(self) -> tuple[type[Self], tuple[str, int]]:
        return type(self), (self.queue, self.unfinished)


class TransitionRefused(PenstockError):
    """The job's state does not allow what was asked for; nothing changed."""


class Overtaken(PenstockError):
    """A job that was to be replaced has changed meanwhile; nothing was stored."""


class JobFailed(PenstockError):
    """The job whose result was awaited ended without one: `job` tells how."""

    def __init__(self, text: str, job: "Job") -> None:
        super().__init__(text)
        self.job = job

    def __reduce__(self) -> tuple[type[Self], tuple[str, "Job"]]:
        return type(self), (str(self), self.job)


class LeaseLost(PenstockError):
    """The caller's lease is over: it expired, or another worker holds the job now."""

    def __init__(self, job_id: int, token: int) -> None:
        super().__init__(
            f"the lease on job {job_id} with token {token} is over; "
            "discard the result, the job runs or ran elsewhere"
        )
        self.job_id = job_id
        self.token = token

    def __reduce__(self) -> tuple[type[Self], tuple[int, int]]:
        return type(self), (self.job_id, self.token)


class NotAuthorised(PenstockError):
    """A server refuses the token, or a name that belongs to an application."""


class MigrationRefused(PenstockError):
    """Jobs cannot move from one store to the other as things are; nothing moved."""


class EmbeddingRefused(PenstockError):
    """An embedder does not embed these texts, or not so; the same call fails again."""


class EmbedderUnavailable(PenstockError):
    """An embedding service gave no answer, or not just now; the call may be repeated."""


class IndexUnavailable(PenstockError):
    """A search index could not be read or written; a write was made whole or not at all.

    The call may be repeated.
    """


class StoreError(PenstockError):
    """The store cannot be used as it is."""


class StoreMissing(StoreError):
    """There is no store yet, and it was not to be created."""


class StoreUnavailable(StoreError):
    """The store could not do it just now; nothing was changed and the call may be repeated."""


class StoreMoved(StoreError):
    """The jobs of the store are in another one now, or on their way; nothing was changed."""


class ServerUnreachable(StoreError):
    """A server could not be reached, or gave no answer.

    While `arrived` is false, the call has certainly not arrived; else nobody knows.
    """

    def __init__(self, text: str, *, arrived: bool = True) -> None:
        super().__init__(text)
        self.arrived = arrived

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), arrived=self.arrived), (str(self),)


class Snooze(Exception):
    """Raised by a handler: put the job back and run it again later; no attempt is used up."""

    def __init__(self, delay: timedelta, reason: str = "snoozed by its handler") -> None:
        super().__init__(reason)
        self.delay = delay
        self.reason = reason

    def __reduce__(self) -> tuple[type[Self], tuple[timedelta, str]]:
        return type(self), (self.delay, self.reason)


class Cancel(Exception):
    """Raised by a handler: end the job as cancelled, without another attempt."""

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        super().__init__(reason)
        self.reason = reason
