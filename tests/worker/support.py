"""What the tests of the worker stand on: short ways to run one, and to wait for what it does."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from penstock import Event, Job, Penstock, RetryPolicy, Worker
from tests.contract.support import HOUR, SECOND, SOON, ManualClock

ONCE = RetryPolicy(attempts=1)
AT_ONCE = RetryPolicy(attempts=3, delay=0 * SECOND)
"""Three attempts without a rest between them."""


async def work_off(app: Penstock, **options: Any) -> None:
    """Run a worker until nothing is ready."""
    async with asyncio.timeout(SOON):
        await Worker(app, **options).run(until_empty=True)


async def ended(running: "asyncio.Task[None]") -> None:
    """Wait for the end of a worker, but not for ever."""
    done, _ = await asyncio.wait({running}, timeout=SOON)
    assert done, "the worker did not end"
    await running


@asynccontextmanager
async def working(app: Penstock, **options: Any) -> AsyncIterator[Worker]:
    """A worker that runs meanwhile, and is stopped afterwards."""
    worker = Worker(app, **options)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await ended(running)


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what nothing announces."""
    async with asyncio.timeout(SOON):
        while not await holds():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.005)


async def take_away(app: Penstock, job: Job, clock: ManualClock) -> None:
    """Let the lease of a running job end, although its worker renews it: time jumps until that
    is late. The worker sweeps too, at moments of its own: who takes the job back is left open.
    """
    async with asyncio.timeout(SOON):
        while True:
            clock.advance(2 * HOUR)
            await app.reclaim()
            if Event.EXPIRED in [entry.event for entry in await app.log(job.id)]:
                return


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(SOON):
        await event.wait()
