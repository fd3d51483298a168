"""What goes over the wire about jobs: instants in UTC, durations in seconds."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from penstock.core.errors import ConfigurationError
from penstock.core.job import (
    DEFAULT_LEASE,
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    Job,
    JobId,
    JobQuery,
    LogEntry,
    NewJob,
    OnFailure,
    Scope,
)
from penstock.core.lifecycle import Event, State, Waiting
from penstock.core.note import Progress
from penstock.core.retry import DEFAULT_RETRY, LONGEST, RetryPolicy
from penstock.core.secrets import Secrets
from penstock.http.problems import Problem


class Named(Protocol):
    """Anything that is listed by its name."""

    @property
    def name(self) -> str:
        """Under which it is listed."""
        ...


N = TypeVar("N", bound=Named)

Id = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Key = Annotated[str, Meta(min_length=1, max_length=1_000)]
Text = Annotated[str, Meta(min_length=1, max_length=1_000)]
Instant = Annotated[datetime, Meta(tz=True)]
TEXT = "A text in the task, a key, tag or tenant, the arguments or the error."
SINCE = "Ended then or later; unfinished ones: enqueued then or later."
BEFORE = "Ended before; unfinished ones: enqueued before that."
Priority = Annotated[int, Meta(ge=0, le=10, description="Higher is claimed first.")]
Seconds = Annotated[float, Meta(ge=0, le=LONGEST.total_seconds())]
SomeSeconds = Annotated[float, Meta(ge=0.001, le=LONGEST.total_seconds())]
Tags = Annotated[tuple[Name, ...], Meta(max_length=50)]
_ARGS = Meta(description="The arguments by their names.", extra_json_schema={"type": "object"})
Args = Annotated[Raw, _ARGS]
_SUPERSEDE = (
    "Replaces the pending job of its key and task that the same token enqueued; "
    "with the scope admin, whoever enqueued it."
)
Json = Raw | None
"""Any JSON, as it was stored."""


class RetryShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a job runs in all, and how many seconds it rests between two attempts."""

    attempts: Annotated[int, Meta(ge=1, le=1_000_000)] = DEFAULT_RETRY.attempts
    delay: Seconds = DEFAULT_RETRY.delay.total_seconds()
    factor: Annotated[float, Meta(ge=1, le=1_000)] = DEFAULT_RETRY.factor
    max_delay: Seconds = DEFAULT_RETRY.max_delay.total_seconds()
    jitter: Annotated[float, Meta(ge=0, le=1)] = DEFAULT_RETRY.jitter


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to be enqueued. Its task need not be known to the server."""

    task: Name
    args: Annotated[Raw | UnsetType, _ARGS] = UNSET
    queue: Name = DEFAULT_QUEUE
    priority: Priority = DEFAULT_PRIORITY
    delay: Annotated[Seconds, Meta(description="Not before so many seconds.")] | None = None
    run_at: Annotated[Instant, Meta(description="Not before.")] | None = None
    key: Annotated[Key, Meta(description="One at a time, in order, per key.")] | None = None
    dedupe: Annotated[Key, Meta(description="While such a job is there, no second one.")] | None = (
        None
    )
    scope: Scope = Scope.UNFINISHED
    tags: Tags = ()
    retry: RetryShape = RetryShape()
    timeout: Annotated[SomeSeconds, Meta(description="For one attempt.")] | None = None
    lease: Annotated[SomeSeconds, Meta(description="How long a silent worker keeps it.")] = (
        DEFAULT_LEASE.total_seconds()
    )
    correlation: Key | None = None
    tenant: Key | None = None
    parent: Id | None = None
    after: Annotated[tuple[Id, ...], Meta(max_length=1_000, description="Waits for these.")] = ()
    on_failure: OnFailure = OnFailure.CANCEL
    supersede: Annotated[bool, Meta(description=_SUPERSEDE)] = False
    throttle: Key | None = None


class BatchJobRequest(JobRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several jobs to be enqueued."""

    follows: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=999)], ...],
        Meta(max_length=1_000, description="Waits for these of the call, by their places."),
    ] = ()


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs to be enqueued together, all or none; with a correlation they form a batch."""

    jobs: Annotated[list[BatchJobRequest], Meta(min_length=1, max_length=1_000)]
    correlation: Key | None = None
    ordered: Annotated[bool, Meta(description="Each waits for the one before it.")] = False


class JobShape(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is now."""

    id: int
    version: int
    task: str
    args: Args
    queue: str
    priority: int
    state: State
    waiting: Waiting | None
    attempt: int
    enqueued_at: datetime
    run_at: datetime
    key: str | None
    dedupe: str | None
    scope: Scope
    tags: tuple[str, ...]
    retry: RetryShape
    timeout: float | None
    lease_time: float
    correlation: str | None
    tenant: str | None
    parent: int | None
    needs: int
    throttle: str | None
    trace: str | None
    token: int
    worker: str | None
    started_at: datetime | None
    expires_at: datetime | None
    cancel_requested: bool
    finished_at: datetime | None
    error: str | None
    result: Json
    duplicate: bool | UnsetType = UNSET


class JobPage(msgspec.Struct, frozen=True):
    """A page of jobs. `after` asks for the next one; it is null on the last, and only there."""

    jobs: list[JobShape]
    after: int | None


class BatchAnswer(msgspec.Struct, frozen=True):
    """The jobs in the order they were sent."""

    correlation: str | None
    jobs: list[JobShape]


class LogShape(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the log: what happened to which job, when, by whom, and where it led."""

    id: int
    job_id: int
    at: datetime
    event: Event
    state: State
    actor: str
    token: int | None
    reason: str | None
    error: str | None
    duration: float | None
    detail: Json


class LogPage(msgspec.Struct, frozen=True):
    """Entries of a log, oldest first. `after` asks for the next ones; null at the end."""

    log: list[LogShape]
    after: int | None


class LineShape(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a job has logged."""

    id: int
    at: datetime
    level: str
    text: str
    attempt: int


class LinePage(msgspec.Struct, frozen=True):
    """Lines of a job, oldest first. `after` asks for the next ones; null at the end."""

    lines: list[LineShape]
    after: int | None


class ExplanationShape(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is, or is not, running."""

    job_id: int
    reason: str
    text: str
    blocked_by: int | None


class ProgressShape(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is; `left` is how many seconds the rest takes at its rate."""

    done: float
    total: float | None
    note: str | None
    at: datetime
    started_at: datetime
    start: float
    fraction: float | None
    left: float | None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job, or one that is under way: `outcome` is the event that ended it."""

    worker: str
    token: int
    began_at: datetime
    ended_at: datetime | None = None
    outcome: Event | None = None
    duration: float | None = None
    error: str | None = None


class JobDetail(JobShape, frozen=True, kw_only=True):
    """A job with all that is known about it; of the log and the lines, the newest."""

    explanation: ExplanationShape
    progress: ProgressShape | None
    attempts: list[Attempt]
    log: list[LogShape]
    lines: list[LineShape]
    children: dict[str, int]
    waits_for: list[int]


class BatchStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the jobs of a batch fare."""

    correlation: str
    status: str
    total: int
    states: dict[str, int]


class Filter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs are meant; every field narrows. Of several tags, any will do."""

    state: Annotated[frozenset[State], Meta(min_length=1)] | None = None
    queue: Name | None = None
    task: Name | None = None
    key: Key | None = None
    tags: Tags = ()
    correlation: Key | None = None
    tenant: Key | None = None
    parent: Id | None = None
    error: Annotated[Text, Meta(description="A text in the error.")] | None = None
    text: Annotated[Text, Meta(description=TEXT)] | None = None
    since: Annotated[Instant, Meta(description=SINCE)] | None = None
    before: Annotated[Instant, Meta(description=BEFORE)] | None = None

    @property
    def query(self) -> JobQuery:
        """The query that asks for these jobs."""
        return JobQuery(
            states=self.state,
            queue=self.queue,
            task=self.task,
            key=self.key,
            tags=self.tags,
            correlation=self.correlation,
            tenant=self.tenant,
            parent=None if self.parent is None else JobId(self.parent),
            error=self.error,
            text=self.text,
            since=self.since,
            before=self.before,
        )


def new_job(asked: JobRequest) -> NewJob:
    """What a request asks the queue for."""
    args = b"{}" if asked.args is UNSET else bytes(asked.args)
    if not args.startswith(b"{"):
        raise Problem(422, "args: an object, with the arguments by their names", field="args")
    retry = asked.retry
    try:
        policy = RetryPolicy(
            attempts=retry.attempts,
            delay=timedelta(seconds=retry.delay),
            factor=retry.factor,
            max_delay=timedelta(seconds=retry.max_delay),
            jitter=retry.jitter,
        )
    except ConfigurationError as error:
        raise Problem(422, f"retry: {error}", field="retry") from error
    return NewJob(
        task=asked.task,
        payload=args.decode(),
        queue=asked.queue,
        priority=asked.priority,
        delay=span(asked.delay),
        run_at=asked.run_at,
        key=asked.key,
        dedupe=asked.dedupe,
        scope=asked.scope,
        tags=asked.tags,
        retry=DEFAULT_RETRY if policy == DEFAULT_RETRY else policy,
        timeout=span(asked.timeout),
        lease=timedelta(seconds=asked.lease),
        correlation=asked.correlation,
        tenant=asked.tenant,
        parent=None if asked.parent is None else JobId(asked.parent),
        after=tuple(map(JobId, asked.after)),
        follows=asked.follows if isinstance(asked, BatchJobRequest) else (),
        on_failure=asked.on_failure,
        supersede=asked.supersede,
        throttle=asked.throttle,
    )


def span(seconds: float | None) -> timedelta | None:
    """A duration that came over the wire."""
    return None if seconds is None else timedelta(seconds=seconds)


def seconds(duration: timedelta | None) -> float | None:
    """A duration for the wire."""
    return None if duration is None else duration.total_seconds()


def job_fields(job: Job, secrets: Secrets) -> dict[str, Any]:
    """The fields of a job, as they go over the wire."""
    fields = {
        name: getattr(job, name)
        for name in job.__struct_fields__
        if name not in {"payload", "result_json", "duplicate"}
    }
    return {
        **fields,
        "args": Raw(secrets.hide(job.payload).encode()),
        "retry": _retry(job.retry),
        "timeout": seconds(job.timeout),
        "lease_time": job.lease_time.total_seconds(),
        "result": None if job.result_json is None else _json(secrets.hide(job.result_json)),
    }


def job_shape(job: Job, secrets: Secrets) -> JobShape:
    """A job for the wire."""
    return JobShape(**job_fields(job, secrets))


def enqueued(job: Job, secrets: Secrets) -> JobShape:
    """A job that was just asked for: also whether it was there already."""
    return JobShape(**job_fields(job, secrets), duplicate=job.duplicate)


def log_shape(entry: LogEntry) -> LogShape:
    """An entry of the log for the wire."""
    fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
    return LogShape(
        **{**fields, "duration": seconds(entry.duration), "detail": _json(entry.detail)}
    )


def progress_shape(progress: Progress) -> ProgressShape:
    """How far a job is, for the wire."""
    fields = {name: getattr(progress, name) for name in progress.__struct_fields__}
    return ProgressShape(**fields, fraction=progress.fraction, left=seconds(progress.left))


def states(tally: Mapping[State, int]) -> dict[str, int]:
    """How many jobs there are in each state, also where there are none."""
    return {state.value: tally.get(state, 0) for state in State}


_ENDS = frozenset(
    {Event.DONE, Event.FAILED, Event.SNOOZED, Event.EXPIRED, Event.CANCELLED, Event.RESET}
) | {Event.SUPERSEDED, Event.RESTORED}


def attempts_of(log: Iterable[LogEntry]) -> list[Attempt]:
    """The runs that a log tells of, oldest first."""
    found: list[Attempt] = []
    for entry in log:
        if entry.event is Event.CLAIMED:
            found.append(Attempt(worker=entry.actor, token=entry.token or 0, began_at=entry.at))
        elif entry.event in _ENDS and found and found[-1].ended_at is None:
            found[-1] = msgspec.structs.replace(
                found[-1],
                ended_at=entry.at,
                outcome=entry.event,
                duration=seconds(entry.duration),
                error=entry.error,
            )
    return found


class NamePage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which page of a list by name."""

    name: Annotated[Name, Meta(description="A text in the name.")] | None = None
    after: Annotated[Name, Meta(description="The last name of the page before.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000

    def of(self, found: Iterable[N]) -> tuple[list[N], str | None]:
        """Of all that there is, by name, what is on this page, and where the next one begins."""
        wanted = [
            one
            for one in found
            if (self.name is None or self.name in one.name)
            and (self.after is None or one.name > self.after)
        ]
        page = wanted[: self.limit]
        return page, page[-1].name if len(wanted) > len(page) else None


def last_id(found: Sequence[Any], *, more: bool) -> int | None:
    """Where the next page begins."""
    return found[-1].id if found and more else None


def _retry(policy: RetryPolicy) -> RetryShape:
    return RetryShape(
        attempts=policy.attempts,
        delay=policy.delay.total_seconds(),
        factor=policy.factor,
        max_delay=policy.max_delay.total_seconds(),
        jitter=policy.jitter,
    )


def _json(text: str | None) -> Raw | None:
    return None if text is None else Raw(text.encode())
