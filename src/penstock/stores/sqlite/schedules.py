"""Schedules in the file: what the verbs about them do inside a transaction."""

import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.core.job import Job, NewJob
from penstock.core.schedule import Due, Firing, Missed, Rhythm, Schedule
from penstock.core.times import from_micros, span_from_micros, span_to_micros, to_micros
from penstock.stores.sqlite.adding import Adding, explain, is_new
from penstock.stores.sqlite.rows import encoded
from penstock.stores.sqlite.transaction import SQL, Transaction

_DEFAULTS = {
    field.name: field.default
    for field in msgspec.structs.fields(NewJob)
    if field.default is not msgspec.NODEFAULT
}
_job = msgspec.json.Decoder(NewJob)


def find(connection: sqlite3.Connection, names: Collection[str] | None) -> list[Schedule]:
    """The schedules with these names, or all."""
    if names is None:
        found = connection.execute(SQL["schedules"])
    else:
        found = connection.execute(SQL["schedules_named"], (encoded(sorted(names)),))
    return [_schedule(row) for row in found]


def due(
    connection: sqlite3.Connection,
    now: int,
    known: tuple[Collection[str], Collection[str]],
    limit: int,
) -> Due:
    """What is due among the known ones, and when the next is."""
    tasks, declared = (encoded(sorted(names)) for names in known)
    found = connection.execute(SQL["due_schedules"], (now, tasks, declared, limit)).fetchall()
    following = connection.execute(SQL["next_schedule"], (now, tasks, declared)).fetchone()
    return Due(
        now=from_micros(now),
        schedules=[_schedule(row) for row in found],
        next=None if following is None else from_micros(following[0]),
    )


def put(tx: Transaction, schedule: Schedule) -> Schedule | None:
    """Write a schedule unless another write came first."""
    row = tx.execute(SQL["schedule_version"], (schedule.name,)).fetchone()
    if schedule.version != (0 if row is None else row[0]):
        return None
    schedule = replace(schedule, version=_next_version(tx))
    tx.execute(SQL["put_schedule"], _columns(schedule))
    tx.written = tx.ring = tx.ring_others = True
    return schedule


def drop(tx: Transaction, name: str) -> bool:
    """Remove a schedule, if it is there."""
    dropped = tx.execute(SQL["drop_schedule"], (name,)).fetchone() is not None
    tx.written = tx.written or dropped
    return dropped


def fire(
    tx: Transaction, calls: Sequence[tuple[Firing, str]], now: int
) -> list[list[Job] | Exception | None]:
    """Add the jobs of each firing that nobody else came first with."""
    adding = Adding(tx, now)
    adding.look_up_keys(
        job.key for firing, _ in calls for job in firing.jobs if job.key is not None
    )
    answers = [_fire_one(tx, adding, firing, actor, now) for firing, actor in calls]
    adding.write()
    for (firing, _), answer in zip(calls, answers, strict=True):
        if isinstance(answer, list):
            reason = firing.schedule.reason
            explain(tx, {job.version: reason(job.run_at) for job in answer if is_new(job)})
    return answers


def _fire_one(
    tx: Transaction, adding: Adding, firing: Firing, actor: str, now: int
) -> list[Job] | Exception | None:
    schedule = firing.schedule
    row = tx.execute(SQL["schedule_version"], (schedule.name,)).fetchone()
    if row is None:
        return None
    version, next_at, paused = row
    if version != schedule.version or paused or next_at is None or next_at > now:
        return None
    jobs = adding.call(firing.jobs, actor)
    if isinstance(jobs, Exception):
        return jobs
    newest = next((job for job in reversed(jobs) if not job.duplicate), None)
    tx.execute(
        SQL["schedule_fired"],
        (
            schedule.name,
            _next_version(tx),
            None if firing.next is None else to_micros(firing.next),
            None if newest is None else to_micros(newest.run_at),
            None if newest is None else newest.id,
        ),
    )
    tx.written = True
    return jobs


def _next_version(tx: Transaction) -> int:
    return int(tx.execute(SQL["next_schedule_version"]).fetchone()[0])


def _columns(schedule: Schedule) -> tuple[Any, ...]:
    fields = msgspec.structs.asdict(schedule.job)
    job = {k: v for k, v in fields.items() if k not in _DEFAULTS or v != _DEFAULTS[k]}
    rhythm = schedule.rhythm
    return (
        schedule.name,
        schedule.version,
        None if schedule.next is None else to_micros(schedule.next),
        None if schedule.last is None else to_micros(schedule.last),
        schedule.last_job,
        schedule.paused,
        schedule.declared,
        schedule.task,
        encoded(job),
        rhythm.cron,
        None if rhythm.every is None else span_to_micros(rhythm.every),
        rhythm.timezone,
        schedule.missed,
        schedule.overlap,
    )


def _schedule(row: Sequence[Any]) -> Schedule:
    (
        name, version, next_at, last_at, last_job, paused, declared, job, cron, every, timezone,
        missed, overlap,
    ) = row  # fmt: skip
    return Schedule(
        name=name,
        version=version,
        next=None if next_at is None else from_micros(next_at),
        last=None if last_at is None else from_micros(last_at),
        last_job=last_job,
        paused=bool(paused),
        declared=bool(declared),
        job=_job.decode(job),
        rhythm=Rhythm(
            cron=cron,
            every=None if every is None else span_from_micros(every),
            timezone=timezone,
        ),
        missed=Missed(missed),
        overlap=bool(overlap),
    )
