"""Jobs and their logs, as the event API shows them."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock import Job, State
from penstock.apps.events.contents import NULL, content_of
from penstock.apps.events.shapes import (
    Detail,
    Exhausted,
    Listed,
    LogLine,
    NewEvent,
    Picked,
    Published,
    Recorded,
    Renewed,
    Reported,
)
from penstock.apps.kit import Problem, Secrets
from penstock.jobs import Event, LogEntry, Record

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
_REPORTED = frozenset({Event.CLAIMED, Event.STARTED, Event.DONE, Event.FAILED})

_detail = msgspec.json.Decoder(Detail)


class _Stamps:
    """The last instant with its text: events of one batch share it."""

    last: tuple[datetime | None, str] = (None, "")


def stamp(instant: datetime) -> str:
    """Return an instant as the event API writes it: whole seconds, UTC."""
    last, text = _Stamps.last
    if instant is not last:
        text = instant.isoformat()[:19] + "Z"
        _Stamps.last = instant, text
    return text


def retry_stamp(instant: datetime) -> str:
    """Return an instant to wait for, rounded up so that nobody asks too early."""
    return stamp(instant + timedelta(microseconds=999_999))


def next_retry(job: Job) -> str | None:
    """Return when the next attempt is due after a failed one; None if there is none."""
    waits = job.state is State.PENDING and job.attempt > 0
    return retry_stamp(job.run_at) if waits else None


def published(
    job: Job, updated_at: datetime, secrets: Secrets, logs: list[LogLine] | UnsetType = UNSET
) -> Published:
    """Return a job as an event, without secrets."""
    said = content_of(job)
    return Published(
        id=job.id,
        title=secrets.hidden(said.title),
        description=secrets.hidden(said.description),
        tags=",".join(job.tags),
        status=STATUSES[job.state],
        payload=_shown(said.payload, secrets),
        retry_count=job.failed_attempts,
        max_retries=job.retry.attempts,
        next_retry_at=next_retry(job),
        created_at=stamp(job.enqueued_at),
        updated_at=stamp(updated_at),
        logs=logs,
    )


def as_it_is(
    record: Record, secrets: Secrets, logs: list[LogLine] | UnsetType = UNSET
) -> Published:
    """Return a job with its log as an event, without secrets."""
    return published(record.job, record.log[-1].at, secrets, logs)


def just_published(job: Job, event: NewEvent, secrets: Secrets) -> Published:
    """Return a new job as the event it was created from, without decoding it again."""
    if job.duplicate:
        return published(job, job.enqueued_at, secrets)
    at = stamp(job.enqueued_at)
    return Published(
        id=job.id,
        title=secrets.hidden(event.title),
        description=secrets.hidden(event.description),
        tags=",".join(job.tags),
        status="PENDING",
        payload=NULL if event.payload is UNSET else _just_checked(event.payload, secrets),
        retry_count=0,
        max_retries=event.max_retries,
        next_retry_at=None,
        created_at=at,
        updated_at=at,
    )


def _shown(payload: Raw, secrets: Secrets) -> Raw:
    return Raw(secrets.hide(bytes(payload).decode()).encode())


def _just_checked(payload: Raw, secrets: Secrets) -> Raw:
    """Return a payload without secrets that has been checked to be readable."""
    text = bytes(payload).decode()
    shown = secrets.hide_readable(text)
    return payload if shown is text else Raw(shown.encode())


def picked(job: Job) -> Picked:
    """Return a claimed job as its worker gets it: complete, with secrets."""
    said = content_of(job)
    return Picked(
        id=job.id,
        title=said.title,
        tags=",".join(job.tags),
        status="PROCESSING",
        payload=said.payload,
        retry_count=job.failed_attempts,
        max_retries=job.retry.attempts,
        created_at=stamp(job.enqueued_at),
        token=job.token,
    )


def listed(record: Record, secrets: Secrets) -> Listed:
    """Return a job as an event in a list, without secrets."""
    job = record.job
    return Listed(
        id=job.id,
        title=secrets.hidden(content_of(job).title),
        status=STATUSES[job.state],
        tags=",".join(job.tags),
        retry_count=job.failed_attempts,
        next_retry_at=next_retry(job) or UNSET,
        created_at=stamp(job.enqueued_at),
        updated_at=stamp(record.log[-1].at),
    )


def replayed(entry: LogEntry, job: Job) -> Recorded | Exhausted:
    """Return the answer to a report that is already in the log, as it was the first time."""
    if entry.event is Event.DONE:
        return completed(job.id, entry.actor, entry.at, _said(entry))
    if entry.state is State.FAILED:
        return exhausted(job)
    delay = job.retry.delay_after(max(1, job.attempt), 0.5)
    retry_at = entry.at + delay if entry.state is State.PENDING else None
    return failed(job.id, entry.actor, entry.at, _said(entry), entry.error or "", retry_at)


def completed(event_id: int, worker: str, at: datetime, said: Detail) -> Recorded:
    """Return the answer to a completion."""
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
    """Return the answer to a failure that is not the last."""
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
    """Return the answer to a start."""
    return Recorded(event_id=job.id, worker_id=worker, action="STARTED", created_at=stamp(at))


def renewed(job: Job) -> Renewed:
    """Return the answer to a heartbeat."""
    assert job.expires_at is not None  # noqa: S101 - it is held
    return Renewed(
        event_id=job.id,
        worker_id=job.worker or "",
        token=job.token,
        lease_expires_at=stamp(job.expires_at),
        cancel_requested=job.cancel_requested,
    )


def reported(event_id: int, answer: Recorded | Exhausted | Problem) -> Reported:
    """Return the answer to one of several reports."""
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
    """Return the answer to the last failure."""
    return Exhausted(retry_count=job.retry.attempts, max_retries=job.retry.attempts)


def log_lines(log: Sequence[LogEntry]) -> Iterator[LogLine]:
    """Yield the log of an event, from its publication on."""
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
    return Detail() if entry.detail is None else _detail.decode(entry.detail)
