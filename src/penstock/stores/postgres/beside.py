"""Adds jobs that have nothing to do with others, beside whatever else is written."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from penstock.core.job import Job, NewJob
from penstock.core.times import from_micros, span_to_micros, to_micros
from penstock.stores.postgres.arrays import Texts
from penstock.stores.postgres.transaction import Mode, NeedsAlone, PostgresTransaction, ours
from penstock.stores.sql import adding, rows
from penstock.stores.sql.adding import Addition
from penstock.stores.sql.rows import READY, encoded
from penstock.stores.sql.transaction import Transaction

# More groups of jobs that have all in common are not written one by one.
_FEW = 8


def depends(job: NewJob) -> bool:
    """Whether other jobs decide what becomes of this one."""
    return bool(job.key or job.dedupe or job.after or job.follows)


class Beside:
    """The way in for such jobs, and which queues are known to be there."""

    def __init__(self) -> None:
        self._queues: set[str] = set()

    def add(self, tx: Transaction, calls: Sequence[Addition]) -> Sequence[list[Job] | Exception]:
        """See `Store.add`."""
        tx = ours(tx)
        if tx.mode is Mode.ALONE:
            return adding.add(tx, calls)
        asked = [(job, actor) for jobs, actor, _ in calls for job in jobs]
        groups = [list(group) for _, group in groupby(asked, key=_options)]
        if len(groups) > _FEW or any(job.tags or job.tenant or job.throttle for job, _ in asked):
            names = {job.queue for job, _ in asked}
            if tx.execute("any_bounded", (encoded(names),)).fetchone()[0]:
                raise NeedsAlone
            return adding.add(tx, calls)
        unknown = {job.queue for job, _ in asked}.difference(self._queues)
        if unknown:
            tx.execute("add_queues", (Texts(sorted(unknown)),))
        added: list[Job] = []
        for group in groups:
            added += self._add_alike(tx, group)
        tx.written = tx.ring = tx.ring_others = bool(added)
        answers: list[list[Job] | Exception] = []
        for jobs, _, _ in calls:
            answers.append(added[: len(jobs)])
            added = added[len(jobs) :]
        return answers

    def _add_alike(self, tx: PostgresTransaction, asked: Sequence[tuple[NewJob, str]]) -> list[Job]:
        new = asked[0][0]
        options = rows.options(new, READY, 0, 0)
        parameters = (
            Texts([job.payload for job, _ in asked]),
            Texts([actor for _, actor in asked]),
            tx.now(),
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
        )
        found = tx.execute("add_plain", parameters).fetchall()
        if not found:  # the queue has a limit, or was removed since it was known
            self._queues.discard(new.queue)
            raise NeedsAlone
        self._queues.add(new.queue)
        _, _, now, due = found[0]
        first = rows.new_job(new, 0, 0, int(due > now), due, 0, from_micros(now))
        return [
            replace(first, id=job_id, version=version, payload=job.payload)
            for (job, _), (job_id, version, _, _) in zip(asked, found, strict=True)
        ]


def _options(asked: tuple[NewJob, str]) -> tuple[Any, ...]:
    """What jobs that are written together have in common."""
    job, _ = asked
    return (
        job.queue, job.task, job.priority, job.lease, job.timeout, job.retry, job.correlation,
        job.parent, job.trace, job.delay, job.run_at,
    )  # fmt: skip
