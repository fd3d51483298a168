"""One caller that waits, woken from any thread."""

import asyncio
import threading
from contextlib import suppress


class Waiter:
    """Waits in the running event loop or, if none runs, blocks the thread, until it is woken."""

    def __init__(self) -> None:
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
            self._event = threading.Event()
        else:
            self._future = self._loop.create_future()

    def wake(self) -> None:
        """Wake the waiter, from any thread. Never raises."""
        if self._loop is None:
            self._event.set()
        else:
            with suppress(RuntimeError):  # the waiter's loop was closed
                self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self, timeout: float) -> None:
        """Return when woken, or after that many seconds."""
        if self._loop is None:
            self._event.wait(timeout)
        else:
            # Cheaper than `asyncio.wait`, whose waiter runs one turn of the loop later.
            timer = self._loop.call_later(timeout, self._resolve)
            try:
                await self._future
            finally:
                timer.cancel()
