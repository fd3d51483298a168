"""The live stream: the log as server-sent events.

While anybody reads, one task asks the store for new entries whenever it is notified, and keeps the
newest of them in memory, encoded. A reader has only a position in the log: what it has not seen
comes from memory or, if it is older, from the store. So nothing is kept for a slow reader, and a
reader that reconnects continues exactly where it was.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from operator import attrgetter
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from penstock.apps.kit.background import in_background
from penstock.core.errors import PenstockError
from penstock.core.job import JobId, LogEntry
from penstock.core.lifecycle import State
from penstock.core.tokens import Access
from penstock.engine.penstock import Penstock
from penstock.server.requests import Id, Name
from penstock.web.bodies import Receive, Scope, Send, header, wait_for_disconnect
from penstock.web.jobs import LogShape, log_shape
from penstock.web.problems import Problem
from penstock.web.routes import Call, Stream, route

_log = logging.getLogger(__name__)

KEEP_ALIVE = 15.0
"""Seconds without entries after which a reader gets a comment, so that connections stay open."""
SLOW = 30.0
"""Seconds that a reader may take to accept what is sent, before it is disconnected."""

_RECONNECT_MS = 1_000
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # otherwise proxies would buffer
]
_HIGHEST = 2**63 - 1

KEPT_BYTES = 8_000_000
"""The size of the encoded entries that are kept in memory."""

_READ_AT_ONCE = 500
# To one reader; what it has not accepted yet stays in the memory of the server.
_SENT_AT_ONCE = 100
_JOBS_AT_ONCE = 100
_REMEMBERED_JOBS = 10_000
# A notification may be missing: a store may notify of ready and finished jobs only.
_POLL = 0.5
_RETRY_PAUSE = 0.5
# Between two reads: of a thousand notifications a second, fifty are enough.
_PAUSE = 0.02

Known = tuple[str, str, tuple[str, ...]]
"""The queue, the task and the tags of a job."""

_encode = msgspec.json.Encoder().encode
_id = attrgetter("id")


class TransitionJob(msgspec.Struct, frozen=True, kw_only=True):
    """The job of an entry; queue and task are null if it has been removed."""

    queue: str | None
    task: str | None
    tags: tuple[str, ...]
    state: State


class Transition(msgspec.Struct, frozen=True):
    """An entry of the log with its job, as it is streamed."""

    entry: LogShape
    job: TransitionJob


class Item(NamedTuple):
    """An encoded entry, and what readers filter by."""

    id: int
    job_id: int
    queue: str | None
    task: str | None
    frame: bytes


class LogFollower:
    """Follows the log of a Penstock, for any number of readers."""

    def __init__(self, penstock: Penstock) -> None:
        self._penstock = penstock
        self._items: list[Item] = []
        self._start = self._end = 0  # the items are all entries after `start`, up to `end`
        self._bytes = 0
        self._readers = 0
        self._wanted = asyncio.Event()
        self._news = asyncio.Event()
        self._known: OrderedDict[JobId, Known] = OrderedDict()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the log inside the block, while there are readers."""
        async with in_background(self._follow()):
            yield

    @asynccontextmanager
    async def reading(self, after: int | None) -> AsyncIterator[int]:
        """Count as a reader inside the block; yield where to begin, by default the end."""
        newest = await self._penstock.newest_log()
        if not self._readers:  # the log was not followed meanwhile
            self._items, self._bytes = [], 0
            self._start = self._end = newest
        self._readers += 1
        self._wanted.set()
        try:
            yield newest if after is None else min(after, newest)
        finally:
            self._readers -= 1
            if not self._readers:
                self._wanted.clear()

    async def entries_after(self, position: int) -> tuple[list[Item], int]:
        """Return entries after a position, oldest first, and the position after them.

        Where entries were removed, the position moves even if there are none.
        """
        start, end = self._start, self._end
        if position >= start:
            first = bisect_right(self._items, position, key=_id)
            found = self._items[first : first + _SENT_AT_ONCE]
            return found, found[-1].id if found else max(position, end)
        found = await self._load(position)
        return found, found[-1].id if found else start

    async def news(self, position: int) -> None:
        """Wait until there is an entry after a position."""
        while position >= self._end:
            await self._news.wait()

    async def _follow(self) -> None:
        seen = 0
        while True:
            try:
                await self._wanted.wait()
                await self._read_new()
                seen = await self._penstock.wait(seen, _POLL)
                await asyncio.sleep(_PAUSE)
            except PenstockError as error:
                _log.warning("cannot read the log: %s", error)
                await asyncio.sleep(_RETRY_PAUSE)

    async def _read_new(self) -> None:
        """Read new entries of the log into memory."""
        while self._readers:
            end = self._end
            found = await self._load(end)
            if not found or end != self._end:  # all readers left, and others came
                return
            self._items += found
            self._bytes += sum(len(item.frame) for item in found)
            self._end = found[-1].id
            self._forget()
            self._notify()

    def _forget(self) -> None:
        """Drop the older half if there is too much."""
        while self._bytes > KEPT_BYTES:
            half = (len(self._items) + 1) // 2
            self._bytes -= sum(len(item.frame) for item in self._items[:half])
            self._start = self._items[half - 1].id
            del self._items[:half]

    def _notify(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _load(self, position: int) -> list[Item]:
        entries = await self._penstock.log(after=position, limit=_READ_AT_ONCE)
        jobs = await self._jobs([entry.job_id for entry in entries])
        return [_item(entry, jobs.get(entry.job_id)) for entry in entries]

    async def _jobs(self, ids: Sequence[JobId]) -> dict[JobId, Known]:
        """Return what never changes about these jobs, mostly from memory."""
        wanted = list(dict.fromkeys(ids))
        found = {one: self._known[one] for one in wanted if one in self._known}
        unknown = [one for one in wanted if one not in found]
        for start in range(0, len(unknown), _JOBS_AT_ONCE):
            for job in await self._penstock.store.get(unknown[start : start + _JOBS_AT_ONCE]):
                found[job.id] = self._known[job.id] = (job.queue, job.task, job.tags)
        while len(self._known) > _REMEMBERED_JOBS:
            self._known.popitem(last=False)
        return found


def _item(entry: LogEntry, known: Known | None) -> Item:
    queue, task, tags = known or (None, None, ())
    job = TransitionJob(queue=queue, task=task, tags=tags, state=entry.state)
    data = _encode(Transition(log_shape(entry), job))
    frame = b"id: %d\nevent: transition\ndata: %s\n\n" % (entry.id, data)
    return Item(entry.id, entry.job_id, queue, task, frame)


class StreamQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects entries of the log, and where to begin."""

    after: Annotated[int, Meta(ge=0, le=_HIGHEST, description="Begin after this entry.")] | None = (
        None
    )
    queue: Name | None = None
    task: Name | None = None
    job: Id | None = None

    def wants(self, item: Item) -> bool:
        """Return whether an entry is selected."""
        return (
            (self.queue is None or item.queue == self.queue)
            and (self.task is None or item.task == self.task)
            and (self.job is None or item.job_id == self.job)
        )


class StreamRoutes:
    """The log, live."""

    def __init__(self, penstock: Penstock, stopping: asyncio.Event) -> None:
        self._follower = LogFollower(penstock)
        self._monotonic = penstock.runtime.monotonic
        self._stopping = stopping
        self.running = self._follower.running

    @route("GET", "/api/v1/stream", Access.READ, produces="text/event-stream", streams=True)
    async def stream(self, query: StreamQuery, call: Call) -> Stream:
        """Follow the log as server-sent events.

        Each new entry of the log is sent as an event named `transition`.

        The `id` of an event is the id of the entry; its `data` is JSON with the `entry` and its
        `job`. With the header `Last-Event-ID`, or else the parameter `after`, the stream begins
        after that entry and skips none; with neither, it begins now. A reader that is too slow is
        disconnected and can continue with its last id.
        """
        last = _last_event_id(call.scope)
        after = query.after if last is None else last

        async def send_all(send: Send, receive: Receive) -> None:
            leaving = asyncio.create_task(wait_for_disconnect(receive, self._stopping))
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
            return  # without an end, so that the connection is closed
        except (PenstockError, Problem):
            pass  # the reader reconnects, and gets the error as an answer
        await send({"type": "http.response.body", "body": b""})

    async def _parts(
        self, query: StreamQuery, after: int | None, leaving: asyncio.Task[None], call: Call
    ) -> AsyncGenerator[bytes, None]:
        """Yield what is sent, until the reader leaves."""
        monotonic = self._monotonic
        async with self._follower.reading(after) as begin:
            position = begin
            # A reader that is disconnected before the first entry misses none either.
            yield b"retry: %d\nid: %d\n\n" % (_RECONNECT_MS, position)
            heard = monotonic()
            while not leaving.done():
                items, position = await self._follower.entries_after(position)
                call.check()
                if wanted := [item.frame for item in items if query.wants(item)]:
                    yield b"".join(wanted)
                    heard = monotonic()
                elif monotonic() - heard >= KEEP_ALIVE:
                    yield b": still here\nid: %d\n\n" % position
                    heard = monotonic()
                elif not items:
                    await self._wait(position, leaving, heard + KEEP_ALIVE - monotonic())

    async def _wait(self, position: int, leaving: asyncio.Task[None], timeout: float) -> None:
        """Wait for a new entry, for the reader to leave, or until the timeout."""
        news = asyncio.create_task(self._follower.news(position))
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
        raise Problem(422, "Last-Event-ID: must be the id of a log entry", field="Last-Event-ID")
    return int(digits)
