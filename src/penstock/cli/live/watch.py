"""`jobs --watch`: queues and jobs on one screen, live."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal

import click
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.connection import advised, connection
from penstock.cli.live.follower import Follower, Now, system_now
from penstock.cli.live.reader import Activity, Overview, Reader
from penstock.cli.live.rows import JOB_COLUMNS, QUEUE_COLUMNS, job_cells, queue_cells
from penstock.cli.live.style import Colours, duration, plain, share
from penstock.cli.output import STYLES, Column, console, fitted, shown, span, when
from penstock.core.job import Job
from penstock.core.query import JobQuery
from penstock.core.queue import QueueQuery
from penstock.core.redaction import redacted
from penstock.engine.protocol import App

LINKS = {
    "connecting": ("quiet", "◌ connecting"),
    "live": ("done", "● live"),
    "lost": ("failed", "✗ disconnected"),
    "refused": ("failed", "✗ no permission"),
}
"""The state of the connection: its colour and its text."""

_COLOURS: Colours = {"quiet": "dim", "title": "bold", "full": "bold red", **STYLES}
_ANSWER_TIME = timedelta(seconds=10)
_QUEUES_SHOWN = 20
_BAR = 20
_RUNNING_COLUMNS = (
    Column("id", right=True),
    Column("task", bends=True),
    Column("for", right=True),
    Column("progress"),
    Column("rate", right=True),
    Column("left", right=True),
    Column("note", bends=True),
    Column("worker", bends=True),
)


def run(url: str, query: JobQuery) -> None:
    """Show queues and the jobs that match, until Ctrl-C."""
    target = console()
    if not target.is_terminal:
        raise click.UsageError("--watch needs a terminal; in a pipe, use `log --follow`")
    with advised():
        asyncio.run(_run(url, query, target))


async def _run(url: str, query: JobQuery, target: Console) -> None:
    app = connection(url, retries=0, timeout=_ANSWER_TIME)
    try:
        with Live(console=target, screen=True, auto_refresh=False) as live:
            watch = Watch(app, query)
            watch.follower = Follower(
                app, watch.read, lambda: live.update(watch.picture(target.width), refresh=True)
            )
            await watch.follower.run()
        if watch.follower.failure is not None:
            raise watch.follower.failure
    finally:
        await app.close()


class Watch:
    """The screen: queues, running jobs, jobs that ended last, and the newest that wait."""

    def __init__(self, app: App, query: JobQuery, now: Now = system_now) -> None:
        self.follower: Follower | None = None
        self._reader = Reader(app, QueueQuery(limit=_QUEUES_SHOWN))
        self._query = query
        self._now = now
        self._overview: Overview | None = None
        self._activity: Activity | None = None

    async def read(self) -> None:
        """Read all that the screen shows."""
        self._overview = await self._reader.overview(self._now())
        self._activity = await self._reader.activity(self._query)

    def picture(self, width: int) -> RenderableType:
        """Return the screen as of now, for a terminal of this width."""
        now = self._now()
        parts: list[RenderableType] = [self._heading(now)]
        if self.follower is not None and self.follower.trouble:
            parts.append(Text(trouble(self.follower, now), style=_COLOURS["failed"]))
        if self._overview is not None and self._activity is not None:
            parts += [Text(), *_queues(self._overview, width)]
            parts += [Text("\nRunning", style="bold"), _running(self._activity, now, width)]
            parts += _jobs("Ended last", self._activity.ended, now, width)
            if self._activity.waiting:
                parts += _jobs("Waiting, newest first", self._activity.waiting, now, width)
        return Group(*parts)

    def _heading(self, now: datetime) -> Text:
        kind, link = LINKS["live" if self.follower is None else self.follower.link]
        return Text.assemble(
            ("penstock ", "bold"),
            shown(redacted(self._reader.app.url)),
            "   ",
            (link, _COLOURS[kind]),
            f"   {now:%H:%M:%S} UTC   Ctrl-C quits",
        )


def trouble(follower: Follower, now: datetime) -> str:
    """Return what is wrong with the connection, and how old the view is."""
    age = f" The view is from {when(follower.read_at, now)}." if follower.read_at else ""
    if follower.link == "refused":
        return f"{follower.trouble}. Set PENSTOCK_TOKEN to a token with the scope read.{age}"
    return f"{follower.trouble}. Trying again…{age}"


def _queues(overview: Overview, width: int) -> list[RenderableType]:
    if not overview.figures:
        return [Text("There are no queues yet.", style="dim")]
    rows = [queue_cells(one, _COLOURS) for one in overview.figures]
    parts: list[RenderableType] = [_table(QUEUE_COLUMNS, rows, width)]
    if (more := overview.overall.queues - len(rows)) > 0:
        parts.append(Text(f"{more:,} more queues", style="dim"))
    return parts


def _running(activity: Activity, now: datetime, width: int) -> RenderableType:
    if not activity.running:
        return Text("No job is running.", style="dim")
    rows = []
    for job in activity.running:
        said = activity.progress.get(job.id)
        rows.append(
            [
                plain(str(job.id)),
                plain(job.task, "bold"),
                plain("" if job.started_at is None else span(now - job.started_at)),
                plain("" if said is None else share(said.fraction, _BAR), _COLOURS["running"]),
                plain("" if said is None or not said.rate else f"{said.rate:,.3g}/s"),
                plain("" if said is None else duration(said.left)),
                plain("" if said is None else said.note or ""),
                plain(job.worker or ""),
            ]
        )
    return _table(_RUNNING_COLUMNS, rows, width)


def _jobs(title: str, jobs: Sequence[Job], now: datetime, width: int) -> list[RenderableType]:
    heading = Text(f"\n{title}", style="bold")
    if not jobs:
        return [heading, Text("No job has ended.", style="dim")]
    return [heading, _table(JOB_COLUMNS, [job_cells(job, now, _COLOURS) for job in jobs], width)]


def _table(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> Table:
    """Return rows under their titles; empty columns, and those without room, are left out."""
    used = [n for n in range(len(columns)) if any(row[n].plain for row in rows)]
    widths = fitted(
        [columns[n] for n in used],
        [max(cell_len(columns[n].title), *(row[n].cell_len for row in rows)) for n in used],
        width,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for n, wide in zip(used, widths, strict=False):
        side: Literal["left", "right"] = "right" if columns[n].right else "left"
        table.add_column(
            columns[n].title, width=wide, justify=side, no_wrap=True, overflow="ellipsis"
        )
    for row in rows:
        table.add_row(*(row[n] for n in used[: len(widths)]))
    return table
