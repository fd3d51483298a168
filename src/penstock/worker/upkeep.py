"""Keeps the store in order while a worker runs: leases, sums of the log, retention, workers.

Every worker does this; the store's compare-and-set makes it safe to do at the same time.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

from penstock.core.errors import PenstockError
from penstock.core.job import Retention
from penstock.core.times import from_micros
from penstock.core.worker import WorkerInfo
from penstock.engine import Penstock

_log = logging.getLogger(__name__)

DIGEST_EVERY = timedelta(seconds=5)
GREET_EVERY = timedelta(seconds=10)
PRUNE_EVERY = timedelta(minutes=1)
FORGET_AFTER = timedelta(days=1)
"""How long a worker that fell silent stays in the list."""
# Small transactions: claims get their turn in between.
PRUNED_AT_ONCE = 500
# A worker that stops does not wait longer than this to be taken off the list.
_LAST_WAIT = 5.0


class Chore:
    """Something to do every so often; due at once, or `first` seconds after the start."""

    def __init__(
        self, do: Callable[[], Awaitable[None]], every: timedelta, *, first: float = 0.0
    ) -> None:
        self.do = do
        self.due = first
        self._every = every.total_seconds()

    def done(self, now: float) -> None:
        """Put it off, apart from other processes that started at the same time."""
        self.due = now + self._every * random.uniform(0.8, 1.0)  # noqa: S311


class Upkeep:
    """What a worker does for the store, beside its jobs; without a worker, nobody greets."""

    def __init__(
        self,
        penstock: Penstock,
        worker: WorkerInfo | None,
        sweep: timedelta,
        retention: Retention,
        drain: Callable[[], object] = lambda: None,
    ) -> None:
        """`drain` is called when the worker is asked to drain."""
        self._penstock = penstock
        self._drain = drain
        self._worker = worker
        self._retention = retention
        self._chores = [
            Chore(self._sweep, sweep),
            Chore(self._digest, DIGEST_EVERY, first=DIGEST_EVERY.total_seconds()),
            Chore(self._prune, PRUNE_EVERY, first=DIGEST_EVERY.total_seconds()),
        ]
        if worker is not None:
            self._chores.insert(0, Chore(partial(self._greet, worker), GREET_EVERY))

    async def run(self) -> None:
        """Do each chore when it is due; for ever."""
        loop = asyncio.get_running_loop()
        for chore in self._chores:
            chore.due += loop.time()
        while True:
            for chore in self._chores:
                if chore.due <= loop.time():
                    await _attempt(chore)
                    chore.done(loop.time())
            await asyncio.sleep(min(chore.due for chore in self._chores) - loop.time())

    async def end(self) -> None:
        """Take the worker off the list; never raises on account of the store."""
        if self._worker is None:
            return
        try:
            async with asyncio.timeout(_LAST_WAIT):
                await self._penstock.store.dismiss([self._worker.name])
        except (PenstockError, TimeoutError) as error:
            why = str(error) or "the store took too long to answer"
            _log.warning("worker %s stays in the list of workers: %s", self._worker.name, why)

    async def _greet(self, worker: WorkerInfo) -> None:
        if await self._penstock.store.greet([worker]):
            self._drain()

    async def _sweep(self) -> None:
        if reclaimed := await self._penstock.reclaim():
            jobs = "1 job whose lease" if reclaimed == 1 else f"{reclaimed} jobs whose leases"
            _log.warning("took back %s ran out", jobs)

    async def _digest(self) -> None:
        await self._penstock.digest()

    async def _prune(self) -> None:
        store = self._penstock.store
        await self._penstock.digest()  # what goes is in the sums
        while await store.prune(self._retention, PRUNED_AT_ONCE, whole_days=True) == PRUNED_AT_ONCE:
            pass
        before = from_micros(self._penstock.clock()) - FORGET_AFTER
        gone = [one for one in await store.workers() if one.seen_at < before and not one.running]
        if gone:  # should one of them live after all, it comes back with its next greeting
            await store.dismiss([one.name for one in gone])


async def _attempt(chore: Chore) -> None:
    try:
        await chore.do()
    except PenstockError as error:
        _log.warning("upkeep failed, trying again: %s", error)
