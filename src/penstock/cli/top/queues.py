"""The page of queues."""

from typing import ClassVar

from msgspec.structs import replace
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from penstock.cli.output import Column
from penstock.cli.stats import sparkline
from penstock.cli.top import actions
from penstock.cli.top.actions import Action
from penstock.cli.top.desk import desk_of
from penstock.cli.top.feed import QUEUES_SHOWN
from penstock.cli.top.figures import Figures
from penstock.cli.top.listing import Listing, Row
from penstock.cli.top.looks import Colours, count, duration, plain, rate, share, word
from penstock.core.job import QueueQuery

_COLUMNS = (
    Column("queue", bends=True),
    Column("", bends=False),
    Column("waiting", right=True),
    Column("oldest", right=True),
    Column("running", right=True),
    Column("in", right=True),
    Column("out", right=True),
    Column("empty in", right=True),
    Column("failed", right=True),
    Column("busy"),
    Column("done per minute"),
)


class QueuesPane(Vertical):
    """Every queue: how deep, how fast, how busy."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "Pause/resume"),
        Binding("d", "drain", "Drain"),
        Binding("n", "next_page", "Next page", show=False),
        Binding("b", "page_before", "Page before", show=False),
    ]

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._before: list[QueueQuery] = []

    def compose(self) -> ComposeResult:
        """A table, and a word where there is nothing in it."""
        yield Listing(_COLUMNS, id="queue-list")
        yield Static("No queue has held a job yet.", classes="empty")

    async def look(self) -> None:
        """The overview, which is read with every look, has it all."""

    def draw(self) -> None:
        """Show the figures."""
        desk = desk_of(self)
        found = [] if desk.seen is None else desk.seen.figures
        self.query_one(Listing).show([_row(one, desk.palette) for one in found])
        self.query_one(".empty").display = desk.seen is not None and not found

    def _current(self) -> Figures | None:
        desk, key = desk_of(self), self.query_one(Listing).current
        found = [] if desk.seen is None else desk.seen.figures
        return next((one for one in found if one.queue == key), None)

    def on_data_table_row_selected(self, event: Listing.RowSelected) -> None:
        """List the jobs of a queue."""
        event.stop()
        if (queue := self._current()) is not None:
            desk_of(self).open_jobs(f"queue:{_quoted(queue.queue)}")

    def action_next_page(self) -> None:
        """Go to the queues behind those that are shown."""
        desk = desk_of(self)
        found = [] if desk.seen is None else desk.seen.figures
        if len(found) >= QUEUES_SHOWN:
            self._before.append(desk.feed.queues)
            desk.feed.queues = replace(desk.feed.queues, after=found[-1].queue)
            desk.look_soon()

    def action_page_before(self) -> None:
        """Go back to the page before."""
        if self._before:
            desk = desk_of(self)
            desk.feed.queues = self._before.pop()
            desk.look_soon()

    def action_pause(self) -> None:
        """Pause a queue, or resume one that is paused."""
        if (queue := self._current()) is not None:
            make = actions.resuming if queue.paused else actions.pausing
            self._propose(make(desk_of(self).feed.app, queue.queue, queue.pending))

    def action_drain(self) -> None:
        """Wait for the end of what a queue holds."""
        if (queue := self._current()) is not None:
            unfinished = queue.pending + queue.running
            self._propose(actions.draining(desk_of(self).feed.app, queue.queue, unfinished))

    def _propose(self, action: Action) -> None:
        async def prepared() -> Action:
            return action

        desk_of(self).propose(prepared)


def _quoted(name: str) -> str:
    import shlex

    return shlex.quote(name)


def _row(one: Figures, palette: Colours) -> Row:
    flag = "paused" if one.paused else "full" if one.full else ""
    return Row(
        one.queue,
        [
            plain(one.queue, "bold"),
            word(flag, palette) if flag else Text(),
            count(one.pending, palette["pending"]),
            plain(duration(one.oldest_ready)),
            plain(f"{one.running:,}/{one.slots:,}" if one.slots else f"{one.running:,}"),
            plain(rate(one.rate_in)),
            plain(rate(one.rate_out)),
            plain(duration(one.time_to_empty, "never") if one.pending else ""),
            count(one.failed, palette["failed"]),
            plain(share(one.utilisation), palette["running"]),
            plain(sparkline(one.done_per_minute), palette["done"]),
        ],
    )
