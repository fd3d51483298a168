"""Plain jobs: added and ended in one statement each, next to other transactions.

No other job decides what becomes of a plain job. This is one of the two places where SQL decides
for this database: the statements `add_plain` and `finish_plain` check the queue, the migration
lock, the version and the dependents themselves, because a decision in Python would need an
exclusive lock and three more round trips for each of them.
"""

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby, islice
from typing import Any

from msgspec.structs import replace

from penstock.core.job import Job, NewJob
from penstock.core.times import from_micros, span_to_micros, to_micros
from penstock.core.transition import Change, error_after_move, fields_after_move
from penstock.stores.postgres.arrays import Int8s, Texts
from penstock.stores.postgres.pipeline import Rows
from penstock.stores.postgres.round_trips import Receipt, Trip
from penstock.stores.postgres.transaction import LockMode, NeedsExclusive, PostgresTransaction
from penstock.stores.sql import additions, reports, rows, transitions
from penstock.stores.sql.database import Addition, Transition
from penstock.stores.sql.rows import READY, STAGE_OF, encoded

# More groups of jobs with the same options than this are not written one by one.
_MOST_GROUPS = 8


class PlainJobs:
    """The verbs for plain jobs, and which queues are known to exist."""

    def __init__(self) -> None:
        self._queues: set[str] = set()
        self.any_limit = False
        """Whether limits were in force when jobs were last ended."""

    def add(
        self, tx: PostgresTransaction, calls: Sequence[Addition]
    ) -> Sequence[list[Job] | Exception]:
        """See `Store.add`."""
        if tx.mode is LockMode.EXCLUSIVE:
            return additions.add(tx, calls)
        wanted = [(job, actor) for jobs, actor, _ in calls for job in jobs]
        groups = [list(group) for _, group in groupby(wanted, key=_options)]
        if len(groups) > _MOST_GROUPS or any(
            job.tags or job.tenant or job.throttle for job, _ in wanted
        ):
            names = {job.queue for job, _ in wanted}
            if tx.execute("any_max_pending", (encoded(names),)).fetchone()[0]:
                raise NeedsExclusive
            return additions.add(tx, calls)
        unknown = {job.queue for job, _ in wanted}.difference(self._queues)
        if unknown:
            tx.execute("add_queues", (Texts(sorted(unknown)),))
        added: list[Job] = []
        for group in groups:
            added += self._add_group(tx, group)
        tx.written = tx.notify = tx.notify_others = bool(added)
        return _shared_out(calls, added)

    def _add_group(
        self, tx: PostgresTransaction, wanted: Sequence[tuple[NewJob, str]]
    ) -> list[Job]:
        found = tx.execute("add_plain", _addition(wanted, tx.now)).fetchall()
        if not found:  # the queue has a limit, or was removed since it was known
            self._queues.discard(wanted[0][0].queue)
            raise NeedsExclusive
        self._queues.add(wanted[0][0].queue)
        return _added(wanted, found)

    # In one round trip

    def prepare(self, calls: Sequence[Addition], now: int | None, receipt: Receipt) -> Trip | None:
        """See `Verb.prepare`: for jobs that differ only in their payloads, in a known queue."""
        wanted = [(job, actor) for jobs, actor, _ in calls for job in jobs]
        if not wanted:
            return None
        first = wanted[0]
        job, _ = first
        if job.tags or job.tenant or job.throttle or job.queue not in self._queues:
            return None
        if len(wanted) > 1:
            options = _options(first)
            if any(
                other.tags or other.tenant or other.throttle or _options((other, "")) != options
                for other, _ in wanted
            ):
                return None
        return "add_plain", _addition(wanted, now, receipt)

    def complete(
        self, tx: PostgresTransaction, calls: Sequence[Addition], found: Rows
    ) -> list[list[Job]] | None:
        """See `Verb.complete`."""
        wanted = [(job, actor) for jobs, actor, _ in calls for job in jobs]
        if len(found) != len(wanted):
            self._queues.discard(wanted[0][0].queue)
            return None
        added = _added(wanted, found)
        tx.written = tx.notify = tx.notify_others = True
        return _shared_out(calls, added)

    def finish(
        self, tx: PostgresTransaction, calls: Sequence[Transition]
    ) -> Sequence[list[Job | None] | Exception]:
        """See `Store.transition`; for the ends of running jobs.

        Jobs that changed, or that others depend on, are left to `transitions.transition`. Of
        several calls that end the same run, the first does.
        """
        ended = [(change, actor) for changes, actor in calls for change in changes]
        versions: list[int | None] = []
        for _, group in groupby(ended, key=_end_options):
            versions += _finish_group(tx, list(group))
        self.any_limit = bool(tx.freed)
        tx.written = tx.notify = True
        at = from_micros(tx.now)
        given = iter(versions)
        answers = [[_ended(change, next(given), at) for change in changes] for changes, _ in calls]
        left = [
            ([change for change, job in zip(changes, done, strict=True) if job is None], actor)
            for (changes, actor), done in zip(calls, answers, strict=True)
        ]
        any_left = any(changes for changes, _ in left)
        if any_left:
            tx.require_exclusive()
        if tx.resumable:
            reports.drop_checkpoints(tx, answers)
        return _combined(answers, transitions.transition(tx, left)) if any_left else answers


def _addition(
    wanted: Sequence[tuple[NewJob, str]], now: int | None, receipt: Receipt = (None, None)
) -> tuple[Any, ...]:
    """Return the parameters of `add_plain`."""
    new = wanted[0][0]
    options = rows.options(new, READY, 0, 0)
    return (
        now,
        Texts([job.payload for job, _ in wanted]),
        *receipt,
        Texts([actor for _, actor in wanted]),
        None if new.run_at is None or new.delay is not None else to_micros(new.run_at),
        0 if new.delay is None else span_to_micros(new.delay),
        new.queue,
        new.task,
        new.priority,
        options[5],
        options[7],
        options[12],
        new.correlation,
        new.parent,
        new.trace,
        options[18],
    )


def _added(wanted: Sequence[tuple[NewJob, str]], found: Sequence[Sequence[int]]) -> list[Job]:
    """Return the new jobs, which have these ids, versions and times."""
    new = wanted[0][0]
    job_id, version, now = found[0]
    due = rows.due(new, now)
    first = rows.new_job(new, job_id, version, int(due > now), due, 0, from_micros(now))
    if len(wanted) == 1:
        return [first]
    return [
        replace(first, id=job_id, version=version, payload=job.payload)
        for (job, _), (job_id, version, _) in zip(wanted, found, strict=True)
    ]


def _shared_out(calls: Sequence[Addition], added: list[Job]) -> list[list[Job]]:
    """Return the jobs of each call."""
    if len(calls) == 1:
        return [added]
    given = iter(added)
    return [list(islice(given, len(jobs))) for jobs, _, _ in calls]


def _options(wanted: tuple[NewJob, str]) -> tuple[Any, ...]:
    """Return what jobs that are written together have in common."""
    job, _ = wanted
    return (
        job.queue, job.task, job.priority, job.lease, job.timeout, job.retry, job.correlation,
        job.parent, job.trace, job.delay, job.run_at, job.task_version,
    )  # fmt: skip


def _end_options(ended: tuple[Change, str]) -> tuple[Any, ...]:
    """Return the values that outcomes written together have in common."""
    change, actor = ended
    move = change.move
    return move.event, move.state, move.attempt, actor


def _finish_group(tx: PostgresTransaction, ended: Sequence[tuple[Change, str]]) -> list[int | None]:
    """End jobs in the same way; return the new version of each, None if it was not ended."""
    moves = [change.move for change, _ in ended]
    move, actor = moves[0], ended[0][1]
    found = tx.execute(
        "finish_plain",
        (
            Int8s([change.job.id for change, _ in ended]),
            Int8s([change.job.version for change, _ in ended]),
            Texts([move.result for move in moves]),
            Texts([move.error for move in moves]),
            Texts([error_after_move(change.job, change.move) for change, _ in ended]),
            Texts([move.reason for move in moves]),
            Texts([move.detail for move in moves]),
            tx.now,
            move.event,
            move.state,
            actor,
            STAGE_OF[move.state],
            move.attempt,
        ),
    ).fetchall()
    if found and found[0][2]:
        tx.freed.update(
            (change.job.queue, change.job.task, change.job.throttle) for change, _ in ended
        )
    versions = {n: number for n, number, _ in found}
    return [versions.get(n) for n in range(1, len(ended) + 1)]


def _ended(change: Change, version: int | None, at: datetime) -> Job | None:
    if version is None:
        return None
    fields = fields_after_move(
        change.move, error_after_move(change.job, change.move), at=at, waiting=None
    )
    return replace(change.job, version=version, **fields)


def _combined(
    answers: Sequence[Sequence[Job | None]], rest: Sequence[list[Job | None] | Exception]
) -> list[list[Job | None] | Exception]:
    """Return the answers, with those about the rest in place of each None."""
    combined: list[list[Job | None] | Exception] = []
    for answer, more in zip(answers, rest, strict=True):
        if isinstance(more, Exception):
            if any(answer):  # a part of it was written
                raise more
            combined.append(more)
        else:
            others = iter(more)
            combined.append([next(others) if job is None else job for job in answer])
    return combined
