"""What a client sends and gets: events, reports and pages, as values."""

from datetime import datetime, timedelta
from typing import Any

import msgspec

from penstock.core.errors import InvalidJob


class NewEvent(msgspec.Struct, frozen=True):
    """An event to be published; what is None, the server decides."""

    title: str
    tags: str | tuple[str, ...] | list[str]
    payload: Any = None
    description: str | None = None
    priority: int | None = None
    max_retries: int | None = None
    retry_delay: timedelta | None = None
    delay: timedelta | None = None
    key: str | None = None
    dedupe: str | None = None


class Action(msgspec.Struct, frozen=True):
    """One line in the log of an event: who did what with it, and when."""

    id: int
    worker_id: str
    action: str
    created_at: datetime
    status_code: int | None = None
    error_message: str | None = None
    execution_time_ms: int | None = None
    reason: str | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event as it was at one moment.

    One that was picked has the `token` of the hold, which goes with every report about it.
    A list has neither payloads nor descriptions.
    """

    id: int
    title: str
    tags: tuple[str, ...]
    status: str
    retry_count: int
    created_at: datetime
    max_retries: int | None = None
    description: str | None = None
    payload: Any = None
    next_retry_at: datetime | None = None
    updated_at: datetime | None = None
    token: int | None = None
    logs: tuple[Action, ...] = ()


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a list of events, and how many there are on all pages."""

    events: list[Event]
    total: int
    limit: int
    offset: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a report about an event.

    Without `recorded`, the event was no longer held, and `detail` says so: discard the result.
    After a failure, `next_retry_at` is when the event can be picked again; None after the last.
    """

    event_id: int
    recorded: bool = True
    detail: str | None = None
    next_retry_at: datetime | None = None


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's hold on an event, after a heartbeat; stop if it `cancel_requested`."""

    event_id: int
    token: int
    lease_expires_at: datetime
    cancel_requested: bool = False


def event_of(given: dict[str, Any]) -> Event:
    """An event from its JSON, in which tags are one text."""
    tags = given.get("tags") or ""
    return msgspec.convert({**given, "tags": tags.split(",") if tags else []}, Event)


def wire_of(event: NewEvent, dedupe: str | None) -> dict[str, Any]:
    """An event as it is sent; under this dedupe key unless it has its own."""
    fields = {
        **msgspec.structs.asdict(event),
        "tags": event.tags if isinstance(event.tags, str) else list(event.tags),
        "dedupe": event.dedupe or dedupe,
        "delay": _seconds("delay", event.delay),
        "retry_delay": _seconds("retry_delay", event.retry_delay),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _seconds(name: str, span: object) -> float | None:
    if span is None:
        return None
    if not isinstance(span, timedelta):
        raise InvalidJob(f"{name} is a timedelta, not {span!r:.80}")
    return span.total_seconds()
