"""The command `top`: the view on a terminal, or its figures once, as JSON."""

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import click

from penstock.cli.output import emit
from penstock.cli.store import App, is_server, on_store, opened, reached
from penstock.cli.top.feed import Feed
from penstock.client.remote import RemotePenstock
from penstock.core.errors import ConfigurationError
from penstock.core.job import ALL_QUEUES
from penstock.engine import run_sync

_ANSWER_TIME = timedelta(seconds=10)
_LIGHT_BACKGROUNDS = ("7", "15")


@click.command("top")
@click.option(
    "--light/--dark", "light", default=None, help="The colours; unless the terminal says."
)
@on_store
def show_top(*, light: bool | None, store: str, as_json: bool) -> None:
    """Show queues, jobs and workers live, and steer them.

    Fills the terminal until q; ? shows every key. With --json, prints the figures of the queues
    once: how deep, how fast, how busy, and how long until they are empty.
    """
    if as_json:
        with reached(store) as app:
            found = run_sync(Feed(app, ALL_QUEUES).overview(datetime.now(UTC)))
        emit({"queues": found.figures, "workers": found.workers})
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("it draws on a terminal; in a pipe, use --json")
    _require_textual()
    light = _is_light() if light is None else light
    if is_server(store):
        _run(RemotePenstock(store, retries=0, timeout=_ANSWER_TIME), light=light)
    else:
        with opened(store) as app:
            _run(app, light=light)


def _run(app: App, *, light: bool) -> None:
    from penstock.cli.top.app import Top
    from penstock.cli.top.looks import DARK, LIGHT

    view = Top(Feed(app), theme=(LIGHT if light else DARK).name)
    view.run()
    if view.failure is not None:
        raise view.failure


def _require_textual() -> None:
    try:
        import textual  # noqa: F401 - whether it is there
    except ImportError as error:
        raise ConfigurationError(
            f"the view needs what is not installed ({error}): pip install 'penstock[top]'"
        ) from error


def _is_light() -> bool:
    """Whether the terminal says that its background is light."""
    return os.environ.get("COLORFGBG", "").rpartition(";")[2] in _LIGHT_BACKGROUNDS


COMMANDS: Sequence[click.Command] = (show_top,)
