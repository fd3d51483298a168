"""Jobs and what belongs to one: requests, leases, log entries, claims. All values are immutable.

`gc=False` keeps Python's cycle collector from visiting thousands of jobs that cannot be part of a
cycle; it makes bulk calls a third faster.
"""

from collections import deque
from collections.abc import Collection
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, NewType, Protocol

import msgspec
from msgspec.structs import force_setattr

from penstock.core.errors import ConfigurationError, InvalidJob
from penstock.core.jsontext import DEPTH_LIMIT, read
from penstock.core.lifecycle import Event, State, Waiting
from penstock.core.retry import DEFAULT_RETRY, RetryPolicy
from penstock.core.tasks import FIRST_VERSION, KnownTasks, Versioned

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # A `Job` of which nothing more is known is a `Job[Any]`: a default needs Python 3.13.
    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)

JobId = NewType("JobId", int)
LogId = NewType("LogId", int)

DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 5
DEFAULT_LEASE = timedelta(seconds=30)


class Scope(StrEnum):
    """The jobs among which a dedupe key is unique."""

    PENDING = "pending"
    UNFINISHED = "unfinished"


class OnFailure(StrEnum):
    """What happens to a job when one it waits for ends without success."""

    CANCEL = "cancel"
    RUN = "run"


_ALL_TUPLES = (tuple, tuple, tuple)


class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request for a job: what `Task.new` creates and `enqueue` stores.

    `payload` is the JSON text of an object: the arguments by name. `after` has the ids of stored
    jobs to wait for, `follows` the indexes of jobs to wait for that precede it in the same call.
    `trace` is the W3C traceparent of the caller, and `task_version` the version of the task for
    which the arguments were made.
    """

    task: str
    payload: str
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    delay: timedelta | None = None
    run_at: datetime | None = None
    key: str | None = None
    dedupe: str | None = None
    scope: Scope = Scope.UNFINISHED
    tags: Collection[str] = ()
    retry: RetryPolicy = DEFAULT_RETRY
    timeout: timedelta | None = None
    lease: timedelta = DEFAULT_LEASE
    correlation: str | None = None
    tenant: str | None = None
    parent: JobId | None = None
    after: Collection[int] = ()
    follows: Collection[int] = ()
    on_failure: OnFailure = OnFailure.CANCEL
    supersede: bool = False
    throttle: str | None = None
    trace: str | None = None
    task_version: int = FIRST_VERSION

    def __post_init__(self) -> None:
        """Turn collections into tuples: a job is immutable, and stores compare jobs by them."""
        if (type(self.tags), type(self.after), type(self.follows)) == _ALL_TUPLES:
            return  # nearly always; the loop below would double the cost of a NewJob
        for name in ("tags", "after", "follows"):
            force_setattr(self, name, as_tuple(name, getattr(self, name)))


def as_tuple(name: str, value: object) -> tuple[Any, ...]:
    """Return a collection as a tuple; raise `InvalidJob` for any other value, text included."""
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        return tuple(value)
    raise InvalidJob(f"{name} must be a collection such as a list, not {value!r:.80}")


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A worker's hold on a job.

    The token grows from claim to claim across the whole store, so that an external system that
    remembers the highest token it has seen can reject a stale worker (a fencing token).
    """

    job_id: JobId
    token: int
    worker: str


class Results(Protocol):
    """Waits for the end of a job: a `Penstock`."""

    async def result(self, job: "Job", *, timeout: timedelta | None = None) -> Any:
        """See `Job.result`."""
        ...

    @property
    def sync(self) -> Any:
        """The same call from synchronous code."""
        ...


class _Bound:
    """The `Penstock` that returned a job; a slot, which comparing, copying and encoding ignore."""

    __slots__ = ("_results",)
    _results: Results


class Job(_Bound, msgspec.Struct, Generic[T_co], frozen=True, kw_only=True, gc=False):
    """A stored job as it was at one moment; its type argument is the type of its result.

    `version` is the id of its newest log entry; every transition changes it. `token` belongs to
    the newest claim. `needs` counts the jobs that it still waits for. `duplicate` is set on the
    job that an enqueue returned because it already held the dedupe key.
    """

    id: JobId
    version: LogId
    task: str
    payload: str
    queue: str
    priority: int
    state: State
    waiting: Waiting | None
    attempt: int
    enqueued_at: datetime
    run_at: datetime
    key: str | None = None
    dedupe: str | None = None
    scope: Scope = Scope.UNFINISHED
    tags: tuple[str, ...] = ()
    retry: RetryPolicy = DEFAULT_RETRY
    timeout: timedelta | None = None
    lease_time: timedelta = DEFAULT_LEASE
    correlation: str | None = None
    tenant: str | None = None
    parent: JobId | None = None
    needs: int = 0
    throttle: str | None = None
    trace: str | None = None
    task_version: int = FIRST_VERSION
    token: int = 0
    worker: str | None = None
    started_at: datetime | None = None
    expires_at: datetime | None = None
    cancel_requested: bool = False
    finished_at: datetime | None = None
    error: str | None = None
    result_json: str | None = None
    duplicate: bool = False

    @property
    def args(self) -> Any:
        """The arguments by name, as plain JSON.

        Raises `InvalidJob` for arguments that cannot be decoded, which only other programs can
        have stored.
        """
        return read(self.payload, f"args of job {self.id}:", DEPTH_LIMIT + 1)

    @property
    def returned(self) -> Any:
        """The return value of the handler, as plain JSON; None unless the job is done."""
        text = self.result_json
        return None if text is None else read(text, f"result of job {self.id}:")

    @property
    def failed_attempts(self) -> int:
        """How many attempts failed; one that is running, succeeded or was cancelled did not."""
        is_open = self.state in (State.RUNNING, State.DONE)
        was_stopped = self.state is State.CANCELLED and self.started_at is not None
        return max(0, self.attempt - (is_open or was_stopped))

    @property
    def lease(self) -> Lease:
        """The lease of the newest claim."""
        return Lease(self.id, self.token, self.worker or "")

    async def result(self, *, timeout: timedelta | None = None) -> T_co:
        """Wait until the job ends, in whatever process, and return what its handler returned.

        It is decoded by the annotation of the handler, if this program has the task. Raises
        `JobFailed`, with the traceback, if the job ends without success, `TimeoutError` if it does
        not end in time, and `ConfigurationError` for a job that no Penstock returned: one that a
        worker claimed, one of an archive, or a copy.
        """
        answer: T_co = await self._awaiting().result(self, timeout=timeout)
        return answer

    @property
    def sync(self) -> "SyncJob[T_co]":
        """`result` from synchronous code, without `await`."""
        return SyncJob(self)

    def _awaiting(self) -> Results:
        try:
            return self._results
        except AttributeError:
            raise ConfigurationError(
                f"job {self.id} was not returned by a Penstock, so it cannot wait for its result; "
                "use await app.result(job)"
            ) from None


class SyncJob(Generic[T_co]):
    """The coroutine of a job from synchronous code: `job.sync.result()`."""

    __slots__ = ("_job",)

    def __init__(self, job: Job[T_co]) -> None:
        self._job = job

    def result(self, *, timeout: timedelta | None = None) -> T_co:
        """Do the same as `Job.result`, and return when it is done."""
        results = self._job._awaiting()  # noqa: SLF001 - a part of it
        answer: T_co = results.sync.result(self._job, timeout=timeout)
        return answer


def bind(jobs: list[Job], results: Results) -> list[Job]:
    """Let `Job.result` of these jobs use `results`; returns the same list."""
    if len(jobs) == 1:
        force_setattr(jobs[0], "_results", results)
        return jobs
    # A loop costs twice as much.
    deque(map(force_setattr, jobs, repeat("_results"), repeat(results)), maxlen=0)
    return jobs


def headline(error: str | None) -> str:
    """Return an error as one line: its first line, or the last one of a bare traceback."""
    lines = (error or "").strip().splitlines() or [""]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One entry of the log: which event happened to which job, when, by whom, and the new state.

    `duration` is how long the run took that ended or, for a claim, how long the job had been due.
    `detail` is JSON text from the worker.
    """

    id: LogId
    job_id: JobId
    at: datetime
    event: Event
    state: State
    actor: str
    token: int | None = None
    reason: str | None = None
    error: str | None = None
    duration: timedelta | None = None
    detail: str | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker's request for at most `limit` jobs.

    `queues` names the queues to take them from; with None, all but those in `except_queues`. With
    `tags`, only jobs that have at least one of them. With `tasks`, only jobs of these; others stay
    where they are.
    """

    worker: str
    limit: int
    queues: tuple[str, ...] | None = None
    except_queues: frozenset[str] = frozenset()
    tags: tuple[str, ...] = ()
    tasks: KnownTasks | None = None

    def wants(self, queue: str) -> bool:
        """Return whether jobs of this queue are requested."""
        return queue not in self.except_queues if self.queues is None else queue in self.queues

    def knows(self, job: Versioned) -> bool:
        """Return whether jobs of this task and version are requested."""
        return self.tasks is None or self.tasks.take(job)


class Retention(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How long a finished job is kept after its end."""

    finished: timedelta = timedelta(days=1)
    failed: timedelta = timedelta(days=7)

    def keeps(self, state: State) -> timedelta:
        """Return how long jobs in this final state are kept."""
        return self.failed if state is State.FAILED else self.finished
