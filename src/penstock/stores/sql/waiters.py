"""Waiters of one process for changes of a store."""

import contextlib
import threading

from penstock.stores.waiter import Waiter


class Waiters:
    """Counts changes in generations, and wakes all who wait for the next one."""

    def __init__(self) -> None:
        self.generation = 1
        self._waiting: list[Waiter] = []
        self._lock = threading.Lock()

    def wake(self) -> None:
        """Begin the next generation and wake all waiters; never raises, never blocks for long."""
        with self._lock:
            self.generation += 1
            waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.wake()

    async def wait(self, seen: int, timeout: float) -> int:
        """Wait for a generation other than `seen`, or for this time; return the current one."""
        waiter = Waiter()
        with self._lock:
            if self.generation != seen:
                return self.generation
            self._waiting.append(waiter)
        try:
            await waiter.wait(timeout)
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._waiting.remove(waiter)
        return self.generation
