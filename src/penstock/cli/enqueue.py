"""The command `enqueue`: a job from the shell."""

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click
import msgspec

from penstock.checks import MAX_PRIORITY
from penstock.cli.output import emit
from penstock.cli.store import JOB_ID, complete_queues, on_store, parse_seconds, reached
from penstock.cli.worker import load_app
from penstock.core import jsontext
from penstock.core.errors import InvalidJob, UnknownTask
from penstock.core.job import NewJob
from penstock.core.mismatch import mismatch
from penstock.engine import run_sync
from penstock.task import Options


def _parse_delay(ctx: click.Context, param: click.Parameter, value: str | None) -> timedelta | None:
    return None if value is None else parse_seconds(ctx, param, value)


@click.command("enqueue")
@click.argument("task")
@click.argument("arguments", metavar="[NAME=VALUE...]", nargs=-1)
@click.option("--args", "text", metavar="JSON", help="All arguments as a JSON object; - for stdin.")
@click.option("--queue", help="The queue.", shell_complete=complete_queues)
@click.option("--priority", type=click.IntRange(0, MAX_PRIORITY), help="Higher runs first.")
@click.option("--delay", metavar="SECONDS", callback=_parse_delay, help="Not before then.")
@click.option("--key", help="One at a time, in order, with other jobs of this key.")
@click.option("--dedupe", help="Not again while a job with this dedupe key is unfinished.")
@click.option("--tag", "tags", multiple=True, help="A tag; may be repeated.")
@click.option("--tenant", help="Whose job it is, for fair shares.")
@click.option("--after", type=JOB_ID, multiple=True, metavar="ID", help="Wait for this job's end.")
@click.option(
    "--app", "target", metavar="MODULE:APP", help="Check task and arguments against this app."
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
    """Store a job for a task, with arguments like `n=3 name=Ada` or as JSON.

    A value is JSON where it can be, else text. Without --app, task and arguments are not
    checked: the worker's program knows them.
    """
    options = {name: value for name, value in given.items() if value not in (None, ())}
    values = _arguments(arguments, text)
    with reached(store) as app:
        if target is None:
            payload = jsontext.encode(values, "args", jsontext.DEPTH_LIMIT + 1)
            new = NewJob(task=task, payload=payload, **options)
        else:
            new = _checked(target, task, values, options)
        (job,) = run_sync(app.enqueue_many([new]))
    if as_json:
        emit({"job": job, "duplicate": job.duplicate})
    elif job.duplicate:
        click.echo(f"Job {job.id} holds that dedupe key; nothing was enqueued.")
    else:
        click.echo(f"Job {job.id} is {job.state} ({job.waiting}).")


def _arguments(pairs: Sequence[str], text: str | None) -> dict[str, Any]:
    if text is not None and pairs:
        raise click.UsageError("give arguments one by one or as --args, not both")
    if text is not None:
        return _object(sys.stdin.read() if text == "-" else text)
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            hint = "; a JSON object stands behind --args" if pair.startswith("{") else ""
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
        raise UnknownTask(f"{target} has no task {task!r}; it knows: {names}")
    given: Options = {**options}  # type: ignore[typeddict-item] # names as click gave them
    return known[task].using(**given).of(values)


COMMANDS: Sequence[click.Command] = (enqueue_job,)
