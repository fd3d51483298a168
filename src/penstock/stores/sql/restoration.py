"""Restoration: jobs of another store, written into this one in one transaction.

`core.restoration.plan` decides which jobs are taken, and how they are numbered and linked.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock.core.job import Job, JobId, LogEntry, LogId
from penstock.core.lifecycle import State
from penstock.core.progress import Reported
from penstock.core.restoration import Origin, Record, Restored, as_new_job, originals, plan
from penstock.core.times import from_micros, span_to_micros, to_micros
from penstock.stores.sql import edges, migration_lock, reports, rows
from penstock.stores.sql.additions import add_tags
from penstock.stores.sql.database import Reader, Totals, Transaction, shift
from penstock.stores.sql.dedupe import holder_of
from penstock.stores.sql.key_lines import rearrange
from penstock.stores.sql.queue_names import QueueNames
from penstock.stores.sql.rows import STAGE_OF, STAGE_OF_WAITING, STAGES, edge_row, encoded
from penstock.stores.sql.transitions import Transitions

Restoration = tuple[Sequence[Record], Origin, str, Mapping[JobId, Reported]]
"""One call of `restore`: the records, their origin, the actor, and reports by original ids."""


def restore(tx: Transaction, calls: Sequence[Restoration]) -> list[list[Job | None]]:
    """See `Store.restore`."""
    migration_lock.check_lasting(tx)
    return [_restore_one(tx, *call) for call in calls]


def restored_ids(reader: Reader, source: int, ids: Sequence[int]) -> dict[JobId, JobId]:
    """See `Store.restored_ids`."""
    return dict(reader.execute("restored_ids", (source, encoded(ids))).fetchall())


def _restore_one(
    tx: Transaction,
    records: Sequence[Record],
    origin: Origin,
    actor: str,
    reported: Mapping[JobId, Reported],
) -> list[Job | None]:
    last = tx.lock_ids()
    known = restored_ids(tx, origin.source, sorted(originals(records)))
    stages = tx.execute("stages", (encoded(list(known.values())),)).fetchall()
    names = QueueNames(tx)
    queues = {record.job.queue for record in records}
    names.look_up(queues)
    if refused := names.add(queues):
        raise refused
    planned = plan(
        records,
        origin=origin,
        actor=actor,
        now=from_micros(tx.now),
        last=last,
        known=known,
        states={job_id: STAGES[stage][0] for job_id, stage in stages},
        is_held=lambda job: (
            job.dedupe is not None and holder_of(tx, job.dedupe, job.scope) is not None
        ),
    )
    totals: Totals = {}
    for one in planned.restored:
        _write(tx, one, origin, names, totals)
        if one.original in reported:
            reports.restore(tx, one.job.id, reported[one.original])
    if found := [edge_row(edge) for one in planned.restored for edge in one.edges]:
        edges.write(tx, found)
    _rearrange(tx, planned.restored, totals)
    tx.raise_ids(planned.last_job, planned.last_log)
    tx.add_totals(totals)
    tx.remove_unused(queues)  # of jobs that were not restored
    tx.notify = tx.notify_others = True
    if planned.abandoned:
        transitions = Transitions(tx)
        transitions.abandon({one: (*why, actor) for one, why in planned.abandoned.items()})
        transitions.write([])
    jobs = {job.id: job for job in tx.jobs([one for one in planned.answers if one is not None])}
    return [None if one is None else jobs[one] for one in planned.answers]


def _write(
    tx: Transaction, one: Restored, origin: Origin, names: QueueNames, totals: Totals
) -> None:
    job = one.job
    stage = STAGE_OF[job.state] if job.waiting is None else STAGE_OF_WAITING[job.waiting]
    merged = names.is_merged(job.queue, job.tenant)
    run_at = to_micros(job.run_at)
    options = rows.options(as_new_job(job), stage, run_at, job.needs, merged=merged)
    tx.restore_job(_row(job, stage, options), job.payload)
    add_tags(tx, [job.id], options)
    tx.restore_log(_log_rows(one.log), job.queue)
    tx.execute("add_restored_id", (origin.source, one.original, job.id))
    totals[job.queue, stage] = totals.get((job.queue, stage), 0) + 1


def _rearrange(tx: Transaction, restored: Sequence[Restored], totals: Totals) -> None:
    """Make the heads of the restored jobs' keys visible."""
    pending = [one.job for one in restored if one.job.state is State.PENDING]
    keys = {job.key for job in pending if job.key is not None}
    for _, queue, before, after in rearrange(tx, keys):
        shift(totals, queue, before, after)


def _row(job: Job, stage: int, options: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the parameters of the query `restore_job`."""
    _, run_at, queue, task, priority, lease_time, *rare = options
    return (
        job.id, stage, job.version, job.attempt, job.token, run_at, _micros(job.started_at),
        _micros(job.finished_at), job.worker, queue, task, priority, to_micros(job.enqueued_at),
        lease_time, *rare, job.error, job.result_json,
    )  # fmt: skip


def _log_rows(log: Sequence[LogEntry]) -> list[tuple[Any, ...]]:
    """Return the parameters of the query `restore_log`, each entry chained to the one before.

    The last entry is new here; those before it come from the other store.
    """
    previous: list[LogId | None] = [None, *(entry.id for entry in log)]
    return [
        (
            entry.id, entry.job_id, before, to_micros(entry.at), entry.event, entry.state,
            entry.actor, entry.token,
            None if entry.duration is None else span_to_micros(entry.duration),
            entry.reason, entry.error, entry.detail, None if entry is log[-1] else True,
        )
        for before, entry in zip(previous, log, strict=False)
    ]  # fmt: skip


def _micros(instant: datetime | None) -> int | None:
    return None if instant is None else to_micros(instant)
