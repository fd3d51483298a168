"""Commands on many jobs: `delete`, `prioritise`, `prune`, `export`, `import`, and what chooses."""

import functools
import re
import sys
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self, TypeVar

import click

from penstock.admin import PORTION, Bulk, Progress
from penstock.checks import MAX_PRIORITY
from penstock.cli.exits import warn
from penstock.cli.output import emit, jobs_of, plain, shown
from penstock.cli.store import JOB_ID, App, doubt_queue, on_store, opened, reached
from penstock.core.job import JobId, JobQuery, Retention
from penstock.core.lifecycle import FINAL, State
from penstock.engine import Penstock, run_sync

F = TypeVar("F", bound=Callable[..., Any])

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)?")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_OLDEST = 3_650_000.0 * 86_400
_FILE = click.Path(dir_okay=False)

Run = Callable[..., Coroutine[Any, Any, Bulk]]
"""Does the work: `run(app, query, dry_run=…, progress=…)`."""


# Choosing


class Choice(NamedTuple):
    """Which jobs a command line asks for, and how sure it is."""

    query: JobQuery
    any: bool
    dry_run: bool
    yes: bool


def parse_age(ctx: click.Context, param: click.Parameter, value: str | None) -> timedelta | None:
    """A callback for options that take a time like `90s`, `30m`, `12h`, `7d` or `2w`."""
    return None if value is None else read_age(value, ctx, param)


def read_age(
    value: str, ctx: click.Context | None = None, param: click.Parameter | None = None
) -> timedelta:
    """A time like `90s`, `30m`, `12h`, `7d` or `2w`; raises `click.BadParameter`."""
    match = _AGE.fullmatch(value.strip())
    seconds = float(match[1]) * _UNITS[match[2] or "s"] if match else -1.0
    if not 0 <= seconds <= _OLDEST:
        raise click.BadParameter(
            f"{value!r} is not a time such as 90s, 30m, 12h or 7d.", ctx, param
        )
    return timedelta(seconds=seconds)


_OLDER_THAN = click.option(
    "--older-than",
    metavar="TIME",
    callback=parse_age,
    help="Only jobs that ended (unfinished ones: were enqueued) this long ago: 90s, 30m, 12h, 7d.",
)
_SINCE = click.option(
    "--since",
    metavar="TIME",
    callback=parse_age,
    help="Only jobs that ended (unfinished ones: were enqueued) from this long ago on.",
)
_FILTERS = (
    click.option(
        "--state",
        "states",
        multiple=True,
        type=click.Choice([state.value for state in State]),
        help="Only jobs in this state; may be repeated.",
    ),
    click.option("--queue", help="Only jobs of this queue."),
    click.option("--task", help="Only jobs of this task."),
    click.option("--key", help="Only jobs with this key."),
    click.option("--tag", "tags", multiple=True, help="Only jobs with any such tag."),
    click.option("--correlation", help="Only jobs of this batch."),
    click.option("--tenant", help="Only jobs of this tenant."),
    click.option("--parent", type=JOB_ID, metavar="ID", help="Only children of this job."),
    click.option("--error", metavar="TEXT", help="Only jobs with this text in their error."),
    click.option(
        "--text",
        metavar="TEXT",
        help="Only jobs with this text in their task, key, tags, tenant, arguments or error.",
    ),
    _SINCE,
    _OLDER_THAN,
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Only count the jobs; change nothing.")
_YES = click.option("--yes", is_flag=True, help="Do not ask.")
_NAMES = (
    *("states", "queue", "task", "key", "tags", "correlation", "tenant", "parent", "error"),
    *("text", "since", "older_than"),
)


def choosing(*, confirms: bool) -> Callable[[F], F]:
    """Give a command the filters; it gets them as `choice`."""
    options = (*_FILTERS, _DRY_RUN, _YES) if confirms else _FILTERS

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def wrapper(*, dry_run: bool = False, yes: bool = False, **given: Any) -> Any:
            fields = {name: given.pop(name) for name in _NAMES}
            return command(choice=_choice(fields, dry_run=dry_run, yes=yes), **given)

        for option in reversed(options):
            wrapper = option(wrapper)
        return wrapper  # type: ignore[return-value] # click keeps the signature open

    return decorate


def _choice(fields: dict[str, Any], *, dry_run: bool, yes: bool) -> Choice:
    states, parent = fields.pop("states"), fields.pop("parent")
    since, older_than = fields.pop("since"), fields.pop("older_than")
    now = datetime.now(UTC)
    query = JobQuery(
        states=frozenset(map(State, states)) or None,
        parent=None if parent is None else JobId(parent),
        since=None if since is None else now - since,
        before=None if older_than is None else now - older_than,
        **fields,
    )
    return Choice(query, any=query != JobQuery(), dry_run=dry_run, yes=yes)


def change_all(run: Run, verb: str, choice: Choice, store: str, *, as_json: bool) -> None:
    """Count the jobs, ask, change them; `verb` is `cancel`, which becomes `Cancelled`."""
    if not choice.any:
        raise click.UsageError(
            f"say which jobs to {verb}: name a filter, such as --state or --queue",
            click.get_current_context(),
        )
    with reached(store) as app:
        found = run_sync(run(app, choice.query, dry_run=True))
        doubt = None if found.matched else doubt_choice(app, choice)
        if doubt is not None:
            warn(doubt, as_json=as_json)
        if choice.dry_run:
            report_bulk(found, f"Would {verb}", as_json=as_json, dry_run=True)
            return
        if found.matched and not choice.yes and not _agreed(verb, found.matched):
            click.echo("Nothing was changed.", err=True)
            return
        meter = Meter(found.matched)
        with meter:
            done = run_sync(run(app, choice.query, dry_run=False, progress=meter.show))
    report_bulk(done, _past(verb), as_json=as_json)


def doubt_choice(app: App, choice: Choice) -> str | None:
    """Why no job may have matched: its queue does not exist."""
    return None if choice.query.queue is None else doubt_queue(app, choice.query.queue)


def _agreed(verb: str, n: int) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"this would {verb} {jobs_of(n)}, and there is no terminal to ask at: add --yes, or "
            "--dry-run to only count",
            click.get_current_context(),
        )
    return click.confirm(f"{verb.capitalize()} {jobs_of(n)}?", err=True)


def _past(verb: str) -> str:
    return {"cancel": "Cancelled", "retry": "Retried"}.get(verb, f"{verb.capitalize()}d")


def report_bulk(
    done: Bulk,
    verb: str,
    *,
    as_json: bool,
    dry_run: bool = False,
    skipped: str = "had changed meanwhile, or could not or need not change",
) -> None:
    """Print what became of many jobs."""
    if as_json:
        counts = {name: n for name, n in plain(done).items() if name != "after"}
        emit({**counts, "dry_run": dry_run})
        return
    rest = f"; {done.skipped:,} {skipped}" if done.skipped else ""
    click.echo(shown(f"{verb} {jobs_of(done.matched if dry_run else done.changed)}{rest}."))


class Meter:
    """Shows on a terminal how far long work has come."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._shows = sys.stderr.isatty() and total > PORTION
        self._printed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._printed:
            click.echo(err=True)

    @property
    def show(self) -> Progress:
        """To be called with what has been done so far."""
        return self._show

    def _show(self, done: Bulk) -> None:
        if self._shows:
            click.echo(f"\r{done.matched:,} of {self._total:,}", nl=False, err=True)
            self._printed = True


# Commands


@click.command("delete")
@click.option("--archive", metavar="FILE", type=_FILE, help="First write them to this file.")
@choosing(confirms=True)
@on_store
def delete_jobs(*, archive: str | None, choice: Choice, store: str, as_json: bool) -> None:
    """Remove finished jobs, with their log.

    Unfinished jobs are never removed: cancel them first.
    """

    def run(app: App, query: JobQuery, **how: Any) -> Coroutine[Any, Any, Bulk]:
        return app.delete_all(query, archive=archive, **how)

    change_all(run, "delete", choice, store, as_json=as_json)


@click.command("prioritise")
@click.argument("priority", type=click.IntRange(0, MAX_PRIORITY))
@click.option("--reason", help="Why, for the log.")
@choosing(confirms=True)
@on_store
def prioritise_jobs(
    *, priority: int, reason: str | None, choice: Choice, store: str, as_json: bool
) -> None:
    """Give pending jobs another PRIORITY, from 0 to 10; higher ones go first."""

    def run(app: App, query: JobQuery, **how: Any) -> Coroutine[Any, Any, Bulk]:
        return app.reprioritise(query, priority, reason=reason, **how)

    change_all(run, "prioritise", choice, store, as_json=as_json)


@click.command("prune")
@click.option(
    "--older-than",
    metavar="TIME",
    callback=parse_age,
    show_default="7d for failed ones, 1d for others",
    help="Jobs that ended this long ago: 90s, 30m, 12h, 7d.",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in State if state.final]),
    help="Only jobs in this state; may be repeated.",
)
@click.option("--archive", metavar="FILE", type=_FILE, help="First write them to this file.")
@_DRY_RUN
@on_store
def prune_jobs(
    *,
    older_than: timedelta | None,
    states: tuple[str, ...],
    archive: str | None,
    dry_run: bool,
    store: str,
    as_json: bool,
) -> None:
    """Remove finished jobs past their time, with their log.

    Workers do that by themselves, without an archive. FILE is continued if it is there, and packed
    if its name ends in .gz; a job is removed when it is on disk there.
    """
    retention = None if older_than is None else Retention(finished=older_than, failed=older_than)
    chosen = frozenset(map(State, states)) or FINAL
    with opened(store) as app:
        total = run_sync(app.prune(retention, states=chosen, dry_run=True))
        if dry_run:
            report_bulk(total, "Would remove", as_json=as_json, dry_run=True)
            return
        with Meter(total.matched) as meter:
            done = run_sync(
                app.prune(retention, states=chosen, archive=archive, progress=meter.show)
            )
    report_bulk(done, "Removed", as_json=as_json)


@click.command("export")
@click.argument("file", type=_FILE)
@choosing(confirms=False)
@on_store
def export_jobs(*, file: str, choice: Choice, store: str, as_json: bool) -> None:
    """Write jobs into a new FILE, with their logs and the settings of queues.

    All jobs, unless filters choose. The file has one line of JSON for each, and is packed if its
    name ends in .gz.
    """
    with opened(store) as app:
        total = run_sync(app.count_matching(choice.query))
        with Meter(total) as meter:
            done = run_sync(app.export(file, choice.query, progress=meter.show))
    report_bulk(done, "Exported", as_json=as_json, skipped="were gone or changed meanwhile")


@click.command("import")
@click.argument("file", type=_FILE)
@_DRY_RUN
@on_store
def import_jobs(*, file: str, dry_run: bool, store: str, as_json: bool) -> None:
    """Take over the jobs in FILE, an export or an archive.

    Jobs that were imported before are skipped. The store is created if it is not there.
    """
    total = run_sync(Penstock(store).import_jobs(file, dry_run=True))
    if dry_run:
        report_bulk(total, "There are", as_json=as_json, dry_run=True)
        return
    with opened(store, create=True) as app, Meter(total.matched) as meter:
        done = run_sync(app.import_jobs(file, progress=meter.show))
    skipped = "were imported before, are still here, or have a dedupe key that is held"
    report_bulk(done, "Imported", as_json=as_json, skipped=skipped)


COMMANDS: Sequence[click.Command] = (
    delete_jobs,
    prioritise_jobs,
    prune_jobs,
    export_jobs,
    import_jobs,
)
