"""What every part of the view stands on: the connection, the clock, the colours, and deeds."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Protocol, cast

from textual import work
from textual.app import App
from textual.dom import DOMNode

from penstock.cli.output import shown
from penstock.cli.top.actions import Action
from penstock.cli.top.dialogs import Confirm
from penstock.cli.top.feed import Feed, Overview
from penstock.cli.top.looks import DARK, LIGHT, Colours, colours
from penstock.core.errors import ConfigurationError, NotAuthorised, PenstockError

# However much happens, a person reads only so fast; no store is asked more often. A look that
# takes long, such as for a text among a million jobs, is not taken again and again.
_PAUSE = 0.5
_REST = 2
_FIRST_RETRY, _LONGEST_RETRY = 0.5, 5.0

Now = Callable[[], datetime]


def system_now() -> datetime:
    """The time, in UTC."""
    return datetime.now(UTC)


class View(Protocol):
    """Something that is shown: it looks for itself, and draws what it saw last."""

    async def look(self) -> None:
        """Read what it shows."""
        ...

    def draw(self) -> None:
        """Show it as of now."""
        ...


class Desk(App[None]):
    """Follows a store or a server for as long as it runs, whatever becomes of the connection.

    `link` is `connecting`, `live`, `lost` or `refused`, and `trouble` says why. `failure` is an
    error that no waiting mends: it ends the view.
    """

    def __init__(self, feed: Feed, *, now: Now = system_now, theme: str = DARK.name) -> None:
        super().__init__()
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = theme
        self.feed = feed
        self.now = now
        self.link = "connecting"
        self.trouble = ""
        self.read_only = False
        self.failure: ConfigurationError | None = None
        self.seen: Overview | None = None
        self.heard_at: datetime | None = None
        self.looks = 0
        self._took = 0.0
        self._soon = asyncio.Event()

    @property
    def palette(self) -> Colours:
        """The colours of the theme."""
        return colours(self.current_theme)

    def view(self) -> View | None:
        """What is in front; None while it comes or goes."""
        raise NotImplementedError

    def draw_all(self) -> None:
        """Show everything as of now."""
        raise NotImplementedError

    def open_jobs(self, text: str) -> None:
        """List the jobs that a filter chooses."""
        raise NotImplementedError

    def open_job(self, job_id: int) -> None:
        """Show a job."""
        raise NotImplementedError

    # Following

    def look_soon(self) -> None:
        """Look again at once: something else is asked for, or was just done."""
        self._soon.set()

    @work(exclusive=True, group="following")
    async def follow(self) -> None:
        """Look, wait for a change, look again; and begin anew when the connection is lost."""
        pause = _FIRST_RETRY
        while self.failure is None:
            before = self.looks
            try:
                await self._follow()
            except PenstockError as error:
                self._lose(error)
            pause = _FIRST_RETRY if self.looks > before else min(pause * 2, _LONGEST_RETRY)
            await asyncio.sleep(pause)

    async def _follow(self) -> None:
        async with self.feed.changes() as wait:
            self.read_only = not await self.feed.may_steer()
            while True:
                self._soon.clear()
                await self._look()
                await self._until_worth_it(wait)

    async def _look(self) -> None:
        began = time.monotonic()
        self.seen = await self.feed.overview(self.now())
        if (view := self.view()) is not None:
            await view.look()
        self.link, self.trouble, self.heard_at = "live", "", self.now()
        self.looks += 1
        self._took = time.monotonic() - began
        self.draw_all()

    async def _until_worth_it(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Until something has changed, and a moment has passed; or until a person cannot wait."""
        asked = asyncio.create_task(self._soon.wait())

        async def changed() -> None:
            await asyncio.sleep(max(_PAUSE, _REST * self._took))
            await wait()

        change = asyncio.create_task(changed())
        try:
            await asyncio.wait((asked, change), return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            if not change.done():
                change.cancel()
        if change.done() and not change.cancelled():
            change.result()

    def _lose(self, error: PenstockError) -> None:
        if isinstance(error, ConfigurationError):  # not a matter of time
            self.failure = error
            self.exit()
        self.link = "refused" if isinstance(error, NotAuthorised) else "lost"
        self.trouble = shown(str(error))
        self.draw_all()

    # Deeds

    def say(self, text: str, *, bad: bool = False) -> None:
        """Tell what was done, or why not."""
        self.notify(shown(text), severity="error" if bad else "information", markup=False)

    @work
    async def propose(self, prepare: Callable[[], Awaitable[Action | None]]) -> None:
        """Count, ask, do, and say what it came to."""
        if self.read_only:
            self.say("Not allowed: the token does not have the scope admin.", bad=True)
            return
        try:
            action = await prepare()
            if action is None:
                self.say("There is no job that this would change.")
            elif await self.push_screen_wait(Confirm(action.question, action.detail)):
                self.say(await action.run())
                self.look_soon()
        except NotAuthorised as error:
            self.read_only = True
            self.say(f"Not allowed: {error}", bad=True)
            self.draw_all()
        except PenstockError as error:
            self.say(f"Not done: {error}", bad=True)


def desk_of(node: DOMNode) -> Desk:
    """The desk that a part of the view stands on."""
    return cast("Desk", node.app)
