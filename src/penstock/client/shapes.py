"""Jobs as they go over the wire: instants as ISO 8601, durations in seconds."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from penstock.core import jsontext
from penstock.core.errors import ConfigurationError, StoreError
from penstock.core.job import Job, JobQuery, LogEntry, NewJob, Queue, QueueStatus
from penstock.core.lifecycle import State, Waiting
from penstock.core.mismatch import mismatch
from penstock.core.schedule import Schedule

T = TypeVar("T")
Body = dict[str, Any]

_FILTERS = (
    "queue",
    "task",
    "key",
    "correlation",
    "tenant",
    "parent",
    "error",
    "text",
    "since",
    "before",
)


# What is sent


def asked(job: NewJob, once: str | None) -> Body:
    """A job as it is asked for; under this dedupe key unless it has its own."""
    jsontext.read(job.payload, "args", jsontext.DEPTH_LIMIT + 1)
    given = {
        name: value
        for name, value in msgspec.structs.asdict(job).items()
        if value not in (None, ()) and name != "payload"
    }
    retry = {name: seconds(value) for name, value in msgspec.structs.asdict(job.retry).items()}
    plain = {name: seconds(value) for name, value in given.items()}
    return {
        **({} if once is None else {"dedupe": once}),
        **plain,
        "retry": retry,
        "args": msgspec.Raw(job.payload.encode()),
    }


def seconds(value: Any) -> Any:
    """A duration as it is sent, and several of them; all else as it is."""
    if isinstance(value, tuple):
        return [seconds(one) for one in value]
    return value.total_seconds() if isinstance(value, timedelta) else value


def filtering(query: JobQuery) -> Body:
    """A query for many jobs, in which pages do not count."""
    chosen: Body = {name: getattr(query, name) for name in _FILTERS}
    chosen["state"] = None if query.states is None else sorted(query.states)
    chosen["tags"] = query.tags or None
    return {name: value for name, value in chosen.items() if value is not None}


def parameters(query: JobQuery) -> Body:
    """A query for a page of jobs."""
    asked = filtering(query)
    asked |= {"after": query.after, "cancel_requested": query.cancel_requested}
    asked |= {"newest_first": query.newest_first, "limit": query.limit}
    return {name: _parameter(value) for name, value in asked.items() if value is not None}


def _parameter(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return ",".join(value)
        case datetime():
            return value.isoformat()
    return str(value)


# What is answered


def read(said: object, kind: type[T]) -> T:
    """A value from its JSON, in which durations are seconds."""
    try:
        return msgspec.convert(said, kind, strict=False)
    except (msgspec.ValidationError, ConfigurationError) as error:
        raise StoreError(
            f"the server does not speak of jobs as known here: {mismatch(error, kind)}"
        ) from error


def several(answer: Body, name: str) -> list[Body]:
    """The values of a list in an answer."""
    return read(answer.get(name), list[Body])


def job(said: Body) -> Job:
    """A job from its JSON."""
    result = said.get("result")
    texts = {
        "payload": msgspec.json.encode(said.get("args")).decode(),
        "result_json": None if result is None else msgspec.json.encode(result).decode(),
    }
    return read({**said, **texts}, Job)


def entry(said: Body) -> LogEntry:
    """An entry of the log from its JSON."""
    detail = said.get("detail")
    text = None if detail is None else msgspec.json.encode(detail).decode()
    return read({**said, "detail": text}, LogEntry)


def queue(said: Body) -> Queue:
    """A queue from its JSON."""
    rate = said.get("rate")
    pair = None if rate is None else (rate.get("count"), rate.get("seconds"))
    return read({**said, "rate": pair}, Queue)


def schedule(said: Body) -> Schedule:
    """A schedule from its JSON."""
    rhythm = {name: said.get(name) for name in ("cron", "every", "timezone")}
    job = {"task": said.get("task"), "queue": said.get("queue"), "payload": "{}"}
    return read({**said, "rhythm": rhythm, "job": job}, Schedule)


def queue_status(said: Body, now: datetime) -> QueueStatus:
    """A queue and its jobs from its JSON."""
    counted = {stage: n for stage, n in counts(said) if n}
    return QueueStatus(queue=queue(said), counts=counted, oldest_ready=since(said, now))


def since(said: Body, now: datetime) -> datetime | None:
    """Since when the oldest ready job is due."""
    age = said.get("oldest_ready_age")
    return None if age is None else now - read(age, timedelta)


def counts(said: Body) -> Iterator[tuple[tuple[State, Waiting | None], int]]:
    """How many jobs a queue has, by state and what they wait for."""
    for state, n in read(said.get("states"), dict[State, int]).items():
        if state is not State.PENDING:
            yield (state, None), n
    for waiting, n in read(said.get("waiting"), dict[Waiting, int]).items():
        yield (State.PENDING, waiting), n
