"""Options that commands share, and the opening of the store that they work on."""

import contextlib
import getpass
import os
import shlex
import socket
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from penstock.cli.output import conceal
from penstock.client.remote import RemotePenstock
from penstock.config import Server, Sources
from penstock.core.errors import (
    ConfigurationError,
    JobNotFound,
    NotAuthorised,
    PenstockError,
    StoreError,
)
from penstock.core.redaction import redacted
from penstock.core.secrets import DEFAULT_FIELDS
from penstock.engine import Penstock, run_sync

F = TypeVar("F", bound=Callable[..., Any])
App = Penstock | RemotePenstock
"""What a command works on: a store, or the queue behind a server."""

DEFAULT_STORE = "sqlite:///penstock.db"
SERVERS_FILE = "penstock-data/penstock.db"
_LONGEST = 1e9

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document; errors as JSON on stderr."
)


def parse_seconds(ctx: click.Context, param: click.Parameter, value: str) -> timedelta:
    """A callback for options that take a number of seconds."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= _LONGEST:
        raise click.BadParameter(f"{value!r} is not a number of seconds.", ctx, param)
    return timedelta(seconds=seconds)


def on_store(command: F) -> F:
    """Give a command the options `--store` and `--json`."""
    store_option = click.option(
        "--store",
        metavar="URL",
        envvar="PENSTOCK_STORE",
        default=DEFAULT_STORE,
        show_default=True,
        show_envvar=True,
        help="The store to work on, or the address of a server: http://host:8000.",
    )
    return store_option(json_option(command))


def refuse_options_before(context: click.Context, *, as_json: bool) -> None:
    """Refuse options of a group that belong behind the command inside it.

    Half heard would be worse: the command would work on another store.
    """
    if as_json or context.get_parameter_source("store") is ParameterSource.COMMANDLINE:
        command = f"{context.info_name} {context.invoked_subcommand}"
        raise click.UsageError(f"--store and --json stand behind the command: {command} …", context)


@contextlib.contextmanager
def opened(url: str, *, create: bool = False) -> Iterator[Penstock]:
    """The Penstock of a store that exists; nothing is created for a command that only looks."""
    if is_server(url):
        path = click.get_current_context().command_path
        refused = ConfigurationError(f"{path!r} needs the store itself, not a server before it")
        refused.add_note("it where the store is, with --store sqlite:///…")
        raise refused
    create = create and not url.startswith("memory:")  # which would be gone at once
    app = Penstock(url, actor=_actor(), create=create, secret_fields=_secret_fields())
    conceal(app.secrets)
    try:
        _ = app.store
    except StoreError as error:
        error.add_note(_another_store(url))
        raise
    except ConfigurationError as error:
        error.add_note(
            "--store sqlite:///FILE, journal:///FOLDER, postgresql://HOST/DATABASE or "
            "http://HOST:PORT"
        )
        raise
    try:
        yield app
    except JobNotFound as error:
        error.add_note(suggest("jobs"))
        raise
    finally:
        run_sync(app.close())


def _secret_fields() -> Sequence[str]:
    """What a server on this store would not show; the defaults if its settings cannot be read."""
    try:
        return Sources().section("", Server).settings.secret_fields
    except ConfigurationError:
        return DEFAULT_FIELDS


def _another_store(url: str) -> str:
    """Where the store may be that is not at this URL: by default, a server's is in a folder."""
    if url == DEFAULT_STORE and Path(SERVERS_FILE).exists():
        return f"--store sqlite:///{SERVERS_FILE}, where 'penstock serve' keeps its jobs"
    return "another --store URL, or set PENSTOCK_STORE"


def is_server(url: str) -> bool:
    """Whether a store is named by the address of a server."""
    return url.startswith(("http://", "https://"))


@contextlib.contextmanager
def reached(url: str) -> Iterator[App]:
    """As `opened`; by the address of a server, the queue behind it, with PENSTOCK_TOKEN."""
    if not is_server(url):
        with opened(url) as app:
            yield app
        return
    remote = RemotePenstock(url, blocking=True)
    try:
        yield remote
    except JobNotFound as error:
        error.add_note(suggest("jobs"))
        raise
    except NotAuthorised as error:
        error.add_note("PENSTOCK_TOKEN=… with a token that has this scope: penstock token create")
        raise
    except StoreError as error:
        error.add_note("another --store URL, or set PENSTOCK_STORE")
        raise
    finally:
        run_sync(remote.close())


def complete_queues(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The queues of the store, for the shell; nothing if it cannot be read."""
    url = ctx.params.get("store") or os.environ.get("PENSTOCK_STORE") or DEFAULT_STORE
    with contextlib.suppress(PenstockError), reached(url) as app:
        return [queue.name for queue in run_sync(app.queues()) if queue.name.startswith(incomplete)]
    return []


def suggest(command: str) -> str:
    """A command to try next, on the same store as the current one."""
    context = click.get_current_context()
    if context.get_parameter_source("store") is ParameterSource.COMMANDLINE:
        command += f" --store {shlex.quote(redacted(context.params['store']))}"
    return f"penstock {command}"


def _actor() -> str:
    """Who the log will name: the person, not the short-lived process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an id without a name, as containers have
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
