"""Conversion between the values of the core and rows of the tables."""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.core.dependencies import Edge
from penstock.core.job import DEFAULT_LEASE, Job, JobId, LogEntry, LogId, NewJob, OnFailure, Scope
from penstock.core.lifecycle import Event, State, Waiting
from penstock.core.queue import Ages, Queue
from penstock.core.retry import DEFAULT_RETRY, RetryPolicy
from penstock.core.tasks import FIRST_VERSION
from penstock.core.times import from_micros, span_from_micros, span_to_micros, to_micros

# Until when a queue is paused without an end.
_FOREVER = 2**63 - 1

# A job's state and what it waits for are one small number in the database.
READY, SCHEDULED, BLOCKED, RUNNING = range(4)
STAGES: list[tuple[State, Waiting | None]] = [
    (State.PENDING, Waiting.READY),
    (State.PENDING, Waiting.SCHEDULED),
    (State.PENDING, Waiting.BLOCKED),
    (State.RUNNING, None),
    (State.DONE, None),
    (State.FAILED, None),
    (State.CANCELLED, None),
    (State.SUPERSEDED, None),
]
STAGE_OF = {state: stage for stage, (state, _) in enumerate(STAGES) if stage >= RUNNING}
STAGE_OF_WAITING = {waiting: stage for stage, (_, waiting) in enumerate(STAGES) if waiting}

EdgeRow = tuple[int, int, OnFailure, bool]
"""The fields of an edge: the needed job, the job that waits, its rule, whether it is resolved."""

_DEFAULT_LEASE = span_to_micros(DEFAULT_LEASE)

ids = msgspec.json.Decoder(list[int])
picks = msgspec.json.Decoder(list[tuple[int, int, int]])
_micros_or_several = msgspec.json.Decoder(int | tuple[int, ...])
versions = msgspec.json.Decoder(list[tuple[int | None, int, int | None, int, int]])
jobs = msgspec.json.Decoder(list[list[Any]])
names = msgspec.json.Decoder(list[str])
_rest = msgspec.json.Decoder(list[Any])
_tags = msgspec.json.Decoder(tuple[str, ...])
_retry = msgspec.json.Decoder(RetryPolicy)
encode = msgspec.json.Encoder().encode


def encoded(value: object) -> str:
    """Return a list as JSON text, for `json_each` and its like."""
    return encode(value).decode()


@lru_cache(1024)
def _decode_tags(text: str) -> tuple[str, ...]:
    return _tags.decode(text)


@lru_cache(1024)
def _decode_retry(text: str) -> RetryPolicy:
    return _retry.decode(text)


# Where `options` has what few jobs use.
RARE = slice(7, 20)
MERGED, TAGS, TENANT = 6, 11, 14
NONE_OF_THEM = (None,) * 13


def options(
    job: NewJob, stage: int, run_at: int, needs: int, *, merged: bool = False
) -> tuple[Any, ...]:
    """Return all of a new job but its payload: the parameters of `add_jobs` from `stage` on.

    `merged` says whether its queue shares the merged index. Jobs with the same options are written
    together, so that this has to be cheap to compare.
    """
    return (
        stage,
        run_at,
        job.queue,
        job.task,
        job.priority,
        _DEFAULT_LEASE if job.lease is DEFAULT_LEASE else span_to_micros(job.lease),
        merged,
        None if job.timeout is None else span_to_micros(job.timeout),
        job.key,
        job.dedupe,
        None if job.dedupe is None else job.scope,
        encoded(job.tags) if job.tags else None,
        None if job.retry is DEFAULT_RETRY else encoded(job.retry),
        job.correlation,
        job.tenant,
        job.parent,
        job.throttle,
        job.trace,
        None if job.task_version == FIRST_VERSION else job.task_version,
        needs or None,
    )


def new_job(  # noqa: PLR0917 - all that the database decides about it
    job: NewJob, job_id: int, version: int, stage: int, run_at: int, needs: int, at: datetime
) -> Job:
    """Return the job that `add_jobs` makes of a new one."""
    return Job(
        id=JobId(job_id),
        version=LogId(version),
        task=job.task,
        payload=job.payload,
        queue=job.queue,
        priority=job.priority,
        state=State.PENDING,
        waiting=STAGES[stage][1],
        attempt=0,
        enqueued_at=at,
        run_at=from_micros(run_at),
        key=job.key,
        dedupe=job.dedupe,
        scope=job.scope,
        tags=tuple(job.tags),
        retry=job.retry,
        timeout=job.timeout,
        lease_time=job.lease,
        correlation=job.correlation,
        tenant=job.tenant,
        parent=job.parent,
        needs=needs,
        throttle=job.throttle,
        trace=job.trace,
        task_version=job.task_version,
    )


def due(job: NewJob, now: int) -> int:
    """Return when a new job may run."""
    if job.delay is not None:
        return now + span_to_micros(job.delay)
    return now if job.run_at is None else to_micros(job.run_at)


def job(row: Sequence[Any]) -> Job:
    """Return the job in a row of the queries `jobs` and `find`."""
    (
        job_id, stage, version, attempt, token, run_at, started_at, expires_at, worker, queue,
        task, priority, enqueued_at, lease_time, payload, rest,
    ) = row  # fmt: skip
    state, waiting = STAGES[stage]
    job = Job(
        id=job_id,
        version=version,
        task=task,
        payload=payload,
        queue=queue,
        priority=priority,
        state=state,
        waiting=waiting,
        attempt=attempt,
        enqueued_at=from_micros(enqueued_at),
        run_at=from_micros(run_at),
        lease_time=DEFAULT_LEASE if lease_time == _DEFAULT_LEASE else span_from_micros(lease_time),
        token=token,
        worker=worker,
        started_at=None if started_at is None else from_micros(started_at),
        expires_at=None if expires_at is None else from_micros(expires_at),
    )
    return job if rest is None else _completed(job, rest)


def _completed(job: Job, rest: str | list[Any]) -> Job:
    """Return the job with the fields that most do not have."""
    (
        finished_at, cancel_requested, needs, timeout, key, dedupe, scope, tags, retry, correlation,
        tenant, parent, throttle, trace, error, result, task_version,
    ) = _rest.decode(rest) if isinstance(rest, str) else rest  # fmt: skip
    return replace(
        job,
        finished_at=None if finished_at is None else from_micros(finished_at),
        cancel_requested=bool(cancel_requested),
        needs=needs,
        timeout=None if timeout is None else span_from_micros(timeout),
        key=key,
        dedupe=dedupe,
        scope=Scope.UNFINISHED if scope is None else Scope(scope),
        tags=() if tags is None else _decode_tags(tags),
        retry=DEFAULT_RETRY if retry is None else _decode_retry(retry),
        correlation=correlation,
        tenant=tenant,
        parent=parent,
        throttle=throttle,
        trace=trace,
        error=error,
        result_json=result,
        task_version=FIRST_VERSION if task_version is None else task_version,
    )


def log_entry(row: Sequence[Any]) -> LogEntry:
    """Return the entry in a row of the query `log`."""
    entry_id, job_id, at, event, state, actor, token, duration, reason, error, detail = row
    return LogEntry(
        id=entry_id,
        job_id=job_id,
        at=from_micros(at),
        event=Event(event),
        state=State(state),
        actor=actor,
        token=token,
        reason=reason,
        error=error,
        duration=None if duration is None else span_from_micros(duration),
        detail=detail,
    )


def edge(row: Sequence[Any]) -> Edge:
    """Return the edge in a row of the query `edges`."""
    needed, job_id, on_failure, resolved = row
    return Edge(
        needed=needed, job_id=job_id, on_failure=OnFailure(on_failure), resolved=bool(resolved)
    )


def edge_row(edge: Edge) -> EdgeRow:
    """Return a row for the query `add_edges`."""
    return edge.needed, edge.job_id, edge.on_failure, edge.resolved


def queue(row: Sequence[Any], now: int) -> Queue:
    """Return the queue in a row of the query `queues`, as it is now."""
    name, paused_until, max_pending, concurrency, rate, rate_window, promote_after = row
    return Queue(
        name=name,
        paused=paused_until > now,
        paused_until=from_micros(paused_until) if now < paused_until < _FOREVER else None,
        max_pending=max_pending,
        concurrency=concurrency,
        rate=None if rate is None else (rate, span_from_micros(rate_window)),
        promote_after=None if promote_after is None else _ages(promote_after),
    )


def ages_from(column: int | str) -> int | tuple[int, ...]:
    """Return when waiting raises a priority: microseconds, or a list of them as JSON."""
    found: int | tuple[int, ...] = _micros_or_several.decode(str(column))
    return found


def _ages(column: int | str) -> Ages:
    micros = ages_from(column)
    if isinstance(micros, int):
        return span_from_micros(micros)
    return tuple(map(span_from_micros, micros))


def _age_column(ages: Ages) -> str:
    if isinstance(ages, tuple):
        return encoded([span_to_micros(age) for age in ages])
    return str(span_to_micros(ages))


def queue_columns(queue: Queue) -> tuple[Any, ...]:
    """Return the parameters of the query `configure`."""
    rate, window = (None, None) if queue.rate is None else queue.rate
    paused_until = _FOREVER if queue.paused_until is None else to_micros(queue.paused_until)
    return (
        queue.name,
        paused_until if queue.paused else 0,
        queue.max_pending,
        queue.concurrency,
        rate,
        None if window is None else span_to_micros(window),
        None if queue.promote_after is None else _age_column(queue.promote_after),
    )
