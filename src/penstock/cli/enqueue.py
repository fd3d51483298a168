"""The command `enqueue`: stores a job."""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import msgspec

from penstock.cli.connection import complete_queues, connected
from penstock.cli.discovery import load_app
from penstock.cli.errors import warn
from penstock.cli.options import JOB_ID, is_server, on_store, parse_seconds
from penstock.cli.output import emit
from penstock.core import jsontext
from penstock.core.decode_errors import mismatch
from penstock.core.errors import InvalidJob, UnknownTask
from penstock.core.job import NewJob
from penstock.core.workers import announced_task
from penstock.engine.penstock import run_sync
from penstock.engine.task import Options, announced_options
from penstock.engine.validation import MAX_PRIORITY

_UNANNOUNCED = "no live worker has announced"
"""How the warning begins, also that of a server."""


def _parse_delay(ctx: click.Context, param: click.Parameter, value: str | None) -> timedelta | None:
    return None if value is None else parse_seconds(ctx, param, value)


@click.command("enqueue")
@click.argument("task")
@click.argument("arguments", metavar="[NAME=VALUE...]", nargs=-1)
@click.option(
    "--args", "text", metavar="JSON", help="All arguments as a JSON object; - reads it from stdin."
)
@click.option("--queue", help="The queue.", shell_complete=complete_queues)
@click.option(
    "--priority", type=click.IntRange(0, MAX_PRIORITY), help="From 0 to 10; higher runs first."
)
@click.option(
    "--delay", metavar="SECONDS", callback=_parse_delay, help="Run the job only after this time."
)
@click.option("--key", help="Run jobs with this key one at a time, in order.")
@click.option("--dedupe", help="Enqueue nothing while a job with this dedupe key is unfinished.")
@click.option("--tag", "tags", multiple=True, help="A tag. Can be repeated.")
@click.option("--tenant", help="The tenant; tenants get fair shares.")
@click.option(
    "--after",
    type=JOB_ID,
    multiple=True,
    metavar="ID",
    help="Run the job after this one has ended. Can be repeated.",
)
@click.option(
    "--app",
    "target",
    metavar="MODULE:APP",
    help="Check the task and its arguments against this app.",
)
@on_store
def enqueue_job(
    *,
    task: str,
    arguments: tuple[str, ...],
    text: str | None,
    target: str | None,
    store: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Enqueue a job for TASK, with arguments like n=3 name=Ada.

    A value is read as JSON if possible, otherwise as text. Without --app, the task and its
    arguments are not checked: only the program of the worker knows them. The queue and other
    options are then those that live workers have announced for the task.
    """
    options = {name: value for name, value in given.items() if value not in (None, ())}
    values = _arguments(arguments, text)
    warnings: list[str] = []
    with connected(store) as app, _server_warnings(warnings.append):
        if target is None:
            payload = jsontext.encode(values, "args", jsontext.DEPTH_LIMIT + 1)
            # A server fills in what is left out, and warns.
            own: dict[str, Any] = {}
            if not is_server(store):
                workers, now = run_sync(app.workers.list()), datetime.now(UTC)
                own = announced_options(announced_task(task, workers, now))
                live = (worker for worker in workers if not worker.is_silent(now))
                if not own and all(worker.tasks is not None for worker in live):
                    warnings.append(f"{_UNANNOUNCED} the task {task!r}")
            new = NewJob(**{"task": task, **own, **options}, payload=payload)
        else:
            new = _checked(target, task, values, options)
        (job,) = run_sync(app.enqueue_many([new]))
    for warning in warnings:
        waits = warning.startswith(_UNANNOUNCED) and not job.duplicate
        warn(f"{warning}; the job waits for one" if waits else warning, as_json=as_json)
    if as_json:
        emit({"job": job, "duplicate": job.duplicate})
    elif job.duplicate:
        click.echo(f"Nothing was enqueued: job {job.id} has this dedupe key.")
    else:
        click.echo(f"Job {job.id} is {job.state} ({job.waiting}).")


@contextlib.contextmanager
def _server_warnings(note: Callable[[str], None]) -> Iterator[None]:
    """Note what a server warns of, which the client logs."""
    logger, handler = logging.getLogger("penstock.client"), logging.Handler()
    handler.emit = lambda record: note(record.getMessage())  # type: ignore[method-assign] # a function will do
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _arguments(pairs: Sequence[str], text: str | None) -> dict[str, Any]:
    if text is not None and pairs:
        raise click.UsageError("give arguments as NAME=VALUE or as --args, not both")
    if text is not None:
        return _object(sys.stdin.read() if text == "-" else text)
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            hint = "; a JSON object goes after --args" if pair.startswith("{") else ""
            raise click.UsageError(f"{pair!r} is not NAME=VALUE{hint}")
        try:
            values[name] = msgspec.json.decode(value)
        except (msgspec.DecodeError, ValueError, RecursionError):
            values[name] = value
    return values


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = mismatch(error, dict[str, Any]).text.removeprefix("JSON is malformed: ")
        raise InvalidJob(f"--args is not a JSON object: {reason}") from error


def _checked(target: str, task: str, values: dict[str, Any], options: dict[str, Any]) -> NewJob:
    known = load_app(target).tasks
    if task not in known:
        names = ", ".join(sorted(known)) or "none"
        raise UnknownTask(f"{target} has no task {task!r}; its tasks are: {names}")
    given: Options = {**options}  # type: ignore[typeddict-item] # names as click gave them
    return known[task].using(**given).of(values)


COMMANDS: Sequence[click.Command] = (enqueue_job,)
