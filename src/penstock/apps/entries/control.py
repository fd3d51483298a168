"""Steering the queue of entries: pause, resume, drain, and how all stands."""

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from penstock import Drained, JobQuery, QueueQuery, State, TransitionRefused, WorkerInfo
from penstock.apps.entries import rows
from penstock.apps.entries.entries import Entries
from penstock.apps.entries.rows import QUEUE, STATUSES

_RUNNING = frozenset({State.RUNNING})
_AT_ONCE = 1_000
_LOOK_AGAIN = 1.0


class Control:
    """What administrators do with the queue."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._penstock = entries.penstock

    async def pause(self, patience: timedelta) -> int:
        """Begin no more rows, and wait for those in flight; how many there are still."""
        await self._penstock.pause(QUEUE)
        end = time.monotonic() + patience.total_seconds()
        seen = 0
        while (running := await self._running()) and (left := end - time.monotonic()) > 0:
            seen = await self._penstock.wait(seen, min(left, _LOOK_AGAIN))
        return running

    async def resume(self) -> None:
        """Begin rows again."""
        await self._penstock.resume(QUEUE)

    async def is_paused(self) -> bool:
        """Whether the queue is paused."""
        found = await self._penstock.queues(QueueQuery(names=(QUEUE,)))
        return any(one.paused for one in found)

    async def drain(self, timeout: timedelta, *, hold: bool = False) -> Drained:
        """Wait until the rows that wait or are in flight now are through; later ones do not count.

        With `hold`, a paused queue goes on for it; however it ends, the queue is paused then.
        """
        start = time.monotonic()
        watermark = await self._penstock.read(rows.newest_job)
        if hold:
            await self.resume()
        drained = await self._penstock.drain(QUEUE, timeout=timeout)
        if hold:
            left = timeout - timedelta(seconds=time.monotonic() - start)
            await self.pause(max(left, timedelta(seconds=_LOOK_AGAIN)))
        remaining = await self._penstock.read(lambda tx: rows.unfinished(tx, watermark))
        return Drained(
            drained.status,
            max(remaining, min(drained.remaining, 1)),
            timedelta(seconds=time.monotonic() - start),
        )

    async def requeue_stale(self, older: timedelta) -> dict[str, int]:
        """Take rows from whoever has had them for longer than that; how many of each type."""
        before = rows_clock(self._penstock) - older.total_seconds()
        counted: dict[str, int] = {}
        query = JobQuery(queue=QUEUE, states=_RUNNING, newest_first=False, limit=_AT_ONCE)
        for job in await self._penstock.find(query):
            if job.started_at is None or job.started_at.timestamp() > before:
                continue
            kinds = await self._penstock.read(lambda tx: rows.types_of(tx, [job.id]))  # noqa: B023 - awaited at once
            try:
                await self._penstock.reset(job.id, "it took too long")
            except TransitionRefused:  # it has ended meanwhile
                continue
            for name, n in kinds.items():
                counted[name] = counted.get(name, 0) + n
        return counted

    async def counts(self) -> dict[str, dict[str, int]]:
        """How many rows have each status: of each type, and in all."""
        counted = await self._entries.counts()
        return {
            status: self.per_type({name: n for (name, one), n in counted.items() if one == status})
            for status in STATUSES
        }

    def per_type(self, counted: Mapping[str, int]) -> dict[str, int]:
        """Counts by type as they are shown: by plurals, with the total."""
        known = {kind.name: kind.plural for kind in self._entries.types}
        shown = dict.fromkeys(known.values(), 0)
        for name, n in counted.items():
            shown[known.get(name, f"{name}s")] = n
        return {**shown, "total": sum(counted.values())}

    async def workers(self) -> list[WorkerInfo]:
        """Who embeds."""
        return [one for one in await self._penstock.workers() if QUEUE in (one.queues or ())]

    async def tallies(self) -> dict[str, rows.Tally]:
        """How many jobs each worker has ended since it was started."""
        return await self._penstock.read(rows.tallies)

    async def ended(self) -> dict[State, int]:
        """How many jobs have come to each end; retention forgets them after a while."""
        counted: dict[State, int] = dict.fromkeys(State, 0)
        for (queue, state, _), n in (await self._penstock.count([QUEUE])).items():
            if queue == QUEUE:
                counted[state] += n
        return counted

    async def _running(self) -> int:
        return (await self.ended())[State.RUNNING]


def rows_clock(penstock: Any) -> float:
    """What time it is for the store, in seconds since 1970."""
    return int(penstock.clock()) / 1e6
