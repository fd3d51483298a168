"""Who waits for whom, when a job takes the place of another."""

from collections.abc import Collection

from penstock.core.job import Job
from penstock.core.lifecycle import keep_back
from penstock.stores.sql.rows import encoded
from penstock.stores.sql.transaction import Transaction


def inherit(tx: Transaction, replaced: int, by: int) -> None:
    """Let a job wait for what the one that it replaces waited for."""
    if tx.execute("inherit_edges", (replaced, by)).rowcount:
        tx.execute("recount_needs", (encoded([by]),))


def hand_over(tx: Transaction, ended: int, successor: int) -> list[int]:
    """Let those that wait for a job wait for its successor, unless that waits for them: who."""
    waiting = [row[1] for row in tx.execute("waiting_for", (encoded([ended]),)).fetchall()]
    if not waiting:
        return []
    ahead = _ahead(tx, successor)
    moved = [job_id for job_id in waiting if job_id not in ahead]
    ids = encoded(moved)
    tx.execute("hand_over_edges", (ended, successor, ids))
    tx.execute("resolve_edges", (ended, ids))
    tx.execute("recount_needs", (ids,))
    tx.execute("await", (encoded([successor]),))
    return moved


def any_newer_needed(tx: Transaction) -> bool:
    """Whether a job waits for a newer one: else, edges and keys alike point to older ones."""
    return bool(tx.execute("any_forward_edge").fetchone()[0])


def check_order(tx: Transaction, job: Job) -> None:
    """Raise for a cancelled job that waits for one which would come after it in its key."""
    ahead = encoded(_ahead(tx, job.id))
    (behind,) = tx.execute("behind_in_key", (job.key, job.id, ahead)).fetchone()
    if behind is not None:
        raise keep_back(job, behind)


def _ahead(tx: Transaction, job_id: int) -> Collection[int]:
    return {row[0] for row in tx.execute("ahead", (job_id,)).fetchall()}
