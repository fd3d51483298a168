"""Commands on schedules: `cron list`, `cron run`, `cron pause`, `cron resume`, `cron remove`."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click

from penstock.cli.output import Column, emit, show_table, shown, when
from penstock.cli.store import on_store, opened, refuse_options_before, suggest
from penstock.core.errors import ScheduleNotFound
from penstock.core.schedule import Schedule
from penstock.engine import Penstock, run_sync

name_argument = click.argument("name")


@click.group("cron", invoke_without_command=True)
@on_store
@click.pass_context
def cron(context: click.Context, *, store: str, as_json: bool) -> None:
    """Look at periodic tasks, and steer them.

    Alone, it lists them.
    """
    if context.invoked_subcommand is None:
        _list(store, as_json=as_json)
    else:
        refuse_options_before(context, as_json=as_json)


@cron.command("list")
@on_store
def list_schedules(*, store: str, as_json: bool) -> None:
    """List every schedule with its rhythm, its next run and its last."""
    _list(store, as_json=as_json)


def _list(store: str, *, as_json: bool) -> None:
    with opened(store) as app:
        schedules = run_sync(app.schedules())
    if as_json:
        emit({"schedules": [_fields(schedule) for schedule in schedules]})
    elif schedules:
        _print_schedules(schedules)
    else:
        click.echo("There is no schedule; workers store those of their tasks when they start.")


@cron.command("run")
@name_argument
@on_store
def run_schedule(*, name: str, store: str, as_json: bool) -> None:
    """Enqueue the job of a schedule at once; its rhythm goes on as before."""
    with _opened(store) as app:
        job = run_sync(app.run_now(name))
    if as_json:
        emit(job)
    elif job.duplicate:
        click.echo(f"Job {job.id} of this schedule is {job.state} already.")
    else:
        click.echo(f"Enqueued job {job.id}; to look at it: {suggest(f'jobs {job.id}')}")


@cron.command("pause")
@name_argument
@on_store
def pause_schedule(*, name: str, store: str, as_json: bool) -> None:
    """Fire a schedule no more, in any process. Jobs that it has enqueued go on."""
    with _opened(store) as app:
        schedule = run_sync(app.pause_schedule(name))
    step = suggest(f"cron resume {shlex.quote(name)}")
    _print_schedule(schedule, f"is paused; to go on: {step}", as_json=as_json)


@cron.command("resume")
@name_argument
@on_store
def resume_schedule(*, name: str, store: str, as_json: bool) -> None:
    """Fire a schedule again. Runs that fell into the pause do not happen."""
    with _opened(store) as app:
        schedule = run_sync(app.resume_schedule(name))
    _print_schedule(schedule, f"goes on; its next run is {_next(schedule)}", as_json=as_json)


@cron.command("remove")
@name_argument
@on_store
def remove_schedule(*, name: str, store: str, as_json: bool) -> None:
    """Remove a schedule. Jobs that it has enqueued stay.

    One that stands in the code of a task comes back with the next worker that starts.
    """
    with _opened(store) as app:
        run_sync(app.unschedule(name))
    if as_json:
        emit({"name": name, "removed": True})
    else:
        click.echo(shown(f"Removed schedule {name}."))


@contextmanager
def _opened(store: str) -> Iterator[Penstock]:
    try:
        with opened(store) as app:
            yield app
    except ScheduleNotFound as error:
        error.add_note(suggest("cron list"))
        raise


def _fields(schedule: Schedule) -> dict[str, Any]:
    """What a program wants to know; `known` is a matter of each program's tasks."""
    return {
        "name": schedule.name,
        "task": schedule.task,
        "spec": schedule.spec,
        "cron": schedule.rhythm.cron,
        "every": schedule.rhythm.every,
        "timezone": schedule.timezone,
        "missed": schedule.missed.value,
        "overlap": schedule.overlap,
        "declared": schedule.declared,
        "paused": schedule.paused,
        "next": schedule.next,
        "last": schedule.last,
        "last_job": schedule.last_job,
    }


def _print_schedules(schedules: Sequence[Schedule]) -> None:
    now = datetime.now(UTC)
    columns = [
        Column("name", bends=True),
        Column(""),
        Column("next"),
        Column("last"),
        Column("job", right=True),
        Column("task", bends=True),
        Column("when", bends=True),
        Column("timezone", bends=True),
    ]
    rows = [
        [
            schedule.name,
            "paused" if schedule.paused else "",
            "" if schedule.paused else when(schedule.next, now),
            when(schedule.last, now),
            "" if schedule.last_job is None else str(schedule.last_job),
            "" if schedule.task == schedule.name else schedule.task,
            schedule.spec,
            "" if schedule.rhythm.cron is None else schedule.timezone,
        ]
        for schedule in schedules
    ]
    show_table(columns, rows)


def _print_schedule(schedule: Schedule, text: str, *, as_json: bool) -> None:
    if as_json:
        emit(_fields(schedule))
    else:
        click.echo(shown(f"Schedule {schedule.name} {text}"))


def _next(schedule: Schedule) -> str:
    if schedule.next is None:
        return "never"
    return f"{when(schedule.next, datetime.now(UTC))}, at {schedule.next:%Y-%m-%d %H:%M:%S} UTC"


COMMANDS: Sequence[click.Command] = (cron,)
