"""The end of the log, followed once for all who read along.

While anybody reads, one task asks the store for new entries whenever it rings, and keeps the
newest of them in memory, as they go over the wire. Readers only have a place in the log: what
they have not seen is taken from memory or, where it is older than that, from the store. So
nothing is kept for a slow reader, and one that comes back goes on exactly where it was.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import NamedTuple

import msgspec

from penstock.apps.beside import beside
from penstock.core.errors import PenstockError
from penstock.core.job import JobId, LogEntry
from penstock.core.lifecycle import State
from penstock.engine import Penstock
from penstock.server.shapes import LogShape, log_shape

_log = logging.getLogger(__name__)

KEPT_BYTES = 8_000_000
"""How much of the log is kept in memory, as it goes over the wire."""

_AT_ONCE = 500
# To one reader; what it has not accepted yet lies in the server's memory.
_GIVEN_AT_ONCE = 100
_JOBS_AT_ONCE = 100
_REMEMBERED = 10_000
# A ring may be missed, as by a store that tells of ready and ended jobs only.
_LOOK_AGAIN = 0.5
_RETRY_PAUSE = 0.5
# Between two looks: of a thousand rings a second, fifty are enough.
_PAUSE = 0.02

Known = tuple[str, str, tuple[str, ...]]
"""The queue, the task and the tags of a job."""

_encode = msgspec.json.Encoder().encode
_id = attrgetter("id")


class TransitionJob(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is, beside an entry about it; null where it has been removed since."""

    queue: str | None
    task: str | None
    tags: tuple[str, ...]
    state: State


class Transition(msgspec.Struct, frozen=True):
    """What a reader of the stream gets for each entry of the log."""

    entry: LogShape
    job: TransitionJob


class Item(NamedTuple):
    """An entry as it goes over the wire, and what readers choose by."""

    id: int
    job_id: int
    queue: str | None
    task: str | None
    frame: bytes


class Tail:
    """Follows the log of a Penstock, for any number of readers."""

    def __init__(self, penstock: Penstock) -> None:
        self._penstock = penstock
        self._items: list[Item] = []
        self._start = self._end = 0  # the items are all entries behind `start`, up to `end`
        self._bytes = 0
        self._readers = 0
        self._wanted = asyncio.Event()
        self._news = asyncio.Event()
        self._known: OrderedDict[JobId, Known] = OrderedDict()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the log, inside the block, while there are readers."""
        async with beside(self._follow()):
            yield

    @asynccontextmanager
    async def reading(self, after: int | None) -> AsyncIterator[int]:
        """Read along, inside the block: the place to begin at, by default the end of the log."""
        newest = await self._penstock.newest_log()
        if not self._readers:  # nobody has followed meanwhile
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

    async def behind(self, place: int) -> tuple[list[Item], int]:
        """Entries behind a place, oldest first, and the place behind them.

        Without any, the place has moved all the same where entries were removed.
        """
        start, end = self._start, self._end
        if place >= start:
            first = bisect_right(self._items, place, key=_id)
            found = self._items[first : first + _GIVEN_AT_ONCE]
            return found, found[-1].id if found else max(place, end)
        found = await self._load(place)
        return found, found[-1].id if found else start

    async def news(self, place: int) -> None:
        """Return when there is something behind a place."""
        while place >= self._end:
            await self._news.wait()

    async def _follow(self) -> None:
        seen = 0
        while True:
            try:
                await self._wanted.wait()
                await self._take_in()
                seen = await self._penstock.wait(seen, _LOOK_AGAIN)
                await asyncio.sleep(_PAUSE)
            except PenstockError as error:
                _log.warning("the log could not be read: %s", error)
                await asyncio.sleep(_RETRY_PAUSE)

    async def _take_in(self) -> None:
        """Take in what is new in the log."""
        while self._readers:
            end = self._end
            found = await self._load(end)
            if not found or end != self._end:  # all went, and others came
                return
            self._items += found
            self._bytes += sum(len(item.frame) for item in found)
            self._end = found[-1].id
            self._forget()
            self._tell()

    def _forget(self) -> None:
        """Let go of the older half when there is too much."""
        while self._bytes > KEPT_BYTES:
            half = (len(self._items) + 1) // 2
            self._bytes -= sum(len(item.frame) for item in self._items[:half])
            self._start = self._items[half - 1].id
            del self._items[:half]

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _load(self, place: int) -> list[Item]:
        entries = await self._penstock.log(after=place, limit=_AT_ONCE)
        jobs = await self._jobs([entry.job_id for entry in entries])
        return [_item(entry, jobs.get(entry.job_id)) for entry in entries]

    async def _jobs(self, ids: Sequence[JobId]) -> dict[JobId, Known]:
        """What never changes about these jobs; mostly from memory."""
        wanted = list(dict.fromkeys(ids))
        found = {one: self._known[one] for one in wanted if one in self._known}
        unknown = [one for one in wanted if one not in found]
        for start in range(0, len(unknown), _JOBS_AT_ONCE):
            for job in await self._penstock.store.get(unknown[start : start + _JOBS_AT_ONCE]):
                found[job.id] = self._known[job.id] = (job.queue, job.task, job.tags)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return found


def _item(entry: LogEntry, known: Known | None) -> Item:
    queue, task, tags = known or (None, None, ())
    job = TransitionJob(queue=queue, task=task, tags=tags, state=entry.state)
    data = _encode(Transition(log_shape(entry), job))
    frame = b"id: %d\nevent: transition\ndata: %s\n\n" % (entry.id, data)
    return Item(entry.id, entry.job_id, queue, task, frame)
