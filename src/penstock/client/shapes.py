"""Requests and answers about jobs as JSON: instants as ISO 8601, durations in seconds."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from penstock.core import jsontext
from penstock.core.decode_errors import mismatch
from penstock.core.errors import ConfigurationError, StoreError
from penstock.core.job import (
    DEFAULT_LEASE,
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    Job,
    LogEntry,
    NewJob,
)
from penstock.core.lifecycle import State, Waiting
from penstock.core.query import JobQuery
from penstock.core.queue import Queue, QueueStatus
from penstock.core.retry import DEFAULT_RETRY
from penstock.core.schedule import Schedule
from penstock.core.tasks import FIRST_VERSION
from penstock.web.jobs import received

T = TypeVar("T")
Body = dict[str, Any]

# Fields of a query that requests spell differently, or that belong to a page.
_NOT_SENT_AS_IS = {"states", "tags", "after", "until", "cancel_requested", "newest_first", "limit"}


# What is sent

_OF_TASK = {
    "queue": DEFAULT_QUEUE,
    "priority": DEFAULT_PRIORITY,
    "lease": DEFAULT_LEASE,
    "task_version": FIRST_VERSION,
}
"""Options that a server takes from what workers announce, unless they are sent."""


def asked(job: NewJob, once: str | None) -> Body:
    """Return a new job as it is sent; with this dedupe key unless it has its own."""
    jsontext.read(job.payload, "args", jsontext.DEPTH_LIMIT + 1)
    given = {
        name: value
        for name, value in msgspec.structs.asdict(job).items()
        if value not in (None, ()) and name not in {"payload", "retry"}
    }
    for name, default in _OF_TASK.items():
        if given.get(name) == default:
            del given[name]  # the task may declare another
    if job.retry != DEFAULT_RETRY:
        given["retry"] = {
            name: seconds(value) for name, value in msgspec.structs.asdict(job.retry).items()
        }
    plain = {name: seconds(value) for name, value in given.items()}
    return {
        **({} if once is None else {"dedupe": once}),
        **plain,
        "args": msgspec.Raw(job.payload.encode()),
    }


def seconds(value: Any) -> Any:
    """Return a duration, or several, in seconds; any other value as it is."""
    if isinstance(value, tuple):
        return [seconds(one) for one in value]
    return value.total_seconds() if isinstance(value, timedelta) else value


def filtering(query: JobQuery) -> Body:
    """Return the filter of a bulk action: a query without its page."""
    chosen: Body = {
        name: value
        for name, value in msgspec.structs.asdict(query).items()
        if name not in _NOT_SENT_AS_IS
    }
    chosen["state"] = None if query.states is None else sorted(query.states)
    chosen["tags"] = query.tags or None
    return {name: value for name, value in chosen.items() if value is not None}


def parameters(query: JobQuery) -> Body:
    """Return the query string of a list of jobs."""
    given = filtering(query)
    given |= {"after": query.after, "cancel_requested": query.cancel_requested}
    given |= {"newest_first": query.newest_first, "limit": query.limit}
    return {name: _parameter(value) for name, value in given.items() if value is not None}


def _parameter(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return ",".join(value)
        case datetime():
            return value.isoformat()
    return str(value)


# What is received


def read(sent: object, kind: type[T]) -> T:
    """Convert decoded JSON, in which durations are seconds, to a value."""
    try:
        return msgspec.convert(sent, kind, strict=False)
    except (msgspec.ValidationError, ConfigurationError) as error:
        raise StoreError(
            f"this version cannot read the answer of the server: {mismatch(error, kind)}"
        ) from error


def several(answer: Body, name: str) -> list[Body]:
    """Return the objects of a list in an answer."""
    return read(answer.get(name), list[Body])


def job(sent: Body) -> Job:
    """Return a job from its JSON."""
    return read(received(Job, sent), Job)


def entry(sent: Body) -> LogEntry:
    """Return an entry of the log from its JSON."""
    return read(received(LogEntry, sent), LogEntry)


def queue(sent: Body) -> Queue:
    """Return a queue from its JSON."""
    rate = sent.get("rate")
    pair = None if rate is None else (rate.get("count"), rate.get("seconds"))
    return read({**sent, "rate": pair}, Queue)


def schedule(sent: Body) -> Schedule:
    """Return a schedule from its JSON."""
    rhythm = {name: sent.get(name) for name in ("cron", "every", "timezone")}
    job = {"task": sent.get("task"), "queue": sent.get("queue"), "payload": "{}"}
    return read({**sent, "rhythm": rhythm, "job": job}, Schedule)


def queue_status(sent: Body, now: datetime) -> QueueStatus:
    """Return a queue and the number of its jobs from their JSON."""
    counted = {stage: n for stage, n in counts(sent) if n}
    return QueueStatus(queue=queue(sent), counts=counted, oldest_ready=since(sent, now))


def since(sent: Body, now: datetime) -> datetime | None:
    """Return since when the oldest ready job has been due."""
    age = sent.get("oldest_ready_age")
    return None if age is None else now - read(age, timedelta)


def counts(sent: Body) -> Iterator[tuple[tuple[State, Waiting | None], int]]:
    """Yield the number of jobs of a queue by state and by what they wait for."""
    for state, n in read(sent.get("states"), dict[State, int]).items():
        if state is not State.PENDING:
            yield (state, None), n
    for waiting, n in read(sent.get("waiting"), dict[Waiting, int]).items():
        yield (State.PENDING, waiting), n
