"""The lines on top: where this is, how the connection is, and which page."""

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from penstock.cli.output import shown, when
from penstock.cli.top.desk import Desk, desk_of
from penstock.core.job import by_state
from penstock.core.lifecycle import State
from penstock.core.redaction import redacted

_LINKS = {
    "connecting": ("quiet", "◌ connecting"),
    "live": ("done", "● live"),
    "lost": ("failed", "✗ disconnected"),
    "refused": ("failed", "✗ no permission"),
}
_TABS = {"queues": "1 Queues", "jobs": "2 Jobs", "workers": "3 Workers", "schedules": "4 Schedules"}


class Titles(Vertical):
    """Two lines, and a third while something is wrong."""

    def compose(self) -> ComposeResult:
        """The lines."""
        yield Static(id="where")
        yield Static(id="tabs")
        yield Static(id="trouble")

    def show(self, tab: str) -> None:
        """Show how it stands; `tab` is the page in front."""
        desk = desk_of(self)
        self.query_one("#where", Static).update(_where(desk, self.size.width))
        self.query_one("#tabs", Static).update(_tabs(desk, tab))
        trouble = self.query_one("#trouble", Static)
        trouble.display = bool(desk.trouble)
        trouble.update(Text(_trouble(desk)))


def _where(desk: Desk, width: int) -> Text:
    kind, link = _LINKS[desk.link]
    right = Text.assemble(
        ("read-only  " if desk.read_only else "", desk.palette["paused"]),
        (link, desk.palette[kind]),
        f"  {desk.now():%H:%M:%S} UTC",
    )
    url = redacted(desk.feed.app.url)
    left = Text.assemble(("penstock ", "bold"), shown(url), no_wrap=True)
    room = max(0, width - 2 - right.cell_len - 2)
    left.truncate(room, overflow="ellipsis", pad=True)
    return Text.assemble(left, "  ", right, no_wrap=True)


def _tabs(desk: Desk, tab: str) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for name, title in _TABS.items():
        text.append(f" {title} ", f"reverse {desk.palette['title']}" if name == tab else "")
        text.append(" ")
    if desk.seen is not None:
        total = by_state(desk.seen.overall.counts)
        alive = sum(not one.is_silent(desk.now()) for one in desk.seen.workers)
        for n, kind in (
            (total[State.PENDING], "pending"),
            (total[State.RUNNING], "running"),
            (total[State.FAILED], "failed"),
        ):
            text.append(f"  {n:,} {kind}", desk.palette[kind] if n else desk.palette["quiet"])
        text.append(f"  {alive:,} workers" if alive != 1 else "  1 worker", desk.palette["quiet"])
    return text


def _trouble(desk: Desk) -> str:
    heard = f" What is shown is from {when(desk.heard_at, desk.now())}." if desk.heard_at else ""
    if desk.link == "refused":
        return f"{desk.trouble}. Set PENSTOCK_TOKEN to a token with the scope read.{heard}"
    return f"{desk.trouble}. Trying again…{heard}"
