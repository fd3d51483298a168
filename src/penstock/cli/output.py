"""What commands print: JSON for programs, tables and short times for people.

Rich is imported where it is used: `--json` and `--help` need not wait the 30 ms for it.
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
from penstock.core.secrets import Secrets

if TYPE_CHECKING:
    from rich.console import Console

# Nothing is cut where no terminal limits the width.
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
    """A value of the Python API as JSON knows it, with the same names.

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
    """The fields of a job, its arguments and result decoded."""
    fields: dict[str, Any] = {}
    for name in job.__struct_fields__:
        if name == "payload":
            fields["args"] = decoded(job.payload)
        elif name == "result_json":
            fields["result"] = decoded(job.result_json)
        elif name != "duplicate":  # says something about an enqueue only
            fields[name] = getattr(job, name)
    return fields


def decoded(text: str | None) -> Any:
    """The value of a JSON text; what is wrong with it if it cannot be read."""
    try:
        return None if text is None else concealed(jsontext.read(text, "", _DEPTH))
    except Unreadable as error:
        return f"unreadable: {error.reason}"


def conceal(secrets: Secrets) -> None:
    """Show no more, in the current command, than these let through."""
    click.get_current_context().meta[_SECRETS] = secrets


def concealed(value: Any) -> Any:
    """A decoded value as it may be shown; from a server, it comes so already."""
    context = click.get_current_context(silent=True)
    secrets: Secrets | None = None if context is None else context.meta.get(_SECRETS)
    return value if secrets is None else secrets.hidden(value)


# Text


def shown(text: str) -> str:
    """Text that cannot play tricks on a terminal: control characters are spelled out."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode()
        for c in text.expandtabs(4)
    )


def span(duration: timedelta) -> str:
    """A duration at a glance: `250 ms`, `90 s`, `5 min`, `30 h`, `12 d`."""
    seconds = duration.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size, enough in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds < size * enough:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def when(instant: datetime | None, now: datetime) -> str:
    """An instant seen from now: `3 s ago`, `in 5 min`."""
    if instant is None:
        return ""
    distance = instant - now
    if abs(distance) < timedelta(seconds=1):
        return "now"
    return f"in {span(distance)}" if distance > timedelta(0) else f"{span(-distance)} ago"


def number(count: int) -> str:
    """A count with its thousands apart; nothing for zero, so that the others stand out."""
    return f"{count:,}" if count else "·"


def jobs_of(count: int) -> str:
    """`1 job`, `2 jobs`."""
    return f"{count:,} job" + ("" if count == 1 else "s")


def show_text(title: str, text: str) -> None:
    """Print a title and, indented, what stands under it."""
    click.echo(click.style(f"\n{title}", bold=True))
    for line in shown(text).split("\n"):
        click.echo(wrapped(f"  {line}".rstrip(), hang=len(line) - len(line.lstrip()) + 4))


def wrapped(line: str, hang: int = 0) -> str:
    """A line that fits the terminal; where it goes on, it is indented by `hang`."""
    if not sys.stdout.isatty():
        return line
    width = shutil.get_terminal_size().columns
    # Not indented so far that nothing fits beside it.
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
    """A column of a table; one that `bends` is cut when the terminal is narrow."""

    title: str
    bends: bool = False
    right: bool = False


def console() -> "Console":
    """Stdout: in colour on a terminal, plain and wide in a pipe."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(markup=False, highlight=False, emoji=False, width=width)


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their titles; a column that is empty everywhere is left out."""
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
    """The width of each column that has room, from the left."""
    from rich.cells import cell_len

    widths = [
        max(map(cell_len, (column.title, *(row[n] for row in cells))))
        for n, column in enumerate(columns)
    ]
    return fitted(columns, widths, available)


def fitted(columns: Sequence[Column], widths: Sequence[int], available: int) -> list[int]:
    """Of columns that would be so wide, those that have room; the widest that bend give way."""
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
