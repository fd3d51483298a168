"""Commands on schedules: `cron list`, `cron run`, `cron pause`, `cron resume`, `cron remove`."""

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from penstock.cli.connection import connected, suggest
from penstock.cli.options import on_store, refuse_options_before
from penstock.cli.output import Column, emit, show_table, shown, when
from penstock.core.schedule import Schedule
from penstock.engine.penstock import run_sync

name_argument = click.argument("name")


@click.group("cron", invoke_without_command=True)
@on_store
@click.pass_context
def cron(context: click.Context, *, store: str, as_json: bool) -> None:
    """List, run, pause and remove schedules of periodic tasks.

    Without a command, lists the schedules.
    """
    if context.invoked_subcommand is None:
        _list(store, as_json=as_json)
    else:
        refuse_options_before(context, as_json=as_json)


@cron.command("list")
@on_store
def list_schedules(*, store: str, as_json: bool) -> None:
    """List the schedules with their next and last runs."""
    _list(store, as_json=as_json)


def _list(store: str, *, as_json: bool) -> None:
    with connected(store) as app:
        schedules = run_sync(app.schedules.list())
    if as_json:
        emit({"schedules": [_fields(schedule) for schedule in schedules]})
    elif schedules:
        _print_schedules(schedules)
    else:
        click.echo("There are no schedules; workers store those of their tasks when they start.")


@cron.command("run")
@name_argument
@on_store
def run_schedule(*, name: str, store: str, as_json: bool) -> None:
    """Enqueue the job of a schedule now; its next run stays the same."""
    with connected(store) as app:
        job = run_sync(app.schedules.run_now(name))
    if as_json:
        emit(job)
    elif job.duplicate:
        click.echo(f"Job {job.id} of this schedule is already {job.state}.")
    else:
        click.echo(f"Enqueued job {job.id}; to see it: {suggest(f'jobs {job.id}')}")


@cron.command("pause")
@name_argument
@on_store
def pause_schedule(*, name: str, store: str, as_json: bool) -> None:
    """Pause a schedule, in all processes. Jobs that it has enqueued continue."""
    with connected(store) as app:
        schedule = run_sync(app.schedules.pause(name))
    step = suggest(f"cron resume {shlex.quote(name)}")
    _print_schedule(schedule, f"is paused; to resume it: {step}", as_json=as_json)


@cron.command("resume")
@name_argument
@on_store
def resume_schedule(*, name: str, store: str, as_json: bool) -> None:
    """Resume a schedule. Runs during the pause are skipped."""
    with connected(store) as app:
        schedule = run_sync(app.schedules.resume(name))
    _print_schedule(schedule, f"is resumed; its next run is {_next(schedule)}", as_json=as_json)


@cron.command("remove")
@name_argument
@on_store
def remove_schedule(*, name: str, store: str, as_json: bool) -> None:
    """Remove a schedule. Jobs that it has enqueued stay.

    A schedule that a task declares is stored again by the next worker that starts.
    """
    with connected(store) as app:
        run_sync(app.schedules.remove(name))
    if as_json:
        emit({"name": name, "removed": True})
    else:
        click.echo(shown(f"Removed schedule {name}."))


def _fields(schedule: Schedule) -> dict[str, Any]:
    """Return the fields for programs, without `known`, which depends on the tasks of a program."""
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
