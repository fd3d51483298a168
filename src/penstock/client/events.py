"""The calls of the event API: each builds its request and reads its answer, for both clients."""

import logging
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from penstock.client.line import Line
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
from penstock.core.errors import InvalidJob, LeaseLost, PenstockError, StoreError
from penstock.core.mismatch import mismatch

T = TypeVar("T")
Events = list[Event]
Reports = list[Report]
Tags = str | Sequence[str]

NO_TIME = timedelta(0)
_log = logging.getLogger(__name__)
_EXHAUSTED = frozenset({400})
_HELD_ELSEWHERE = frozenset({404, 409})


class _Picked(msgspec.Struct, frozen=True):
    """Events as they came, each to be read for itself."""

    events: list[msgspec.Raw]


class EventCalls:
    """Publishing events, holding them, and reporting what came of them."""

    _line: Line
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

        A call without an answer is repeated under a dedupe key of its own, so that the event is
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
        request = Request("POST", "/events", body=wire_of(new, self._once()), invalid=InvalidJob)
        return _event(await self._line.ask(request, dict[str, Any]))

    async def publish_many(self, events: Sequence[NewEvent]) -> Events:
        """Store up to 1,000 events in one transaction, all or none; the answer has their order."""
        once = self._once()
        body = [
            wire_of(event, None if once is None else f"{once}/{n}")
            for n, event in enumerate(events)
        ]
        request = Request("POST", "/events/batch", body={"events": body}, invalid=InvalidJob)
        return _events(await self._line.ask(request, dict[str, Any]))

    def _once(self) -> str | None:
        """A dedupe key that makes it safe to repeat a call; none if calls are not repeated."""
        return f"client/{uuid.uuid4().hex}" if self._line.retries else None

    # Holding

    async def subscribe(self, tags: Tags, *, limit: int = 1, wait: timedelta = NO_TIME) -> Events:
        """Pick up to `limit` events with any of these tags, and hold them.

        With `wait`, up to a minute, the answer comes as soon as there is one; none after that
        time. A hold ends by itself, unless `heartbeat` prolongs it.
        """
        body = {
            "tags": tags if isinstance(tags, str) else list(tags),
            "worker_id": self.worker,
            "limit": limit,
            "wait": wait.total_seconds(),
        }
        request = Request("POST", "/events/subscribe", body=body, patience=wait.total_seconds())
        answer = await self._line.ask(request, _Picked)
        return [event for raw in answer.events if (event := await self._read(raw)) is not None]

    async def _read(self, raw: msgspec.Raw) -> Event | None:
        """Read one event; one that cannot be read fails by itself, without those beside it."""
        try:
            return _event(msgspec.json.decode(raw))
        except (msgspec.MsgspecError, RecursionError) as error:
            _log.warning("an event cannot be read: %s", error)
            reason = f"the payload cannot be read: {error}"
        try:
            fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
            known = {
                name: msgspec.json.decode(fields[name]) for name in fields.keys() - {"payload"}
            }
            await self.fail(_event(known), reason)
        except (msgspec.MsgspecError, RecursionError, PenstockError) as error:
            _log.warning("what became of it is not reported, its lease runs out: %s", error)
        return None

    async def start(self, event: Event) -> None:
        """Note in the log that work has begun; the lease goes on from now. Raises `LeaseLost`."""
        await self._line.ask(self._about(event, "start"), dict[str, Any])

    async def heartbeat(self, event: Event) -> Hold:
        """Let the lease go on from now. Raises `LeaseLost`."""
        return await self._line.ask(self._about(event, "heartbeat"), Hold)

    async def release(self, event: Event) -> None:
        """Give an event back at once, without using up an attempt. Raises `LeaseLost`."""
        await self._line.ask(self._about(event, "release"), dict[str, Any])

    # Reporting

    async def complete(
        self, event: Event, *, took: timedelta | None = None, status_code: int | None = None
    ) -> Report:
        """Report success; repeating it gives the same answer. Raises `LeaseLost`."""
        request = self._about(event, "complete", **_told(took, status_code))
        return _report(event.id, await self._line.ask(request, dict[str, Any]))

    async def fail(
        self,
        event: Event,
        error: str,
        *,
        took: timedelta | None = None,
        status_code: int | None = None,
    ) -> Report:
        """Report a failed attempt; repeating it gives the same answer. Raises `LeaseLost`."""
        request = self._about(event, "fail", error_message=error, **_told(took, status_code))
        request = request._replace(accepts=_EXHAUSTED)
        answer = await self._line.ask(request, dict[str, Any])
        if "detail" in answer:  # 400 also stands for a body that is not understood
            raise InvalidJob(answer["detail"])
        return _report(event.id, answer)

    async def complete_many(self, events: Sequence[Event]) -> Reports:
        """Report up to 1,000 successes in one transaction; each has its own answer.

        A lost one does not keep the others from being recorded.
        """
        return await self._report_all("complete", [{"id": e.id, "token": e.token} for e in events])

    async def fail_many(self, failures: Sequence[tuple[Event, str]]) -> Reports:
        """As `complete_many`, for failed attempts with their errors."""
        return await self._report_all(
            "fail",
            [{"id": e.id, "token": e.token, "error_message": error} for e, error in failures],
        )

    async def _report_all(self, verb: str, events: Sequence[Mapping[str, Any]]) -> Reports:
        body = {"worker_id": self.worker, "events": events}
        request = Request("POST", f"/events/{verb}", body=body)
        answers = await self._line.ask(request, dict[str, Any])
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

    # Looking and steering

    async def get(self, event_id: int, *, logs: bool = False) -> Event:
        """An event as it is now, with its log if asked for. Raises `JobNotFound`."""
        params = {"include_logs": "true"} if logs else None
        request = Request("GET", f"/events/{event_id}", params=params)
        return _event(await self._line.ask(request, dict[str, Any]))

    async def reset(self, event_id: int, reason: str | None = None) -> Event:
        """Make an event pending with all its attempts, also when a worker holds it."""
        params = None if reason is None else {"reason": reason}
        request = Request("POST", f"/events/{event_id}/reset", params=params, repeats=False)
        return _event(await self._line.ask(request, dict[str, Any]))

    async def list(
        self,
        *,
        status: str | None = None,
        tags: Tags | None = None,
        limit: int = 20,
        offset: int = 0,
    ) -> EventPage:
        """Events by status (`PENDING`, `PROCESSING`, `COMPLETED`, `FAILED`) and tags.

        Newest first.
        """
        params: dict[str, Any] = {"limit": limit, "offset": offset}
        if status is not None:
            params["status"] = status
        if tags is not None:
            params["tags"] = tags if isinstance(tags, str) else ",".join(tags)
        answer = await self._line.ask(Request("GET", "/events", params=params), dict[str, Any])
        return EventPage(
            events=_events(answer),
            total=answer["total"],
            limit=answer["limit"],
            offset=answer["offset"],
        )


def _told(took: timedelta | None, status_code: int | None) -> dict[str, int]:
    told = {} if took is None else {"execution_time_ms": round(took.total_seconds() * 1000)}
    return told if status_code is None else {**told, "status_code": status_code}


def _event(answer: dict[str, Any]) -> Event:
    try:
        return event_of(answer)
    except (msgspec.ValidationError, AttributeError) as error:
        reason = mismatch(error, Event)
        raise StoreError(f"the server does not speak of events as known here: {reason}") from error


def _events(answer: dict[str, Any]) -> Events:
    found = answer.get("events")
    if not isinstance(found, list):
        raise StoreError("the server does not speak of events as known here")
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
