"""The output of commands: JSON for programs, tables and short times for people.

Rich is imported where it is used, because it takes 30 ms: `--json` and `--help` do without it.
"""

import json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click
import msgspec

from penstock.core import jsontext
from penstock.core.errors import Unreadable
from penstock.core.job import Job
from penstock.core.lifecycle import State, Waiting
from penstock.core.secrets import Secrets

if TYPE_CHECKING:
    from rich.console import Console

# Wide enough to cut nothing where no terminal limits the width.
_PIPE_WIDTH = 1_000
_GAP = 2
_NARROWEST = 8
_NARROW = 80
_DEPTH = jsontext.DEPTH_LIMIT + 1
_SECRETS = "penstock.secrets"

STYLES = {
    "pending": "yellow",
    "ready": "yellow",
    "scheduled": "yellow",
    "blocked": "yellow",
    "stopping": "cyan",
    "running": "cyan",
    "done": "green",
    "failed": "bold red",
    "cancelled": "dim",
    "superseded": "dim",
    "paused": "bold yellow",
    "expired": "bold yellow",
    "silent": "bold yellow",
}


# JSON


def emit(value: Any) -> None:
    """Print one JSON document: a line for programs, indented for a terminal."""
    click.echo(json.dumps(plain(value), indent=2 if sys.stdout.isatty() else None))


def plain(value: Any) -> Any:  # noqa: PLR0911 - a list of cases
    """Convert a value of the Python API to JSON values, with the same names.

    Instants are ISO 8601 in UTC, durations are seconds.
    """
    match value:
        case Job():
            return plain(_job_fields(value))
        case msgspec.Struct():
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(name): plain(item) for name, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return value


def _job_fields(job: Job) -> dict[str, Any]:
    """Return the fields of a job, with its arguments and result decoded."""
    fields: dict[str, Any] = {}
    for name in job.__struct_fields__:
        if name == "payload":
            fields["args"] = decoded(job.payload)
        elif name == "result_json":
            fields["result"] = decoded(job.result_json)
        elif name != "duplicate":  # is about an enqueue only
            fields[name] = getattr(job, name)
    return fields


def decoded(text: str | None) -> Any:
    """Return the value of a JSON text, or why it cannot be read."""
    try:
        return None if text is None else without_secrets(jsontext.read(text, "", _DEPTH))
    except Unreadable as error:
        return f"unreadable: {error.reason}"


def hide_secrets(secrets: Secrets) -> None:
    """Hide the values of these fields in the output of the current command."""
    click.get_current_context().meta[_SECRETS] = secrets


def without_secrets(value: Any) -> Any:
    """Return a value without secrets; a server has already hidden them."""
    context = click.get_current_context(silent=True)
    secrets: Secrets | None = None if context is None else context.meta.get(_SECRETS)
    return value if secrets is None else secrets.hidden(value)


# Text


def shown(text: str) -> str:
    """Return text that is safe on a terminal: control characters are escaped."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode()
        for c in text.expandtabs(4)
    )


def span(duration: timedelta) -> str:
    """Format a duration: `250 ms`, `90 s`, `5 min`, `30 h`, `12 d`."""
    seconds = duration.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size, enough in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds < size * enough:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def when(instant: datetime | None, now: datetime) -> str:
    """Format an instant relative to now: `3 s ago`, `in 5 min`."""
    if instant is None:
        return ""
    distance = instant - now
    if abs(distance) < timedelta(seconds=1):
        return "now"
    return f"in {span(distance)}" if distance > timedelta(0) else f"{span(-distance)} ago"


def number(count: int) -> str:
    """Format a count with thousands separators; a dot for zero, so that the others stand out."""
    return f"{count:,}" if count else "·"


def jobs_of(count: int) -> str:
    """`1 job`, `2 jobs`."""
    return f"{count:,} job" + ("" if count == 1 else "s")


def state_text(job: Job) -> str:
    """Return the state of a job and, when pending, what it waits for: `pending (ready)`."""
    if job.cancel_requested:
        return f"{job.state} (asked to stop)"
    return f"{job.state} ({job.waiting})" if job.waiting else str(job.state)


def state_word(job: Job) -> str:
    """Return the state of a job in one word; when pending, what it waits for."""
    return "stopping" if job.cancel_requested else str(job.waiting or job.state)


def latest(job: Job) -> datetime:
    """Return the instant that says most about a job in its state."""
    if job.state is State.PENDING:
        return job.run_at if job.waiting is Waiting.SCHEDULED else job.enqueued_at
    return job.finished_at or job.started_at or job.enqueued_at


def show_text(title: str, text: str) -> None:
    """Print a title and an indented text below it."""
    click.echo(click.style(f"\n{title}", bold=True))
    for line in shown(text).split("\n"):
        click.echo(wrapped(f"  {line}".rstrip(), hang=len(line) - len(line.lstrip()) + 4))


def wrapped(line: str, hang: int = 0) -> str:
    """Wrap a line to the width of the terminal; further lines are indented by `hang`."""
    if not sys.stdout.isatty():
        return line
    width = shutil.get_terminal_size().columns
    # An indentation of half the width leaves no room for text.
    hang = hang if hang < width // 2 else 0
    wrapper = textwrap.TextWrapper(
        width,
        subsequent_indent=" " * hang,
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    )
    return wrapper.fill(line)


def is_narrow() -> bool:
    """Whether stdout is a terminal of 80 columns or less."""
    return sys.stdout.isatty() and shutil.get_terminal_size().columns <= _NARROW


# Tables


class Column(NamedTuple):
    """A column of a table; with `bends`, it is cut when the terminal is narrow."""

    title: str
    bends: bool = False
    right: bool = False


def console() -> "Console":
    """Return a console on stdout: in colour on a terminal, plain and wide in a pipe."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(markup=False, highlight=False, emoji=False, width=width)


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; columns that are empty in all rows are left out."""
    from rich.table import Table
    from rich.text import Text

    used = [n for n in range(len(columns)) if any(row[n] for row in rows)]
    cells = [[shown(row[n]) for n in used] for row in rows]
    used_columns = [columns[n] for n in used]
    target = console()
    widths = _widths(used_columns, cells, target.width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column, width in zip(used_columns, widths, strict=False):
        side: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(column.title, width=width, justify=side, no_wrap=True, overflow="ellipsis")
    for row in cells:
        texts = [Text(cell, style=STYLES.get(cell.split(" ")[0], "")) for cell in row]
        table.add_row(*texts[: len(widths)])
    with target.capture() as printed:
        target.print(table)
    click.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))
    if hidden := [column.title for column in used_columns[len(widths) :]]:
        click.echo(f"(no room for: {', '.join(hidden)})")


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[str]], available: int) -> list[int]:
    """Return the widths of the columns that fit, from the left."""
    from rich.cells import cell_len

    widths = [
        max(map(cell_len, (column.title, *(row[n] for row in cells))))
        for n, column in enumerate(columns)
    ]
    return fitted(columns, widths, available)


def fitted(columns: Sequence[Column], widths: Sequence[int], available: int) -> list[int]:
    """Return the widths of the columns that fit; the widest ones that bend are narrowed."""
    widths = list(widths)
    floors = [
        min(width, _NARROWEST) if column.bends else width
        for column, width in zip(columns, widths, strict=True)
    ]
    while len(floors) > 1 and sum(floors) + _GAP * (len(floors) - 1) > available:
        del floors[-1], widths[-1]
    for _ in range(sum(widths) + _GAP * (len(widths) - 1) - available):
        widest = max(range(len(widths)), key=lambda n: (widths[n] > floors[n], widths[n]))
        widths[widest] -= 1
    return widths
