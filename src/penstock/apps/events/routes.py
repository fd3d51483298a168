"""Routes of the event API."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock import Job
from penstock.apps.events import contents, shapes, views
from penstock.apps.events.events import Events, Report
from penstock.apps.kit import (
    Answer,
    Call,
    Offset,
    Problem,
    Receive,
    answer_to,
    naming_element_of,
    route,
)
from penstock.leases import Done, Failed
from penstock.tokens import Access

_NO_STORE = ((b"cache-control", b"no-store"),)
_STATES = {status: state for state, status in views.STATUSES.items()}


class Look(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to include in an event."""

    include_logs: bool = False


class Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which events to list."""

    status: (
        Literal["PENDING", "PROCESSING", "COMPLETED", "FAILED", "CANCELLED", "SUPERSEDED"] | None
    ) = None
    tags: Annotated[str, Meta(max_length=10_100)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 20
    offset: Offset = 0


class Why(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reason for the log."""

    reason: Annotated[str, Meta(max_length=1_000)] | None = None


class SubscriptionQuery(shapes.Subscription, frozen=True, forbid_unknown_fields=True):
    """A subscription, as query parameters."""

    tags: Annotated[str, Meta(max_length=10_100)]


class EventRoutes:
    """The routes of events."""

    def __init__(self, events: Events) -> None:
        self._events = events

    @route("POST", "/events", Access.PUBLISH, status=201)
    async def publish(self, body: shapes.NewEvent) -> shapes.Published:
        """Publish an event.

        Store an event. It is durable when the answer arrives.
        """
        (event,) = await self._events.publish((body,))
        return event

    @route("POST", "/events/batch", Access.PUBLISH, status=201, body_limit=20_000_000)
    async def publish_many(self, body: shapes.NewEvents) -> shapes.PublishedMany:
        """Publish many events.

        Store up to 1,000 events in one transaction: all of them, or none.
        """
        with naming_element_of("events"):
            published = await self._events.publish(body.events)
        return shapes.PublishedMany(published)

    @route("GET", "/events/subscribe", Access.WORK, also={204: None})
    async def subscribe(
        self, query: SubscriptionQuery, call: Call
    ) -> Answer[shapes.Picked | shapes.PickedMany]:
        """Lease events.

        Lease the next event with any of these tags to the worker.

        With `wait`, the answer comes as soon as there is an event; with `limit`, it is a batch.
        """
        if call.scope["method"] == "HEAD":  # would lease an event without showing it
            raise Problem(405, "HEAD is not allowed here", headers={"Allow": "GET, POST"})
        return await self._subscribe(query, call)

    @route("POST", "/events/subscribe", Access.WORK, also={204: None})
    async def subscribe_by_body(
        self, body: shapes.Subscription, call: Call
    ) -> Answer[shapes.Picked | shapes.PickedMany]:
        """Lease events.

        Same as `GET /events/subscribe`, for clients and proxies that retry a GET on their own.
        """
        return await self._subscribe(body, call)

    async def _subscribe(
        self, wanted: shapes.Subscription, call: Call
    ) -> Answer[shapes.Picked | shapes.PickedMany]:
        jobs = await self._events.subscribe(
            contents.tags_of(wanted.tags),
            wanted.worker_id,
            wanted.limit or 1,
            wanted.wait,
            lambda: _disconnected(call.receive),
            check=call.check,
        )
        if wanted.limit is not None:
            return Answer(200, shapes.PickedMany([views.picked(job) for job in jobs]), _NO_STORE)
        if not jobs:
            return Answer(204, None, _NO_STORE)
        return Answer(200, views.picked(jobs[0]), (*_NO_STORE, *_trace_of(jobs[0])))

    @route("POST", "/events/{event_id}/start", Access.WORK)
    async def start(self, event_id: shapes.EventId, body: shapes.Holding) -> shapes.Recorded:
        """Report a start.

        Record STARTED in the log, and renew the lease.
        """
        job = await self._events.start(event_id, body.worker_id, body.token)
        # The lease was renewed at the moment of the entry.
        assert job.expires_at is not None  # noqa: S101 - it is held
        return views.started(job, body.worker_id, job.expires_at - job.lease_time)

    @route("POST", "/events/{event_id}/heartbeat", Access.WORK)
    async def heartbeat(self, event_id: shapes.EventId, body: shapes.Holding) -> shapes.Renewed:
        """Renew a lease.

        Renew the lease of an event. `cancel_requested` asks the worker to stop.
        """
        job = await self._events.heartbeat(event_id, body.worker_id, body.token)
        return views.renewed(job)

    @route("POST", "/events/{event_id}/release", Access.WORK)
    async def release(self, event_id: shapes.EventId, body: shapes.Holding) -> shapes.Released:
        """Release an event.

        Make an event pending again at once, without using an attempt.
        """
        job = await self._events.release(event_id, body.worker_id, body.token)
        return shapes.Released(
            event_id=job.id, worker_id=body.worker_id, status=views.STATUSES[job.state]
        )

    @route("POST", "/events/{event_id}/complete", Access.WORK)
    async def complete(
        self, event_id: shapes.EventId, body: shapes.Completion
    ) -> Answer[shapes.Recorded]:
        """Report success.

        Mark an event as completed. A repeated call gets the same answer.
        """
        (answer,) = await self._events.report(body.worker_id, [_completion(event_id, body)])
        return _answered(answer)

    @route("POST", "/events/{event_id}/fail", Access.WORK, also={400: shapes.Exhausted})
    async def fail(self, event_id: shapes.EventId, body: shapes.Failure) -> Answer[shapes.Recorded]:
        """Report a failure.

        Record a failed attempt and schedule the next, or mark the event as failed.

        The last failure is recorded, and answered with 400. A repeated call gets the same answer.
        """
        (answer,) = await self._events.report(body.worker_id, [_failure(event_id, body)])
        return _answered(answer)

    @route("POST", "/events/complete", Access.WORK, body_limit=20_000_000)
    async def complete_many(self, body: shapes.Completions) -> shapes.ReportedMany:
        """Report many successes.

        Mark events of one worker as completed, in one transaction; each has its own answer.
        """
        return await self._report_all(
            body.worker_id, [_completion(one.id, one) for one in body.events]
        )

    @route("POST", "/events/fail", Access.WORK, body_limit=20_000_000)
    async def fail_many(self, body: shapes.Failures) -> shapes.ReportedMany:
        """Report many failures.

        Record failed attempts of one worker, in one transaction; each has its own answer.
        """
        return await self._report_all(
            body.worker_id, [_failure(one.id, one) for one in body.events]
        )

    async def _report_all(self, worker: str, reports: Sequence[Report]) -> shapes.ReportedMany:
        answers = await self._events.report(worker, reports)
        return shapes.ReportedMany(
            [
                views.reported(one.event_id, answer)
                for one, answer in zip(reports, answers, strict=True)
            ]
        )

    @route("POST", "/events/{event_id}/reset", Access.ADMIN)
    async def reset(self, event_id: shapes.EventId, query: Why) -> shapes.Published:
        """Reset an event.

        Make an event pending with all its attempts, even if a worker has it.
        """
        job = await self._events.reset(event_id, query.reason)
        return views.published(job, job.run_at, self._events.secrets)

    @route("GET", "/events/{event_id}", Access.READ)
    async def get(self, event_id: shapes.EventId, query: Look) -> shapes.Published:
        """Get an event.

        Return an event as it is now, with its log if requested.
        """
        record = await self._events.get(event_id)
        logs = list(views.log_lines(record.log)) if query.include_logs else msgspec.UNSET
        return views.as_it_is(record, self._events.secrets, logs)

    @route("GET", "/events", Access.READ)
    async def page(self, query: Listing) -> shapes.Page:
        """List events.

        Return events by status and tags, newest first.
        """
        records, total = await self._events.page(
            None if query.status is None else _STATES[query.status],
            () if query.tags is None else contents.tags_of(query.tags),
            query.limit,
            query.offset,
        )
        return shapes.Page(
            events=[views.listed(record, self._events.secrets) for record in records],
            total=total,
            limit=query.limit,
            offset=query.offset,
        )


def _trace_of(job: Job) -> tuple[tuple[bytes, bytes], ...]:
    """Return the header with which a worker continues the publisher's trace."""
    return () if job.trace is None else ((b"traceparent", job.trace.encode()),)


def _completion(event_id: int, body: Any) -> Report:
    said = shapes.Detail(body.status_code, body.execution_time_ms)
    return Report(event_id, body.token, Done(detail=_kept(said)), said)


def _failure(event_id: int, body: Any) -> Report:
    said = shapes.Detail(body.status_code, body.execution_time_ms)
    return Report(event_id, body.token, Failed(body.error_message or "", detail=_kept(said)), said)


def _kept(said: shapes.Detail) -> str | None:
    text = contents.encode(said).decode()
    return None if text == "{}" else text


def _answered(answer: shapes.Recorded | shapes.Exhausted | Problem) -> Answer[Any]:
    if isinstance(answer, Problem):
        return answer_to(answer)
    return Answer(400 if isinstance(answer, shapes.Exhausted) else 200, answer)


async def _disconnected(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
