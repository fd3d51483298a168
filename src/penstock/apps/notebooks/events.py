"""The API of operations as events: how they stand, and when they end."""

from typing import Annotated

from msgspec import Meta

from penstock import Access, State
from penstock.apps.notebooks import requests, shapes
from penstock.apps.notebooks.answers import answering, failure, late
from penstock.apps.notebooks.library import Library
from penstock.apps.notebooks.routes import check_available
from penstock.apps.notebooks.service import Notebooks
from penstock.http.routes import Answer, route

EventId = Annotated[int, Meta(ge=1, le=2**62)]
CorrelationId = Annotated[str, Meta(min_length=1, max_length=200)]
_FINAL_STATES = (State.FAILED, State.CANCELLED)


class OperationRoutes:
    """What the server serves of operations."""

    def __init__(self, notebooks: Notebooks, library: Library) -> None:
        self._notebooks = notebooks
        self._library = library

    @route(
        "GET",
        "/api/v1/events/metrics",
        Access.READ,
        "Count operations",
        answers={200: shapes.OperationMetrics},
    )
    @answering
    async def metrics(self) -> shapes.OperationMetrics:
        """How many operations there are by status, and how many paths wait for a commit."""
        check_available(self._library)
        return await self._notebooks.metrics()

    @route(
        "POST",
        "/api/v1/events/commit",
        Access.PUBLISH,
        "Commit now",
        answers={
            200: shapes.CommitsAccepted,
            202: shapes.CommitsAccepted,
            408: shapes.StillWaiting,
        },
        examples={"body": {"notebook": "garden"}},
    )
    @answering
    async def commit(self, body: requests.CommitRequest, query: requests.How) -> Answer:
        """Commit what has changed in a notebook, or in all, without waiting for the interval."""
        check_available(self._library)
        if body.notebook is None:
            wanted = [one for one in await self._library.all() if one.git]
        else:
            wanted = [await self._library.find(body.notebook)]
        jobs = [await self._notebooks.commit(one) for one in wanted]
        for n, job in enumerate(jobs) if query.sync else ():
            jobs[n] = ended = await self._notebooks.ended(job.id, query.timeout)
            if not ended.state.final:
                return late(ended)
            if ended.state in _FINAL_STATES:
                raise failure(ended)
        shown = [
            shapes.OperationAccepted(event_id=job.id, status=shapes.STATUSES[job.state], path="")
            for job in jobs
        ]
        return Answer(200 if query.sync else 202, shapes.CommitsAccepted(shown))

    @route(
        "GET",
        "/api/v1/events/correlation/{correlation_id}",
        Access.READ,
        "Look at a batch",
        answers={200: shapes.EventBatch},
    )
    @answering
    async def correlation(self, correlation_id: CorrelationId) -> shapes.EventBatch:
        """The operations of a batch in their order, and how many there are by status."""
        check_available(self._library)
        events = [shapes.event_shape(job) for job in await self._notebooks.batch(correlation_id)]
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

    @route(
        "GET",
        "/api/v1/events/{event_id}",
        Access.READ,
        "Look at an operation",
        answers={200: shapes.EventShape},
    )
    @answering
    async def event(self, event_id: EventId) -> shapes.EventShape:
        """An operation as it stands."""
        check_available(self._library)
        return shapes.event_shape(await self._notebooks.event(event_id))

    @route(
        "GET",
        "/api/v1/events/{event_id}/wait",
        Access.READ,
        "Wait for an operation",
        answers={200: shapes.EventShape, 408: shapes.StillWaiting},
    )
    @route(
        "POST",
        "/api/v1/events/{event_id}/wait",
        Access.READ,
        "Wait for an operation",
        answers={200: shapes.EventShape, 408: shapes.StillWaiting},
    )
    @answering
    async def wait(self, event_id: EventId, query: requests.EventWaiting) -> Answer:
        """Answer when the operation has ended, however that is; 408 with how it stands if not."""
        check_available(self._library)
        job = await self._notebooks.ended(event_id, query.timeout)
        return Answer(200, shapes.event_shape(job)) if job.state.final else late(job)


def _status(counts: dict[str, int]) -> str:
    """How a batch stands as a whole."""
    if counts["processing"] or (counts["pending"] and counts["completed"]):
        return "processing"
    if counts["pending"]:
        return "pending"
    return "failed" if counts["failed"] or counts["cancelled"] else "completed"
