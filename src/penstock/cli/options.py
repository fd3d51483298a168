"""Options and types of parameters that commands share."""

import functools
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from penstock.core.redaction import redacted

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_STORE = "sqlite:///penstock.db"
_LONGEST = 1e9
_OLDEST = 3_650_000.0 * 86_400
_LARGEST_ID = 2**63 - 1
_NUMBER = re.compile("[0-9]{1,19}")
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)?")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document, and errors as JSON on stderr."
)


def parse_seconds(ctx: click.Context, param: click.Parameter, value: str) -> timedelta:
    """Parse a number of seconds; a callback for options."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= _LONGEST:
        raise click.BadParameter(f"{value!r} is not a number of seconds.", ctx, param)
    return timedelta(seconds=seconds)


def parse_age(ctx: click.Context, param: click.Parameter, value: str | None) -> timedelta | None:
    """Parse a duration such as `90s`, `30m`, `12h`, `7d` or `2w`; a callback for options."""
    return None if value is None else read_age(value, ctx, param)


def read_age(
    value: str, ctx: click.Context | None = None, param: click.Parameter | None = None
) -> timedelta:
    """Parse a duration such as `90s`, `30m`, `12h`, `7d` or `2w`. Raises `click.BadParameter`."""
    match = _AGE.fullmatch(value.strip())
    seconds = float(match[1]) * _UNITS[match[2] or "s"] if match else -1.0
    if not 0 <= seconds <= _OLDEST:
        raise click.BadParameter(
            f"{value!r} is not a duration such as 90s, 30m, 12h or 7d.", ctx, param
        )
    return timedelta(seconds=seconds)


class JobIdType(click.ParamType[int]):
    """The number of a job, plain or as applications print it: `42` and `job_42`."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number. Raises `click.UsageError` with an example of a job ID."""
        digits = str(value).strip().removeprefix("job_").lstrip("0")
        if _NUMBER.fullmatch(digits) and int(digits) <= _LARGEST_ID:
            return int(digits)
        option = f"{param.opts[0]}: " if isinstance(param, click.Option) else ""
        raise click.UsageError(
            f"{option}{value!r:.60} is not a job ID; job IDs are numbers, as in `penstock jobs 42`",
            ctx,
        )


JOB_ID = JobIdType()


# --store, --url and --data


def is_server(url: str) -> bool:
    """Whether a URL is the address of a server."""
    return url.startswith(("http://", "https://"))


def on_store(command: F) -> F:
    """Add `--store`, `--url` and `--json` to a command, which gets the URL as `store`."""

    def place() -> dict[str, str | None]:
        return {"store": _given_url() or DEFAULT_STORE}

    return _with_place(command, place, default=DEFAULT_STORE, show_default=True)


def on_server(default: str) -> Callable[[F], F]:
    """Add the same options to a command that needs a server, which gets the address as `url`."""

    def place() -> dict[str, str | None]:
        return {"url": _given_url(servers_only=True) or default}

    def decorate(command: F) -> F:
        return _with_place(command, place, url_default=default)

    return decorate


def on_server_or_here(data: str) -> Callable[[F], F]:
    """Add the same options and `--data`, with this help text, to a command of an application.

    The command gets `url`, `store` and `data`. Without a server, `url` is None, and the command
    does its work here, on the store and in the data folder.
    """

    def place() -> dict[str, str | None]:
        context = click.get_current_context()
        url, folder = _given_url(), context.params["data"]
        if url is None or not is_server(url):
            on_line = context.get_parameter_source("store") is ParameterSource.COMMANDLINE
            return {"url": None, "store": url if on_line else None, "data": folder}
        if folder is not None:
            raise click.UsageError(
                f"--data names a folder of this machine, and {_shown(url)} is a server: "
                "leave one of them out",
                context,
            )
        return {"url": url, "store": None, "data": None}

    def decorate(command: F) -> F:
        return _with_place(click.option("--data", metavar="DIR", help=data)(command), place)

    return decorate


def _with_place(
    command: F,
    place: Callable[[], dict[str, str | None]],
    *,
    url_default: str | None = None,
    **store: Any,
) -> F:
    """Add the options to a command, which is called with the values that `place` returns."""

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
            help="The URL of the store, or of a server: http://host:8000.",
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
            help="The URL of a server, instead of --store. PENSTOCK_TOKEN is its token.",
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


_TITLES = {
    ParameterSource.COMMANDLINE: {"url": "--url", "store": "--store"},
    ParameterSource.ENVIRONMENT: {"url": "PENSTOCK_URL", "store": "PENSTOCK_STORE"},
}


def _given_url(*, servers_only: bool = False) -> str | None:
    """Return the URL that `--url` and `--store` name, or else the environment; None if neither.

    With `servers_only`, a store in the environment does not count. Raises `click.UsageError` if
    the two name different places.
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
    """Refuse options of a group that belong after the command in it.

    Ignored, they would make the command use another store than the one that was named.
    """
    sources = {context.get_parameter_source(name) for name in ("store", "url")}
    if as_json or ParameterSource.COMMANDLINE in sources:
        command = f"{context.info_name} {context.invoked_subcommand}"
        raise click.UsageError(
            f"--store, --url and --json go after the command: {command} …", context
        )
