"""Queues: `Penstock.queues`, which lists, pauses, drains and removes them."""

import builtins
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from penstock.core.job import JobId
from penstock.core.key_line import KeyLine
from penstock.core.lifecycle import State, Waiting
from penstock.core.queue import (
    ALL_QUEUES,
    Queue,
    QueueQuery,
    QueueSettings,
    QueueStatus,
    QueueSummary,
)
from penstock.core.times import from_micros
from penstock.engine.connection import Connection
from penstock.engine.sync_calls import SyncQueues
from penstock.engine.validation import check_duration, check_kind, check_limit, check_name


class Drained(msgspec.Struct, frozen=True):
    """How a drain ended, and what is left of the backlog that it began with."""

    status: Literal["drained", "timeout", "paused"]
    remaining: int
    elapsed: timedelta


class Queues:
    """The queues of a store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def sync(self) -> SyncQueues:
        """The same calls from synchronous code, without `await`."""
        return SyncQueues(self)

    async def list(self, query: QueueQuery = ALL_QUEUES) -> builtins.list[Queue]:
        """Return the queues with their limits, by name: all, or those that match a query.

        There may be tens of thousands: request pages by `QueueQuery(after=…, limit=…)`.
        """
        if query.limit is not None:
            check_limit(query.limit)
        return await self._connection.store.queues(query)

    async def statuses(self, query: QueueQuery = ALL_QUEUES) -> builtins.list[QueueStatus]:
        """Return the queues as `list` does, each with its jobs by state and its oldest ready job.

        The cost grows with the queues returned.
        """
        found = await self.list(query)
        names = [queue.name for queue in found]
        stages: dict[str, dict[tuple[State, Waiting | None], int]] = {name: {} for name in names}
        for (name, state, waiting), n in (await self._connection.store.count(names)).items():
            stages[name][state, waiting] = n
        oldest = await self._connection.store.oldest_ready(names)
        return [
            QueueStatus(queue=one, counts=stages[one.name], oldest_ready=oldest.get(one.name))
            for one in found
        ]

    async def summary(self, without: Collection[str] = ()) -> QueueSummary:
        """Return the number of queues, other than these, and all their jobs by state."""
        return await self._connection.store.summary(without)

    async def oldest_ready(self, queues: Collection[str] | None = None) -> Mapping[str, datetime]:
        """Return when the oldest ready job of each of these queues, or of all, became due.

        Jobs that a pause or a limit holds count. Queues without a ready job are left out. The cost
        does not grow with the jobs.
        """
        return await self._connection.store.oldest_ready(queues)

    async def ready_tags(
        self, queue: str, limit: int = 1000, *, among: Sequence[str] | None = None
    ) -> builtins.list[str]:
        """Return the tags of the ready jobs of a queue, by name: whether a claim is worthwhile.

        There are none while the queue is paused, or while its concurrency or rate lets no job
        start. With `among`, looks for those tags only. The cost grows with the tags, not with the
        jobs.
        """
        check_limit(limit)
        return await self._connection.store.ready_tags(queue, limit, among=among)

    async def keys(self, after: str | None = None, limit: int = 100) -> builtins.list[KeyLine]:
        """Return the keys of unfinished jobs, by name: who holds each, and how many wait.

        Pass the last key as `after` for the next page. The cost does not grow with the jobs.
        """
        check_limit(limit)
        return await self._connection.store.keys(after, limit)

    async def pause(self, queue: str, *, duration: timedelta | None = None) -> Queue:
        """Start no more jobs of this queue, in any process; running jobs continue.

        After `duration` the pause ends by itself; another pause sets a new end. Without a duration
        it lasts until `resume`, even if a pause with a duration follows.
        """
        check_name("queue", queue)
        until = None
        if duration is not None:
            check_duration("duration", duration)
            until = from_micros(self._connection.clock()) + duration
        settings = QueueSettings(name=queue, paused=True, paused_until=until)
        return await self._connection.store.configure(settings)

    async def resume(self, queue: str) -> Queue:
        """Start jobs of this queue again."""
        check_name("queue", queue)
        return await self._connection.store.configure(QueueSettings(name=queue, paused=False))

    async def remove(self, queue: str) -> bool:
        """Remove all limits of a queue, and its pause; return whether it existed.

        A queue without jobs disappears at once, another with its last job, as queues without
        settings do. Raises `QueueInUse` while it has unfinished jobs.
        """
        check_name("queue", queue)
        return await self._connection.store.remove_queue(queue)

    async def drain(self, queue: str | None = None, *, timeout: timedelta) -> Drained:
        """Wait until the jobs that are unfinished now have finished; later jobs do not count.

        Of one queue, or of all. Returns `paused` at once when paused queues keep the whole backlog
        from moving.
        """
        check_kind("timeout", timeout, timedelta)
        store, monotonic = self._connection.store, self._connection.runtime.monotonic
        start = monotonic()

        def ended(status: Literal["drained", "timeout", "paused"]) -> Drained:
            return Drained(status, remaining, timedelta(seconds=monotonic() - start))

        remaining, newest = await store.backlog(queue)
        seen = 0
        while remaining:
            left = timeout.total_seconds() - (monotonic() - start)
            if await self._is_stuck(queue, newest):
                return ended("paused")
            if left <= 0:
                return ended("timeout")
            seen = await store.wait(seen, min(left, 1.0))
            remaining, _ = await store.backlog(queue, newest)
        return ended("drained")

    async def _is_stuck(self, queue: str | None, newest: JobId) -> bool:
        """Return whether all that is left is in paused queues, with nothing running."""
        store = self._connection.store
        names = None if queue is None else (queue,)
        paused = {one.name for one in await store.queues(QueueQuery(names=names)) if one.paused}
        if not paused:
            return False
        left = {
            (name, state)
            for (name, state, _), n in (await store.count(names)).items()
            if n and not state.final
        }
        moving = {name for name, state in left if name not in paused or state is State.RUNNING}
        for name in moving:
            if (await store.backlog(name, newest))[0]:
                return False
        return bool((await store.backlog(queue, newest))[0])
