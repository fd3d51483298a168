"""The queue of entries: pause, resume, drain, take back stale rows, and count."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta

from penstock import JobQuery, Penstock, PenstockError, State, TransitionRefused
from penstock.apps.entries import rows
from penstock.apps.entries.entries import Entries
from penstock.apps.entries.rows import QUEUE, STATUSES
from penstock.leases import WorkerInfo
from penstock.queues import Drained, QueueQuery

_log = logging.getLogger(__name__)

_RUNNING = frozenset({State.RUNNING})
_STALE_PER_CALL = 1_000
_FALLBACK_INTERVAL = 1.0

PAUSE = timedelta(seconds=30)
"""How long the queue stays paused after the process that paused it was killed."""
PATIENCE = timedelta(minutes=10)
"""How long to wait for rows in flight."""
_MOMENT = timedelta(microseconds=1)


class RowsInFlight(Exception):
    """Rows in flight did not finish in time."""


class EntryQueue:
    """What administrators do with the queue of entries."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._penstock = entries.penstock

    async def pause(self, patience: timedelta) -> int:
        """Start no more rows and wait for those in flight; return how many jobs still run."""
        await self._penstock.queues.pause(QUEUE)
        return await _wait_until_idle(self._penstock, patience)

    async def resume(self) -> None:
        """Start rows again."""
        await self._penstock.queues.resume(QUEUE)

    async def is_paused(self) -> bool:
        """Return whether the queue is paused."""
        found = await self._penstock.queues.list(QueueQuery(names=(QUEUE,)))
        return any(one.paused for one in found)

    async def drain(self, timeout: timedelta, *, hold: bool = False) -> Drained:
        """Wait until the rows that are pending or in flight now are done; ignore later ones.

        With `hold`, resume a paused queue for this, and leave it paused however the drain ends.
        """
        start = time.monotonic()
        watermark = await self._penstock.tables.read(rows.newest_job)
        if hold:
            await self.resume()
        drained = await self._penstock.queues.drain(QUEUE, timeout=timeout)
        if hold:
            left = timeout - timedelta(seconds=time.monotonic() - start)
            await self.pause(max(left, timedelta(seconds=_FALLBACK_INTERVAL)))
        remaining = await self._penstock.tables.read(lambda tx: rows.unfinished(tx, watermark))
        return Drained(
            drained.status,
            max(remaining, min(drained.remaining, 1)),
            timedelta(seconds=time.monotonic() - start),
        )

    async def requeue_stale(self, older: timedelta) -> dict[str, int]:
        """Take rows from workers that have held them for longer; return how many, by type."""
        before = int(self._penstock.clock()) / 1e6 - older.total_seconds()
        counted: dict[str, int] = {}
        query = JobQuery(queue=QUEUE, states=_RUNNING, newest_first=False, limit=_STALE_PER_CALL)
        for job in await self._penstock.find(query):
            if job.started_at is None or job.started_at.timestamp() > before:
                continue
            kinds = await self._penstock.tables.read(lambda tx: rows.types_of(tx, [job.id]))  # noqa: B023 - awaited at once
            try:
                await self._penstock.reset(job.id, "it took too long")
            except TransitionRefused:  # it has finished in the meantime
                continue
            for name, n in kinds.items():
                counted[name] = counted.get(name, 0) + n
        return counted

    async def counts(self) -> dict[str, dict[str, int]]:
        """Count the rows of each status, by type and in total."""
        counted = await self._entries.counts()
        return {
            status: self.per_type({name: n for (name, one), n in counted.items() if one == status})
            for status in STATUSES
        }

    def per_type(self, counted: Mapping[str, int]) -> dict[str, int]:
        """Return counts by the plural of each type, with their `total`."""
        known = {kind.name: kind.plural for kind in self._entries.types}
        shown = dict.fromkeys(known.values(), 0)
        for name, n in counted.items():
            shown[known.get(name, f"{name}s")] = n
        return {**shown, "total": sum(counted.values())}

    async def workers(self) -> list[WorkerInfo]:
        """Return the workers that embed."""
        return [one for one in await self._penstock.workers.list() if QUEUE in (one.queues or ())]

    async def tallies(self) -> dict[str, rows.Tally]:
        """Return how many jobs each worker has ended since it started."""
        return await self._penstock.tables.read(rows.tallies)

    async def jobs(self) -> dict[State, int]:
        """Count the jobs of the queue by state; retention removes finished ones after a while."""
        return await _jobs(self._penstock)


@asynccontextmanager
async def paused_queue(
    penstock: Penstock, *, patience: timedelta = PATIENCE
) -> AsyncIterator[None]:
    """Pause the queue inside the block, which is entered once no row is in flight.

    The queue resumes at the end of the block in every case, and soon after a kill: a pause that is
    not renewed ends by itself. A queue that somebody else has paused stays paused. Raises
    `RowsInFlight`.
    """
    pause = _RenewedPause(penstock)
    await pause.take()
    renewing = asyncio.create_task(pause.renew_until_over())
    try:
        if running := await _wait_until_idle(penstock, patience):
            raise RowsInFlight(f"{running} jobs with rows in flight did not finish in time")
        yield
    finally:
        pause.over.set()
        await renewing  # not cancelled: `release` must know the last pause that it wrote
        await pause.release()


class _RenewedPause:
    """A pause that ends by itself unless it is renewed."""

    def __init__(self, penstock: Penstock) -> None:
        self._penstock = penstock
        self._until: datetime | None = None
        self.over = asyncio.Event()

    async def take(self) -> None:
        self._until = (await self._penstock.queues.pause(QUEUE, duration=PAUSE)).paused_until

    async def renew_until_over(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE.total_seconds() / 4):
                    await self.over.wait()
                    return
            try:
                await self.take()
            except PenstockError as error:
                _log.warning("cannot renew the pause of the queue: %s", error)

    async def release(self) -> None:
        """End the pause, unless somebody else has replaced it."""
        found = await self._penstock.queues.list(QueueQuery(names=(QUEUE,)))
        if found and found[0].paused and found[0].paused_until == self._until is not None:
            # Not `resume`: that would also end an indefinite pause that begins at this moment.
            await self._penstock.queues.pause(QUEUE, duration=_MOMENT)


async def _wait_until_idle(penstock: Penstock, patience: timedelta) -> int:
    """Wait until no job of the queue runs; return how many run when patience ends."""
    end = time.monotonic() + patience.total_seconds()
    seen = 0
    while (running := (await _jobs(penstock))[State.RUNNING]) and (
        left := end - time.monotonic()
    ) > 0:
        seen = await penstock.wait(seen, min(left, _FALLBACK_INTERVAL))
    return running


async def _jobs(penstock: Penstock) -> dict[State, int]:
    counted: dict[State, int] = dict.fromkeys(State, 0)
    for (queue, state, _), n in (await penstock.count([QUEUE])).items():
        if queue == QUEUE:
            counted[state] += n
    return counted
