"""What requests to the server contain: jobs to enqueue, filters, and pages of lists."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec.structs import asdict

from penstock.core.errors import ConfigurationError
from penstock.core.job import (
    NewJob,
    OnFailure,
    Scope,
)
from penstock.core.lifecycle import State
from penstock.core.query import JobQuery
from penstock.core.retry import DEFAULT_RETRY, LONGEST, RetryPolicy
from penstock.core.tasks import HIGHEST_VERSION, AnnouncedTask
from penstock.engine.task import announced_options
from penstock.web.jobs import ARGS, RetryShape, Seconds, span
from penstock.web.problems import Problem


class Named(Protocol):
    """Anything that has a name."""

    @property
    def name(self) -> str:
        """The name that it is listed under."""
        ...


N = TypeVar("N", bound=Named)

Id = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Key = Annotated[str, Meta(min_length=1, max_length=1_000)]
Text = Annotated[str, Meta(min_length=1, max_length=1_000)]
Instant = Annotated[datetime, Meta(tz=True)]
Priority = Annotated[int, Meta(ge=0, le=10, description="Jobs of higher priority run first.")]
SomeSeconds = Annotated[float, Meta(ge=0.001, le=LONGEST.total_seconds())]
Tags = Annotated[tuple[Name, ...], Meta(max_length=50)]

# Fields that narrow a list of jobs, in the query string and in a body.
ErrorText = Annotated[Text, Meta(description="The error contains this text.")]
AnyText = Annotated[
    Text,
    Meta(
        description="The task, a key, a tag, the tenant, the arguments or the error contain this."
    ),
]
Since = Annotated[
    Instant, Meta(description="Finished at this time or later; if unfinished, enqueued so.")
]
Before = Annotated[
    Instant, Meta(description="Finished before this time; if unfinished, enqueued so.")
]

_SUPERSEDE = (
    "Replaces the pending job with the same key and task if the same token enqueued it; "
    "with the scope admin, whoever enqueued it."
)
_DEFAULT_RETRY = RetryShape()


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to enqueue. The server need not know its task.

    `queue`, `priority`, `retry`, `timeout`, `lease`, `delay`, `key`, `tags`, `tenant`, `throttle`
    and `task_version` are by default those of the task, if a live worker has announced it; `null`
    and an empty list mean none.
    """

    task: Name
    args: Annotated[Raw | UnsetType, ARGS] = UNSET
    queue: Name | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    delay: (
        Annotated[Seconds, Meta(description="Seconds to wait before it runs.")] | UnsetType | None
    ) = UNSET
    run_at: Annotated[Instant, Meta(description="The earliest time to run it.")] | None = None
    key: (
        Annotated[Key, Meta(description="Jobs of one key run one at a time, in order.")]
        | UnsetType
        | None
    ) = UNSET
    dedupe: (
        Annotated[Key, Meta(description="Only one job of this dedupe key exists at a time.")] | None
    ) = None
    scope: Scope = Scope.UNFINISHED
    tags: Tags | UnsetType = UNSET
    retry: RetryShape | UnsetType = UNSET
    timeout: (
        Annotated[SomeSeconds, Meta(description="Seconds that an attempt may take.")]
        | UnsetType
        | None
    ) = UNSET
    lease: (
        Annotated[
            SomeSeconds, Meta(description="Seconds after which a silent worker loses the job.")
        ]
        | UnsetType
    ) = UNSET
    correlation: Key | None = None
    tenant: Key | UnsetType | None = UNSET
    parent: Id | None = None
    after: Annotated[
        tuple[Id, ...], Meta(max_length=1_000, description="The jobs that it waits for.")
    ] = ()
    on_failure: OnFailure = OnFailure.CANCEL
    supersede: Annotated[bool, Meta(description=_SUPERSEDE)] = False
    throttle: Key | UnsetType | None = UNSET
    task_version: (
        Annotated[
            int,
            Meta(
                ge=1, le=HIGHEST_VERSION, description="The version of the task that args are for."
            ),
        ]
        | UnsetType
    ) = UNSET


class BatchJobRequest(JobRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several jobs to enqueue."""

    follows: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=999)], ...],
        Meta(
            max_length=1_000,
            description="The indexes of earlier jobs of this request that it waits for.",
        ),
    ] = ()


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs to enqueue together, all or none; with a correlation they form a batch."""

    jobs: Annotated[list[BatchJobRequest], Meta(min_length=1, max_length=1_000)]
    correlation: Key | None = None
    ordered: Annotated[bool, Meta(description="Each job waits for the one before it.")] = False


def new_job(request: JobRequest, task: AnnouncedTask | None = None) -> NewJob:
    """Return the job that a request describes; raise a `Problem` if it is not valid.

    What it leaves out is as a worker has announced the task.
    """
    fields = {name: value for name, value in asdict(request).items() if value is not UNSET}
    args = fields.pop("args", UNSET)
    payload = "{}" if args is UNSET else bytes(args).decode()
    if not payload.startswith("{"):
        raise Problem(422, "args: must be an object with the arguments by name", field="args")
    fields["payload"] = payload
    if request.retry is not UNSET:
        fields["retry"] = _retry_policy(request.retry)
    if request.lease is not UNSET:
        fields["lease"] = _lease(request.lease)
    for name in ("delay", "timeout"):
        if fields.get(name) is not None:
            fields[name] = span(fields[name])
    if task is None:
        return NewJob(**fields)
    options = announced_options(task)
    if request.run_at is not None:
        options.pop("delay", None)
    return NewJob(**{**options, **fields, "task": options["task"]})


@lru_cache(256)  # nearly all jobs have one of a few leases, and one object is checked only once
def _lease(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def _retry_policy(sent: RetryShape) -> RetryPolicy:
    if sent == _DEFAULT_RETRY:
        return DEFAULT_RETRY
    try:
        return RetryPolicy(
            **{**asdict(sent), "delay": span(sent.delay), "max_delay": span(sent.max_delay)}
        )
    except ConfigurationError as error:
        raise Problem(422, f"retry: {error}", field="retry") from error


class Filter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects jobs: those that match every field. Of several tags, one is enough."""

    state: Annotated[frozenset[State], Meta(min_length=1)] | None = None
    queue: Name | None = None
    task: Name | None = None
    key: Key | None = None
    tags: Tags = ()
    correlation: Key | None = None
    tenant: Key | None = None
    parent: Id | None = None
    error: ErrorText | None = None
    text: AnyText | None = None
    since: Since | None = None
    before: Before | None = None

    @property
    def query(self) -> JobQuery:
        """The query that finds these jobs."""
        fields = asdict(self)
        return JobQuery(states=fields.pop("state"), **fields)


class NamePage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A page of a list that is sorted by name."""

    name: Annotated[Name, Meta(description="The name contains this text.")] | None = None
    after: Annotated[Name, Meta(description="The last name of the previous page.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000

    def of(self, found: Iterable[N]) -> tuple[list[N], str | None]:
        """Return what is on this page, and after which name the next page begins."""
        wanted = [
            one
            for one in found
            if (self.name is None or self.name in one.name)
            and (self.after is None or one.name > self.after)
        ]
        page = wanted[: self.limit]
        return page, page[-1].name if len(wanted) > len(page) else None


def last_id(page: Sequence[Any], *, more: bool) -> int | None:
    """Return after which id the next page begins; None on the last page."""
    return page[-1].id if page and more else None
