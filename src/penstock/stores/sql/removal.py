"""Removal of finished jobs, with everything that belongs to them."""

from collections import Counter
from collections.abc import Sequence

from penstock.core.job import Job, JobId, Retention
from penstock.core.lifecycle import FINAL
from penstock.core.times import span_to_micros
from penstock.stores.sql import rows
from penstock.stores.sql.database import Transaction
from penstock.stores.sql.rows import encoded


def delete(tx: Transaction, calls: Sequence[Sequence[Job]]) -> list[list[JobId]]:
    """See `Store.delete`."""
    return [_delete_one(tx, jobs) for jobs in calls]


def _delete_one(tx: Transaction, jobs: Sequence[Job]) -> list[JobId]:
    wanted = encoded([(job.id, job.version) for job in jobs])
    found = tx.execute("deletable", (wanted,)).fetchone()[0]
    _remove(tx, found)
    return [JobId(job_id) for job_id in rows.ids.decode(found)]


def prune(tx: Transaction, calls: Sequence[tuple[Retention, int]]) -> list[int]:
    """See `Store.prune`."""
    return [_prune_one(tx, retention, limit) for retention, limit in calls]


def _prune_one(tx: Transaction, retention: Retention, limit: int) -> int:
    removed = 0
    for state in FINAL:
        before = tx.now - span_to_micros(retention.keeps(state))
        parameters = (rows.STAGE_OF[state], before, limit - removed)
        found = tx.execute("prunable", parameters).fetchone()[0]
        removed += _remove(tx, found)
    return removed


def _remove(tx: Transaction, found: str) -> int:
    """Remove the jobs of a JSON list of ids."""
    tx.handle_external_changes()  # dependents must learn of an end before the job is gone
    if found == "[]":
        return 0
    tx.keep_ids()
    tx.execute("prune_log", (found,))
    tx.execute("prune_edges", (found,))
    tx.execute("prune_payloads", (found,))
    gone = tx.execute("prune_jobs", (found,)).fetchall()
    tx.add_totals({key: -n for key, n in Counter(gone).items()})
    tx.remove_unused({queue for queue, _ in gone})
    return len(gone)
