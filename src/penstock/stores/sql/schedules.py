"""Schedules in the file: what the verbs about them do inside a transaction."""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.core.job import Job, NewJob
from penstock.core.schedule import Due, Firing, Missed, Rhythm, Schedule
from penstock.core.times import from_micros, span_from_micros, span_to_micros, to_micros
from penstock.stores.sql import seals
from penstock.stores.sql.adding import Adding, explain, is_new
from penstock.stores.sql.rows import encoded
from penstock.stores.sql.transaction import Reading, Transaction

_DEFAULTS = {
    field.name: field.default
    for field in msgspec.structs.fields(NewJob)
    if field.default is not msgspec.NODEFAULT
}
_job = msgspec.json.Decoder(NewJob)


def find(reading: Reading, names: Collection[str] | None) -> list[Schedule]:
    """The schedules with these names, or all."""
    if names is None:
        found = reading.execute("schedules")
    else:
        found = reading.execute("schedules_named", (encoded(sorted(names)),))
    return [_schedule(row) for row in found]


def due(
    reading: Reading,
    known: tuple[Collection[str], Collection[str]],
    limit: int,
) -> Due:
    """What is due among the known ones, and when the next is."""
    now = reading.now()
    tasks, declared = (encoded(sorted(names)) for names in known)
    found = reading.execute("due_schedules", (now, tasks, declared, limit)).fetchall()
    following = reading.execute("next_schedule", (now, tasks, declared)).fetchone()
    return Due(
        now=from_micros(now),
        schedules=[_schedule(row) for row in found],
        next=None if following is None else from_micros(following[0]),
    )


def put(tx: Transaction, calls: Sequence[Schedule]) -> list[Schedule | Exception | None]:
    """Write each schedule unless another write came first."""
    seals.check_lasting(tx)
    return [_put_one(tx, schedule) for schedule in calls]


def _put_one(tx: Transaction, schedule: Schedule) -> Schedule | None:
    row = tx.execute("schedule_version", (schedule.name,)).fetchone()
    if schedule.version != (0 if row is None else row[0]):
        return None
    schedule = replace(schedule, version=_next_version(tx))
    tx.execute("put_schedule", _columns(schedule))
    tx.written = tx.ring = tx.ring_others = True
    return schedule


def drop(tx: Transaction, names: Sequence[str]) -> list[bool]:
    """Remove each schedule, if it is there."""
    return [_drop_one(tx, name) for name in names]


def _drop_one(tx: Transaction, name: str) -> bool:
    dropped = tx.execute("drop_schedule", (name,)).fetchone() is not None
    tx.written = tx.written or dropped
    return dropped


def fire(
    tx: Transaction, calls: Sequence[tuple[Firing, str]]
) -> list[list[Job] | Exception | None]:
    """Add the jobs of each firing that nobody else came first with."""
    seals.check_open(tx)
    now = tx.now()
    adding = Adding(tx, now, sum(len(firing.jobs) for firing, _ in calls))
    adding.look_up_queues({job.queue for firing, _ in calls for job in firing.jobs})
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
    row = tx.execute("schedule_version", (schedule.name,)).fetchone()
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
