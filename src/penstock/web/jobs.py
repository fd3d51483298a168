"""Jobs as JSON, derived from `Job` and the other values of the core, for server and client alike.

Instants are ISO 8601 in UTC, durations are seconds, and JSON that is stored as text is embedded as
it is. A new field of `Job` needs no line here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import NODEFAULT, UNSET, Meta, Raw, UnsetType
from msgspec.structs import asdict

from penstock.core.explanation import Explanation
from penstock.core.job import Job, LogEntry
from penstock.core.lifecycle import Event
from penstock.core.progress import Line, Progress
from penstock.core.retry import DEFAULT_RETRY, LONGEST, RetryPolicy
from penstock.core.secrets import Secrets
from penstock.core.tasks import FIRST_VERSION

S = TypeVar("S", bound=msgspec.Struct)

Seconds = Annotated[float, Meta(ge=0, le=LONGEST.total_seconds())]
ARGS = Meta(description="The arguments by name.", extra_json_schema={"type": "object"})
Args = Annotated[Raw, ARGS]
Json = Raw | None
"""Any JSON, as it was stored."""

JSON_TEXTS: Mapping[type[msgspec.Struct], Mapping[str, str]] = {
    Job: {"payload": "args", "result_json": "result"},
    LogEntry: {"detail": "detail"},
}
"""The fields that hold JSON as text, and what they are called on the wire."""


class RetryShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many attempts a job has, and the seconds between two of them."""

    attempts: Annotated[int, Meta(ge=1, le=1_000_000)] = DEFAULT_RETRY.attempts
    delay: Seconds = DEFAULT_RETRY.delay.total_seconds()
    factor: Annotated[float, Meta(ge=1, le=1_000)] = DEFAULT_RETRY.factor
    max_delay: Seconds = DEFAULT_RETRY.max_delay.total_seconds()
    jitter: Annotated[float, Meta(ge=0, le=1)] = DEFAULT_RETRY.jitter


def seconds(duration: timedelta | None) -> float | None:
    """Return a duration as it is sent."""
    return None if duration is None else duration.total_seconds()


def span(sent: float | None) -> timedelta | None:
    """Return a duration that was received."""
    return None if sent is None else timedelta(seconds=sent)


@lru_cache(1_000)  # nearly all jobs share a few policies
def _retry(policy: RetryPolicy) -> RetryShape:
    fields = asdict(policy)
    return RetryShape(
        **{**fields, "delay": seconds(policy.delay), "max_delay": seconds(policy.max_delay)}
    )


class _OnWire(NamedTuple):
    """How values of a type are sent: as another type, after a conversion."""

    type: Any
    convert: Callable[[Any], Any]


_ON_WIRE: Mapping[Any, _OnWire] = {
    timedelta: _OnWire(float, timedelta.total_seconds),
    timedelta | None: _OnWire(float | None, seconds),
    RetryPolicy: _OnWire(RetryShape, _retry),
}


def derived_from(source: type[msgspec.Struct]) -> Callable[[type[S]], type[S]]:
    """Give a Struct the fields of `source`, in their order, with the types that they are sent as.

    A field that the class declares replaces the one of `source` with the same name; its other
    fields follow. All fields are required unless the class gives a default.
    """
    names = JSON_TEXTS.get(source, {})

    def derive(shape: type[S]) -> type[S]:
        declared = {field.name: field for field in msgspec.structs.fields(shape)}
        kinds: dict[str, Any] = {}
        for field in msgspec.structs.fields(source):
            sent = _ON_WIRE.get(field.type)
            kinds[names.get(field.name, field.name)] = field.type if sent is None else sent.type
        kinds |= {name: field.type for name, field in declared.items()}
        derived: Any = msgspec.defstruct(
            shape.__name__,
            [
                (name, kind)
                if name not in declared or declared[name].default is NODEFAULT
                else (name, kind, declared[name].default)
                for name, kind in kinds.items()
            ],
            namespace={"__doc__": shape.__doc__},
            module=shape.__module__,
            frozen=True,
            kw_only=True,
        )
        return derived  # type: ignore[no-any-return] # type checkers see what is declared

    return derive


_CONVERSIONS: Mapping[type[msgspec.Struct], Sequence[tuple[str, Callable[[Any], Any]]]] = {
    source: [
        (field.name, _ON_WIRE[field.type].convert)
        for field in msgspec.structs.fields(source)
        if field.type in _ON_WIRE
    ]
    for source in (Job, LogEntry, Progress)
}


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a value, converted to what is sent."""
    fields = asdict(value)
    for name, convert in _CONVERSIONS[type(value)]:
        fields[name] = convert(fields[name])
    return fields


# Answers


@derived_from(Job)
class JobShape(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is now."""

    args: Args
    result: Json
    task_version: int = FIRST_VERSION
    """Servers of earlier versions do not send it."""
    duplicate: bool | UnsetType = UNSET


@derived_from(LogEntry)
class LogShape(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the log: what happened to which job, when, by whom, and the new state."""

    detail: Json


@derived_from(Line)
class LineShape(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a job logged."""


@derived_from(Explanation)
class ExplanationShape(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is, or is not, running."""

    reason: str


@derived_from(Progress)
class ProgressShape(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is; `left` is the estimated number of seconds until it is done."""

    fraction: float | None
    left: float | None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a job; `outcome` is the event that ended it, null while it is running."""

    worker: str
    token: int
    began_at: datetime
    ended_at: datetime | None = None
    outcome: Event | None = None
    duration: float | None = None
    error: str | None = None


class JobDetail(JobShape, frozen=True, kw_only=True):
    """A job with its log, attempts, progress, lines and dependencies."""

    explanation: ExplanationShape
    progress: ProgressShape | None
    attempts: list[Attempt]
    log: list[LogShape]
    lines: list[LineShape]
    children: dict[str, int]
    waits_for: list[int]


def job_fields(job: Job, secrets: Secrets, *, readable: bool = False) -> dict[str, Any]:
    """Return the fields of a `JobShape`, without `duplicate` and with secrets hidden.

    `readable` says that the payload is known to be: it was checked when the job was stored just
    now.
    """
    fields = _fields(job)
    del fields["duplicate"]
    hide = secrets.hide_readable if readable else secrets.hide
    fields["args"] = Raw(hide(fields.pop("payload")).encode())
    result = fields.pop("result_json")
    fields["result"] = None if result is None else Raw(secrets.hide(result).encode())
    return fields


def job_shape(job: Job, secrets: Secrets) -> JobShape:
    """Return a job as it is sent, with secrets hidden."""
    return JobShape(**job_fields(job, secrets))


def enqueued_shape(job: Job, secrets: Secrets) -> JobShape:
    """Return a job as the answer to its enqueue, which says whether it is a duplicate."""
    return JobShape(**job_fields(job, secrets, readable=not job.duplicate), duplicate=job.duplicate)


def log_shape(entry: LogEntry) -> LogShape:
    """Return an entry of the log as it is sent."""
    fields = _fields(entry)
    fields["detail"] = None if entry.detail is None else Raw(entry.detail.encode())
    return LogShape(**fields)


def progress_shape(progress: Progress) -> ProgressShape:
    """Return the progress of a job as it is sent."""
    return ProgressShape(
        **_fields(progress), fraction=progress.fraction, left=seconds(progress.left)
    )


def line_shape(line: Line) -> LineShape:
    """Return a line of a job as it is sent."""
    return LineShape(**asdict(line))


def explanation_shape(explanation: Explanation) -> ExplanationShape:
    """Return an explanation as it is sent."""
    return ExplanationShape(**asdict(explanation))


_ENDS = frozenset(
    {Event.DONE, Event.FAILED, Event.SNOOZED, Event.EXPIRED, Event.CANCELLED, Event.RESET}
) | {Event.SUPERSEDED, Event.RESTORED}


def attempts_of(log: Iterable[LogEntry]) -> list[Attempt]:
    """Return the runs that a log records, oldest first."""
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


# What a client reads


def received(source: type[msgspec.Struct], sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return decoded JSON with the field names of `source`, and stored JSON as text again."""
    texts: dict[str, str | None] = {}
    for own, name in JSON_TEXTS[source].items():
        value = sent.get(name)
        texts[own] = None if value is None else msgspec.json.encode(value).decode()
    return {**sent, **texts}
