"""The commands `serve` and `config`: an HTTP server for a store, and its settings."""

import logging
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import click

from penstock.cli import event_loop
from penstock.cli.options import json_option
from penstock.cli.output import Column, emit, show_table, shown
from penstock.cli.processes import Child, Processes
from penstock.cli.service_manager import ServiceManager
from penstock.cli.signals import LAST_BREATH, Stopper, Watchdog
from penstock.config import Server, Sources, store_url
from penstock.core.errors import ConfigurationError
from penstock.logs import set_up_logging
from penstock.worker.liveness import Pulse

_log = logging.getLogger(__name__)

_SETTINGS = (
    click.option(
        "--config",
        "file",
        type=click.Path(path_type=Path),
        help="A TOML file with settings.  [default: penstock.toml]",
    ),
    click.option("--store", metavar="URL", help="The store.  [default: a file in the data folder]"),
    click.option(
        "--data",
        metavar="DIR",
        help="The folder for the data of the server.  [default: penstock-data]",
    ),
    click.option("--host", help="The address to listen on.  [default: 127.0.0.1]"),
    click.option("--port", type=int, help="The port; 0 picks a free one.  [default: 8000]"),
    click.option("--workers", type=int, metavar="N", help="The number of jobs to run at a time."),
    click.option(
        "--processes", type=int, metavar="N", help="The number of processes that serve requests."
    ),
    click.option("--apps", metavar="A,B", help="The applications.  [default: all installed]"),
    click.option(
        "--grace",
        type=float,
        metavar="SECONDS",
        help="How long requests and jobs may continue when the server stops.",
    ),
    click.option(
        "--drain-delay",
        type=float,
        metavar="SECONDS",
        help="How long to keep accepting requests, reporting not ready, before stopping.",
    ),
    click.option(
        "--keep-finished",
        type=float,
        metavar="SECONDS",
        help="Remove jobs this long after they ended.",
    ),
    click.option(
        "--keep-failed",
        type=float,
        metavar="SECONDS",
        help="Remove failed jobs this long after they ended.",
    ),
    click.option("--log-format", metavar="text|json", help="The format of the log."),
    click.option("--request-log/--no-request-log", default=None, help="Log every request."),
)


def _with_settings(command: Any) -> Any:
    for option in reversed(_SETTINGS):
        command = option(command)
    return json_option(command)


@click.command("serve")
@_with_settings
def run_server(*, file: Path | None, as_json: bool, **given: Any) -> int:
    """Serve a store over HTTP, with the installed applications.

    Settings come from these options, environment variables such as PENSTOCK_PORT, and the file
    penstock.toml, in this order. Without access tokens, only this machine is served.

    SIGTERM or Ctrl-C stops the server gracefully: it answers requests, and running jobs get their
    grace. A second signal stops it immediately. If NOTIFY_SOCKET is set, the server reports to its
    service manager, for example systemd.
    """
    if as_json:
        given["log_format"] = given["log_format"] or "json"
    sources = Sources(file=file)
    settings = sources.section("", Server, given).settings
    try:
        from penstock.server import process
        from penstock.server.applications import unknown_variables
    except ImportError as error:
        from penstock.apps.kit import is_package_missing

        if not is_package_missing(error):
            raise
        problem = ConfigurationError(f"the server needs a package that is not installed ({error})")
        problem.add_note("pip install 'penstock[server]'")
        raise problem from error
    unknown = unknown_variables(
        settings, sources
    )  # a wrong setting is reported before a port in use
    store_url(settings)
    set_up_logging(as_json=settings.log_format == "json")
    for text in unknown:
        _log.warning("%s", text)
    listening = process.bind(settings.host, settings.port)
    manager = ServiceManager()
    address = process.address_of(listening)

    def ready() -> None:
        _announce(address, as_json=as_json)
        manager.ready(f"serves on {address}")

    def stopping() -> None:
        manager.stopping("finishes requests and running jobs")

    if settings.processes == 1:
        pulse = None if manager.every is None else Pulse(manager.alive, manager.every)
        parent = Parent(ready, stopping, pulse)
        _serve(settings, sources, listening, parent, as_json=as_json)
        return 0

    def work(child: Child) -> None:
        pulse = None if manager.every is None else Pulse(child.beat, manager.every)
        parent = Parent(child.ready, lambda: None, pulse)
        _serve(settings, sources, listening, parent, as_json=as_json, child=child)

    def stop() -> None:
        stopping()
        listening.close()

    return Processes(
        work, settings.processes, "server", on_stop=stop, on_beat=manager.alive, as_json=as_json
    ).run(ready)


class Parent(NamedTuple):
    """How a process that serves reports to whoever started it."""

    ready: Callable[[], None]
    stopping: Callable[[], None]
    pulse: Pulse | None


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
    parent: Parent,
    *,
    as_json: bool,
    child: Child | None = None,
) -> None:
    """Serve in this process, until a signal or until the parent dies."""
    from penstock.server.process import ServerProcess

    async def run() -> None:
        watchdog = Watchdog()
        number, replaces = (0, None) if child is None else (child.number, child.replaces)
        serving = ServerProcess(
            settings, sources, process=number, replaces=replaces, pulse=parent.pulse
        )

        def stop() -> None:
            parent.stopping()
            serving.stop()

        grace, delay = timedelta(seconds=settings.grace), timedelta(seconds=settings.drain_delay)
        stopper = Stopper(stop, grace, watchdog, as_json=as_json, delay=delay)
        stopper.install()
        if child is not None:
            child.when_orphaned(stopper.stop_orphan)
        await serving.run(listening, parent.ready)
        watchdog.allow(LAST_BREATH)

    event_loop.run(run())


@click.command("config")
@_with_settings
def show_config(*, file: Path | None, as_json: bool, **given: Any) -> None:
    """Show the settings of the server, with their sources."""
    from penstock.server.applications import sections, unknown_variables

    sources = Sources(file=file)
    found = sources.section("", Server, given)
    every = [*found.sources]
    for section in sections(found.settings, sources):
        every += section.sources
    for text in unknown_variables(found.settings, sources):
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
