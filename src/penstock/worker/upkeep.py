"""Upkeep of the store while workers run: heartbeats, expired leases, statistics, retention.

Every worker does this; the store's compare-and-set makes it safe to do at the same time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

from penstock.core.errors import PenstockError
from penstock.core.job import Retention
from penstock.core.times import from_micros
from penstock.core.workers import WorkerInfo
from penstock.engine.penstock import Penstock

_log = logging.getLogger(__name__)

ROLL_UP_EVERY = timedelta(seconds=5)
HEARTBEAT_EVERY = timedelta(seconds=10)
PRUNE_EVERY = timedelta(minutes=1)
DEREGISTER_AFTER = timedelta(days=1)
"""How long a worker that sends no heartbeats stays registered."""
# Small transactions, so that claims get their turn in between.
PRUNED_AT_ONCE = 500
# A worker that stops does not wait longer than this to be deregistered.
_LAST_WAIT = 5.0


class Chore:
    """Something to do at intervals, for the first time `first` seconds after the start."""

    def __init__(
        self, do: Callable[[], Awaitable[None]], every: timedelta, *, first: float = 0.0
    ) -> None:
        self.do = do
        self.due = first
        self._every = every.total_seconds()

    def postpone(self, now: float, share: float) -> None:
        """Make it due again after this share of its interval."""
        self.due = now + self._every * share


class Upkeep:
    """Sends a worker's heartbeats, reclaims expired leases, rolls up the log, and prunes.

    Without a worker, for example in a server that runs no jobs, there are no heartbeats.
    """

    def __init__(
        self,
        penstock: Penstock,
        worker: WorkerInfo | None,
        sweep: timedelta,
        retention: Retention,
        drain: Callable[[], object] = lambda: None,
    ) -> None:
        """`sweep` is the interval between reclaims; `drain` is called on a request to drain."""
        self._penstock = penstock
        self._drain = drain
        self._worker = worker
        self._retention = retention
        self._chores = [
            Chore(self._reclaim, sweep),
            Chore(self._roll_up, ROLL_UP_EVERY, first=ROLL_UP_EVERY.total_seconds()),
            Chore(self._prune, PRUNE_EVERY, first=ROLL_UP_EVERY.total_seconds()),
        ]
        if worker is not None:
            self._chores.insert(0, Chore(partial(self._heartbeat, worker), HEARTBEAT_EVERY))

    async def run(self) -> None:
        """Do each chore when it is due, for ever."""
        loop, jitter = asyncio.get_running_loop(), self._penstock.runtime.random.uniform
        for chore in self._chores:
            chore.due += loop.time()
        while True:
            for chore in self._chores:
                if chore.due <= loop.time():
                    await _attempt(chore)
                    # Apart from processes that started at the same moment.
                    chore.postpone(loop.time(), jitter(0.8, 1.0))
            await asyncio.sleep(min(chore.due for chore in self._chores) - loop.time())

    async def deregister(self) -> None:
        """Remove the worker from the registry; log errors of the store instead of raising them."""
        if self._worker is None:
            return
        try:
            async with asyncio.timeout(_LAST_WAIT):
                await self._penstock.store.deregister([self._worker.name])
        except (PenstockError, TimeoutError) as error:
            why = str(error) or "the store took too long to answer"
            _log.warning("worker %s could not be deregistered: %s", self._worker.name, why)

    async def _heartbeat(self, worker: WorkerInfo) -> None:
        if await self._penstock.store.heartbeat([worker]):
            self._drain()

    async def _reclaim(self) -> None:
        if reclaimed := await self._penstock.leases.reclaim():
            jobs = "1 job whose lease" if reclaimed == 1 else f"{reclaimed} jobs whose leases"
            _log.warning("reclaimed %s expired", jobs)

    async def _roll_up(self) -> None:
        await self._penstock.statistics.roll_up()

    async def _prune(self) -> None:
        store = self._penstock.store
        await self._penstock.statistics.roll_up()  # what is pruned is counted before
        while await store.prune(self._retention, PRUNED_AT_ONCE, whole_days=True) == PRUNED_AT_ONCE:
            pass
        before = from_micros(self._penstock.clock()) - DEREGISTER_AFTER
        gone = [one for one in await store.workers() if one.seen_at < before and not one.running]
        if gone:  # one that is alive after all returns with its next heartbeat
            await store.deregister([one.name for one in gone])


async def _attempt(chore: Chore) -> None:
    try:
        await chore.do()
    except PenstockError as error:
        _log.warning("upkeep failed, trying again: %s", error)
