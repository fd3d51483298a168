"""The page of workers."""

from datetime import datetime

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from penstock.cli.output import Column, when
from penstock.cli.top.desk import desk_of
from penstock.cli.top.listing import Listing, Row
from penstock.cli.top.looks import Colours, plain, share, word
from penstock.core.worker import WorkerInfo

_COLUMNS = (
    Column("worker", bends=True),
    Column(""),
    Column("running", right=True),
    Column("busy"),
    Column("heard of"),
    Column("longest since"),
    Column("started"),
    Column("host", bends=True),
    Column("queues", bends=True),
    Column("tags", bends=True),
)


class WorkersPane(Vertical):
    """Who works on the store, busy or idle."""

    def compose(self) -> ComposeResult:
        """A table, and a word where there is nothing in it."""
        yield Listing(_COLUMNS, id="worker-list")
        yield Static(
            "No worker is there; to start one: penstock worker MODULE:APP", classes="empty"
        )

    async def look(self) -> None:
        """The overview, which is read with every look, has it all."""

    def draw(self) -> None:
        """Show who is there."""
        desk = desk_of(self)
        found = [] if desk.seen is None else desk.seen.workers
        now, palette = desk.now(), desk.palette
        self.query_one(Listing).show([_row(one, now, palette) for one in found])
        self.query_one(".empty").display = desk.seen is not None and not found

    def on_data_table_row_selected(self, event: Listing.RowSelected) -> None:
        """List what a worker runs."""
        import shlex

        event.stop()
        if (name := self.query_one(Listing).current) is not None:
            desk_of(self).open_jobs(f"worker:{shlex.quote(name)}")


def _row(one: WorkerInfo, now: datetime, palette: Colours) -> Row:
    queues = "" if one.host is None else "all" if one.queues is None else ", ".join(one.queues)
    slots = "" if one.concurrency is None else f"/{one.concurrency:,}"
    busy = share(one.running / one.concurrency) if one.concurrency else ""
    return Row(
        one.name,
        [
            plain(one.name, "bold"),
            word("silent", palette) if one.is_silent(now) else Text(),
            plain(f"{one.running:,}{slots}"),
            plain(busy, palette["running"]),
            plain(when(one.seen_at, now)),
            plain(when(one.oldest_start, now)),
            plain(when(one.started_at, now)),
            plain(one.host or ""),
            plain(queues),
            plain(", ".join(one.tags)),
        ],
    )
