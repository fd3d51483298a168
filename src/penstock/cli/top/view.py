"""The part of `top` that its pages use: the connection, the clock, the colours, and actions."""

from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from textual import work
from textual.app import App
from textual.dom import DOMNode

from penstock.cli.live.follower import Follower, Now, system_now
from penstock.cli.live.reader import Overview, Reader
from penstock.cli.live.style import Colours
from penstock.cli.output import shown
from penstock.cli.top.actions import Action
from penstock.cli.top.dialogs import Confirm
from penstock.cli.top.theme import DARK, LIGHT, colours
from penstock.core.errors import NotAuthorised, PenstockError
from penstock.core.tokens import Access


class Pane(Protocol):
    """A page or a screen: it reads what it shows, and draws what it read last."""

    async def read(self) -> None:
        """Read what it shows."""
        ...

    def draw(self) -> None:
        """Show it as of now."""
        ...


class View(App[None]):
    """A live view of a store or a server: reads and draws what is in front."""

    def __init__(self, reader: Reader, *, now: Now = system_now, theme: str = DARK.name) -> None:
        super().__init__()
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = theme
        self.reader = reader
        self.now = now
        self.read_only = False
        self.overview: Overview | None = None
        self.follower = Follower(reader.app, self._read, self.draw_all, now)

    @property
    def palette(self) -> Colours:
        """The colours of the theme."""
        return colours(self.current_theme)

    def pane(self) -> Pane | None:
        """Return the page or screen in front; None while it opens or closes."""
        raise NotImplementedError

    def draw_all(self) -> None:
        """Draw everything as of now."""
        raise NotImplementedError

    def open_jobs(self, text: str) -> None:
        """List the jobs that a filter selects."""
        raise NotImplementedError

    def open_job(self, job_id: int) -> None:
        """Show a job."""
        raise NotImplementedError

    # Following

    @work(exclusive=True, group="following")
    async def follow(self) -> None:
        """Follow the store or the server; end the view after an error that waiting cannot mend."""
        await self.follower.run()
        self.exit()

    async def _read(self) -> None:
        if self.follower.link != "live":
            self.read_only = Access.ADMIN not in await self.reader.app.tokens.scopes()
        self.overview = await self.reader.overview(self.now())
        if (pane := self.pane()) is not None:
            await pane.read()

    # Actions

    def say(self, text: str, *, bad: bool = False) -> None:
        """Show a message."""
        self.notify(shown(text), severity="error" if bad else "information", markup=False)

    @work
    async def propose(self, prepare: Callable[[], Awaitable[Action | None]]) -> None:
        """Prepare an action, ask for confirmation, carry it out, and show its result."""
        if self.read_only:
            self.say("Not allowed: the token does not have the scope admin.", bad=True)
            return
        try:
            action = await prepare()
            if action is None:
                self.say("No job would change.")
            elif await self.push_screen_wait(Confirm(action.question, action.detail)):
                self.say(await action.run())
                self.follower.read_soon()
        except NotAuthorised as error:
            self.read_only = True
            self.say(f"Not allowed: {error}", bad=True)
            self.draw_all()
        except PenstockError as error:
            self.say(f"Not done: {error}", bad=True)


def view_of(node: DOMNode) -> View:
    """Return the view that a widget belongs to."""
    return cast("View", node.app)
