"""Many jobs at once: the filters that select them, and the question before they change."""

import functools
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self, TypeVar

import click

from penstock.cli.connection import connected, doubt_queue
from penstock.cli.errors import warn
from penstock.cli.options import JOB_ID, parse_age
from penstock.cli.output import emit, jobs_of, plain, shown
from penstock.core.job import JobId
from penstock.core.lifecycle import State
from penstock.core.query import JobQuery
from penstock.engine.bulk import PORTION, Bulk, BulkProgress
from penstock.engine.penstock import run_sync
from penstock.engine.protocol import App

F = TypeVar("F", bound=Callable[..., Any])

Run = Callable[..., Coroutine[Any, Any, Bulk]]
"""Changes the jobs: `run(app, query, dry_run=…, progress=…)`."""


class Selected(NamedTuple):
    """The jobs that a command line selects, and whether to change them without a question."""

    query: JobQuery
    any: bool
    dry_run: bool
    yes: bool


_OLDER_THAN = click.option(
    "--older-than",
    metavar="TIME",
    callback=parse_age,
    help="Only jobs that ended, or if unfinished were enqueued, at least this long ago: 7d.",
)
_SINCE = click.option(
    "--since",
    metavar="TIME",
    callback=parse_age,
    help="Only jobs that ended, or if unfinished were enqueued, at most this long ago: 90s, 12h.",
)
_FILTERS = (
    click.option(
        "--state",
        "states",
        multiple=True,
        type=click.Choice([state.value for state in State]),
        help="Only jobs in this state. Can be repeated.",
    ),
    click.option("--queue", help="Only jobs of this queue."),
    click.option("--task", help="Only jobs of this task."),
    click.option("--key", help="Only jobs with this key."),
    click.option(
        "--tag",
        "tags",
        multiple=True,
        help="Only jobs with this tag; if repeated, with any of the tags.",
    ),
    click.option("--correlation", help="Only jobs of this batch."),
    click.option("--tenant", help="Only jobs of this tenant."),
    click.option("--parent", type=JOB_ID, metavar="ID", help="Only children of this job."),
    click.option("--error", metavar="TEXT", help="Only jobs whose error contains this text."),
    click.option(
        "--text",
        metavar="TEXT",
        help="Only jobs whose task, key, tags, tenant, arguments or error contain this text.",
    ),
    _SINCE,
    _OLDER_THAN,
)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Count the jobs, and change nothing.")
_YES = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
_NAMES = (
    *("states", "queue", "task", "key", "tags", "correlation", "tenant", "parent", "error"),
    *("text", "since", "older_than"),
)


def selecting(*, confirms: bool) -> Callable[[F], F]:
    """Add the filters to a command, which gets them as `selected`."""
    options = (*_FILTERS, DRY_RUN, _YES) if confirms else _FILTERS

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def wrapper(*, dry_run: bool = False, yes: bool = False, **given: Any) -> Any:
            fields = {name: given.pop(name) for name in _NAMES}
            return command(selected=_selected(fields, dry_run=dry_run, yes=yes), **given)

        for option in reversed(options):
            wrapper = option(wrapper)
        return wrapper  # type: ignore[return-value] # click keeps the signature open

    return decorate


def _selected(fields: dict[str, Any], *, dry_run: bool, yes: bool) -> Selected:
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
    return Selected(query, any=query != JobQuery(), dry_run=dry_run, yes=yes)


def change_all(run: Run, verb: str, selected: Selected, store: str, *, as_json: bool) -> None:
    """Count the jobs, ask, and change them; `verb` is for example `cancel`."""
    if not selected.any:
        raise click.UsageError(
            f"no jobs are selected to {verb}: add a filter, such as --state or --queue",
            click.get_current_context(),
        )
    with connected(store) as app:
        found = run_sync(run(app, selected.query, dry_run=True))
        doubt = None if found.matched else doubt_selection(app, selected)
        if doubt is not None:
            warn(doubt, as_json=as_json)
        if selected.dry_run:
            report_bulk(found, f"Would {verb}", as_json=as_json, dry_run=True)
            return
        if found.matched and not selected.yes and not _agreed(verb, found.matched):
            click.echo("Nothing was changed.", err=True)
            return
        meter = Meter(found.matched)
        with meter:
            done = run_sync(run(app, selected.query, dry_run=False, progress=meter.show))
    report_bulk(done, _past(verb), as_json=as_json)


def doubt_selection(app: App, selected: Selected) -> str | None:
    """Return why no job matched, if the queue of the filter does not exist."""
    return None if selected.query.queue is None else doubt_queue(app, selected.query.queue)


def _agreed(verb: str, n: int) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"this would {verb} {jobs_of(n)}, and there is no terminal to confirm it: "
            "add --yes, or --dry-run to only count them",
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
    skipped: str = "had changed meanwhile, or could not be changed",
) -> None:
    """Print how many jobs were changed."""
    if as_json:
        counts = {name: n for name, n in plain(done).items() if name != "after"}
        emit({**counts, "dry_run": dry_run})
        return
    rest = f"; {done.skipped:,} {skipped}" if done.skipped else ""
    click.echo(shown(f"{verb} {jobs_of(done.matched if dry_run else done.changed)}{rest}."))


class Meter:
    """Shows the progress of long work on a terminal."""

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
    def show(self) -> BulkProgress:
        """A function to call with the result so far."""
        return self._show

    def _show(self, done: Bulk) -> None:
        if self._shows:
            click.echo(f"\r{done.matched:,} of {self._total:,}", nl=False, err=True)
            self._printed = True
