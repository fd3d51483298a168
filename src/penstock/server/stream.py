"""The route for the live stream: the log as server-sent events."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.core.errors import PenstockError
from penstock.core.token import Access
from penstock.engine import Penstock
from penstock.http.bodies import Receive, Scope, Send, header
from penstock.http.problems import Problem
from penstock.http.routes import Call, Stream, route
from penstock.server.leaving import until_gone
from penstock.server.shapes import Id, Name
from penstock.server.tail import Item, Tail

KEEP_ALIVE = 15.0
"""Seconds after which a reader for whom there is nothing hears that the stream is still there."""
SLOW = 30.0
"""Seconds that a reader may take to accept what is sent, before it is cut off."""

_RECONNECT_MS = 1_000
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # proxies would wait until there is more
]
_HIGHEST = 2**63 - 1


class StreamQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which entries of the log to stream, and from where on."""

    after: (
        Annotated[int, Meta(ge=0, le=_HIGHEST, description="Begin behind this entry.")] | None
    ) = None
    queue: Name | None = None
    task: Name | None = None
    job: Id | None = None

    def wants(self, item: Item) -> bool:
        """Whether an entry is one of those."""
        return (
            (self.queue is None or item.queue == self.queue)
            and (self.task is None or item.task == self.task)
            and (self.job is None or item.job_id == self.job)
        )


class StreamRoutes:
    """What the server serves of the log, live."""

    def __init__(self, penstock: Penstock, stopping: asyncio.Event) -> None:
        self._tail = Tail(penstock)
        self._stopping = stopping
        self.running = self._tail.running

    @route(
        "GET",
        "/api/v1/stream",
        Access.READ,
        "Follow the log",
        answers={200: "text/event-stream"},
        streams=True,
    )
    async def stream(self, query: StreamQuery, call: Call) -> Stream:
        """The log as server-sent events, as it is written: one `transition` for each entry.

        The `id` of an event is that of the entry; its `data` is JSON with the `entry` and the
        `job` it is about. With `Last-Event-ID`, or else with `after`, the stream begins behind
        that entry and leaves none out, with neither it begins now. A reader that is too slow is
        cut off; it comes back by its last id.
        """
        last = _last_event_id(call.scope)
        after = query.after if last is None else last

        async def send_all(send: Send, receive: Receive) -> None:
            leaving = asyncio.create_task(until_gone(receive, self._stopping))
            try:
                await self._send(self._parts(query, after, leaving, call), send)
            finally:
                leaving.cancel()

        return Stream(send_all)

    @staticmethod
    async def _send(parts: AsyncGenerator[bytes, None], send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        try:
            async with aclosing(parts):
                async for part in parts:
                    async with asyncio.timeout(SLOW):
                        await send({"type": "http.response.body", "body": part, "more_body": True})
        except TimeoutError:
            return  # without an end: the connection is closed
        except (PenstockError, Problem):
            pass  # the reader comes back, and asks again; or is told why it may not
        await send({"type": "http.response.body", "body": b""})

    async def _parts(
        self, query: StreamQuery, after: int | None, leaving: asyncio.Task[None], call: Call
    ) -> AsyncGenerator[bytes, None]:
        """What goes over the wire, bit by bit, until the reader leaves."""
        async with self._tail.reading(after) as begin:
            place = begin
            # So that one who is cut off before the first entry misses none either.
            yield b"retry: %d\nid: %d\n\n" % (_RECONNECT_MS, place)
            heard = time.monotonic()
            while not leaving.done():
                items, place = await self._tail.behind(place)
                call.check()
                if wanted := [item.frame for item in items if query.wants(item)]:
                    yield b"".join(wanted)
                    heard = time.monotonic()
                elif time.monotonic() - heard >= KEEP_ALIVE:
                    yield b": still here\nid: %d\n\n" % place
                    heard = time.monotonic()
                elif not items:
                    await self._news(place, leaving, heard + KEEP_ALIVE - time.monotonic())

    async def _news(self, place: int, leaving: asyncio.Task[None], timeout: float) -> None:
        """Wait for something new, for the reader to leave, or for the end of the time."""
        news = asyncio.create_task(self._tail.news(place))
        try:
            await asyncio.wait(
                (news, leaving), timeout=max(0, timeout), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            news.cancel()


def _last_event_id(scope: Scope) -> int | None:
    given = header(scope, b"last-event-id")
    if given is None or not given.strip():
        return None
    digits = given.strip()
    if not digits.isdigit() or len(digits) > len(str(_HIGHEST)) or int(digits) > _HIGHEST:
        raise Problem(
            422, "Last-Event-ID: not the id of an entry of this log", field="Last-Event-ID"
        )
    return int(digits)
