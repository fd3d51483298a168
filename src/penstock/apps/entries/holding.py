"""Holds the queue of entries while much of it is changed at once."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta

from penstock import Penstock, PenstockError, QueueQuery, State
from penstock.apps.entries.rows import QUEUE

_log = logging.getLogger(__name__)

HOLD = timedelta(seconds=30)
"""How long the queue stays paused at most when who holds it was killed."""
PATIENCE = timedelta(minutes=10)
"""How long rows in flight are waited for."""
_MOMENT = timedelta(microseconds=1)
_LOOK_AGAIN = 1.0


class StillEmbedding(Exception):
    """Rows in flight have not ended in time."""


@asynccontextmanager
async def held(penstock: Penstock, *, patience: timedelta = PATIENCE) -> AsyncIterator[None]:
    """Let no row be begun inside the block, which is entered when those in flight have ended.

    The queue goes on at the end of the block, whatever happened in it, and soon after a kill: a
    pause that is not renewed ends by itself. A queue that somebody else has paused stays paused.
    Raises `StillEmbedding`.
    """
    hold = _Hold(penstock)
    await hold.take()
    renewing = asyncio.create_task(hold.keep())
    try:
        await _until_idle(penstock, patience)
        yield
    finally:
        hold.over.set()
        await renewing  # not cancelled: what it has just written would not be known as ours
        await hold.let_go()


class _Hold:
    def __init__(self, penstock: Penstock) -> None:
        self._penstock = penstock
        self._until: datetime | None = None
        self.over = asyncio.Event()

    async def take(self) -> None:
        self._until = (await self._penstock.pause(QUEUE, duration=HOLD)).paused_until

    async def keep(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(HOLD.total_seconds() / 4):
                    await self.over.wait()
                    return
            try:
                await self.take()
            except PenstockError as error:
                _log.warning("the hold of the queue could not be renewed: %s", error)

    async def let_go(self) -> None:
        """End the pause, if it is still ours."""
        found = await self._penstock.queues(QueueQuery(names=(QUEUE,)))
        if found and found[0].paused and found[0].paused_until == self._until is not None:
            # Not `resume`: it would also end a pause without an end that comes at this moment.
            await self._penstock.pause(QUEUE, duration=_MOMENT)


async def _until_idle(penstock: Penstock, patience: timedelta) -> None:
    end = time.monotonic() + patience.total_seconds()
    seen = 0
    while running := await _running(penstock):
        if (left := end - time.monotonic()) <= 0:
            raise StillEmbedding(f"{running} jobs with rows in flight have not ended in time")
        seen = await penstock.wait(seen, min(left, _LOOK_AGAIN))


async def _running(penstock: Penstock) -> int:
    counted = await penstock.count([QUEUE])
    return sum(
        n for (name, state, _), n in counted.items() if (name, state) == (QUEUE, State.RUNNING)
    )
