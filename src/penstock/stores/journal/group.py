"""Those who wait for the same turn of the disk."""

import asyncio
import contextlib


class Group:
    """Callers whose answers depend on records that are not durable yet."""

    def __init__(self) -> None:
        self.rings = False
        """Whether those who wait for changes are to be woken."""
        self.is_over = False
        self.error: Exception | None = None
        self._futures: list[asyncio.Future[None]] = []

    def join(self, loop: asyncio.AbstractEventLoop) -> "asyncio.Future[None]":
        """What a caller in an event loop waits for."""
        future: asyncio.Future[None] = loop.create_future()
        self._futures.append(future)
        return future

    def end(self, error: Exception | None = None) -> None:
        """Let all go on; with an error, it is raised in each."""
        self.is_over, self.error = True, error
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for future in self._futures:
            loops.setdefault(future.get_loop(), []).append(future)
        for loop, futures in loops.items():
            with contextlib.suppress(RuntimeError):  # that loop was closed meanwhile
                loop.call_soon_threadsafe(self._resolve, futures)

    def _resolve(self, futures: "list[asyncio.Future[None]]") -> None:
        for future in futures:
            if future.done():  # its caller was cancelled
                continue
            if self.error is not None:
                future.set_exception(self.error)
            else:
                future.set_result(None)
