"""What many queues have together: walked over seldom where there are very many of them."""

import asyncio
import time
from collections.abc import Collection

from penstock.core.job import Overall
from penstock.engine import Penstock

# What took longer than this is kept for so many times as long: walking over all queues takes at
# most a fiftieth of the time of one thread, however many there are and however often it is asked.
_QUICK = 0.01
_REST = 50


class Survey:
    """Knows what all queues have together, but those of one set of names."""

    def __init__(self, penstock: Penstock) -> None:
        self.penstock = penstock
        self._lock = asyncio.Lock()
        self._known: Overall | None = None
        self._without: frozenset[str] = frozenset()
        self._until = 0.0

    async def of_all(self, without: Collection[str] = ()) -> Overall:
        """What the queues have together; where there are very many, as of some seconds ago."""
        left_out = frozenset(without)
        async with self._lock:  # whoever comes meanwhile has the same answer
            if self._known is None or left_out != self._without or time.monotonic() >= self._until:
                began = time.monotonic()
                self._known = await self.penstock.overall(left_out)
                self._without = left_out
                took = time.monotonic() - began
                self._until = 0.0 if took < _QUICK else began + took * (1 + _REST)
            return self._known
