"""Operations as events: their status, waiting for them, and how their errors are answered."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Annotated, Any, TypeVar, cast

from msgspec import Meta

from penstock import Job, JobFailed, JobNotFound, JobQuery, Penstock, State
from penstock.apps.kit import Answer, Problem, Statuses, route
from penstock.apps.notebooks import requests, shapes, tables
from penstock.apps.notebooks.disk.tree import TooLarge
from penstock.apps.notebooks.errors import (
    Exists,
    Locked,
    Missing,
    NotebookError,
    PathRefused,
    Permanent,
    Transient,
    Unavailable,
)
from penstock.apps.notebooks.operations.operation import QUEUE, correlation_of
from penstock.apps.notebooks.operations.publisher import Conflict, Publisher
from penstock.apps.notebooks.registry import Registry
from penstock.tokens import Access

EventId = Annotated[int, Meta(ge=1, le=2**62)]
CorrelationId = Annotated[str, Meta(min_length=1, max_length=200)]
STATUSES = Statuses(
    {
        NotebookError: 500,
        Unavailable: 503,
        Transient: 503,
        Permanent: 422,
        PathRefused: 422,
        Missing: 404,
        Exists: 409,
        Locked: 409,
        Conflict: 409,
        TooLarge: 413,
    },
    transient=(Transient,),
)
F = TypeVar("F", bound=Callable[..., Any])
_BATCH = 1_000
_DAY = timedelta(days=1)
_FINAL_STATES = (State.FAILED, State.CANCELLED)


def answering(handler: F) -> F:
    """Answer the errors of notebooks with their statuses."""

    @wraps(handler)
    async def answer(*args: Any, **given: Any) -> Any:
        with STATUSES.answering():
            try:
                return await handler(*args, **given)
            except Conflict as error:
                return conflict(str(error), error.expected, error.actual)

    return cast("F", answer)


def conflict(detail: str, expected: int, actual: int) -> Answer[Any]:
    """Return the answer to a change that is based on an old version."""
    body = shapes.Conflicting(detail=detail, expected_version=expected, version=actual)
    return Answer(409, body)


def late(job: Job) -> Answer[Any]:
    """Return the answer for an operation that has not ended in time."""
    event = shapes.event_shape(job)
    return Answer(
        408, shapes.StillWaiting(detail=f"event {job.id} is still {event.status}", event=event)
    )


def failure(job: Job) -> Problem:
    """Return the problem of an operation that ended without success."""
    if job.state is not State.FAILED:
        return Problem(409, f"event {job.id} is {shapes.STATUSES[job.state]}")
    return Problem(STATUSES.named(error_name(job)), shapes.headline(job.error or ""))


def error_name(job: Job) -> str:
    """Return the class name of the error that an operation failed with."""
    line = (job.error or "").strip().partition("\n")[0]
    return line.partition(":")[0].rpartition(".")[2]


class Events:
    """Finds operations, waits for them and counts them."""

    def __init__(self, penstock: Penstock, registry: Registry) -> None:
        self._penstock = penstock
        self._registry = registry
        self._stopping = asyncio.Event()

    def stop_waiting(self) -> None:
        """Answer all waiting requests now, because the server stops."""
        self._stopping.set()

    async def get(self, event_id: int) -> Job:
        """Return the job of an operation; raises `Missing`."""
        self._registry.check_available()
        try:
            job = await self._penstock.get(event_id)
        except (JobNotFound, OverflowError):
            raise Missing(f"there is no event {event_id}") from None
        if job.queue != QUEUE:
            raise Missing(f"there is no event {event_id}")
        return job

    async def ended(self, event_id: int, timeout: float) -> Job:
        """Wait until an operation ends, the timeout passes, or the server stops."""
        job = await self.get(event_id)
        if job.state.final:
            return job
        ends = [
            asyncio.create_task(self._end_of(job, timeout)),
            asyncio.create_task(self._stopping.wait()),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        return await self.get(event_id)

    async def _end_of(self, job: Job, timeout: float) -> bool:
        with suppress(JobFailed, JobNotFound, TimeoutError):
            await self._penstock.result(job, timeout=timedelta(seconds=timeout))
        return True

    async def batch(self, batch: str) -> list[Job]:
        """Return the operations of a batch in order; raises `Missing`."""
        self._registry.check_available()
        earlier = await self._correlated(batch)  # stored by a version without the prefix
        found = [*earlier, *await self._correlated(correlation_of(batch))]
        if not found:
            raise Missing(f"there is no batch {batch!r}")
        return found

    async def _correlated(self, correlation: str) -> list[Job]:
        found: list[Job] = []
        while len(found) < _BATCH:
            query = JobQuery(
                queue=QUEUE,
                correlation=correlation,
                after=found[-1].id if found else None,
                newest_first=False,
                limit=_BATCH,
            )
            some = await self._penstock.find(query)
            found += some
            if len(some) < _BATCH:
                break
        return found

    async def metrics(self) -> shapes.OperationMetrics:
        """Count operations by state, and the paths that wait for a commit."""
        names = {one.id: one.name for one in await self._registry.all()}
        totals = dict.fromkeys(State, 0)
        for (queue, state, _), n in (await self._penstock.count([QUEUE])).items():
            if queue == QUEUE:
                totals[state] += n
        failed = frozenset({State.FAILED})
        before = JobQuery(queue=QUEUE, states=failed, before=datetime.now(UTC) - _DAY)
        old = await self._penstock.bulk(before).count()
        waiting = await self._penstock.tables.read(tables.count_uncommitted)
        return shapes.OperationMetrics(
            **{shapes.STATUSES[state]: n for state, n in totals.items()},
            failed_24h=max(totals[State.FAILED] - old, 0),
            uncommitted={names[one]: n for one, n in waiting.items() if one in names},
        )

    async def current_version(self, job: Job) -> int:
        """Return the current version of the file that an operation was about."""
        operation = shapes.operation_of(job)
        found = await self._penstock.tables.read(
            lambda tx: tables.file_at(tx, operation.notebook, operation.path)
        )
        return found.version if found else 0


class OperationRoutes:
    """The routes for operations."""

    def __init__(self, events: Events, publisher: Publisher, registry: Registry) -> None:
        self._events = events
        self._publisher = publisher
        self._registry = registry

    @route("GET", "/api/v1/events/metrics", Access.READ)
    @answering
    async def metrics(self) -> shapes.OperationMetrics:
        """Count operations.

        Returns the number of operations by status, and of paths that wait for a commit.
        """
        return await self._events.metrics()

    @route(
        "POST",
        "/api/v1/events/commit",
        Access.PUBLISH,
        also={202: shapes.CommitsAccepted, 408: shapes.StillWaiting},
        examples={"body": {"notebook": "garden"}},
    )
    @answering
    async def commit(
        self, body: requests.CommitRequest, query: requests.How
    ) -> Answer[shapes.CommitsAccepted]:
        """Commit now.

        Commits what has changed in a notebook, or in all, without waiting for the interval.
        """
        if body.notebook is None:
            wanted = [one for one in await self._registry.all() if one.git]
        else:
            wanted = [await self._registry.find(body.notebook)]
        jobs = [await self._publisher.publish_commit(one.id) for one in wanted]
        for n, job in enumerate(jobs) if query.sync else ():
            jobs[n] = ended = await self._events.ended(job.id, query.timeout)
            if not ended.state.final:
                return late(ended)
            if ended.state in _FINAL_STATES:
                raise failure(ended)
        shown = [
            shapes.OperationAccepted(event_id=job.id, status=shapes.STATUSES[job.state], path="")
            for job in jobs
        ]
        return Answer(200 if query.sync else 202, shapes.CommitsAccepted(shown))

    @route("GET", "/api/v1/events/correlation/{correlation_id}", Access.READ)
    @answering
    async def correlation(self, correlation_id: CorrelationId) -> shapes.EventBatch:
        """Show a batch.

        Returns the operations of a batch in order, and their number by status.
        """
        events = [shapes.event_shape(job) for job in await self._events.batch(correlation_id)]
        counts = dict.fromkeys(shapes.STATUSES.values(), 0)
        for event in events:
            counts[event.status] += 1
        return shapes.EventBatch(
            correlation_id=correlation_id,
            status=_status(counts),
            total=len(events),
            events=events,
            **counts,
        )

    @route("GET", "/api/v1/events/{event_id}", Access.READ)
    @answering
    async def event(self, event_id: EventId) -> shapes.EventShape:
        """Show an operation."""
        return shapes.event_shape(await self._events.get(event_id))

    @route("GET", "/api/v1/events/{event_id}/wait", Access.READ, also={408: shapes.StillWaiting})
    @route("POST", "/api/v1/events/{event_id}/wait", Access.READ, also={408: shapes.StillWaiting})
    @answering
    async def wait(
        self, event_id: EventId, query: requests.EventWaiting
    ) -> Answer[shapes.EventShape]:
        """Wait for an operation.

        Answers when the operation has ended, successfully or not; 408 with its status otherwise.
        """
        job = await self._events.ended(event_id, query.timeout)
        return Answer(200, shapes.event_shape(job)) if job.state.final else late(job)


def _status(counts: dict[str, int]) -> str:
    """Return the status of a batch as a whole."""
    if counts["processing"] or (counts["pending"] and counts["completed"]):
        return "processing"
    if counts["pending"]:
        return "pending"
    return "failed" if counts["failed"] or counts["cancelled"] else "completed"
