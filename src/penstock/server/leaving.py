"""When to let go of a request that waits: its client went away, or the server stops."""

import asyncio

from penstock.http.bodies import Receive


async def until_gone(receive: Receive, stopping: asyncio.Event) -> None:
    """Return when nobody waits for the answer any more."""
    ends = (asyncio.create_task(_disconnected(receive)), asyncio.create_task(stopping.wait()))
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
