"""How things look: colours by theme, states with a sign and a word, texts that play no tricks."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from rich.text import Text
from textual.theme import Theme

from penstock.cli.output import number, shown, span
from penstock.core.job import Job

DARK = Theme(
    name="penstock-dark",
    primary="#2dd4bf",
    secondary="#7dd3fc",
    accent="#2dd4bf",
    foreground="#e2e8f0",
    background="#0e1315",
    surface="#141b1e",
    panel="#1d272b",
    success="#4ade80",
    warning="#fbbf24",
    error="#f87171",
    dark=True,
)
LIGHT = Theme(
    name="penstock-light",
    primary="#0f766e",
    secondary="#075985",
    accent="#0f766e",
    foreground="#1e293b",
    background="#ffffff",
    surface="#f8fafc",
    panel="#e8eef2",
    success="#15803d",
    warning="#92400e",
    error="#b91c1c",
    dark=False,
)

Colours = Mapping[str, str]
"""The colour of each kind of thing, in one theme."""

_QUIET = {True: "#94a3b8", False: "#52606d"}
_KINDS = {
    "pending": "warning",
    "ready": "warning",
    "scheduled": "warning",
    "blocked": "warning",
    "running": "secondary",
    "stopping": "secondary",
    "done": "success",
    "failed": "error",
    "expired": "error",
    "refused": "error",
    "silent": "error",
    "paused": "warning",
    "full": "error",
    "title": "primary",
}
_SIGNS = {
    "ready": "○",
    "scheduled": "◔",
    "blocked": "◌",
    "running": "●",
    "stopping": "◍",
    "done": "✓",
    "failed": "✗",
    "cancelled": "⊘",
    "superseded": "↷",
}


def colours(theme: Theme) -> Colours:
    """The colours of a theme; what has none of its own is quiet."""
    named = {kind: str(getattr(theme, role)) for kind, role in _KINDS.items()}
    return {"quiet": _QUIET[theme.dark], **named}


def plain(text: str, style: str = "") -> Text:
    """A text of others, on one line."""
    return Text(shown(text.replace("\n", " ")), style=style, no_wrap=True, end="")


def word(kind: str, palette: Colours) -> Text:
    """A word in its colour, with the sign of a state."""
    sign = f"{_SIGNS[kind]} " if kind in _SIGNS else ""
    return plain(sign + kind, palette.get(kind, palette["quiet"]))


def standing(job: Job) -> str:
    """A job's state in a word; of a pending one, what it waits for."""
    return "stopping" if job.cancel_requested else str(job.waiting or job.state)


def count(n: int, style: str = "") -> Text:
    """A number, in its colour unless it is zero."""
    return plain(number(n), style if n else "")


def rate(per_second: float) -> str:
    """Jobs per second, or per minute where that says more."""
    if not per_second:
        return number(0)
    if per_second >= 1:
        return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.1f}/s"  # noqa: PLR2004 - places that say nothing
    per_minute = per_second * 60
    return f"{per_minute:.1f}/min" if per_minute >= 0.1 else "<0.1/min"  # noqa: PLR2004 - as above


def share(part: float | None, width: int = 8) -> str:
    """A share as a bar of fixed width, and in figures."""
    if part is None:
        return ""
    full = round(min(max(part, 0.0), 1.0) * width)
    return f"{'━' * full}{'╌' * (width - full)} {part:4.0%}"


def duration(time: timedelta | None, unknown: str = "") -> str:
    """A time at a glance."""
    return unknown if time is None else span(time)


def instant(at: datetime) -> str:
    """A time of day with its date."""
    return f"{at:%Y-%m-%d %H:%M:%S}"
