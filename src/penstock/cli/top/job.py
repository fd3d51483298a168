"""The screen of one job."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from penstock.cli.live.reader import Details
from penstock.cli.top import actions, details
from penstock.cli.top.actions import Action
from penstock.cli.top.dialogs import AskPriority
from penstock.cli.top.header import Header
from penstock.cli.top.view import view_of
from penstock.core.errors import JobNotFound


class JobScreen(Screen[None]):
    """One job in full, live."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "leave", "Back"),
        Binding("j,down", "scroll(1)", "Down", show=False),
        Binding("k,up", "scroll(-1)", "Up", show=False),
        Binding("g,home", "edge(False)", "Top", show=False),
        Binding("G,end", "edge(True)", "End", show=False),
        Binding("w", "blocker", "Blocking job"),
        Binding("r", "act('retry')", "Retry"),
        Binding("c", "act('cancel')", "Cancel"),
        Binding("x", "act('delete')", "Delete"),
        Binding("p", "priority", "Priority"),
    ]

    def __init__(self, job_id: int) -> None:
        super().__init__()
        self.job_id = job_id
        self.details: Details | None = None
        self.gone = False

    def compose(self) -> ComposeResult:
        """Return the job, between the header and the keys."""
        yield Header()
        with VerticalScroll(id="job"):
            yield Static(Text("Loading…"), id="details")
        yield Footer(show_command_palette=False)

    async def read(self) -> None:
        """Read the job."""
        try:
            self.details = await view_of(self).reader.details(self.job_id)
            self.gone = False
        except JobNotFound:
            self.gone = True

    def draw(self) -> None:
        """Show the job."""
        view = view_of(self)
        page = self.query_one("#details", Static)
        if self.gone:
            page.update(
                Text(f"There is no job {self.job_id}; it was deleted, or removed by retention.")
            )
        elif self.details is not None:
            page.update(details.render(self.details, view.now(), view.palette))

    def action_leave(self) -> None:
        """Go back."""
        self.dismiss()

    def action_scroll(self, lines: int) -> None:
        """Scroll by a line."""
        self.query_one("#job").scroll_relative(y=lines, animate=False)

    def action_edge(self, end: bool) -> None:
        """Go to the top or to the end."""
        page = self.query_one("#job")
        (page.scroll_end if end else page.scroll_home)(animate=False)

    def action_blocker(self) -> None:
        """Go to the job that this one waits for."""
        if self.details is not None and self.details.explanation.blocked_by is not None:
            view_of(self).open_job(self.details.explanation.blocked_by)
        else:
            view_of(self).say("No other job blocks this one.")

    def action_act(self, verb: str) -> None:
        """Propose an action on the job."""
        self._propose(verb)

    def action_priority(self) -> None:
        """Ask for a priority first."""

        def chosen(priority: int | None) -> None:
            if priority is not None:
                self._propose("priority", priority)

        self.app.push_screen(AskPriority(f"job {self.job_id}"), chosen)

    def _propose(self, verb: str, priority: int = 0) -> None:
        view, found = view_of(self), self.details
        if found is None or self.gone:
            return

        async def prepare() -> Action:
            return actions.on_job(view.reader.app, verb, found.job, priority)

        view.propose(prepare)
