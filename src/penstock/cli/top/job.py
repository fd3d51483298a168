"""The screen of one job."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from penstock.cli.top import actions
from penstock.cli.top.actions import Action
from penstock.cli.top.desk import desk_of
from penstock.cli.top.dialogs import AskPriority
from penstock.cli.top.feed import Whole
from penstock.cli.top.story import story
from penstock.cli.top.titles import Titles
from penstock.core.errors import JobNotFound


class JobScreen(Screen[None]):
    """All that is known about one job, live."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "leave", "Back"),
        Binding("j,down", "scroll(1)", "Down", show=False),
        Binding("k,up", "scroll(-1)", "Up", show=False),
        Binding("g,home", "edge(False)", "Top", show=False),
        Binding("G,end", "edge(True)", "End", show=False),
        Binding("w", "blocker", "What blocks it"),
        Binding("r", "act('retry')", "Retry"),
        Binding("c", "act('cancel')", "Cancel"),
        Binding("x", "act('delete')", "Delete"),
        Binding("p", "priority", "Priority"),
    ]

    def __init__(self, job_id: int) -> None:
        super().__init__()
        self.job_id = job_id
        self.whole: Whole | None = None
        self.gone = False

    def compose(self) -> ComposeResult:
        """The job, between the titles and the keys."""
        yield Titles()
        with VerticalScroll(id="job"):
            yield Static(Text("Looking…"), id="story")
        yield Footer(show_command_palette=False)

    async def look(self) -> None:
        """Read all about the job."""
        try:
            self.whole = await desk_of(self).feed.whole(self.job_id)
            self.gone = False
        except JobNotFound:
            self.gone = True

    def draw(self) -> None:
        """Show what is known."""
        desk = desk_of(self)
        page = self.query_one("#story", Static)
        if self.gone:
            page.update(Text(f"There is no job {self.job_id}; it was deleted, or is too old."))
        elif self.whole is not None:
            page.update(story(self.whole, desk.now(), desk.palette))

    def action_leave(self) -> None:
        """Go back to where one came from."""
        self.dismiss()

    def action_scroll(self, lines: int) -> None:
        """Move by a line."""
        self.query_one("#job").scroll_relative(y=lines, animate=False)

    def action_edge(self, end: bool) -> None:
        """Go to the top or to the end."""
        page = self.query_one("#job")
        (page.scroll_end if end else page.scroll_home)(animate=False)

    def action_blocker(self) -> None:
        """Go to the job that this one waits for."""
        if self.whole is not None and self.whole.explanation.blocked_by is not None:
            desk_of(self).open_job(self.whole.explanation.blocked_by)
        else:
            desk_of(self).say("No other job blocks it.")

    def action_act(self, verb: str) -> None:
        """Do something about it."""
        self._propose(verb)

    def action_priority(self) -> None:
        """Ask for a priority first."""

        def chosen(priority: int | None) -> None:
            if priority is not None:
                self._propose("priority", priority)

        self.app.push_screen(AskPriority(f"job {self.job_id}"), chosen)

    def _propose(self, verb: str, priority: int = 0) -> None:
        desk, whole = desk_of(self), self.whole
        if whole is None or self.gone:
            return

        async def prepare() -> Action:
            return actions.on_job(desk.feed.app, verb, whole.job, priority)

        desk.propose(prepare)
