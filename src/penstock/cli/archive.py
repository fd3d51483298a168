"""Commands on jobs in files: `prune`, `export` and `import`."""

from collections.abc import Sequence
from datetime import timedelta

import click

from penstock.cli.connection import connected, offered
from penstock.cli.options import on_store, parse_age
from penstock.cli.selection import DRY_RUN, Meter, Selected, report_bulk, selecting
from penstock.core.job import Retention
from penstock.core.lifecycle import FINAL, State
from penstock.engine.penstock import Penstock, run_sync

ARCHIVE = click.option(
    "--archive",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write the jobs to this file before they are removed.",
)
_FILE = click.argument("file", type=click.Path(dir_okay=False))


@click.command("prune")
@click.option(
    "--older-than",
    metavar="TIME",
    callback=parse_age,
    show_default="7d for failed jobs, 1d for others",
    help="Only jobs that ended at least this long ago: 90s, 30m, 12h, 7d.",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in State if state.final]),
    help="Only jobs in this state. Can be repeated.",
)
@ARCHIVE
@DRY_RUN
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
    """Remove old finished jobs with their logs.

    Workers do this by themselves, without an archive. An existing archive is appended to; it is
    compressed if its name ends in .gz. A job is removed after it is durable in the archive.
    """
    retention = None if older_than is None else Retention(finished=older_than, failed=older_than)
    chosen = frozenset(map(State, states)) or FINAL
    with connected(store) as app:
        total = run_sync(app.archive.prune(retention, states=chosen, dry_run=True))
        if dry_run:
            report_bulk(total, "Would remove", as_json=as_json, dry_run=True)
            return
        with Meter(total.matched) as meter:
            done = run_sync(
                app.archive.prune(retention, states=chosen, archive=archive, progress=meter.show)
            )
    report_bulk(done, "Removed", as_json=as_json)


@click.command("export")
@_FILE
@selecting(confirms=False)
@on_store
def export_jobs(*, file: str, selected: Selected, store: str, as_json: bool) -> None:
    """Export jobs with their logs to a new FILE.

    All jobs, or those that the filters select, and the settings of queues. The file has one line
    of JSON per job; it is compressed if its name ends in .gz.
    """
    with connected(store) as app:
        total = run_sync(offered(app.bulk(selected.query).count())) or 0
        with Meter(total) as meter:
            done = run_sync(app.archive.export(file, selected.query, progress=meter.show))
    report_bulk(done, "Exported", as_json=as_json, skipped="were removed or changed meanwhile")


@click.command("import")
@_FILE
@DRY_RUN
@on_store
def import_jobs(*, file: str, dry_run: bool, store: str, as_json: bool) -> None:
    """Import the jobs in FILE, an export or an archive.

    Jobs that were imported before are skipped. The store is created if it does not exist.
    """
    total = run_sync(Penstock("memory://").archive.import_(file, dry_run=True))
    if dry_run:
        report_bulk(total, "There are", as_json=as_json, dry_run=True)
        return
    with connected(store, create=True) as app, Meter(total.matched) as meter:
        done = run_sync(app.archive.import_(file, progress=meter.show))
    skipped = "were imported before, still exist here, or have a dedupe key that is in use"
    report_bulk(done, "Imported", as_json=as_json, skipped=skipped)


COMMANDS: Sequence[click.Command] = (prune_jobs, export_jobs, import_jobs)
