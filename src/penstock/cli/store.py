"""Options that commands share, and the opening of the store that they work on."""

import contextlib
import functools
import getpass
import os
import re
import shlex
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from difflib import get_close_matches
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
from penstock.core.job import QueueQuery
from penstock.core.redaction import redacted
from penstock.core.secrets import DEFAULT_FIELDS
from penstock.engine import Penstock, run_sync

F = TypeVar("F", bound=Callable[..., Any])
App = Penstock | RemotePenstock
"""What a command works on: a store, or the queue behind a server."""

DEFAULT_STORE = "sqlite:///penstock.db"
SERVERS_FILE = "penstock-data/penstock.db"
_LONGEST = 1e9
_LARGEST_ID = 2**63 - 1
_NUMBER = re.compile("[0-9]{1,19}")
# Longer texts are not worth comparing with the names that exist.
_LONGEST_NAME = 200
# More than a shell shows.
_COMPLETIONS = 1_000

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


class JobIdType(click.ParamType[int]):
    """The number of a job, plain or as applications print it: `42` and `job_42`."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; raises `click.UsageError` with an example of a job ID."""
        digits = str(value).strip().removeprefix("job_").lstrip("0")
        if _NUMBER.fullmatch(digits) and int(digits) <= _LARGEST_ID:
            return int(digits)
        option = f"{param.opts[0]}: " if isinstance(param, click.Option) else ""
        raise click.UsageError(
            f"{option}{value!r:.60} is not a job ID; job IDs are numbers, as in `penstock jobs 42`",
            ctx,
        )


JOB_ID = JobIdType()


# Where a command works: a store, or a server


def on_store(command: F) -> F:
    """Give a command the options `--store`, `--url` and `--json`; it gets the place as `store`."""
    return _placed(command, _store_or_server, default=DEFAULT_STORE, show_default=True)


def on_server(default: str) -> Callable[[F], F]:
    """Give a command that needs a server the same options; it gets the address as `url`."""

    def place() -> dict[str, str | None]:
        where = named_place(servers_only=True)
        return {"url": default if where is None else where}

    def decorate(command: F) -> F:
        return _placed(command, place, url_default=default)

    return decorate


def here_or_on_server(data: str) -> Callable[[F], F]:
    """Give a command of an application these options and `--data`, with this help text.

    It gets the address of a server as `url`, or None and what `--store` and `--data` say: to work
    here.
    """

    def place() -> dict[str, str | None]:
        where, folder = named_place(), click.get_current_context().params["data"]
        if where is None or not is_server(where):
            on_line = click.get_current_context().get_parameter_source("store")
            given = where if on_line is ParameterSource.COMMANDLINE else None
            return {"url": None, "store": given, "data": folder}
        if folder is not None:
            raise click.UsageError(
                f"--data is a folder of this machine, and {_shown(where)} is a server: "
                "leave one of them out",
                click.get_current_context(),
            )
        return {"url": where, "store": None, "data": None}

    def decorate(command: F) -> F:
        return _placed(click.option("--data", metavar="DIR", help=data)(command), place)

    return decorate


def _placed(
    command: F,
    place: Callable[[], dict[str, str | None]],
    *,
    url_default: str | None = None,
    **store: Any,
) -> F:
    """Give a command the options, and call it with what `place` makes of them."""

    @functools.wraps(command)
    def wrapper(*args: Any, **given: Any) -> Any:
        for name in ("url", "store", "data"):
            given.pop(name, None)
        return command(*args, **given, **place())

    for option in (
        json_option,
        click.option(
            "--store",
            metavar="URL",
            envvar="PENSTOCK_STORE",
            show_envvar=True,
            help="The store to work on, or the address of a server: http://host:8000.",
            **store,
        ),
        click.option(
            "--url",
            metavar="URL",
            envvar="PENSTOCK_URL",
            show_envvar=True,
            default=url_default,
            show_default=url_default is not None,
            callback=_parse_url,
            help="The same as --store, for a server; PENSTOCK_TOKEN is its token.",
        ),
    ):
        wrapper = option(wrapper)
    return wrapper  # type: ignore[return-value] # click keeps the signature open


def _parse_url(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not is_server(value):
        raise click.BadParameter(
            f"{_shown(value)!r} is not the address of a server, such as http://127.0.0.1:8000.",
            ctx,
            param,
        )
    return value


def _store_or_server() -> dict[str, str | None]:
    return {"store": named_place() or DEFAULT_STORE}


def named_place(*, servers_only: bool = False) -> str | None:
    """The one place that `--url` and `--store` name, else that of the environment; None if neither.

    `servers_only`, a store that the environment names does not count. Raises `click.UsageError`
    where the two name different places.
    """
    context = click.get_current_context()
    for source, titles in _TITLES.items():
        named = {
            title: context.params[name]
            for name, title in titles.items()
            if context.get_parameter_source(name) is source and context.params[name]
        }
        if servers_only:
            named = {title: url for title, url in named.items() if _serves(title, url, context)}
        places: dict[str, None] = {
            url.rstrip("/") if is_server(url) else url: None for url in named.values()
        }
        if len(places) > 1:
            both = " and ".join(f"{title} ({_shown(url)})" for title, url in named.items())
            raise click.UsageError(f"{both} name different places: leave one of them out", context)
        if places:
            return next(iter(places))
    return None


_TITLES = {
    ParameterSource.COMMANDLINE: {"url": "--url", "store": "--store"},
    ParameterSource.ENVIRONMENT: {"url": "PENSTOCK_URL", "store": "PENSTOCK_STORE"},
}


def _serves(title: str, url: str, context: click.Context) -> bool:
    if title == "--store" and not is_server(url):
        raise click.UsageError(
            f"{context.command_path!r} needs a server, as in --store http://127.0.0.1:8000, "
            f"not {_shown(url)!r}",
            context,
        )
    return is_server(url)


def _shown(url: str) -> str:
    return redacted(url) or ""


def refuse_options_before(context: click.Context, *, as_json: bool) -> None:
    """Refuse options of a group that belong behind the command inside it.

    Half heard would be worse: the command would work on another store.
    """
    sources = {context.get_parameter_source(name) for name in ("store", "url")}
    if as_json or ParameterSource.COMMANDLINE in sources:
        command = f"{context.info_name} {context.invoked_subcommand}"
        raise click.UsageError(
            f"--store, --url and --json stand behind the command: {command} …", context
        )


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
    given = (ctx.params.get(name) for name in ("url", "store"))
    named = (os.environ.get(name) for name in ("PENSTOCK_URL", "PENSTOCK_STORE"))
    url = next(filter(None, (*given, *named)), DEFAULT_STORE)
    with ctx.scope(cleanup=False), contextlib.suppress(PenstockError), reached(url) as app:
        query = QueueQuery(contains=incomplete or None, limit=_COMPLETIONS)
        names = [queue.name for queue in run_sync(app.queues(query))]
        return [name for name in names if name.startswith(incomplete)]
    return []


def suggest(command: str) -> str:
    """A command to try next, on the same store or server as the current one."""
    context = click.get_current_context()
    for name in ("url", "store"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            return f"penstock {command} --{name} {shlex.quote(redacted(context.params[name]))}"
    return f"penstock {command}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The name that was probably meant, as the end of a sentence; empty if none is near."""
    nearest = get_close_matches(name[:_LONGEST_NAME], known, 1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def doubt_queue(app: App, name: str) -> str | None:
    """What to say of a queue that does not exist: allowed, and most often a typing error."""
    if queue_exists(app, name):
        return None
    return f"no queue {name!r} exists yet{did_you_mean(name, some_queues(app))}"


def queue_exists(app: App, name: str) -> bool:
    """Whether a queue has held a job or a setting."""
    return bool(run_sync(app.queues(QueueQuery(names=(name,)))))


def some_queues(app: App) -> list[str]:
    """The names of the queues, to compare a mistyped one with; only the first of very many."""
    return [queue.name for queue in run_sync(app.queues(QueueQuery(limit=_COMPLETIONS)))]


def _actor() -> str:
    """Who the log will name: the person, not the short-lived process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an id without a name, as containers have
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
