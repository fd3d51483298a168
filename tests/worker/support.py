"""What the tests of the worker stand on: short ways to run one, and to wait for what it does."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from penstock import Penstock, RetryPolicy, Worker
from tests.contract.support import SECOND, SOON

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


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(SOON):
        await event.wait()
