"""The commands `serve` and `config`: a store as an HTTP service, and its settings."""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from penstock.cli.output import Column, emit, show_table, shown
from penstock.cli.processes import Processes, Told
from penstock.cli.stopping import LAST_BREATH, Stopper, Watchdog
from penstock.cli.store import json_option
from penstock.config import Server, Sources
from penstock.core.errors import ConfigurationError
from penstock.logs import set_up_logging

_log = logging.getLogger(__name__)

_SETTINGS = (
    click.option("--config", "file", type=click.Path(path_type=Path), help="A TOML file."),
    click.option("--store", metavar="URL", help="The store.  [default: a file in the data folder]"),
    click.option("--data", metavar="DIR", help="The folder for what the server keeps."),
    click.option("--host", help="The address to listen on.  [default: 127.0.0.1]"),
    click.option("--port", type=int, help="The port; 0 takes a free one.  [default: 8000]"),
    click.option("--workers", type=int, metavar="N", help="Run so many jobs at a time."),
    click.option("--processes", type=int, metavar="N", help="Serve with so many processes."),
    click.option("--apps", metavar="A,B", help="The applications.  [default: all installed]"),
    click.option("--grace", type=float, metavar="SECONDS", help="Time to end when stopping."),
    click.option("--keep-finished", type=float, metavar="SECONDS", help="Remove jobs after that."),
    click.option("--keep-failed", type=float, metavar="SECONDS", help="The same for failed ones."),
    click.option("--log-format", metavar="text|json", help="How the log is written."),
    click.option("--request-log/--no-request-log", default=None, help="Log every request."),
)


def _with_settings(command: Any) -> Any:
    for option in reversed(_SETTINGS):
        command = option(command)
    return json_option(command)


@click.command("serve")
@_with_settings
def run_server(*, file: Path | None, as_json: bool, **given: Any) -> int:
    """Serve a store over HTTP, with the applications that are installed.

    Settings come from these options, from variables such as PENSTOCK_PORT, and from the file
    penstock.toml, in this order. Without an access token only this machine is served.

    SIGTERM or Ctrl-C stops gracefully: requests are answered and running jobs get their grace; a
    second one stops at once.
    """
    if as_json:
        given["log_format"] = given["log_format"] or "json"
    sources = Sources(file=file)
    settings = sources.section("", Server, given).settings
    try:
        from penstock.server import serve
        from penstock.server.installed import store_url, strangers
    except ImportError as error:
        problem = ConfigurationError(f"the server needs what is not installed ({error})")
        problem.add_note("pip install 'penstock[server]'")
        raise problem from error
    unknown = strangers(settings, sources)  # a wrong setting is told before a port that is in use
    store_url(settings)
    set_up_logging(as_json=settings.log_format == "json")
    for text in unknown:
        _log.warning("%s", text)
    listening = serve.bind(settings.host, settings.port)

    def ready() -> None:
        _announce(serve.address_of(listening), as_json=as_json)

    if settings.processes == 1:
        _serve(settings, sources, listening, ready, as_json=as_json)
        return 0

    def work(told: Told) -> None:
        _serve(settings, sources, listening, told.ready, as_json=as_json, told=told)

    return Processes(work, settings.processes, stop_listening=listening.close, as_json=as_json).run(
        ready
    )


def _announce(address: str, *, as_json: bool) -> None:
    if as_json:
        emit({"url": address})
    else:
        click.echo(f"Penstock serves on {address}")
    sys.stdout.flush()


def _serve(
    settings: Server,
    sources: Sources,
    listening: socket.socket,
    ready: Callable[[], None],
    *,
    as_json: bool,
    told: Told | None = None,
) -> None:
    """Serve in this process, until a signal or until the parent is gone."""
    from penstock.server.serve import Serving

    async def run() -> None:
        watchdog = Watchdog()
        number, replaces = (0, None) if told is None else (told.number, told.replaces)
        serving = Serving(settings, sources, process=number, replaces=replaces)
        grace = timedelta(seconds=settings.grace)
        Stopper(serving.stop, grace, watchdog, as_json=as_json).install()
        if told is not None:
            asyncio.get_running_loop().add_reader(told.lifeline, _orphaned, told, serving.stop)
        await serving.run(listening, ready)
        watchdog.allow(LAST_BREATH)

    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        runner.run(run())


def _orphaned(told: Told, stop: Callable[[], None]) -> None:
    asyncio.get_running_loop().remove_reader(told.lifeline)
    os.close(told.lifeline)
    stop()


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # it does not exist for every system
        return None
    return uvloop.new_event_loop


@click.command("config")
@_with_settings
def show_config(*, file: Path | None, as_json: bool, **given: Any) -> None:
    """Show every setting of the server and of its applications, and where it came from."""
    from penstock.server.installed import sections, strangers

    sources = Sources(file=file)
    found = sources.section("", Server, given)
    every = [*found.sources]
    for section in sections(found.settings, sources):
        every += section.sources
    for text in strangers(found.settings, sources):
        click.echo(f"penstock: {text}", err=True)
    if as_json:
        emit({one.name: {"value": one.shown, "source": one.source} for one in every})
        return
    columns = [Column("setting"), Column("value", bends=True), Column("from", bends=True)]
    show_table(columns, [[one.name, _text(one.shown), shown(one.source)] for one in every])


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(map(str, value))
        case float():
            return f"{value:g}"
        case _:
            return shown(str(value))


COMMANDS = (run_server, show_config)
