"""What goes on beside the requests, for as long as a server runs."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Have this go on inside the block; at its end it is cancelled, and has ended."""
    going_on = asyncio.create_task(work)
    try:
        yield
    finally:
        going_on.cancel()
        with suppress(asyncio.CancelledError):
            await going_on
