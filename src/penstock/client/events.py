"""The calls of the event API, for both clients: each builds a request and reads its answer."""

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from penstock.client.connection import Connection
from penstock.client.values import (
    Event,
    EventPage,
    Hold,
    NewEvent,
    Report,
    event_of,
    wire_of,
)
from penstock.client.wire import Request
from penstock.core.decode_errors import mismatch
from penstock.core.errors import InvalidJob, LeaseLost, PenstockError, StoreError

T = TypeVar("T")
Events = list[Event]
Reports = list[Report]
Tags = str | Sequence[str]

NO_TIME = timedelta(0)
_log = logging.getLogger(__name__)
_EXHAUSTED = frozenset({400})
_HELD_ELSEWHERE = frozenset({404, 409})


class _Picked(msgspec.Struct, frozen=True):
    """Events that are not decoded yet."""

    events: list[msgspec.Raw]


class EventCalls:
    """Publishes events, leases them, and reports their outcomes."""

    _connection: Connection
    worker: str

    # Publishing

    async def publish(
        self,
        title: str,
        tags: Tags,
        payload: Any = None,
        *,
        description: str | None = None,
        priority: int | None = None,
        max_retries: int | None = None,
        retry_delay: timedelta | None = None,
        delay: timedelta | None = None,
        key: str | None = None,
        dedupe: str | None = None,
    ) -> Event:
        """Store an event; it is durable when this returns.

        A call without an answer is retried under a dedupe key of its own, so that the event is
        not stored twice while it is unfinished.
        """
        new = NewEvent(
            title,
            tags if isinstance(tags, str) else tuple(tags),
            payload,
            description=description,
            priority=priority,
            max_retries=max_retries,
            retry_delay=retry_delay,
            delay=delay,
            key=key,
            dedupe=dedupe,
        )
        request = Request(
            "POST", "/events", body=wire_of(new, self._connection.dedupe_key()), invalid=InvalidJob
        )
        return _event(await self._connection.ask(request, dict[str, Any]))

    async def publish_many(self, events: Sequence[NewEvent]) -> Events:
        """Store up to 1,000 events in one transaction, all or none, and return them in order."""
        once = self._connection.dedupe_key()
        body = [
            wire_of(event, None if once is None else f"{once}/{n}")
            for n, event in enumerate(events)
        ]
        request = Request("POST", "/events/batch", body={"events": body}, invalid=InvalidJob)
        return _events(await self._connection.ask(request, dict[str, Any]))

    # Leases

    async def subscribe(self, tags: Tags, *, limit: int = 1, wait: timedelta = NO_TIME) -> Events:
        """Claim up to `limit` events with any of these tags.

        With `wait`, of up to a minute, the call returns as soon as there is an event, or nothing
        after that time. The lease expires unless `heartbeat` renews it.
        """
        body = {
            "tags": tags if isinstance(tags, str) else list(tags),
            "worker_id": self.worker,
            "limit": limit,
            "wait": wait.total_seconds(),
        }
        request = Request("POST", "/events/subscribe", body=body, patience=wait.total_seconds())
        answer = await self._connection.ask(request, _Picked)
        return [event for raw in answer.events if (event := await self._read(raw)) is not None]

    async def _read(self, raw: msgspec.Raw) -> Event | None:
        """Decode one event; one that cannot be decoded fails alone, not with the others."""
        try:
            return _event(msgspec.json.decode(raw))
        except (msgspec.MsgspecError, RecursionError) as error:
            _log.warning("an event cannot be decoded: %s", error)
            reason = f"the payload cannot be decoded: {error}"
        try:
            fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
            known = {
                name: msgspec.json.decode(fields[name]) for name in fields.keys() - {"payload"}
            }
            await self.fail(_event(known), reason)
        except (msgspec.MsgspecError, RecursionError, PenstockError) as error:
            _log.warning("its failure cannot be reported, and its lease expires: %s", error)
        return None

    async def start(self, event: Event) -> None:
        """Record in the log that work has started, and renew the lease. Raises `LeaseLost`."""
        await self._connection.ask(self._about(event, "start"), dict[str, Any])

    async def heartbeat(self, event: Event) -> Hold:
        """Renew the lease. Raises `LeaseLost`."""
        return await self._connection.ask(self._about(event, "heartbeat"), Hold)

    async def release(self, event: Event) -> None:
        """Return an event to its queue without using up an attempt. Raises `LeaseLost`."""
        await self._connection.ask(self._about(event, "release"), dict[str, Any])

    # Outcomes

    async def complete(
        self, event: Event, *, took: timedelta | None = None, status_code: int | None = None
    ) -> Report:
        """Report success. Idempotent. Raises `LeaseLost`."""
        request = self._about(event, "complete", **_told(took, status_code))
        return _report(event.id, await self._connection.ask(request, dict[str, Any]))

    async def fail(
        self,
        event: Event,
        error: str,
        *,
        took: timedelta | None = None,
        status_code: int | None = None,
    ) -> Report:
        """Report a failed attempt. Idempotent. Raises `LeaseLost`."""
        request = self._about(event, "fail", error_message=error, **_told(took, status_code))
        request = request._replace(accepts=_EXHAUSTED)
        answer = await self._connection.ask(request, dict[str, Any])
        if "detail" in answer:  # 400 also means that a body was not understood
            raise InvalidJob(answer["detail"])
        return _report(event.id, answer)

    async def complete_many(self, events: Sequence[Event]) -> Reports:
        """Report up to 1,000 successes in one transaction, with an answer for each.

        A lost lease does not affect the others.
        """
        return await self._report_all("complete", [{"id": e.id, "token": e.token} for e in events])

    async def fail_many(self, failures: Sequence[tuple[Event, str]]) -> Reports:
        """Report up to 1,000 failed attempts with their errors; see `complete_many`."""
        return await self._report_all(
            "fail",
            [{"id": e.id, "token": e.token, "error_message": error} for e, error in failures],
        )

    async def _report_all(self, verb: str, events: Sequence[Mapping[str, Any]]) -> Reports:
        body = {"worker_id": self.worker, "events": events}
        request = Request("POST", f"/events/{verb}", body=body)
        answers = await self._connection.ask(request, dict[str, Any])
        return [_report(one["event_id"], one) for one in answers["events"]]

    def _about(self, event: Event, verb: str, **body: Any) -> Request:
        def lost(_: str) -> PenstockError:
            return LeaseLost(event.id, event.token or 0)

        return Request(
            "POST",
            f"/events/{event.id}/{verb}",
            body={"worker_id": self.worker, "token": event.token, **body},
            conflict=lost,
        )

    # Events

    async def get(self, event_id: int, *, logs: bool = False) -> Event:
        """Return an event as it is now, with its log if requested. Raises `JobNotFound`."""
        params = {"include_logs": "true"} if logs else None
        request = Request("GET", f"/events/{event_id}", params=params)
        return _event(await self._connection.ask(request, dict[str, Any]))

    async def reset(self, event_id: int, reason: str | None = None) -> Event:
        """Make an event pending with all its attempts, even if a worker has it."""
        params = None if reason is None else {"reason": reason}
        request = Request("POST", f"/events/{event_id}/reset", params=params, repeats=False)
        return _event(await self._connection.ask(request, dict[str, Any]))

    async def list(
        self,
        *,
        status: str | None = None,
        tags: Tags | None = None,
        limit: int = 20,
        offset: int = 0,
    ) -> EventPage:
        """Return events by status and tags, newest first.

        A status is `PENDING`, `PROCESSING`, `COMPLETED` or `FAILED`.
        """
        params: dict[str, Any] = {"limit": limit, "offset": offset}
        if status is not None:
            params["status"] = status
        if tags is not None:
            params["tags"] = tags if isinstance(tags, str) else ",".join(tags)
        answer = await self._connection.ask(
            Request("GET", "/events", params=params), dict[str, Any]
        )
        return EventPage(
            events=_events(answer),
            total=answer["total"],
            limit=answer["limit"],
            offset=answer["offset"],
        )


def _told(took: timedelta | None, status_code: int | None) -> dict[str, int]:
    body = {} if took is None else {"execution_time_ms": round(took.total_seconds() * 1000)}
    return body if status_code is None else {**body, "status_code": status_code}


def _event(answer: dict[str, Any]) -> Event:
    try:
        return event_of(answer)
    except (msgspec.ValidationError, AttributeError) as error:
        reason = mismatch(error, Event)
        raise StoreError(f"the answer of the server has an unknown form: {reason}") from error


def _events(answer: dict[str, Any]) -> Events:
    found = answer.get("events")
    if not isinstance(found, list):
        raise StoreError("the answer of the server has an unknown form")
    return [_event(one) for one in found]


def _report(event_id: int, answer: dict[str, Any]) -> Report:
    lost = answer.get("status") in _HELD_ELSEWHERE
    next_retry_at = answer.get("next_retry_at")
    return msgspec.convert(
        {
            "event_id": event_id,
            "recorded": not lost,
            "detail": answer.get("detail"),
            "next_retry_at": next_retry_at,
        },
        Report,
    )
