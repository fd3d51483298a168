"""The command `log`: shows the log of one job or of all, and follows it."""

from collections.abc import Sequence
from datetime import UTC, datetime

import click
import msgspec

from penstock.cli.connection import connected
from penstock.cli.options import JOB_ID, on_store
from penstock.cli.output import Column, emit, plain, show_table, shown, span
from penstock.core.job import LogEntry, headline
from penstock.engine.penstock import run_sync
from penstock.engine.protocol import App

_COLUMNS = (
    Column("at"),
    Column("job", right=True),
    Column("event"),
    Column("state"),
    Column("took", right=True),
    Column("by", bends=True),
    Column("reason", bends=True),
    Column("error", bends=True),
)


@click.command("log")
@click.argument("job_id", metavar="[ID]", type=JOB_ID, required=False)
@click.option("--follow", "-f", is_flag=True, help="Continue with new entries, until Ctrl-C.")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=50,
    show_default=True,
    help="Show at most this many of the newest entries.",
)
@on_store
def show_log(*, job_id: int | None, follow: bool, limit: int, store: str, as_json: bool) -> None:
    """Show the log of a job, or of all jobs, oldest entry first.

    An entry says what happened, when, who did it, and the new state. With --follow and --json,
    prints one JSON document per line.
    """
    with connected(store) as app:
        if job_id is not None:
            run_sync(app.get(job_id))
        entries = _newest(app, job_id, limit)
        if not follow:
            if as_json:
                emit({"log": entries})
            else:
                _print(entries)
            return
        for entry in entries:
            _print_line(entry, as_json=as_json)
        run_sync(_follow(app, job_id, entries[-1].id if entries else 0, as_json=as_json))


def _newest(app: App, job_id: int | None, limit: int) -> list[LogEntry]:
    if job_id is not None:
        found: list[LogEntry] = []
        while portion := run_sync(app.log(job_id, after=found[-1].id if found else None)):
            found += portion
        return found[-limit:]
    newest = run_sync(app.newest_log())
    return run_sync(app.log(after=max(0, newest - limit), limit=limit))


async def _follow(app: App, job_id: int | None, after: int, *, as_json: bool) -> None:
    async for entry in app.tail(after, job_id):
        _print_line(entry, as_json=as_json)


def _print(entries: Sequence[LogEntry]) -> None:
    if not entries:
        click.echo("The log is empty.")
        return
    show_table(_COLUMNS, [_cells(entry) for entry in entries])


def _print_line(entry: LogEntry, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(plain(entry)))
    else:
        click.echo(shown("  ".join(cell for cell in _cells(entry) if cell)))


def _cells(entry: LogEntry) -> list[str]:
    return [
        _at(entry.at),
        str(entry.job_id),
        entry.event,
        entry.state,
        "" if entry.duration is None else span(entry.duration),
        entry.actor,
        entry.reason or "",
        headline(entry.error),
    ]


def _at(instant: datetime) -> str:
    today = instant.date() == datetime.now(UTC).date()
    return f"{instant:%H:%M:%S}" if today else f"{instant:%Y-%m-%d %H:%M:%S}"


COMMANDS: Sequence[click.Command] = (show_log,)
