"""The command `migrate`: moves all jobs and settings from one store to another."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Self

import click

from penstock.cli.connection import store_at
from penstock.cli.options import json_option
from penstock.cli.output import emit, jobs_of, plain, shown
from penstock.core.errors import ConfigurationError, StoreMissing
from penstock.core.redaction import redacted
from penstock.engine.migration import Moved, migrate, survey
from penstock.engine.penstock import Penstock, run_sync

_STEPS = 10
"""How many lines report progress where there is no terminal."""


@click.command("migrate")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--dry-run", is_flag=True, help="Count and check, and change nothing.")
@json_option
def migrate_store(*, source: str, target: str, dry_run: bool, as_json: bool) -> None:
    """Move everything from the store FROM to the store TO.

    Both are URLs. Moves jobs in every state, with their logs, reports and order, and queues,
    limits, schedules and access tokens. Stop the workers first. TO is created if it does not
    exist. FROM remains, read-only. If it is interrupted, the same command continues.
    """
    for url in (source, target):
        if url.startswith("memory:"):
            raise ConfigurationError(f"{redacted(url)} ends with its process; name a durable store")
    with store_at(source) as app:
        if dry_run:
            with _existing(target) as other:
                _report(run_sync(survey(app, other)), as_json=as_json, dry_run=True)
            return
        with store_at(target, create=True) as other, _Meter() as meter:
            moved = run_sync(migrate(app, other, progress=meter.show))
    _report(moved, as_json=as_json)


@contextlib.contextmanager
def _existing(url: str) -> Iterator[Penstock | None]:
    """Open a store; None if it does not exist yet."""
    with contextlib.ExitStack() as stack:
        try:
            app = stack.enter_context(store_at(url))
        except StoreMissing as error:
            click.echo(shown(f"{error}; it will be created"), err=True)
            app = None
        yield app


class _Meter:
    """Reports progress on stderr: in one line on a terminal, otherwise in a few lines."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._shown = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live and self._shown:
            click.echo(err=True)

    def show(self, done: Moved) -> None:
        """Show the result so far."""
        step = done.moved * _STEPS // done.jobs
        text = f"{done.moved:,} of {jobs_of(done.jobs)}"
        if self._live:
            click.echo(f"\r{text}", nl=False, err=True)
        elif step > self._shown:
            click.echo(text, err=True)
        self._shown = max(step, self._shown, int(self._live))


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
        click.echo(shown(f"Would move {jobs_of(moved.jobs)}, and {with_it}."))
        return
    before = moved.jobs - moved.moved
    rest = f" ({jobs_of(before)} had been moved before)" if before else ""
    click.echo(shown(f"Moved {jobs_of(moved.moved)}{rest}, and {with_it}."))


COMMANDS: Sequence[click.Command] = (migrate_store,)
