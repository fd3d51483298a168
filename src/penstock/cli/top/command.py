"""The command `top`: the view on a terminal, or its figures as JSON."""

import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import click

from penstock.cli.connection import advised, connected, connection
from penstock.cli.live.reader import Reader
from penstock.cli.options import on_store
from penstock.cli.output import emit
from penstock.core.errors import ConfigurationError
from penstock.core.queue import ALL_QUEUES
from penstock.engine.penstock import run_sync

_ANSWER_TIME = timedelta(seconds=10)
_LIGHT_BACKGROUNDS = ("7", "15")


@click.command("top")
@click.option(
    "--light/--dark", "light", default=None, help="The colours.  [default: as the terminal reports]"
)
@on_store
def show_top(*, light: bool | None, store: str, as_json: bool) -> None:
    """Show queues, jobs and workers live, and manage them.

    Fills the terminal until you press q; ? shows all keys. With --json, prints the figures of the
    queues once: backlog, rates, utilisation, and the time until they are empty.
    """
    if as_json:
        with connected(store) as app:
            found = run_sync(Reader(app, ALL_QUEUES).overview(datetime.now(UTC)))
        emit({"queues": found.figures, "workers": found.workers})
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("top needs a terminal; in a pipe, use --json")
    _require_textual()
    light = _is_light() if light is None else light
    with advised():
        asyncio.run(_run(store, light=light))


async def _run(url: str, *, light: bool) -> None:
    from penstock.cli.top.app import Top
    from penstock.cli.top.theme import DARK, LIGHT

    app = connection(url, retries=0, timeout=_ANSWER_TIME)
    try:
        view = Top(Reader(app), theme=(LIGHT if light else DARK).name)
        await view.run_async()
        if view.follower.failure is not None:
            raise view.follower.failure
    finally:
        await app.close()


def _require_textual() -> None:
    try:
        import textual  # noqa: F401 - whether it is installed
    except ImportError as error:
        raise ConfigurationError(
            f"top needs a package that is not installed ({error}): pip install 'penstock[top]'"
        ) from error


def _is_light() -> bool:
    """Whether the terminal reports a light background."""
    return os.environ.get("COLORFGBG", "").rpartition(";")[2] in _LIGHT_BACKGROUNDS


COMMANDS: Sequence[click.Command] = (show_top,)
