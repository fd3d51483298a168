"""Schedules, and the jobs that they add when they fire."""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.core.job import Job, NewJob
from penstock.core.schedule import Due, Firing, Missed, Rhythm, Schedule
from penstock.core.times import from_micros, span_from_micros, span_to_micros, to_micros
from penstock.stores.sql import migration_lock
from penstock.stores.sql.additions import Additions, is_new, log_reasons
from penstock.stores.sql.database import Reader, Transaction
from penstock.stores.sql.rows import encoded

_DEFAULTS = {
    field.name: field.default
    for field in msgspec.structs.fields(NewJob)
    if field.default is not msgspec.NODEFAULT
}
_job = msgspec.json.Decoder(NewJob)


def find(reader: Reader, names: Collection[str] | None) -> list[Schedule]:
    """See `Store.schedules`."""
    if names is None:
        found = reader.execute("schedules")
    else:
        found = reader.execute("schedules_named", (encoded(sorted(names)),))
    return [_schedule(row) for row in found]


def due(reader: Reader, tasks: Collection[str], declared: Collection[str], limit: int) -> Due:
    """See `Store.due`."""
    now = reader.clock()
    known = encoded(sorted(tasks)), encoded(sorted(declared))
    found = reader.execute("due_schedules", (now, *known, limit)).fetchall()
    following = reader.execute("next_schedule", (now, *known)).fetchone()
    return Due(
        now=from_micros(now),
        schedules=[_schedule(row) for row in found],
        next=None if following is None else from_micros(following[0]),
    )


def put(tx: Transaction, calls: Sequence[Schedule]) -> list[Schedule | Exception | None]:
    """See `Store.put_schedule`."""
    migration_lock.check_lasting(tx)
    return [_put_one(tx, schedule) for schedule in calls]


def _put_one(tx: Transaction, schedule: Schedule) -> Schedule | None:
    row = tx.execute("schedule_version", (schedule.name,)).fetchone()
    if schedule.version != (0 if row is None else row[0]):
        return None
    schedule = replace(schedule, version=_next_version(tx))
    tx.execute("put_schedule", _columns(schedule))
    tx.written = tx.notify = tx.notify_others = True
    return schedule


def drop(tx: Transaction, names: Sequence[str]) -> list[bool]:
    """See `Store.drop_schedule`."""
    return [_drop_one(tx, name) for name in names]


def _drop_one(tx: Transaction, name: str) -> bool:
    dropped = tx.execute("drop_schedule", (name,)).fetchone() is not None
    tx.written = tx.written or dropped
    return dropped


def fire(
    tx: Transaction, calls: Sequence[tuple[Firing, str]]
) -> list[list[Job] | Exception | None]:
    """See `Store.fire`."""
    migration_lock.check_open(tx)
    additions = Additions(tx, [job for firing, _ in calls for job in firing.jobs])
    answers = [_fire_one(tx, additions, firing, actor) for firing, actor in calls]
    additions.write()
    for (firing, _), answer in zip(calls, answers, strict=True):
        if isinstance(answer, list):
            reason = firing.schedule.reason
            log_reasons(tx, {job.version: reason(job.run_at) for job in answer if is_new(job)})
    return answers


def _fire_one(
    tx: Transaction, additions: Additions, firing: Firing, actor: str
) -> list[Job] | Exception | None:
    schedule = firing.schedule
    row = tx.execute("schedule_version", (schedule.name,)).fetchone()
    if row is None:
        return None
    version, next_at, paused = row
    if version != schedule.version or paused or next_at is None or next_at > tx.now:
        return None
    jobs = additions.call(firing.jobs, actor)
    if isinstance(jobs, Exception):
        return jobs
    newest = next((job for job in reversed(jobs) if not job.duplicate), None)
    tx.execute(
        "schedule_fired",
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
    return int(tx.execute("next_schedule_version").fetchone()[0])


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
