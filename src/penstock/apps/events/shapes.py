"""What goes over the wire, and how a job reads as an event.

An event is a job without a handler here: its arguments hold the title, the description and the
payload, and outside workers claim it by its tags. Whatever else is enqueued in the queue of the
events reads as one, too: its task is the title, its arguments are the payload.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from penstock import Event, Job, LogEntry, NewJob, Record, RetryPolicy, State
from penstock.http.problems import Problem

QUEUE = "events"
TASK = "events.event"
PAYLOAD_LIMIT = 1_000_000
DEPTH_LIMIT = 200
"""Levels that a payload may be nested: whoever reads it later needs room on the stack for them."""
TAG_LIMIT = 200
TAGS_LIMIT = 50

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

STATUSES = {
    State.PENDING: "PENDING",
    State.RUNNING: "PROCESSING",
    State.DONE: "COMPLETED",
    State.FAILED: "FAILED",
    State.CANCELLED: "CANCELLED",
    State.SUPERSEDED: "SUPERSEDED",
}
ACTIONS = {
    Event.CLAIMED: "PICKED",
    Event.DONE: "COMPLETED",
    Event.SNOOZED: "RELEASED",
}

_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BRACKETS = re.compile(rb"[\[\]{}]")
_REPORTED = frozenset({Event.CLAIMED, Event.STARTED, Event.DONE, Event.FAILED})


class NewEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event to be published."""

    title: Annotated[str, Meta(min_length=1, max_length=1_000)]
    tags: Annotated[Tags, Meta(description="A comma-separated text, or a list.")]
    description: Annotated[str, Meta(max_length=20_000)] | None = None
    payload: Annotated[Raw | UnsetType, Meta(description="Any JSON, up to 1 MB.")] = UNSET
    priority: Annotated[int, Meta(ge=0, le=10, description="Higher is picked first.")] = 5
    max_retries: Annotated[int, Meta(ge=1, le=100, description="Attempts in all.")] = 3
    retry_delay: (
        Annotated[float, Meta(ge=0, le=86_400 * 365, description="Seconds between two attempts.")]
        | None
    ) = None
    delay: (
        Annotated[float, Meta(ge=0, le=86_400 * 365, description="Seconds until it may be picked.")]
        | None
    ) = None
    key: Annotated[Key, Meta(description="One at a time, in order, per key.")] | None = None
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
    """Events to be published together, all or none."""

    events: Annotated[list[NewEvent], Meta(min_length=1, max_length=1_000)]


class Content(msgspec.Struct, frozen=True):
    """The arguments of an event's job."""

    title: str
    description: str | None
    payload: Raw


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
    """An event, whole."""

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
    """Events in the order they were sent."""

    events: list[Published]


class Picked(msgspec.Struct, frozen=True, kw_only=True):
    """An event in a worker's hands. `token` goes with every report about it."""

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
    """A batch of events in a worker's hands."""

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
    """A page of a list, and how many there are on all pages."""

    events: list[Listed]
    total: int
    limit: int
    offset: int


class Subscription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker asks for: events with any of these tags."""

    tags: Tags
    worker_id: WorkerId
    wait: Annotated[float, Meta(ge=0, le=60, description="Seconds to wait for one.")] = 0
    limit: Annotated[int, Meta(ge=1, le=1_000, description="A batch of up to so many.")] | None = (
        None
    )


class Holding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who holds the event. With the token, a report about an earlier hold is told apart."""

    worker_id: WorkerId
    token: Token | None = None


class Completion(Holding, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The event is done."""

    execution_time_ms: Millis | None = None
    status_code: StatusCode | None = None


class Failure(Completion, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An attempt at the event failed."""

    error_message: Annotated[str, Meta(max_length=100_000)] | None = None


class _OneOf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: EventId
    token: Token | None = None
    execution_time_ms: Millis | None = None
    status_code: StatusCode | None = None


class FailureOf(_OneOf, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An attempt at one of several events failed."""

    error_message: Annotated[str, Meta(max_length=100_000)] | None = None


class CompletionOf(_OneOf, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several events is done."""


class Completions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Events that one worker has done."""

    worker_id: WorkerId
    events: Annotated[list[CompletionOf], Meta(min_length=1, max_length=1_000)]


class Failures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Events that one worker has failed at."""

    worker_id: WorkerId
    events: Annotated[list[FailureOf], Meta(min_length=1, max_length=1_000)]


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What was recorded of a report."""

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
    """The last attempt at an event failed."""

    error: str = "Max retries exceeded"
    retry_count: int
    max_retries: int


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one of several reports: the status that it would have had alone, and why."""

    event_id: int
    status: int
    detail: str | UnsetType = UNSET
    retry_scheduled: bool | UnsetType = UNSET
    next_retry_at: str | UnsetType | None = UNSET


class ReportedMany(msgspec.Struct, frozen=True):
    """What became of each report, in their order."""

    events: list[Reported]


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    """The hold on an event goes on."""

    event_id: int
    worker_id: str
    token: int
    lease_expires_at: str
    cancel_requested: bool


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """The event is in nobody's hands any more."""

    event_id: int
    worker_id: str
    status: str


class Detail(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a report said that the log keeps beside its entry."""

    status_code: int | None = None
    execution_time_ms: int | None = None


_NULL = Raw(b"null")

_content = msgspec.json.Decoder(Content)
detail = msgspec.json.Decoder(Detail)
encode = msgspec.json.Encoder().encode


def is_event(job: Job) -> bool:
    """Whether workers of the event API may get this job."""
    return job.queue == QUEUE


def content_of(job: Job) -> Content:
    """What an event says; also one that was not published here."""
    if job.task == TASK:
        with suppress(msgspec.ValidationError):
            return _content.decode(job.payload)
    return Content(job.task, None, Raw(job.payload.encode()))


def tags_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """Exact tokens: trimmed, each once, in their order."""
    if isinstance(given, str):
        return _tags_of_text(given)
    if any("," in tag for tag in given):
        raise Problem(422, "tags: a tag has no comma in it", field="tags")
    return _tags_of_parts(given)


@lru_cache(1024)
def _tags_of_text(given: str) -> tuple[str, ...]:
    return _tags_of_parts(given.split(","))


def _tags_of_parts(parts: Sequence[str]) -> tuple[str, ...]:
    tags = tuple(dict.fromkeys(tag for part in parts if (tag := part.strip())))
    if not 1 <= len(tags) <= TAGS_LIMIT:
        raise Problem(422, f"tags: name one to {TAGS_LIMIT} tags", field="tags")
    for tag in tags:
        if len(tag) > TAG_LIMIT or not tag.isprintable():
            detail = f"tags: a tag is up to {TAG_LIMIT} printable characters"
            raise Problem(422, detail, field="tags")
    return tags


@lru_cache(256)
def _retry(attempts: int, seconds: float) -> RetryPolicy:
    delay = timedelta(seconds=seconds)
    return RetryPolicy(attempts=attempts, delay=delay, factor=1, max_delay=delay, jitter=0)


def job_of(event: NewEvent, retry_delay: float, lease: timedelta) -> NewJob:
    """The job that an event is kept as."""
    seconds = retry_delay if event.retry_delay is None else event.retry_delay
    return NewJob(
        task=TASK,
        payload=_arguments(event),
        queue=QUEUE,
        priority=event.priority,
        delay=None if event.delay is None else timedelta(seconds=event.delay),
        key=event.key,
        # Jobs that are no events may have the same keys for something else.
        dedupe=None if event.dedupe is None else f"{QUEUE}:{event.dedupe}",
        tags=tags_of(event.tags),
        retry=_retry(event.max_retries, seconds),
        lease=lease,
    )


def _arguments(event: NewEvent) -> str:
    payload = _NULL if event.payload is UNSET else event.payload
    size = len(payload)
    if size > PAYLOAD_LIMIT:
        raise Problem(413, f"payload: more than {PAYLOAD_LIMIT:,} bytes", field="payload")
    if size > DEPTH_LIMIT and _depth(bytes(payload)) > DEPTH_LIMIT:
        raise Problem(422, f"payload: nested more than {DEPTH_LIMIT} levels deep", field="payload")
    try:
        return encode(Content(event.title, event.description, payload)).decode()
    except UnicodeDecodeError as error:  # a payload is stored as it came, so nobody looked yet
        raise Problem(400, f"the body is not JSON: {error}") from error


def _depth(payload: bytes) -> int:
    """How deeply a payload is nested; for nearly all, no more than it has brackets."""
    brackets = payload.count(b"[") + payload.count(b"{")
    if brackets <= DEPTH_LIMIT:
        return brackets
    depth = deepest = 0
    for bracket in _BRACKETS.findall(_TEXTS.sub(b"", payload)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


class _Stamps:
    """Remembers how the last instant was written: events of one batch share theirs."""

    last: tuple[datetime | None, str] = (None, "")


def stamp(instant: datetime) -> str:
    """An instant as the event API writes it: whole seconds, UTC."""
    last, text = _Stamps.last
    if instant is not last:
        text = instant.isoformat()[:19] + "Z"
        _Stamps.last = instant, text
    return text


def retry_stamp(instant: datetime) -> str:
    """An instant to wait for: rounded up, so that nobody comes too early."""
    return stamp(instant + timedelta(microseconds=999_999))


def retries(job: Job) -> int:
    """How many attempts have failed; one that runs or has succeeded is none of them."""
    return job.attempt - (job.state in (State.RUNNING, State.DONE))


def next_retry(job: Job) -> str | None:
    """When a failed attempt is followed by the next, until that is picked."""
    waits = job.state is State.PENDING and job.attempt > 0
    return retry_stamp(job.run_at) if waits else None


def published(job: Job, updated_at: datetime, logs: list[LogLine] | UnsetType = UNSET) -> Published:
    """A job as an event."""
    said = content_of(job)
    return Published(
        id=job.id,
        title=said.title,
        description=said.description,
        tags=",".join(job.tags),
        status=STATUSES[job.state],
        payload=said.payload,
        retry_count=retries(job),
        max_retries=job.retry.attempts,
        next_retry_at=next_retry(job),
        created_at=stamp(job.enqueued_at),
        updated_at=stamp(updated_at),
        logs=logs,
    )


def as_it_is(record: Record, logs: list[LogLine] | UnsetType = UNSET) -> Published:
    """A job with its log as an event."""
    return published(record.job, record.log[-1].at, logs)


def just_published(job: Job, event: NewEvent) -> Published:
    """A job as the event that it was made of, which need not be decoded again."""
    if job.duplicate:
        return published(job, job.enqueued_at)
    at = stamp(job.enqueued_at)
    return Published(
        id=job.id,
        title=event.title,
        description=event.description,
        tags=",".join(job.tags),
        status="PENDING",
        payload=_NULL if event.payload is UNSET else event.payload,
        retry_count=0,
        max_retries=event.max_retries,
        next_retry_at=None,
        created_at=at,
        updated_at=at,
    )


def picked(job: Job) -> Picked:
    """A claimed job as its worker gets it."""
    said = content_of(job)
    return Picked(
        id=job.id,
        title=said.title,
        tags=",".join(job.tags),
        status="PROCESSING",
        payload=said.payload,
        retry_count=retries(job),
        max_retries=job.retry.attempts,
        created_at=stamp(job.enqueued_at),
        token=job.token,
    )


def listed(record: Record) -> Listed:
    """A job as an event in a list."""
    job = record.job
    return Listed(
        id=job.id,
        title=content_of(job).title,
        status=STATUSES[job.state],
        tags=",".join(job.tags),
        retry_count=retries(job),
        next_retry_at=next_retry(job) or UNSET,
        created_at=stamp(job.enqueued_at),
        updated_at=stamp(record.log[-1].at),
    )


def replayed(entry: LogEntry, job: Job) -> Recorded | Exhausted:
    """The answer to a report that the log has already: as it was answered the first time."""
    if entry.event is Event.DONE:
        return completed(job.id, entry.actor, entry.at, _said(entry))
    if entry.state is State.FAILED:
        return exhausted(job)
    delay = job.retry.delay_after(max(1, job.attempt), 0.5)
    retry_at = entry.at + delay if entry.state is State.PENDING else None
    return failed(job.id, entry.actor, entry.at, _said(entry), entry.error or "", retry_at)


def completed(event_id: int, worker: str, at: datetime, said: Detail) -> Recorded:
    """The answer to a completion."""
    return Recorded(
        event_id=event_id,
        worker_id=worker,
        action="COMPLETED",
        status_code=UNSET if said.status_code is None else said.status_code,
        execution_time_ms=UNSET if said.execution_time_ms is None else said.execution_time_ms,
        created_at=stamp(at),
    )


def failed(  # noqa: PLR0917 - the fields of one answer
    event_id: int, worker: str, at: datetime, said: Detail, error: str, retry_at: datetime | None
) -> Recorded:
    """The answer to a failure that is not the last."""
    return Recorded(
        event_id=event_id,
        worker_id=worker,
        action="FAILED",
        status_code=UNSET if said.status_code is None else said.status_code,
        error_message=error,
        execution_time_ms=UNSET if said.execution_time_ms is None else said.execution_time_ms,
        retry_scheduled=retry_at is not None,
        next_retry_at=None if retry_at is None else retry_stamp(retry_at),
        created_at=stamp(at),
    )


def started(job: Job, worker: str, at: datetime) -> Recorded:
    """The answer to a start."""
    return Recorded(event_id=job.id, worker_id=worker, action="STARTED", created_at=stamp(at))


def renewed(job: Job) -> Renewed:
    """The answer to a heartbeat."""
    assert job.expires_at is not None  # noqa: S101 - it is held
    return Renewed(
        event_id=job.id,
        worker_id=job.worker or "",
        token=job.token,
        lease_expires_at=stamp(job.expires_at),
        cancel_requested=job.cancel_requested,
    )


def reported(event_id: int, answer: Recorded | Exhausted | Problem) -> Reported:
    """The answer to one of several reports."""
    if isinstance(answer, Problem):
        return Reported(event_id=event_id, status=answer.status, detail=str(answer))
    if isinstance(answer, Exhausted):
        return Reported(event_id=event_id, status=400, detail=answer.error, retry_scheduled=False)
    return Reported(
        event_id=event_id,
        status=200,
        retry_scheduled=answer.retry_scheduled,
        next_retry_at=answer.next_retry_at,
    )


def exhausted(job: Job) -> Exhausted:
    """The answer to the last failure."""
    return Exhausted(retry_count=job.retry.attempts, max_retries=job.retry.attempts)


def log_lines(log: Sequence[LogEntry]) -> Iterator[LogLine]:
    """The log of an event: what was done with it since it was published."""
    for entry in log:
        if entry.event is Event.ENQUEUED:
            continue
        said = _said(entry)
        yield LogLine(
            id=entry.id,
            worker_id=entry.actor,
            action=ACTIONS.get(entry.event, entry.event.upper()),
            status_code=UNSET if said.status_code is None else said.status_code,
            error_message=UNSET if entry.error is None else entry.error,
            execution_time_ms=UNSET if said.execution_time_ms is None else said.execution_time_ms,
            reason=UNSET if entry.reason is None or entry.event in _REPORTED else entry.reason,
            created_at=stamp(entry.at),
        )


def _said(entry: LogEntry) -> Detail:
    return Detail() if entry.detail is None else detail.decode(entry.detail)
