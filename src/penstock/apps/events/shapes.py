"""Bodies of requests and answers of the event API."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Tags = Annotated[str, Meta(max_length=10_100)] | Annotated[list[Name], Meta(max_length=50)]
_NO_NUL = r"^[^\x00]*$"
Key = Annotated[str, Meta(min_length=1, max_length=1_000, pattern=_NO_NUL)]
WorkerId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=200,
        pattern=_NO_NUL,
        description="Who works: `{hostname}:{pid}`.",
    ),
]
EventId = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Token = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Millis = Annotated[int, Meta(ge=0, le=10**15)]
StatusCode = Annotated[int, Meta(ge=-(10**9), le=10**9)]


class NewEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event to publish."""

    title: Annotated[str, Meta(min_length=1, max_length=1_000)]
    tags: Annotated[Tags, Meta(description="A comma-separated text, or a list.")]
    description: Annotated[str, Meta(max_length=20_000)] | None = None
    payload: Annotated[Raw | UnsetType, Meta(description="Any JSON, up to 1 MB.")] = UNSET
    priority: Annotated[int, Meta(ge=0, le=10, description="Higher is picked first.")] = 5
    max_retries: Annotated[int, Meta(ge=1, le=100, description="Total number of attempts.")] = 3
    retry_delay: (
        Annotated[float, Meta(ge=0, le=86_400 * 365, description="Seconds between two attempts.")]
        | None
    ) = None
    delay: (
        Annotated[float, Meta(ge=0, le=86_400 * 365, description="Seconds until it may be picked.")]
        | None
    ) = None
    key: (
        Annotated[Key, Meta(description="Events with the same key run one at a time, in order.")]
        | None
    ) = None
    dedupe: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=990,
                pattern=_NO_NUL,
                description="While one event is unfinished, no second.",
            ),
        ]
        | None
    ) = None


class NewEvents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Events to publish together, all or none."""

    events: Annotated[list[NewEvent], Meta(min_length=1, max_length=1_000)]


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One action on an event."""

    id: int
    worker_id: str
    action: str
    status_code: int | UnsetType = UNSET
    error_message: str | UnsetType = UNSET
    execution_time_ms: int | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    created_at: str


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """An event in full."""

    id: int
    title: str
    description: str | None
    tags: str
    status: str
    payload: Raw
    retry_count: int
    max_retries: int
    next_retry_at: str | None
    created_at: str
    updated_at: str
    logs: list[LogLine] | UnsetType = UNSET


class PublishedMany(msgspec.Struct, frozen=True):
    """The published events, in the order of the request."""

    events: list[Published]


class Picked(msgspec.Struct, frozen=True, kw_only=True):
    """An event that is leased to a worker. Send its `token` with every report about it."""

    id: int
    title: str
    tags: str
    status: str
    payload: Raw
    retry_count: int
    max_retries: int
    created_at: str
    token: int


class PickedMany(msgspec.Struct, frozen=True):
    """A batch of events that are leased to a worker."""

    events: list[Picked]


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """An event in a list."""

    id: int
    title: str
    status: str
    tags: str
    retry_count: int
    next_retry_at: str | UnsetType = UNSET
    created_at: str
    updated_at: str


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a list, and the number of events on all pages."""

    events: list[Listed]
    total: int
    limit: int
    offset: int


class Subscription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for events with any of these tags."""

    tags: Tags
    worker_id: WorkerId
    wait: Annotated[float, Meta(ge=0, le=60, description="Seconds to wait for one.")] = 0
    limit: (
        Annotated[int, Meta(ge=1, le=1_000, description="The largest number of events to return.")]
        | None
    ) = None


class Holding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The worker that has the event. The token tells its leases apart."""

    worker_id: WorkerId
    token: Token | None = None


class Completion(Holding, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A report that an event is done."""

    execution_time_ms: Millis | None = None
    status_code: StatusCode | None = None


class Failure(Completion, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A report that an attempt failed."""

    error_message: Annotated[str, Meta(max_length=100_000)] | None = None


class _OneOf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: EventId
    token: Token | None = None
    execution_time_ms: Millis | None = None
    status_code: StatusCode | None = None


class FailureOf(_OneOf, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A report that an attempt at one of several events failed."""

    error_message: Annotated[str, Meta(max_length=100_000)] | None = None


class CompletionOf(_OneOf, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A report that one of several events is done."""


class Completions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reports of one worker that events are done."""

    worker_id: WorkerId
    events: Annotated[list[CompletionOf], Meta(min_length=1, max_length=1_000)]


class Failures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reports of one worker that attempts failed."""

    worker_id: WorkerId
    events: Annotated[list[FailureOf], Meta(min_length=1, max_length=1_000)]


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A report as it was recorded."""

    event_id: int
    worker_id: str
    action: str
    status_code: int | UnsetType = UNSET
    error_message: str | UnsetType = UNSET
    execution_time_ms: int | UnsetType = UNSET
    retry_scheduled: bool | UnsetType = UNSET
    next_retry_at: str | UnsetType | None = UNSET
    created_at: str


class Exhausted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the failure of the last attempt."""

    error: str = "Max retries exceeded"
    retry_count: int
    max_retries: int


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one of several reports: the status it would have had alone, and why."""

    event_id: int
    status: int
    detail: str | UnsetType = UNSET
    retry_scheduled: bool | UnsetType = UNSET
    next_retry_at: str | UnsetType | None = UNSET


class ReportedMany(msgspec.Struct, frozen=True):
    """The answers to several reports, in their order."""

    events: list[Reported]


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    """The lease of an event was renewed."""

    event_id: int
    worker_id: str
    token: int
    lease_expires_at: str
    cancel_requested: bool


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """An event was released."""

    event_id: int
    worker_id: str
    status: str


class Detail(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a report that the log keeps with its entry."""

    status_code: int | None = None
    execution_time_ms: int | None = None
