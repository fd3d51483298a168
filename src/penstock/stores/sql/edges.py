"""Edges between jobs that wait for each other: the facts for `core.dependencies`."""

from collections.abc import Collection

from penstock.core.dependencies import check_order as check_order_of
from penstock.core.dependencies import handed_over
from penstock.core.job import Job, JobId
from penstock.core.superseding import inherited
from penstock.stores.sql import rows
from penstock.stores.sql.database import Transaction
from penstock.stores.sql.rows import EdgeRow, edge_row, encoded


class _Order:
    """Answers which jobs precede others; see `dependencies.Order`."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        # Jobs whose predecessors are all in it: one query returns those of a job, however far.
        self._closed: set[int] = set()

    def before(self, ids: Collection[int]) -> Collection[int]:
        if self._closed.issuperset(ids):
            return ()
        for job_id in ids:
            self._closed.update(row[0] for row in self._tx.execute("predecessors", (job_id,)))
        return self._closed

    def newer_in_line(self, job: Job, among: Collection[int]) -> int | None:
        parameters = (job.key, job.id, encoded(list(among)))
        found: int | None = self._tx.execute("behind_in_key", parameters).fetchone()[0]
        return found


def write(tx: Transaction, edges: Collection[EdgeRow]) -> None:
    """Insert edges, and mark the jobs at their open ends as awaited."""
    tx.execute("add_edges", (encoded(list(edges)),))
    awaited = {needed for needed, _, _, resolved in edges if not resolved}
    tx.execute("mark_awaited", (encoded(awaited),))


def inherit(tx: Transaction, replaced: int, by: JobId) -> None:
    """Let a job wait for what the job that it replaces still waited for."""
    found = [rows.edge(row) for row in tx.execute("open_edges", (encoded([replaced, by]),))]
    old = [edge for edge in found if edge.job_id == replaced]
    new = inherited(old, by, {edge.needed for edge in found if edge.job_id == by})
    if new:
        write(tx, [edge_row(edge) for edge in new])
        tx.execute("recount_needs", (encoded([by]),))


def hand_over(tx: Transaction, ended: int, successor: int) -> list[int]:
    """Let dependents of a job wait for its successor instead; return those that do."""
    waiting = [row[1] for row in tx.execute("waiting_edges", (encoded([ended]),)).fetchall()]
    if not waiting:
        return []
    moved = handed_over(waiting, successor, _Order(tx))
    ids = encoded(moved)
    tx.execute("hand_over_edges", (ended, successor, ids))
    tx.execute("resolve_edges", (ended, ids))
    tx.execute("recount_needs", (ids,))
    tx.execute("mark_awaited", (encoded([successor]),))
    return moved


def any_newer_needed(tx: Transaction) -> bool:
    """Return whether a job waits for a newer one; else edges and keys point to older jobs only."""
    return bool(tx.execute("any_forward_edge").fetchone()[0])


def check_order(tx: Transaction, job: Job) -> None:
    """Raise for a cancelled job that waits for one which would come after it in its key."""
    check_order_of(job, _Order(tx))
