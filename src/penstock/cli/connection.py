"""The store or the server that a command works on, and advice when something is not there."""

import contextlib
import os
import shlex
from collections.abc import Awaitable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from penstock.cli.options import DEFAULT_STORE, is_server
from penstock.cli.output import hide_secrets
from penstock.core.errors import (
    ConfigurationError,
    JobNotFound,
    NotAuthorised,
    NotOffered,
    PenstockError,
    ScheduleNotFound,
    StoreError,
    TokenExists,
    TokenNotFound,
)
from penstock.core.queue import QueueQuery
from penstock.core.redaction import redacted
from penstock.engine.penstock import Penstock, run_sync
from penstock.engine.protocol import App
from penstock.stores import Migrate

T = TypeVar("T")

SERVERS_FILE = "penstock-data/penstock.db"
# Longer texts are not worth comparing with the names that exist.
_LONGEST_NAME = 200
# More than a shell shows.
_COMPLETIONS = 1_000
_LISTS: dict[type[PenstockError], str] = {
    JobNotFound: "jobs",
    ScheduleNotFound: "cron list",
    TokenExists: "token list",
    TokenNotFound: "token list",
}
"""The commands that list what an error is about."""


@contextlib.contextmanager
def connected(url: str, *, create: bool = False) -> Iterator[App]:
    """Connect to a store, or to a server with the token in PENSTOCK_TOKEN; for synchronous code.

    A store has to exist unless `create` is given. Errors get a note with what to try next.
    """
    app = _remote(url, blocking=True) if is_server(url) else opened(url, create=create)
    try:
        with advised():
            yield app
    finally:
        run_sync(app.close())


@contextlib.contextmanager
def addressed(url: str) -> Iterator[App]:
    """Return the store or server at a URL, unopened: another process may have a journal open."""
    app = _remote(url, blocking=True) if is_server(url) else _penstock(url, create=False)
    try:
        with advised():
            yield app
    finally:
        run_sync(app.close())


def connection(url: str, *, retries: int, timeout: timedelta) -> App:
    """Return the store or server at a URL, for an event loop. The caller closes it."""
    return _remote(url, retries=retries, timeout=timeout) if is_server(url) else opened(url)


@contextlib.contextmanager
def store_at(url: str, *, create: bool = False) -> Iterator[Penstock]:
    """Open a store for a command that no server can carry out."""
    refuse_server(url)
    app = opened(url, create=create)
    try:
        yield app
    finally:
        run_sync(app.close())


def refuse_server(url: str) -> None:
    """Raise `ConfigurationError` for the address of a server, where a store is needed."""
    if is_server(url):
        path = click.get_current_context().command_path
        refused = ConfigurationError(f"{path!r} needs stores, and {redacted(url)} is a server")
        refused.add_note("the URL of its store: sqlite:///FILE or postgresql://HOST/DATABASE")
        raise refused


def opened(url: str, *, create: bool = False) -> Penstock:
    """Open a store. Raises errors with a note on which other URL to try."""
    create = create and not url.startswith("memory:")  # which would be gone at once
    app = _penstock(url, create=create)
    hide_secrets(app.secrets)
    try:
        _ = app.store
    except StoreError as error:
        error.add_note(_another_store(url))
        raise
    except ConfigurationError as error:
        error.add_note(
            "a URL such as sqlite:///FILE, journal:///FOLDER, postgresql://HOST/DATABASE or "
            "http://HOST:PORT"
        )
        raise
    return app


@contextlib.contextmanager
def advised() -> Iterator[None]:
    """Add what to try next to errors that pass through the block."""
    try:
        yield
    except tuple(_LISTS) as error:
        error.add_note(suggest(next(_LISTS[kind] for kind in _LISTS if isinstance(error, kind))))
        raise
    except NotAuthorised as error:
        if "token" in str(error):  # not if the server refuses a name, whatever the token
            error.add_note(
                "PENSTOCK_TOKEN=… with a token that has this scope: penstock token create"
            )
        raise
    except StoreError as error:
        error.add_note("another URL with --store, or in PENSTOCK_STORE")
        raise


async def offered(call: Awaitable[T]) -> T | None:
    """Return the result of a call, or None where a server does not offer it.

    For what a command shows in addition; what it was asked for raises `NotOffered`.
    """
    try:
        return await call
    except NotOffered:
        return None


def configured_migrate() -> Migrate | None:
    """Return whether to migrate a store, as a server on this machine would."""
    found: Migrate | None = _setting("migrate")
    return found


def _setting(name: str) -> Any:
    """Return one setting of a server on this machine.

    Raises `ConfigurationError` if it is wrong, if `penstock.toml` is malformed or has an unknown
    top-level key, or if `PENSTOCK_CONFIG` names no file.
    """
    from penstock.config import Server, Sources

    return Sources().one(Server, name)


def _remote(url: str, **options: Any) -> App:
    """Return a server; commands that work on a store do not import the client."""
    from penstock.client.remote import RemotePenstock

    return RemotePenstock(url, **options)


def _penstock(url: str, *, create: bool) -> Penstock:
    """Return a store, unopened, with what a server would hide of it."""
    return Penstock(
        url,
        actor=_actor(),
        create=create,
        migrate=configured_migrate(),
        secret_fields=_setting("secret_fields"),
    )


def _another_store(url: str) -> str:
    """Say where the store may be that does not exist at this URL: a server has it in a folder."""
    if url == DEFAULT_STORE and Path(SERVERS_FILE).exists():
        return f"--store sqlite:///{SERVERS_FILE}, where 'penstock serve' keeps its jobs"
    command = click.get_current_context().command
    if not any(parameter.name == "store" for parameter in command.params):
        return "another URL"  # an argument of the command
    return "another URL with --store, or in PENSTOCK_STORE"


def _actor() -> str:
    """Return the name for the log: that of the person, not of the short-lived process."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an id without a name, as in containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


# Names, and commands to try next


def suggest(command: str) -> str:
    """Return a command to try next, on the same store or server as the current one."""
    context = click.get_current_context()
    for name in ("url", "store"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            return f"penstock {command} --{name} {shlex.quote(redacted(context.params[name]))}"
    return f"penstock {command}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that names what was probably meant; empty if nothing is near."""
    from difflib import get_close_matches

    nearest = get_close_matches(name[:_LONGEST_NAME], known, 1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def doubt_queue(app: App, name: str) -> str | None:
    """Return a warning for a queue that does not exist, which is allowed and often a typo."""
    if queue_exists(app, name):
        return None
    return f"no queue {name!r} exists yet{did_you_mean(name, some_queues(app))}"


def queue_exists(app: App, name: str) -> bool:
    """Whether a queue has jobs or settings."""
    return bool(run_sync(app.queues.list(QueueQuery(names=(name,)))))


def some_queues(app: App) -> list[str]:
    """Return the names of the first queues, to compare a mistyped name with."""
    return [queue.name for queue in run_sync(app.queues.list(QueueQuery(limit=_COMPLETIONS)))]


def complete_queues(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a queue in the shell; with nothing if the store cannot be read."""
    given = (ctx.params.get(name) for name in ("url", "store"))
    named = (os.environ.get(name) for name in ("PENSTOCK_URL", "PENSTOCK_STORE"))
    url = next(filter(None, (*given, *named)), DEFAULT_STORE)
    with ctx.scope(cleanup=False), contextlib.suppress(PenstockError), connected(url) as app:
        query = QueueQuery(contains=incomplete or None, limit=_COMPLETIONS)
        names = [queue.name for queue in run_sync(app.queues.list(query))]
        return [name for name in names if name.startswith(incomplete)]
    return []
