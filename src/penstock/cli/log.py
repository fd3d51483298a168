"""The command `log`: the audit of one job or of all, as it was or as it grows."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click
import msgspec

from penstock.cli.output import Column, emit, plain, show_table, shown, span
from penstock.cli.store import JOB_ID, App, on_store, reached
from penstock.client.remote import RemotePenstock
from penstock.core.job import LogEntry, headline
from penstock.engine import run_sync

_PORTION = 1_000
_LOOK_AGAIN = 5.0
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
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens; Ctrl-C ends it.")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=50,
    show_default=True,
    help="The newest entries, at most this many.",
)
@on_store
def show_log(*, job_id: int | None, follow: bool, limit: int, store: str, as_json: bool) -> None:
    """Show what happened to a job, or to all: who did what, when, and where it led.

    With --follow and --json, every entry is a line of JSON.
    """
    with reached(store) as app:
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
        _follow(app, job_id, entries[-1].id if entries else 0, as_json=as_json)


def _newest(app: App, job_id: int | None, limit: int) -> list[LogEntry]:
    if job_id is not None:
        found: list[LogEntry] = []
        while portion := run_sync(app.log(job_id, after=found[-1].id if found else None)):
            found += portion
        return found[-limit:]
    if isinstance(app, RemotePenstock):
        return list(_behind(app, limit))
    newest = run_sync(app.newest_log())
    return run_sync(app.log(after=max(0, newest - limit), limit=limit))


def _behind(app: RemotePenstock, limit: int) -> Iterator[LogEntry]:
    """The newest entries of all jobs, up to the newest that there is now."""
    newest = next(app.tail(None)).place
    for place, entry in app.tail(max(0, newest - limit)):
        if entry is not None:
            yield entry
        if place >= newest:
            return


def _follow(app: App, job_id: int | None, after: int, *, as_json: bool) -> None:
    if isinstance(app, RemotePenstock):
        for frame in app.tail(after, job_id):
            if frame.entry is not None:
                _print_line(frame.entry, as_json=as_json)
        return
    seen = 0
    while True:
        for entry in run_sync(app.log(job_id, after=after, limit=_PORTION)):
            _print_line(entry, as_json=as_json)
            after = entry.id
        seen = run_sync(app.store.wait(seen, _LOOK_AGAIN))


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
