"""Whole stores: `backup`, `restore` and `verify`."""

import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Self

import click

from penstock.cli.connection import addressed, connected
from penstock.cli.errors import Exit
from penstock.cli.options import on_store
from penstock.cli.output import emit, jobs_of, plain, shown
from penstock.core.recovery import HIGHEST_ID, Cut
from penstock.core.redaction import redacted
from penstock.core.verification import REPAIRS, Verification
from penstock.engine.penstock import run_sync

_EVERY = 10.0
"""Seconds between two lines of progress where there is no terminal."""

_NAMED = 20
"""How many jobs a report names; --json names all."""


@click.command("backup")
@click.argument("target", type=click.Path(path_type=Path))
@on_store
def back_up_store(*, target: Path, store: str, as_json: bool) -> None:
    """Write a backup of the whole store to a new file TARGET.

    The store may be in use. The backup shows it at one moment: jobs, logs, settings, and the tables
    of applications. TARGET appears when the backup is complete and has been read back. For SQLite
    files and journals; PostgreSQL has its own programs.
    """
    with addressed(store) as app, PhaseMeter() as meter:
        done = run_sync(app.archive.backup(target, progress=meter.show))
    if as_json:
        emit(plain(done))
        return
    click.echo(shown(f"Backed up {jobs_of(done.jobs)} to {done.path} ({done.bytes:,} bytes)."))


@click.command("restore")
@click.argument("backup", required=False, type=click.Path(path_type=Path))
@click.option(
    "--in-place",
    is_flag=True,
    help="The store was set back by other means: from a replica, a copy, or by PostgreSQL.",
)
@click.option("--replace", is_flag=True, help="Replace the store that exists.")
@click.option(
    "--above",
    type=click.IntRange(0, HIGHEST_ID),
    default=0,
    metavar="ID",
    help="An id or token that is known to have been assigned; new ones are higher.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@on_store
def restore_store(
    *,
    backup: Path | None,
    in_place: bool,
    replace: bool,
    above: int,
    yes: bool,
    store: str,
    as_json: bool,
) -> None:
    """Make a store of BACKUP, a file written by 'penstock backup'.

    Ids and fencing tokens continue above all that were assigned since the backup, the log notes the
    cut, and jobs that were running wait for a worker again: workers from before are refused.
    """
    context = click.get_current_context()
    if in_place == (backup is not None):
        raise click.UsageError("name either a BACKUP or --in-place", context)
    if in_place and replace:
        raise click.UsageError("--replace needs a BACKUP to replace the store with", context)
    if (in_place or replace) and not yes and not _agreed(store, in_place=in_place):
        click.echo("Nothing was changed.", err=True)
        return
    if backup is None:
        with connected(store) as app:
            cut = run_sync(app.archive.restored_in_place(above=above))
        _report(cut, None, None, store, as_json=as_json)
        return
    with addressed(store) as app, PhaseMeter() as meter:
        done = run_sync(
            app.archive.restore(backup, replace=replace, above=above, progress=meter.show)
        )
    _report(done.cut, done.taken_at, done.replaced, store, as_json=as_json)


def _agreed(store: str, *, in_place: bool) -> bool:
    what = (
        f"take running jobs from the workers of {redacted(store)}"
        if in_place
        else f"replace everything in {redacted(store)}"
    )
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"this would {what}, and there is no terminal to confirm it: add --yes",
            click.get_current_context(),
        )
    return click.confirm(f"{what[0].upper()}{what[1:]}?", err=True)


def _report(
    cut: Cut, taken_at: datetime | None, replaced: str | None, store: str, *, as_json: bool
) -> None:
    running = [job.id for job in cut.reclaimed]
    if as_json:
        fields = {"taken_at": taken_at, "last_log": cut.last_log, "floor": cut.floor}
        emit(plain({**fields, "running": running, "replaced": replaced}))
        return
    when = "" if taken_at is None else f" as of {taken_at.isoformat(timespec='seconds')}"
    click.echo(shown(f"Restored {redacted(store)}{when}. Ids continue above {cut.floor}."))
    if replaced is not None:
        click.echo(shown(f"The former store is in {replaced}."))
    if running:
        named = ", ".join(map(str, running[:_NAMED]))
        more = f" and {len(running) - _NAMED:,} more" if len(running) > _NAMED else ""
        were, are = ("was", "is back in its queue"), ("were", "are back in their queues")
        was, back = were if len(running) == 1 else are
        click.echo(f"{jobs_of(len(running))} {was} running then and {back}: {named}{more}")


@click.command("verify")
@click.option("--repair", is_flag=True, help="Repair what can be repaired, after a question.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@on_store
def verify_store(*, repair: bool, yes: bool, store: str, as_json: bool) -> int:
    """Read the whole store and check whether its promises hold.

    Checks logs and their chains, states, fencing tokens, lines of keys, dedupe keys, dependencies,
    totals, tags, and that everything belongs to a job. The store may be in use.
    """
    with connected(store) as app:
        with PhaseMeter() as meter:
            found = run_sync(app.archive.verify(progress=meter.show))
        repaired = False
        if repair and found.repairable and (yes or _agreed_to(found)):
            run_sync(app.archive.repair())
            repaired = True
            with PhaseMeter() as meter:
                found = run_sync(app.archive.verify(progress=meter.show))
    if as_json:
        emit({**plain(found), "repaired": repaired})
    else:
        _report_problems(found, repaired=repaired)
    return Exit.PROBLEMS if found.found else Exit.OK


def _agreed_to(found: Verification) -> bool:
    """Say what a repair would do, and ask."""
    for rule in found.repairable:
        click.echo(f"{found.found[rule]:,} problems ({rule}): {REPAIRS[rule]}", err=True)
    for rule in sorted(found.found.keys() - REPAIRS.keys()):
        click.echo(f"{found.found[rule]:,} problems ({rule}): cannot be repaired", err=True)
    if not sys.stdin.isatty():
        raise click.UsageError(
            "there is no terminal to confirm the repair: add --yes", click.get_current_context()
        )
    agreed = click.confirm("Repair in one transaction, while writers wait?", err=True)
    if not agreed:
        click.echo("Nothing was changed.", err=True)
    return agreed


def _report_problems(found: Verification, *, repaired: bool) -> None:
    for problem in found.problems:
        click.echo(shown(f"{problem.rule}: {problem.text}"))
    number = sum(found.found.values())
    if number > len(found.problems):
        click.echo(f"… and {number - len(found.problems):,} more")
    read = f"{jobs_of(found.jobs)} and {found.entries:,} log entries"
    if number:
        left = " left after the repair" if repaired else ""
        click.echo(f"Read {read}: {number:,} problem{'' if number == 1 else 's'}{left}.")
        if found.repairable and not repaired:
            click.echo("Some can be repaired: penstock verify --repair", err=True)
    else:
        click.echo(f"Read {read}: all promises hold{' after the repair' if repaired else ''}.")


class PhaseMeter:
    """Reports progress on stderr: in one line on a terminal, otherwise in a line now and then."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._printed = False
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._printed and self._live:
            click.echo(err=True)

    def show(self, phase: str, done: int, total: int) -> None:
        """Show how much of a phase is done."""
        text = f"{phase} {100 * done // max(total, 1)} %"
        now = time.monotonic()
        if self._live:
            click.echo(f"\r{text:<20}", nl=False, err=True)
            self._printed = True
        elif now - self._last >= _EVERY:
            click.echo(text, err=True)
            self._last = now


COMMANDS: Sequence[click.Command] = (back_up_store, restore_store, verify_store)
