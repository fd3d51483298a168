"""The page of jobs: a filter, the jobs that match, and actions on one or all of them."""

from datetime import datetime
from typing import ClassVar

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from penstock.cli.live.reader import Reader
from penstock.cli.live.rows import JOB_COLUMNS, job_cells
from penstock.cli.output import shown
from penstock.cli.top import actions
from penstock.cli.top.actions import Action
from penstock.cli.top.dialogs import AskPriority
from penstock.cli.top.filters import Filter, FilterRefused, parse
from penstock.cli.top.listing import Listing, Row
from penstock.cli.top.view import view_of
from penstock.core.errors import JobNotFound
from penstock.core.job import Job, JobId
from penstock.core.lifecycle import State
from penstock.core.query import JobQuery

PAGE_SIZE = 50
# Stores have no index by worker: at most this many running jobs are searched for a worker's.
_SEARCHED = 1_000
# Jobs that no longer match the filter are read one by one, at most this many at a time.
_READ_ONE_BY_ONE = 20
_CYCLE = (None, State.PENDING, State.RUNNING, State.FAILED, State.DONE, State.CANCELLED)


class Page:
    """A page of jobs: it follows the newest ones, or keeps the rows that somebody is reading.

    `gone` are the ids of jobs that were removed, `news` is the number of newer jobs. Reading a
    page takes the same time, however many jobs there are.
    """

    def __init__(
        self, *, newest_first: bool = True, before: "Page | None" = None, after: JobId | None = None
    ) -> None:
        self.newest_first = newest_first
        self.jobs: list[Job] = []
        self.gone: set[JobId] = set()
        self.news = ""
        self.was_read = False
        self._before = before
        self._after = after
        self._more = False
        self.number: int = 1 if before is None else before.number + 1

    @property
    def first(self) -> bool:
        """Whether this is the first page."""
        return self._before is None

    def next(self) -> "Page | None":
        """Return the next page; None after the last."""
        if not self._more or not self.jobs:
            return None
        return Page(newest_first=self.newest_first, before=self, after=self.jobs[-1].id)

    def previous(self) -> "Page | None":
        """Return the previous page; None before the first."""
        return self._before

    def described(self) -> str:
        """Describe the page: its number and order, and the keys for other pages."""
        order = "newest first" if self.newest_first else "oldest first"
        more = ", n: next page" if self._more else ""
        before = ", b: previous page" if self._before is not None else ""
        return f"page {self.number}, {order}{more}{before}"

    async def read(
        self, reader: Reader, selected: Filter, now: datetime, *, following: bool
    ) -> None:
        """Read the page again; unless it follows, it keeps its rows."""
        query = replace(selected.query(now), newest_first=self.newest_first, limit=PAGE_SIZE + 1)
        if following or not self.was_read or selected.worker is not None:
            await self._begin(reader, selected, query)
        elif self.jobs:
            await self._keep(reader, query)

    async def _begin(self, reader: Reader, selected: Filter, query: JobQuery) -> None:
        limit = PAGE_SIZE + 1 if selected.worker is None else _SEARCHED
        found = selected.matching(await reader.find(replace(query, after=self._after, limit=limit)))
        self.jobs, self._more = (
            found[:PAGE_SIZE],
            len(found) > PAGE_SIZE and selected.worker is None,
        )
        self.gone, self.news, self.was_read = set(), "", True

    async def _keep(self, reader: Reader, query: JobQuery) -> None:
        top = self.jobs[0].id
        next_id = top + 1 if self.newest_first else top - 1
        found = await reader.find(replace(query, after=JobId(next_id) if next_id else None))
        known = {job.id: job for job in found}
        missing = [job for job in self.jobs if job.id not in known]
        for job in [one for one in missing if one.id not in self.gone][:_READ_ONE_BY_ONE]:
            try:
                known[job.id] = await reader.app.get(job.id)
            except JobNotFound:
                self.gone.add(job.id)
        self.jobs = [known.get(job.id, job) for job in self.jobs]
        if self.first and self.newest_first:
            above = [job for job in await reader.find(query) if job.id > top]
            self.news = f"{PAGE_SIZE}+" if len(above) > PAGE_SIZE else str(len(above) or "")


class JobsPane(Vertical):
    """The jobs that a filter selects."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "state", "State"),
        Binding("o", "order", "Order", show=False),
        Binding("n", "next", "Next page", show=False),
        Binding("b", "previous", "Previous page", show=False),
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
        """Return the filter, the description of the page, and the list."""
        yield Input(placeholder="state:failed queue:mail since:1h any text", id="filter")
        yield Static(id="description", markup=False)
        yield Listing(JOB_COLUMNS, id="job-list")
        yield Static("No jobs match.", classes="empty")

    @property
    def listing(self) -> Listing:
        """The table."""
        return self.query_one(Listing)

    # Showing

    async def read(self) -> None:
        """Read the page."""
        view = view_of(self)
        following = self.page.first and self.listing.at_top
        await self.page.read(view.reader, self.filter, view.now(), following=following)

    def draw(self) -> None:
        """Show the page."""
        view = view_of(self)
        now, palette = view.now(), view.palette
        rows = [
            Row(str(job.id), job_cells(job, now, palette, gone=job.id in self.page.gone))
            for job in self.page.jobs
        ]
        self.listing.show(rows)
        self.query_one(".empty").display = self.page.was_read and not rows
        self.query_one("#description", Static).update(self._description())

    def _description(self) -> str:
        parts = [self.filter.text or "all jobs", self.page.described()]
        if self.page.news:
            parts.append(f"{self.page.news} new: press g")
        return shown("   ".join(part for part in parts if part))

    # Selecting

    def select(self, text: str) -> None:
        """List the jobs that this filter selects. Raises `FilterRefused`."""
        self._use(parse(text))

    def _use(self, selected: Filter) -> None:
        self.filter = selected
        self.query_one("#filter", Input).value = selected.text
        self._open(Page(newest_first=self.page.newest_first))

    def _open(self, page: Page) -> None:
        self.page = page
        self.listing.forget_widths()
        self.listing.move_cursor(row=0, animate=False)
        self.listing.scroll_to(y=0, animate=False, force=True)
        self.listing.focus()
        view_of(self).follower.read_soon()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Apply the filter; a number alone is the ID of a job to open."""
        event.stop()
        text = event.value.strip()
        if text.isdecimal() and 0 < int(text) < 2**63:
            event.input.value = self.filter.text
            self.listing.focus()
            view_of(self).open_job(int(text))
            return
        try:
            self.select(text)
        except FilterRefused as error:
            view_of(self).say(str(error), bad=True)

    def action_state(self) -> None:
        """Filter by the next state."""
        states = self.filter.states
        (only,) = states if states is not None and len(states) == 1 else (None,)
        following = _CYCLE[(_CYCLE.index(only) + 1) % len(_CYCLE)] if only in _CYCLE else None
        self._use(replace(self.filter, worker=None).of_state(following))

    def action_order(self) -> None:
        """Reverse the order."""
        self._open(Page(newest_first=not self.page.newest_first))

    def action_next(self) -> None:
        """Go to the next page."""
        if (page := self.page.next()) is not None:
            self._open(page)

    def action_previous(self) -> None:
        """Go to the previous page."""
        if (page := self.page.previous()) is not None:
            self._open(page)

    def on_data_table_row_highlighted(self, event: Listing.RowHighlighted) -> None:
        """Follow the newest jobs again when the cursor is on the first row."""
        if event.cursor_row == 0 and self.page.first and self.page.news:
            self._open(Page(newest_first=self.page.newest_first))

    def on_data_table_row_selected(self, event: Listing.RowSelected) -> None:
        """Show a job."""
        event.stop()
        if (job := self._current()) is not None:
            view_of(self).open_job(job.id)

    def _current(self) -> Job | None:
        key = self.listing.current
        return next((job for job in self.page.jobs if str(job.id) == key), None)

    # Actions

    def action_one(self, verb: str) -> None:
        """Propose an action on the job under the cursor."""
        if (job := self._current()) is not None:
            self._propose_one(verb, job)

    def action_all(self, verb: str) -> None:
        """Propose an action on all jobs that match the filter."""
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

        what = "all jobs that match" if everyone else f"job {job.id}"
        self.app.push_screen(AskPriority(what), chosen)

    def _propose_one(self, verb: str, job: Job, priority: int = 0) -> None:
        view = view_of(self)

        async def prepare() -> Action:
            return actions.on_job(view.reader.app, verb, job, priority)

        view.propose(prepare)

    def _propose_all(self, verb: str, priority: int = 0) -> None:
        view, selected = view_of(self), self.filter
        if selected.worker is not None:
            view.say("Jobs of a worker can only be changed one by one.", bad=True)
            return

        async def prepare() -> Action | None:
            described = f"Filter: {selected.text}." if selected.text else "No filter: ALL jobs."
            query = selected.query(view.now())
            return await actions.on_jobs(view.reader.app, verb, query, described, priority)

        view.propose(prepare)
