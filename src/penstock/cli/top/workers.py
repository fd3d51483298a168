"""The page of workers."""

import shlex
from datetime import datetime

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from penstock.cli.live.style import Colours, plain, share, word
from penstock.cli.output import Column, when
from penstock.cli.top.listing import Listing, Row
from penstock.cli.top.view import view_of
from penstock.core.workers import WorkerInfo

_COLUMNS = (
    Column("worker", bends=True),
    Column(""),
    Column("running", right=True),
    Column("busy"),
    Column("last seen"),
    Column("longest job"),
    Column("started"),
    Column("host", bends=True),
    Column("queues", bends=True),
    Column("tags", bends=True),
)


class WorkersPane(Vertical):
    """The workers, busy or idle."""

    def compose(self) -> ComposeResult:
        """Return the table, and a text for when it is empty."""
        yield Listing(_COLUMNS, id="worker-list")
        yield Static(
            "There are no workers; to start one: penstock worker MODULE:APP", classes="empty"
        )

    async def read(self) -> None:
        """Do nothing: the overview has all that this page shows."""

    def draw(self) -> None:
        """Show the workers."""
        view = view_of(self)
        found = [] if view.overview is None else view.overview.workers
        now, palette = view.now(), view.palette
        self.query_one(Listing).show([_row(one, now, palette) for one in found])
        self.query_one(".empty").display = view.overview is not None and not found

    def on_data_table_row_selected(self, event: Listing.RowSelected) -> None:
        """List the jobs that a worker runs."""
        event.stop()
        if (name := self.query_one(Listing).current) is not None:
            view_of(self).open_jobs(f"worker:{shlex.quote(name)}")


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
