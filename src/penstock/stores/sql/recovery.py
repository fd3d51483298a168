"""Recovery: how a store continues after it was set back to an earlier moment."""

from collections.abc import Sequence

from penstock.core.job import JobId, LogId
from penstock.core.recovery import (
    NOTED_JOB,
    RUNNING_JOBS,
    Cut,
    changes_of_cut,
    next_floor,
    reason_of_cut,
)
from penstock.core.times import from_micros
from penstock.stores.sql import jobs, migration_lock
from penstock.stores.sql.database import Transaction
from penstock.stores.sql.tables import answered
from penstock.stores.sql.transitions import transition

Raise = tuple[str, str, int, bool]
"""One call of `raise_floor`: the actor, the reason, `above` and `reclaim`."""


def raise_floor(tx: Transaction, calls: Sequence[Raise]) -> list[Cut]:
    """See `Store.raise_floor`."""
    return [_raise_one(tx, *call) for call in calls]


def _raise_one(tx: Transaction, actor: str, reason: str, above: int, reclaim: bool) -> Cut:  # noqa: FBT001 - as in the tuple
    tx.require_exclusive()
    last_job, last_log = tx.lock_ids()
    floor = next_floor(max(last_job, last_log), from_micros(tx.now), above)
    tx.raise_ids(floor, floor)
    tx.execute("set_meta", ("last_schedule", floor))
    tx.written = tx.notify = tx.notify_others = True
    reclaimed: list[JobId] = []
    if migration_lock.find(tx) is None:
        running = jobs.find(tx, RUNNING_JOBS) if reclaim else []
        why = reason_of_cut(reason, last_log, floor)
        changes = changes_of_cut(running, jobs.find(tx, NOTED_JOB), why)
        answered(transition(tx, [(changes, actor)]))
        reclaimed = [job.id for job in running]
    return Cut(last_log=LogId(last_log), floor=floor, reclaimed=tx.jobs(reclaimed))
