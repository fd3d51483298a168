"""The event API: thin routes over `Events`."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock import Done, Failed, Job
from penstock.apps.events import contents, shapes, views
from penstock.apps.events.events import Events, Report
from penstock.core.token import Access
from penstock.http.bodies import Receive
from penstock.http.problems import Problem, naming_element_of
from penstock.http.routes import Answer, Call, answer_to, route

_NO_STORE = ((b"cache-control", b"no-store"),)
_STATES = {status: state for state, status in views.STATUSES.items()}


class Look(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to show of an event."""

    include_logs: bool = False


class Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which events to list."""

    status: (
        Literal["PENDING", "PROCESSING", "COMPLETED", "FAILED", "CANCELLED", "SUPERSEDED"] | None
    ) = None
    tags: Annotated[str, Meta(max_length=10_100)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 20
    offset: Annotated[int, Meta(ge=0, le=100_000)] = 0


class Why(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why something is done, for the log."""

    reason: Annotated[str, Meta(max_length=1_000)] | None = None


class SubscriptionQuery(shapes.Subscription, frozen=True, forbid_unknown_fields=True):
    """What a worker asks for, as parameters."""

    tags: Annotated[str, Meta(max_length=10_100)]


class EventRoutes:
    """What the server serves of events."""

    def __init__(self, events: Events) -> None:
        self._events = events

    @route(
        "POST",
        "/events",
        Access.PUBLISH,
        "Publish an event",
        answers={201: shapes.Published},
    )
    async def publish(self, body: shapes.NewEvent) -> Answer:
        """Store an event. It is durable when this is answered."""
        (event,) = await self._events.publish((body,))
        return Answer(201, event)

    @route(
        "POST",
        "/events/batch",
        Access.PUBLISH,
        "Publish many events",
        answers={201: shapes.PublishedMany},
        body_limit=20_000_000,
    )
    async def publish_many(self, body: shapes.NewEvents) -> Answer:
        """Store up to 1,000 events in one transaction: all of them, or none."""
        with naming_element_of("events"):
            published = await self._events.publish(body.events)
        return Answer(201, shapes.PublishedMany(published))

    @route(
        "GET",
        "/events/subscribe",
        Access.WORK,
        "Pick events",
        answers={200: shapes.Picked | shapes.PickedMany, 204: None},
    )
    async def subscribe(self, query: SubscriptionQuery, call: Call) -> Answer:
        """Take the next event with any of these tags, and hold it until its lease is over.

        With `wait`, the answer comes as soon as there is one; with `limit`, it is a batch.
        """
        if call.scope["method"] == "HEAD":  # would pick an event and show it to nobody
            raise Problem(405, "HEAD is no method of this path", headers={"Allow": "GET, POST"})
        return await self._subscribe(query, call)

    @route(
        "POST",
        "/events/subscribe",
        Access.WORK,
        "Pick events",
        answers={200: shapes.Picked | shapes.PickedMany, 204: None},
    )
    async def subscribe_by_body(self, body: shapes.Subscription, call: Call) -> Answer:
        """As `GET /events/subscribe`, for clients and proxies that repeat a GET by themselves."""
        return await self._subscribe(body, call)

    async def _subscribe(self, wanted: shapes.Subscription, call: Call) -> Answer:
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

    @route(
        "POST",
        "/events/{event_id}/start",
        Access.WORK,
        "Say that work has begun",
        answers={200: shapes.Recorded},
    )
    async def start(self, event_id: shapes.EventId, body: shapes.Holding) -> shapes.Recorded:
        """Note STARTED in the log; the lease goes on from now."""
        job = await self._events.start(event_id, body.worker_id, body.token)
        # The lease goes on from the moment of the entry.
        assert job.expires_at is not None  # noqa: S101 - it is held
        return views.started(job, body.worker_id, job.expires_at - job.lease_time)

    @route(
        "POST",
        "/events/{event_id}/heartbeat",
        Access.WORK,
        "Keep an event",
        answers={200: shapes.Renewed},
    )
    async def heartbeat(self, event_id: shapes.EventId, body: shapes.Holding) -> shapes.Renewed:
        """Let the lease go on from now. `cancel_requested` asks the worker to stop."""
        job = await self._events.heartbeat(event_id, body.worker_id, body.token)
        return views.renewed(job)

    @route(
        "POST",
        "/events/{event_id}/release",
        Access.WORK,
        "Give an event back",
        answers={200: shapes.Released},
    )
    async def release(self, event_id: shapes.EventId, body: shapes.Holding) -> shapes.Released:
        """Make an event pending again at once, without using up an attempt."""
        job = await self._events.release(event_id, body.worker_id, body.token)
        return shapes.Released(
            event_id=job.id, worker_id=body.worker_id, status=views.STATUSES[job.state]
        )

    @route(
        "POST",
        "/events/{event_id}/complete",
        Access.WORK,
        "Report success",
        answers={200: shapes.Recorded},
    )
    async def complete(self, event_id: shapes.EventId, body: shapes.Completion) -> Answer:
        """Mark an event as completed. Repeating the call gives the same answer."""
        (answer,) = await self._events.report(body.worker_id, [_completion(event_id, body)])
        return _answered(answer)

    @route(
        "POST",
        "/events/{event_id}/fail",
        Access.WORK,
        "Report a failure",
        answers={200: shapes.Recorded, 400: shapes.Exhausted},
    )
    async def fail(self, event_id: shapes.EventId, body: shapes.Failure) -> Answer:
        """Note a failed attempt and schedule the next, or mark the event as failed.

        The last failure is recorded, then answered with 400. Repeating the call gives the same
        answer.
        """
        (answer,) = await self._events.report(body.worker_id, [_failure(event_id, body)])
        return _answered(answer)

    @route(
        "POST",
        "/events/complete",
        Access.WORK,
        "Report many successes",
        answers={200: shapes.ReportedMany},
        body_limit=20_000_000,
    )
    async def complete_many(self, body: shapes.Completions) -> shapes.ReportedMany:
        """Mark events of one worker as completed, in one transaction; each is answered itself."""
        return await self._report_all(
            body.worker_id, [_completion(one.id, one) for one in body.events]
        )

    @route(
        "POST",
        "/events/fail",
        Access.WORK,
        "Report many failures",
        answers={200: shapes.ReportedMany},
        body_limit=20_000_000,
    )
    async def fail_many(self, body: shapes.Failures) -> shapes.ReportedMany:
        """Note failed attempts of one worker, in one transaction; each is answered itself."""
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

    @route(
        "POST",
        "/events/{event_id}/reset",
        Access.ADMIN,
        "Reset an event",
        answers={200: shapes.Published},
    )
    async def reset(self, event_id: shapes.EventId, query: Why) -> shapes.Published:
        """Make an event pending with all its attempts, also when a worker holds it."""
        job = await self._events.reset(event_id, query.reason)
        return views.published(job, job.run_at, self._events.secrets)

    @route(
        "GET",
        "/events/{event_id}",
        Access.READ,
        "Look at an event",
        answers={200: shapes.Published},
    )
    async def get(self, event_id: shapes.EventId, query: Look) -> shapes.Published:
        """An event as it is now, with its log if asked for."""
        record = await self._events.get(event_id)
        logs = list(views.log_lines(record.log)) if query.include_logs else msgspec.UNSET
        return views.as_it_is(record, self._events.secrets, logs)

    @route(
        "GET",
        "/events",
        Access.READ,
        "List events",
        answers={200: shapes.Page},
    )
    async def page(self, query: Listing) -> shapes.Page:
        """Events by status and tags, newest first."""
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
    """The header by which a worker goes on with the publisher's trace."""
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


def _answered(answer: shapes.Recorded | shapes.Exhausted | Problem) -> Answer:
    if isinstance(answer, Problem):
        return answer_to(answer)
    return Answer(400 if isinstance(answer, shapes.Exhausted) else 200, answer)


async def _disconnected(receive: Receive) -> None:
    """Returns when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass
