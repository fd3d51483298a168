"""Values of the events client: events, reports and pages."""

from datetime import datetime, timedelta
from typing import Any

import msgspec

from penstock.core.errors import InvalidJob


class NewEvent(msgspec.Struct, frozen=True):
    """An event to publish; the server chooses what is None."""

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
    """An entry in the log of an event: who did what, and when."""

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

    An event that was picked has the `token` of its lease, which every report about it must carry.
    Events in a list have neither payload nor description.
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
    """A page of a list of events, and the number of events on all pages."""

    events: list[Event]
    total: int
    limit: int
    offset: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a report about an event.

    `recorded` is false if the event was no longer held, as `detail` explains: discard the result.
    After a failure, `next_retry_at` is when the event can be picked again; None after the last
    attempt.
    """

    event_id: int
    recorded: bool = True
    detail: str | None = None
    next_retry_at: datetime | None = None


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """The lease of a worker on an event, after a heartbeat; stop if `cancel_requested` is set."""

    event_id: int
    token: int
    lease_expires_at: datetime
    cancel_requested: bool = False


def event_of(given: dict[str, Any]) -> Event:
    """Return an event from its JSON, in which tags are separated by commas."""
    tags = given.get("tags") or ""
    return msgspec.convert({**given, "tags": tags.split(",") if tags else []}, Event)


def wire_of(event: NewEvent, dedupe: str | None) -> dict[str, Any]:
    """Return an event as it is sent; with this dedupe key unless it has its own."""
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
        raise InvalidJob(f"{name} must be a timedelta, not {span!r:.80}")
    return span.total_seconds()
