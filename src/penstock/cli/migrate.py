"""The command `migrate`: moves a queue from one store to another."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Self

import click

from penstock.cli.output import emit, jobs_of, plain, shown
from penstock.cli.store import json_option, opened
from penstock.core.errors import ConfigurationError, StoreMissing
from penstock.core.redaction import redacted
from penstock.engine import Penstock, run_sync
from penstock.migration import Moved, migrate, survey

_STEPS = 10
"""How many lines say how far it is, where nobody looks at a terminal."""


@click.command("migrate")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--dry-run", is_flag=True, help="Only count and check; change nothing.")
@json_option
def migrate_store(*, source: str, target: str, dry_run: bool, as_json: bool) -> None:
    """Move a queue from the store FROM to the store TO, two URLs.

    Jobs in every state, with their logs, notes and order; the settings of queues, limits,
    schedules and access tokens. Stop the workers first. TO is created if it is not there. FROM
    stays as it is, for reading alone. After a kill, the same command goes on.
    """
    for url in (source, target):
        if url.startswith("memory:"):
            raise ConfigurationError(
                f"{redacted(url)} is gone with its process; name a store that stays"
            )
    with opened(source) as app:
        if dry_run:
            with _there(target) as other:
                _report(run_sync(survey(app, other)), as_json=as_json, dry_run=True)
            return
        with opened(target, create=True) as other, _Meter() as meter:
            moved = run_sync(migrate(app, other, progress=meter.show))
    _report(moved, as_json=as_json)


@contextlib.contextmanager
def _there(url: str) -> Iterator[Penstock | None]:
    """The Penstock of a store, or None where it is yet to be created."""
    with contextlib.ExitStack() as stack:
        try:
            app = stack.enter_context(opened(url))
        except StoreMissing as error:
            click.echo(shown(f"{error}: it will be created"), err=True)
            app = None
        yield app


class _Meter:
    """Says on stderr how far it is: on a terminal in one line, else in a few."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._said = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live and self._said:
            click.echo(err=True)

    def show(self, done: Moved) -> None:
        """To be called with what has been done so far."""
        step = done.moved * _STEPS // done.jobs
        text = f"{done.moved:,} of {jobs_of(done.jobs)}"
        if self._live:
            click.echo(f"\r{text}", nl=False, err=True)
        elif step > self._said:
            click.echo(text, err=True)
        self._said = max(step, self._said, int(self._live))


def _report(moved: Moved, *, as_json: bool, dry_run: bool = False) -> None:
    if as_json:
        emit({**plain(moved), "dry_run": dry_run})
        return
    with_it = ", ".join(
        f"{n:,} {name if n == 1 else f'{name}s'}"
        for n, name in (
            (moved.queues, "queue"),
            (moved.limits, "limit"),
            (moved.schedules, "schedule"),
            (moved.tokens, "token"),
        )
    )
    if dry_run:
        click.echo(shown(f"Would move {jobs_of(moved.jobs)}; with them {with_it}."))
        return
    before = moved.jobs - moved.moved
    rest = f"; {jobs_of(before)} had been moved before" if before else ""
    click.echo(shown(f"Moved {jobs_of(moved.moved)}{rest}; with them {with_it}."))


COMMANDS: Sequence[click.Command] = (migrate_store,)
