"""Follows a store or a server for a live view, and reconnects when the connection is lost."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from penstock.cli.output import shown
from penstock.core.errors import ConfigurationError, NotAuthorised, PenstockError
from penstock.engine.protocol import App

# However much happens, a person reads only so fast: the store is read at most this often. A read
# that takes long, such as a search for a text among a million jobs, is repeated less often.
_PAUSE = 0.5
_REST = 2
# A claim wakes no waiting reader: a view is at most this old.
_PATIENCE = 2.0
_FIRST_RETRY, _LONGEST_RETRY = 0.5, 5.0

Now = Callable[[], datetime]


def system_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class Follower:
    """Calls `read` and `draw` whenever something has changed.

    `link` is `connecting`, `live`, `lost` or `refused`, and `trouble` says why. `read_at` is the
    time of the last successful read. `failure` is an error that waiting does not mend: it ends
    `run`.
    """

    def __init__(
        self,
        app: App,
        read: Callable[[], Awaitable[None]],
        draw: Callable[[], None],
        now: Now = system_now,
    ) -> None:
        self.link = "connecting"
        self.trouble = ""
        self.read_at: datetime | None = None
        self.failure: ConfigurationError | None = None
        self._app = app
        self._read = read
        self._draw = draw
        self._now = now
        self._took = 0.0
        self._soon = asyncio.Event()

    def read_soon(self) -> None:
        """Read again now: the view shows something else, or the user has changed something."""
        self._soon.set()

    async def run(self) -> None:
        """Follow until `failure`; after a lost connection, try again with growing pauses."""
        pause = _FIRST_RETRY
        while self.failure is None:
            before = self.read_at
            try:
                await self._follow()
            except PenstockError as error:
                self._lose(error)
            pause = _FIRST_RETRY if self.read_at != before else min(pause * 2, _LONGEST_RETRY)
            await asyncio.sleep(pause)

    async def _follow(self) -> None:
        seen = 0
        while True:
            self._soon.clear()
            began = time.monotonic()
            await self._read()
            self.link, self.trouble, self.read_at = "live", "", self._now()
            self._took = time.monotonic() - began
            self._draw()
            seen = await self._until_changed(seen)

    async def _until_changed(self, seen: int) -> int:
        """Wait for a change or for a call of `read_soon`, but at least for a moment."""

        async def changed() -> int:
            await asyncio.sleep(max(_PAUSE, _REST * self._took))
            return await self._app.wait(seen, _PATIENCE)

        requested, change = asyncio.create_task(self._soon.wait()), asyncio.create_task(changed())
        try:
            await asyncio.wait((requested, change), return_when=asyncio.FIRST_COMPLETED)
        finally:
            requested.cancel()
            if not change.done():
                change.cancel()
        return change.result() if change.done() and not change.cancelled() else seen

    def _lose(self, error: PenstockError) -> None:
        if isinstance(error, ConfigurationError):
            self.failure = error
        self.link = "refused" if isinstance(error, NotAuthorised) else "lost"
        self.trouble = shown(str(error))
        self._draw()
