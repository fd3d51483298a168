"""The command `worker`: runs the jobs of an app until it is told to stop."""

import asyncio
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from datetime import timedelta
from types import ModuleType
from typing import Any

import click

from penstock.cli.output import emit, shown
from penstock.cli.stopping import LAST_BREATH, Stopper, Watchdog
from penstock.cli.store import json_option, parse_seconds
from penstock.core.errors import ConfigurationError
from penstock.core.job import Retention
from penstock.core.redaction import redacted
from penstock.engine import Penstock
from penstock.logs import set_up_logging
from penstock.worker.worker import Worker

_log = logging.getLogger("penstock.worker")


def _parse_names(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    if not all(names):
        raise click.BadParameter(f"{value!r} has an empty name in it.", ctx, param)
    return names


@click.command("worker")
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--queues",
    metavar="A,B",
    callback=_parse_names,
    help="Only jobs of these queues.  [default: all but those of applications]",
)
@click.option(
    "--tags",
    metavar="A,B",
    callback=_parse_names,
    help="Only jobs with any of these tags.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    default=20,
    show_default=True,
    help="Run this many jobs at a time.",
)
@click.option(
    "--grace",
    metavar="SECONDS",
    default="30",
    show_default=True,
    callback=parse_seconds,
    help="When stopping, let running jobs go on for this long.",
)
@click.option(
    "--keep-finished",
    metavar="SECONDS",
    default="86400",
    show_default="a day",
    callback=parse_seconds,
    help="Remove jobs this long after their end.",
)
@click.option(
    "--keep-failed",
    metavar="SECONDS",
    default="604800",
    show_default="a week",
    callback=parse_seconds,
    help="Remove failed jobs this long after their end.",
)
@json_option
def run_worker(
    *,
    target: str,
    queues: tuple[str, ...] | None,
    tags: tuple[str, ...] | None,
    concurrency: int,
    grace: timedelta,
    keep_finished: timedelta,
    keep_failed: timedelta,
    as_json: bool,
) -> None:
    """Run the jobs of APP, a Penstock in the Python module MODULE.

    The module is looked for in the current folder first. SIGTERM or Ctrl-C stops gracefully: no
    more jobs are started and running ones get their grace; a second one stops at once. A job that
    did not finish runs again.
    """
    app = load_app(target)
    set_up_logging(as_json=as_json)
    worker = Worker(
        app,
        queues=queues,
        tags=tags or (),
        concurrency=concurrency,
        grace=grace,
        retention=Retention(finished=keep_finished, failed=keep_failed),
    )
    start = {
        "worker": worker.name,
        "store": redacted(app.url),
        "queues": queues,
        "tags": tags or (),
        "concurrency": concurrency,
        "grace": grace,
        "tasks": sorted(app.tasks),
    }
    asyncio.run(_work(app, worker, start, as_json=as_json))


async def _work(app: Penstock, worker: Worker, start: dict[str, Any], *, as_json: bool) -> None:
    watchdog = Watchdog()
    async with app:
        Stopper(worker.stop, start["grace"], watchdog, as_json=as_json).install()
        _announce(start, as_json=as_json)
        await worker.run()
    _log.info("worker %s has stopped", worker.name)
    watchdog.allow(LAST_BREATH)


def _announce(start: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit(start)
    else:
        queues = "queues " + ", ".join(start["queues"]) if start["queues"] else "all queues"
        tags = ", tags " + ", ".join(start["tags"]) if start["tags"] else ""
        click.echo(
            shown(
                f"Worker {start['worker']} on {start['store']}: {queues}{tags}, "
                f"{start['concurrency']} at a time; tasks: {', '.join(start['tasks'])}"
            )
        )
    sys.stdout.flush()


# Finding the app


def load_app(target: str) -> Penstock:
    """The Penstock that `module:name` stands for; raises `ConfigurationError` with advice."""
    module_name, _, name = target.partition(":")
    if not module_name or not name or module_name.endswith(".py") or "/" in module_name:
        guess = module_name.removesuffix(".py").replace("/", ".").strip(".") or "tasks"
        raise _advised(
            f"{target!r} does not name an app: expected MODULE:APP, a module and a Penstock in it",
            f"penstock worker {guess}:{name or 'app'}",
        )
    module = _import(module_name)
    try:
        app: Any = module
        for part in name.split("."):
            app = getattr(app, part)
    except AttributeError:
        raise _advised(f"module {module_name!r} has no {name!r}", _others(module)) from None
    if not isinstance(app, Penstock):
        kind = type(app).__name__
        raise _advised(f"{target} is a {kind}, not a Penstock", _others(module))
    if not app.tasks:
        raise _advised(
            f"{target} has no tasks, so this worker could run nothing",
            f"import the modules with its tasks from {module_name}",
        )
    return app


def _import(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - sys.path holds strings
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_failed(name, error) from error
        path = name.replace(".", "/") + ".py"
        message = f"there is no module {error.name!r} in this folder or among the installed ones"
        raise _advised(message, f"it in the folder that holds {path}") from error
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: BaseException) -> ConfigurationError:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    text = f"importing {name!r} failed: {type(error).__name__}: {error}{place}"
    return _advised(text, f'python -c "import {name}"')


def _others(module: ModuleType) -> str:
    """The first app that is there, as a command to try."""
    names = [name for name, value in vars(module).items() if isinstance(value, Penstock)]
    if names:
        return f"penstock worker {module.__name__}:{names[0]}"
    return f'app = Penstock("sqlite:///penstock.db") in {module.__name__}'


def _advised(message: str, step: str) -> ConfigurationError:
    error = ConfigurationError(message)
    error.add_note(step)
    return error


COMMANDS: Sequence[click.Command] = (run_worker,)
