"""Restoring: jobs that move from one store to another, or return to their own from an archive.

A plan says what to write for the records of one call, before anything is written: which of them
are taken, under which ids, with which log, and what they wait for.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from penstock.core.dependencies import Cause, Edge, orphans
from penstock.core.job import Job, JobId, LogEntry, LogId, NewJob
from penstock.core.key_line import waiting
from penstock.core.lifecycle import Event, Move, State
from penstock.core.transition import fields_after_move


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job with its whole log and its open edges: what is left when a store has removed it."""

    job: Job
    log: tuple[LogEntry, ...]
    edges: tuple[Edge, ...] = ()


class Origin(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The identity of a store, and the highest ids of a job and a log entry it has assigned."""

    source: int
    last_job: JobId = JobId(0)
    last_log: LogId = LogId(0)


def as_new_job(job: Job) -> NewJob:
    """Return the request that a stored job corresponds to."""
    return NewJob(
        task=job.task,
        payload=job.payload,
        queue=job.queue,
        priority=job.priority,
        run_at=job.run_at,
        key=job.key,
        dedupe=job.dedupe,
        scope=job.scope,
        tags=job.tags,
        retry=job.retry,
        timeout=job.timeout,
        lease=job.lease_time,
        correlation=job.correlation,
        tenant=job.tenant,
        parent=job.parent,
        throttle=job.throttle,
        trace=job.trace,
        task_version=job.task_version,
    )


def apply_restore(job: Job, move: Move, *, at: datetime) -> Job:
    """Return the job after `lifecycle.restore`; it keeps its due time, and so its place."""
    if job.state is not State.RUNNING:
        return replace(job, expires_at=None, cancel_requested=False)
    fields = fields_after_move(move, job.error, at=at, waiting=None)
    return replace(job, **{**fields, "run_at": job.run_at})


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is taken over: as it is to be written, with its log and edges here.

    `original` is its id in the store it comes from. A pending job of a key is blocked until the
    line of its key is rearranged.
    """

    original: JobId
    job: Job
    log: list[LogEntry]
    edges: list[Edge]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to write for the records of one call.

    `answers` has, for each record, the id here or None for one that is not taken. Ids assigned
    from now on are higher than `last_job` and `last_log`. `abandoned` jobs are written like the
    others and then cancelled (see `lifecycle.abandon`): a job they need has failed here.
    """

    restored: list[Restored]
    answers: list[JobId | None]
    last_job: int
    last_log: int
    abandoned: dict[int, Cause]


def originals(records: Sequence[Record]) -> set[JobId]:
    """Return the ids, in the other store, of all jobs that these records refer to."""
    found = {record.job.id for record in records}
    found.update(record.job.parent for record in records if record.job.parent is not None)
    found.update(edge.needed for record in records for edge in record.edges)
    return found


def plan(
    records: Sequence[Record],
    *,
    origin: Origin,
    actor: str,
    now: datetime,
    last: tuple[int, int],
    known: Mapping[JobId, JobId],
    states: Mapping[int, State],
    is_held: Callable[[Job], bool],
) -> Plan:
    """Decide what becomes of records of another store, or of this one, in this store.

    `last` has the highest ids of a job and of a log entry assigned here. `known` maps those of
    `originals` that are here, or were taken over before, to their ids here; `states` has the
    states of those of them that are still stored. `is_held` returns whether a stored job holds
    the dedupe key of a pending one.

    A record is taken unless its job is known, or is pending while another job, stored or taken
    before it in this call, holds its dedupe key. The job keeps its id if that is higher than any
    assigned here, and gets the next one otherwise. Its log follows under new ids, higher than any
    of both stores; its tokens, which are ids of log entries, become those of the new entries. One
    entry `restored` is added. A parent is kept if it is known or taken.

    A job waits for the jobs it waited for that are known or taken. Those that were not taken
    over, or that are no longer stored, count as resolved.
    """
    numbered = _number(records, known, is_held, last[0])
    places = numbered.places
    here = dict(states)
    here.update((places[one.job.id], one.job.state) for one in numbered.taken)
    last_log = max(last[1], origin.last_log)
    restored: list[Restored] = []
    for record in numbered.taken:
        place = places[record.job.id]
        log, tokens = _renumbered(record, place, last_log)
        last_log += len(log) + 1
        version = LogId(last_log)
        log.append(
            LogEntry(
                id=version,
                job_id=place,
                at=now,
                event=Event.RESTORED,
                state=record.job.state,
                actor=actor,
                reason=f"job {record.job.id} of store {origin.source}",
            )
        )
        edges = _edges(record, places, here)
        needs = sum(not edge.resolved for edge in edges)
        job = _job(record.job, places, version, tokens, needs, now)
        restored.append(Restored(original=record.job.id, job=job, log=log, edges=edges))
    return Plan(
        restored=restored,
        answers=numbered.answers,
        last_job=max(numbered.last_job, origin.last_job),
        last_log=last_log,
        abandoned=_abandoned(restored, here),
    )


class _Numbered(NamedTuple):
    """The records that are taken, the ids here by the original ones, and the answers."""

    taken: list[Record]
    places: dict[JobId, JobId]
    answers: list[JobId | None]
    last_job: int


def _number(
    records: Sequence[Record],
    known: Mapping[JobId, JobId],
    is_held: Callable[[Job], bool],
    last_job: int,
) -> _Numbered:
    """Choose the records that are taken, and their ids here."""
    places: dict[JobId, JobId] = dict(known)
    taken: list[Record] = []
    answers: list[JobId | None] = []
    held: set[str] = set()
    for record in records:
        job = record.job
        contends = job.state is State.PENDING and job.dedupe is not None
        if job.id in places or (contends and (job.dedupe in held or is_held(job))):
            answers.append(None)
            continue
        last_job = max(last_job + 1, job.id)
        places[job.id] = JobId(last_job)
        answers.append(places[job.id])
        taken.append(record)
        if contends and job.dedupe is not None:
            held.add(job.dedupe)
    return _Numbered(taken, places, answers, last_job)


def _abandoned(restored: Sequence[Restored], states: Mapping[int, State]) -> dict[int, Cause]:
    """Return the pending jobs among these that need a job which has failed here."""
    return orphans(
        states,
        [
            (edge.needed, edge.job_id, edge.on_failure)
            for one in restored
            if one.job.state is State.PENDING
            for edge in one.edges
        ],
    )


def _renumbered(
    record: Record, place: JobId, last_log: int
) -> tuple[list[LogEntry], dict[int, LogId]]:
    """Return the log of a job under new ids, and those by the old ones."""
    numbers: dict[int, LogId] = {
        entry.id: LogId(last_log + n) for n, entry in enumerate(record.log, start=1)
    }
    log = [
        replace(
            entry,
            id=numbers[entry.id],
            job_id=place,
            token=None if entry.token is None else numbers.get(entry.token),
        )
        for entry in record.log
    ]
    return log, numbers


def _edges(
    record: Record, places: Mapping[JobId, JobId], states: Mapping[int, State]
) -> list[Edge]:
    found: list[Edge] = []
    for edge in record.edges:
        needed = places.get(edge.needed)
        state = None if needed is None else states.get(needed)
        if needed is not None and state is not None and not edge.resolved:
            place = places[record.job.id]
            found.append(replace(edge, needed=needed, job_id=place, resolved=state.final))
    return found


def _job(  # noqa: PLR0917 - what differs between the stores
    job: Job,
    places: Mapping[JobId, JobId],
    version: LogId,
    tokens: Mapping[int, LogId],
    needs: int,
    now: datetime,
) -> Job:
    """Return a job as it is to be stored here."""
    wait = None
    if job.state is State.PENDING:
        wait = waiting(job.run_at, now, needs=needs, behind=job.key is not None)
    return replace(
        job,
        id=places[job.id],
        version=version,
        token=tokens.get(job.token, 0),
        parent=None if job.parent is None else places.get(job.parent),
        waiting=wait,
        needs=needs,
        duplicate=False,
    )
