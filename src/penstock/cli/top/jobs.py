"""The page of jobs: a filter, a page of what fits, and deeds on one job or on all that fit."""

from datetime import datetime
from typing import ClassVar

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from penstock.cli.output import Column, shown, when
from penstock.cli.top import actions
from penstock.cli.top.actions import Action
from penstock.cli.top.desk import desk_of
from penstock.cli.top.dialogs import AskPriority
from penstock.cli.top.filters import Filter, FilterRefused, parse
from penstock.cli.top.listing import Listing, Row
from penstock.cli.top.looks import Colours, plain, standing, word
from penstock.cli.top.paging import Page
from penstock.core.job import Job, headline
from penstock.core.lifecycle import State, Waiting

_COLUMNS = (
    Column("id", right=True),
    Column("state"),
    Column("task", bends=True),
    Column("tries", right=True),
    Column("when"),
    Column("queue", bends=True),
    Column("key", bends=True),
    Column("tags", bends=True),
    Column("error", bends=True),
)
_CYCLE = (None, State.PENDING, State.RUNNING, State.FAILED, State.DONE, State.CANCELLED)


class JobsPane(Vertical):
    """Jobs that a filter chooses, newest first unless asked otherwise."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "state", "State"),
        Binding("o", "order", "Order", show=False),
        Binding("n", "next", "Next page", show=False),
        Binding("b", "previous", "Page before", show=False),
        Binding("r", "one('retry')", "Retry"),
        Binding("c", "one('cancel')", "Cancel"),
        Binding("x", "one('delete')", "Delete"),
        Binding("p", "priority(False)", "Priority"),
        Binding("R", "all('retry')", "Retry all", show=False),
        Binding("C", "all('cancel')", "Cancel all", show=False),
        Binding("X", "all('delete')", "Delete all", show=False),
        Binding("P", "priority(True)", "Priority of all", show=False),
    ]

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.filter = Filter()
        self.page = Page()

    def compose(self) -> ComposeResult:
        """The filter, how the list stands, and the list."""
        yield Input(placeholder="state:failed queue:mail since:1h any text", id="filter")
        yield Static(id="standing", markup=False)
        yield Listing(_COLUMNS, id="job-list")
        yield Static("There are no such jobs.", classes="empty")

    @property
    def listing(self) -> Listing:
        """The table."""
        return self.query_one(Listing)

    # Showing

    async def look(self) -> None:
        """Read the page; one that somebody reads keeps its rows."""
        desk = desk_of(self)
        following = self.page.first and self.listing.at_top
        await self.page.look(desk.feed, self.filter, desk.now(), following=following)

    def draw(self) -> None:
        """Show the page."""
        desk = desk_of(self)
        now, palette = desk.now(), desk.palette
        rows = [_row(job, now, palette, gone=job.id in self.page.left) for job in self.page.jobs]
        self.listing.show(rows)
        self.query_one(".empty").display = self.page.looked and not rows
        self.query_one("#standing", Static).update(self._standing())

    def _standing(self) -> str:
        parts = [self.filter.text or "all jobs", self.page.described()]
        if self.page.news:
            parts.append(f"{self.page.news} new: g shows them")
        return shown("   ".join(part for part in parts if part))

    # Choosing

    def choose(self, text: str) -> None:
        """List what this filter chooses; raises `FilterRefused`."""
        self._use(parse(text))

    def _use(self, chosen: Filter) -> None:
        self.filter = chosen
        self.query_one("#filter", Input).value = chosen.text
        self._anew(Page(newest_first=self.page.newest_first))

    def _anew(self, page: Page) -> None:
        self.page = page
        self.listing.forget_widths()
        self.listing.move_cursor(row=0, animate=False)
        self.listing.scroll_to(y=0, animate=False, force=True)
        self.listing.focus()
        desk_of(self).look_soon()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Filter by what was typed; a number alone is the id of a job."""
        event.stop()
        text = event.value.strip()
        if text.isdecimal() and 0 < int(text) < 2**63:
            event.input.value = self.filter.text
            self.listing.focus()
            desk_of(self).open_job(int(text))
            return
        try:
            self.choose(text)
        except FilterRefused as error:
            desk_of(self).say(str(error), bad=True)

    def action_state(self) -> None:
        """Go on to the next state."""
        states = self.filter.states
        (only,) = states if states is not None and len(states) == 1 else (None,)
        following = _CYCLE[(_CYCLE.index(only) + 1) % len(_CYCLE)] if only in _CYCLE else None
        self._use(replace(self.filter, worker=None).of_state(following))

    def action_order(self) -> None:
        """The oldest first, or the newest."""
        self._anew(Page(newest_first=not self.page.newest_first))

    def action_next(self) -> None:
        """The page behind."""
        if (page := self.page.next()) is not None:
            self._anew(page)

    def action_previous(self) -> None:
        """The page before."""
        if (page := self.page.previous()) is not None:
            self._anew(page)

    def on_data_table_row_highlighted(self, event: Listing.RowHighlighted) -> None:
        """On the first row of all, follow what is newest again."""
        if event.cursor_row == 0 and self.page.first and self.page.news:
            self._anew(Page(newest_first=self.page.newest_first))

    def on_data_table_row_selected(self, event: Listing.RowSelected) -> None:
        """Show a job."""
        event.stop()
        if (job := self._current()) is not None:
            desk_of(self).open_job(job.id)

    def _current(self) -> Job | None:
        key = self.listing.current
        return next((job for job in self.page.jobs if str(job.id) == key), None)

    # Deeds

    def action_one(self, verb: str) -> None:
        """On the job under the cursor."""
        if (job := self._current()) is not None:
            self._propose_one(verb, job)

    def action_all(self, verb: str) -> None:
        """On all jobs that fit the filter."""
        self._propose_all(verb)

    def action_priority(self, everyone: bool) -> None:
        """Ask for a priority first."""
        job = self._current()
        if job is None:
            return

        def chosen(priority: int | None) -> None:
            if priority is not None and everyone:
                self._propose_all("priority", priority)
            elif priority is not None:
                self._propose_one("priority", job, priority)

        what = "all that fit" if everyone else f"job {job.id}"
        self.app.push_screen(AskPriority(what), chosen)

    def _propose_one(self, verb: str, job: Job, priority: int = 0) -> None:
        desk = desk_of(self)

        async def prepare() -> Action:
            return actions.on_job(desk.feed.app, verb, job, priority)

        desk.propose(prepare)

    def _propose_all(self, verb: str, priority: int = 0) -> None:
        desk, chosen = desk_of(self), self.filter
        if chosen.worker is not None:
            desk.say("The jobs of a worker are changed one by one.", bad=True)
            return

        async def prepare() -> Action | None:
            described = f"Jobs of: {chosen.text}." if chosen.text else "Of ALL jobs."
            query = chosen.query(desk.now())
            return await actions.on_jobs(desk.feed.app, verb, query, described, priority)

        desk.propose(prepare)


def _latest(job: Job) -> datetime:
    """The instant that says most about a job in its state."""
    if job.state is State.PENDING:
        return job.run_at if job.waiting is Waiting.SCHEDULED else job.enqueued_at
    return job.finished_at or job.started_at or job.enqueued_at


def _row(job: Job, now: datetime, palette: Colours, *, gone: bool) -> Row:
    quiet = palette["quiet"]
    return Row(
        str(job.id),
        [
            plain(str(job.id), quiet),
            plain("left", quiet) if gone else word(standing(job), palette),
            plain(job.task, quiet if gone else "bold"),
            plain(f"{job.attempt}/{job.retry.attempts}"),
            plain(when(_latest(job), now)),
            plain(job.queue),
            plain(job.key or ""),
            plain(", ".join(job.tags)),
            plain(headline(job.error), palette["failed"] if job.state is State.FAILED else quiet),
        ],
    )
