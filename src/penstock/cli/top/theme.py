"""The themes of `top`, and their colours."""

from textual.theme import Theme

from penstock.cli.live.style import Colours

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


def colours(theme: Theme) -> Colours:
    """Return the colours of a theme; what has no colour of its own is quiet."""
    named = {kind: str(getattr(theme, role)) for kind, role in _KINDS.items()}
    return {"quiet": _QUIET[theme.dark], **named}
