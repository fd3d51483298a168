"""The page of queues."""

import shlex
from typing import ClassVar

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from penstock.cli.live.figures import Figures
from penstock.cli.live.reader import QUEUES_SHOWN
from penstock.cli.live.rows import QUEUE_COLUMNS, queue_cells
from penstock.cli.top import actions
from penstock.cli.top.actions import Action
from penstock.cli.top.listing import Listing, Row
from penstock.cli.top.view import view_of
from penstock.core.queue import QueueQuery


class QueuesPane(Vertical):
    """The queues: backlog, rates and utilisation."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "Pause/resume"),
        Binding("d", "drain", "Drain"),
        Binding("n", "next_page", "Next page", show=False),
        Binding("b", "page_before", "Previous page", show=False),
    ]

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._before: list[QueueQuery] = []

    def compose(self) -> ComposeResult:
        """Return the table, and a text for when it is empty."""
        yield Listing(QUEUE_COLUMNS, id="queue-list")
        yield Static("There are no queues yet.", classes="empty")

    async def read(self) -> None:
        """Do nothing: the overview has all that this page shows."""

    def draw(self) -> None:
        """Show the figures."""
        view = view_of(self)
        found = [] if view.overview is None else view.overview.figures
        self.query_one(Listing).show(
            [Row(one.queue, queue_cells(one, view.palette)) for one in found]
        )
        self.query_one(".empty").display = view.overview is not None and not found

    def _current(self) -> Figures | None:
        view, key = view_of(self), self.query_one(Listing).current
        found = [] if view.overview is None else view.overview.figures
        return next((one for one in found if one.queue == key), None)

    def on_data_table_row_selected(self, event: Listing.RowSelected) -> None:
        """List the jobs of a queue."""
        event.stop()
        if (queue := self._current()) is not None:
            view_of(self).open_jobs(f"queue:{shlex.quote(queue.queue)}")

    def action_next_page(self) -> None:
        """Go to the next page."""
        view = view_of(self)
        found = [] if view.overview is None else view.overview.figures
        if len(found) >= QUEUES_SHOWN:
            self._before.append(view.reader.queues)
            view.reader.queues = replace(view.reader.queues, after=found[-1].queue)
            view.follower.read_soon()

    def action_page_before(self) -> None:
        """Go to the previous page."""
        if self._before:
            view = view_of(self)
            view.reader.queues = self._before.pop()
            view.follower.read_soon()

    def action_pause(self) -> None:
        """Pause a queue, or resume one that is paused."""
        if (queue := self._current()) is not None:
            make = actions.resume if queue.paused else actions.pause
            self._propose(make(view_of(self).reader.app, queue.queue, queue.pending))

    def action_drain(self) -> None:
        """Wait until the jobs of a queue have finished."""
        if (queue := self._current()) is not None:
            unfinished = queue.pending + queue.running
            self._propose(actions.drain(view_of(self).reader.app, queue.queue, unfinished))

    def _propose(self, action: Action) -> None:
        async def prepared() -> Action:
            return action

        view_of(self).propose(prepared)
