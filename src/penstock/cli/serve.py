"""The commands `serve` and `config`: a store as an HTTP service, and its settings."""

import asyncio
from pathlib import Path
from typing import Any

import click

from penstock.cli.output import emit
from penstock.cli.store import json_option
from penstock.config import Server, Sources
from penstock.core.errors import ConfigurationError

_SETTINGS = (
    click.option("--config", "file", type=click.Path(path_type=Path), help="A TOML file."),
    click.option("--store", metavar="URL", help="The store.  [default: a file in the data folder]"),
    click.option("--data", metavar="DIR", help="The folder for what the server keeps."),
    click.option("--host", help="The address to listen on.  [default: 127.0.0.1]"),
    click.option("--port", type=int, help="The port; 0 takes a free one.  [default: 8000]"),
    click.option("--workers", type=int, metavar="N", help="Run so many jobs at a time."),
    click.option("--processes", type=int, metavar="N", help="Serve with so many processes."),
    click.option("--apps", metavar="A,B", help="The applications.  [default: all installed]"),
)


def _with_settings(command: Any) -> Any:
    for option in reversed(_SETTINGS):
        command = option(command)
    return command


@click.command("serve")
@_with_settings
def run_server(*, file: Path | None, **given: Any) -> None:
    """Serve a store over HTTP, with the applications that are installed.

    Settings come from these options, from variables such as PENSTOCK_PORT, and from the file
    penstock.toml, in this order. Without an access token only this machine is served.
    """
    sources = Sources(file=file)
    settings = sources.section("", Server, given).settings
    try:
        from penstock.server.serve import serve
    except ImportError as error:
        raise ConfigurationError(
            f"the server needs what is not installed ({error}): pip install 'penstock[server]'"
        ) from error
    click.echo(f"http://{settings.host}:{settings.port}")
    asyncio.run(serve(settings, sources))


@click.command("config")
@_with_settings
@json_option
def show_config(*, file: Path | None, as_json: bool, **given: Any) -> None:
    """Show every setting of the server, and where it came from."""
    found = Sources(file=file).section("", Server, given)
    if as_json:
        emit({one.name: {"value": one.value, "source": one.source} for one in found.sources})
        return
    for one in found.sources:
        click.echo(f"{one.name} = {one.value!r}  ({one.source})")


COMMANDS = (run_server, show_config)
