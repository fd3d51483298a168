"""A single waiter, woken from any thread."""

import asyncio
import threading
from contextlib import suppress


class Alarm:
    """Rings from any thread; waits in an event loop where one runs, else blocks the thread."""

    def __init__(self) -> None:
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
            self._event = threading.Event()
        else:
            self._future = self._loop.create_future()

    def ring(self) -> None:
        """Wake the waiter. Never raises."""
        if self._loop is None:
            self._event.set()
        else:
            with suppress(RuntimeError):  # the waiter's loop was closed
                self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self, timeout: float) -> None:
        """Return when it has rung, or after so many seconds."""
        if self._loop is None:
            self._event.wait(timeout)
        else:
            # Less on the way than `asyncio.wait`, whose waiter is woken a turn of the loop later.
            timer = self._loop.call_later(timeout, self._answer)
            try:
                await self._future
            finally:
                timer.cancel()
