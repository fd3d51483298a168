"""How live views format things: states with a sign and a colour, rates, bars, safe texts."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from rich.text import Text

from penstock.cli.output import number, shown, span

Colours = Mapping[str, str]
"""The colour of each kind of thing: of states, titles, and what is `quiet`."""

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


def plain(text: str, style: str = "") -> Text:
    """Return a text that others wrote, on one line."""
    return Text(shown(text.replace("\n", " ")), style=style, no_wrap=True, end="")


def word(kind: str, palette: Colours) -> Text:
    """Return a word in its colour, with the sign of a state."""
    sign = f"{_SIGNS[kind]} " if kind in _SIGNS else ""
    return plain(sign + kind, palette.get(kind, palette["quiet"]))


def count(n: int, style: str = "") -> Text:
    """Return a number, in its colour unless it is zero."""
    return plain(number(n), style if n else "")


def rate(per_second: float) -> str:
    """Format a rate per second, or per minute if it is low."""
    if not per_second:
        return number(0)
    if per_second >= 1:
        return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.1f}/s"  # noqa: PLR2004 - more places are noise
    per_minute = per_second * 60
    return f"{per_minute:.1f}/min" if per_minute >= 0.1 else "<0.1/min"  # noqa: PLR2004 - as above


def share(part: float | None, width: int = 8) -> str:
    """Format a share as a bar and a percentage; empty if it is unknown."""
    if part is None:
        return ""
    full = round(min(max(part, 0.0), 1.0) * width)
    return f"{'━' * full}{'╌' * (width - full)} {part:4.0%}"


def duration(time: timedelta | None, unknown: str = "") -> str:
    """Format a duration."""
    return unknown if time is None else span(time)


def instant(at: datetime) -> str:
    """Format an instant with its date."""
    return f"{at:%Y-%m-%d %H:%M:%S}"
