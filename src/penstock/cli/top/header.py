"""The header: the store or server, the connection, and the pages."""

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from penstock.cli.live.watch import LINKS, trouble
from penstock.cli.output import shown
from penstock.cli.top.view import View, view_of
from penstock.core.lifecycle import State
from penstock.core.queue import by_state
from penstock.core.redaction import redacted

_TABS = {"queues": "1 Queues", "jobs": "2 Jobs", "workers": "3 Workers", "schedules": "4 Schedules"}


class Header(Vertical):
    """Two lines, and a third one while the connection is lost."""

    def compose(self) -> ComposeResult:
        """Return the lines."""
        yield Static(id="where")
        yield Static(id="tabs")
        yield Static(id="trouble")

    def show(self, tab: str) -> None:
        """Show the current state; `tab` is the page in front."""
        view = view_of(self)
        self.query_one("#where", Static).update(_where(view, self.size.width))
        self.query_one("#tabs", Static).update(_tabs(view, tab))
        line = self.query_one("#trouble", Static)
        line.display = bool(view.follower.trouble)
        line.update(Text(trouble(view.follower, view.now())))


def _where(view: View, width: int) -> Text:
    kind, link = LINKS[view.follower.link]
    right = Text.assemble(
        ("read-only  " if view.read_only else "", view.palette["paused"]),
        (link, view.palette[kind]),
        f"  {view.now():%H:%M:%S} UTC",
    )
    url = redacted(view.reader.app.url)
    left = Text.assemble(("penstock ", "bold"), shown(url), no_wrap=True)
    room = max(0, width - 2 - right.cell_len - 2)
    left.truncate(room, overflow="ellipsis", pad=True)
    return Text.assemble(left, "  ", right, no_wrap=True)


def _tabs(view: View, tab: str) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for name, title in _TABS.items():
        text.append(f" {title} ", f"reverse {view.palette['title']}" if name == tab else "")
        text.append(" ")
    if view.overview is not None:
        total = by_state(view.overview.overall.counts)
        alive = sum(not one.is_silent(view.now()) for one in view.overview.workers)
        for n, kind in (
            (total[State.PENDING], "pending"),
            (total[State.RUNNING], "running"),
            (total[State.FAILED], "failed"),
        ):
            text.append(f"  {n:,} {kind}", view.palette[kind] if n else view.palette["quiet"])
        text.append(f"  {alive:,} workers" if alive != 1 else "  1 worker", view.palette["quiet"])
    return text
