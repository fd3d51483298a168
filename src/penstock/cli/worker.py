"""The command `worker`: runs the jobs of an app until it is stopped."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import click

from penstock.apps.kit.background import in_background
from penstock.cli import event_loop
from penstock.cli.connection import configured_migrate
from penstock.cli.discovery import load_app
from penstock.cli.options import json_option, parse_seconds
from penstock.cli.output import emit, shown
from penstock.cli.processes import Child, Processes
from penstock.cli.reload import Handover, SourceFiles
from penstock.cli.service_manager import ServiceManager
from penstock.cli.signals import LAST_BREATH, Stopper, Watchdog
from penstock.core.errors import ConfigurationError
from penstock.core.job import Retention
from penstock.core.redaction import redacted
from penstock.engine.penstock import Penstock
from penstock.logs import reset_logging, set_up_logging
from penstock.stores import is_private
from penstock.worker.liveness import Liveness, Pulse
from penstock.worker.worker import Worker

_log = logging.getLogger("penstock.worker")

_HEALTH_FILE_EVERY = timedelta(seconds=10)
_LEVELS = ("debug", "info", "warning", "error", "critical")


def _parse_names(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    if not all(names):
        raise click.BadParameter(f"{value!r} contains an empty name.", ctx, param)
    return names


@click.command("worker")
@click.argument("target", metavar="MODULE[:APP]")
@click.option(
    "--import",
    "imports",
    metavar="MODULE",
    multiple=True,
    help="Also import this module for its tasks. Can be repeated.",
)
@click.option(
    "--queues",
    metavar="A,B",
    callback=_parse_names,
    help="Run only jobs of these queues.  [default: all but those of applications]",
)
@click.option(
    "--tags",
    metavar="A,B",
    callback=_parse_names,
    help="Run only jobs with any of these tags.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    default=20,
    show_default=True,
    help="The number of jobs that a process runs at a time.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1, max=64),
    metavar="N",
    default=1,
    show_default=True,
    help="The number of processes that run jobs; one that dies is replaced.",
)
@click.option(
    "--grace",
    metavar="SECONDS",
    default="30",
    show_default=True,
    callback=parse_seconds,
    help="How long running jobs may continue when the worker stops.",
)
@click.option(
    "--keep-finished",
    metavar="SECONDS",
    default="86400",
    show_default="a day",
    callback=parse_seconds,
    help="Remove jobs this long after they ended.",
)
@click.option(
    "--keep-failed",
    metavar="SECONDS",
    default="604800",
    show_default="a week",
    callback=parse_seconds,
    help="Remove failed jobs this long after they ended.",
)
@click.option(
    "--health-file",
    metavar="PATH",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Touch this file every 10 seconds, as long as the worker and its store answer.",
)
@click.option(
    "--reload",
    is_flag=True,
    help="For development: restart when a Python file in this folder changes.",
)
@click.option(
    "--log-level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="The lowest level to log, unless the program sets up its own logging.",
)
@click.option(
    "--log-jobs/--no-log-jobs",
    default=True,
    show_default=True,
    help="Log a line at level info for every job that ends.",
)
@json_option
def run_worker(
    *,
    processes: int,
    keep_finished: timedelta,
    keep_failed: timedelta,
    health_file: Path | None,
    reload: bool,
    log_level: str,
    **given: Any,
) -> int:
    """Run jobs of APP, a Penstock in the module MODULE.

    Without APP, it is the only one in the module.
    The Python module is searched for in the current folder first. If it is a package, its modules
    called tasks are imported as well, wherever they are in it.

    SIGTERM or Ctrl-C stops the worker gracefully: it starts no more jobs, and running ones get
    their grace. A second signal stops it immediately. Jobs that did not finish run again. If
    NOTIFY_SOCKET is set, the worker reports to its service manager, for example systemd.
    """
    options = _Options(
        **given,
        retention=Retention(finished=keep_finished, failed=keep_failed),
        level=logging.getLevelNamesMapping()[log_level.upper()],
    )
    manager = ServiceManager()
    pulse = _pulse(manager, health_file)

    def stopping() -> None:
        manager.stopping("finishes running jobs")

    if processes == 1 and not reload:
        app = _load(options)
        ready = f"runs jobs of {redacted(app.url)}"
        _run(app, options, _Parent(lambda: manager.ready(ready), stopping, pulse))
        return 0

    set_up_logging(as_json=options.as_json, level=options.level)
    handovers = [Handover() for _ in range(processes)]

    def work(child: Child) -> None:
        handover = handovers[child.number]
        asyncio.run(handover.release())
        reset_logging()
        app = _load(options)
        if processes > 1:
            _refuse_private(app, processes)
        beat = None if pulse is None else Pulse(child.beat, pulse.every)
        parent = _Parent(child.ready, lambda: None, beat, child, handover)
        _run(app, options, parent)

    return Processes(
        work,
        processes,
        "worker",
        on_stop=stopping,
        on_beat=pulse.beat if pulse else lambda: None,
        as_json=options.as_json,
        changed=_changed() if reload else None,
    ).run(lambda: manager.ready(f"runs jobs in {processes} processes"))


def _changed() -> Callable[[], str | None]:
    # Python recognises outdated bytecode by the size and the second of a file: two changes within
    # a second could be taken for one. The variable is for the processes of isolated tasks.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    return SourceFiles(Path.cwd()).changed


class _Options(NamedTuple):
    """What each process needs to know."""

    target: str
    imports: tuple[str, ...]
    queues: tuple[str, ...] | None
    tags: tuple[str, ...] | None
    concurrency: int
    grace: timedelta
    retention: Retention
    level: int
    log_jobs: bool
    as_json: bool


class _Parent(NamedTuple):
    """How a process that runs jobs reports to whoever started it."""

    ready: Callable[[], None]
    stopping: Callable[[], None]
    pulse: Pulse | None
    child: Child | None = None
    handover: Handover | None = None


def _load(options: _Options) -> Penstock:
    app = load_app(options.target, options.imports)
    app.connection.migrate = app.connection.migrate or configured_migrate()
    set_up_logging(as_json=options.as_json, level=options.level)
    return app


def _refuse_private(app: Penstock, processes: int) -> None:
    if is_private(app.url):
        refused = ConfigurationError(
            f"{redacted(app.url)} belongs to one process, and {processes} cannot share it"
        )
        refused.add_note("--processes 1, or a store that processes share: sqlite:///FILE")
        raise refused


def _run(app: Penstock, options: _Options, parent: _Parent) -> None:
    """Run jobs in this process, until a signal or until the parent dies."""
    worker = Worker(
        app,
        queues=options.queues,
        tags=options.tags or (),
        concurrency=options.concurrency,
        grace=options.grace,
        retention=options.retention,
        log_jobs=options.log_jobs,
    )
    event_loop.run(_work(app, worker, options, parent))


def _pulse(manager: ServiceManager, health_file: Path | None) -> Pulse | None:
    """Return how the worker beats for those who watch it: the service manager, a probe."""
    if health_file is None:
        return None if manager.every is None else Pulse(manager.alive, manager.every)

    def beat() -> None:
        try:
            health_file.touch()
        except OSError as error:
            _log.warning("the health file cannot be written: %s", error)
        if manager.every is not None:
            manager.alive()

    return Pulse(beat, min(manager.every or _HEALTH_FILE_EVERY, _HEALTH_FILE_EVERY))


async def _work(app: Penstock, worker: Worker, options: _Options, parent: _Parent) -> None:
    def hand_over() -> None:
        if parent.handover is not None:
            parent.handover.leave(app.url, worker.leases)

    def stop() -> None:
        parent.stopping()
        worker.stop()

    watchdog, pulse = Watchdog(hand_over), parent.pulse
    async with app:
        stopper = Stopper(stop, options.grace, watchdog, as_json=options.as_json)
        stopper.install()
        if parent.child is not None:
            parent.child.when_orphaned(stopper.stop_orphan)
        _announce(app, worker, options)
        parent.ready()
        async with in_background(Liveness(app, pulse).run()) if pulse else nullcontext():
            await worker.run()
    _log.info("worker %s has stopped", worker.name)
    if parent.child is not None:
        parent.child.retired = worker.draining
        if worker.leases:  # in threads, which would end with this process, unnoticed
            watchdog.end()
    watchdog.allow(LAST_BREATH)


def _announce(app: Penstock, worker: Worker, options: _Options) -> None:
    start = {
        "worker": worker.name,
        "store": redacted(app.url),
        "queues": options.queues,
        "tags": options.tags or (),
        "concurrency": options.concurrency,
        "grace": options.grace,
        "tasks": sorted(app.tasks),
    }
    if options.as_json:
        emit(start)
    else:
        queues = "queues " + ", ".join(options.queues) if options.queues else "all queues"
        tags = ", tags " + ", ".join(options.tags) if options.tags else ""
        click.echo(
            shown(
                f"Worker {worker.name} on {start['store']}: {queues}{tags}, "
                f"{options.concurrency} at a time; tasks: {', '.join(sorted(app.tasks))}"
            )
        )
    sys.stdout.flush()


COMMANDS: Sequence[click.Command] = (run_worker,)
