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
        self._futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    def join(self, loop: asyncio.AbstractEventLoop) -> "tuple[asyncio.Future[None], bool]":
        """What a caller in an event loop waits for, and whether it is the first of that loop."""
        future: asyncio.Future[None] = loop.create_future()
        if loop in self._futures:
            self._futures[loop].append(future)
            return future, False
        self._futures[loop] = [future]
        return future, True

    def end(self, error: Exception | None = None) -> None:
        """Let all go on; with an error, it is raised in each."""
        self.is_over, self.error = True, error
        for loop, futures in self._futures.items():
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
