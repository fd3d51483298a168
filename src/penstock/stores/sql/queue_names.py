"""Queue names: how many there may be, and which queues share one index of ready jobs.

Every queue with an index of its own costs each claim from all queues one lookup. So only the first
queues of a store have one, those that were configured, and up to a number those with jobs of
tenants: whoever may enqueue can name queues and tenants. The ready jobs of all other queues are
merged into one index, in the order in which they start. A queue that nobody has configured is
removed with its last job.
"""

from collections.abc import Collection, Iterable

from penstock.core.errors import TooManyQueues
from penstock.core.limits import too_many_queues
from penstock.stores.sql.database import Transaction
from penstock.stores.sql.rows import encoded

MERGED = 1
# Jobs follow a queue out of the merged index in portions, so that claims get their turn in between.
_UNMERGED_AT_ONCE = 1_000
# While fewer queues than this have indexes of their own, a job of a tenant gives its queue one.
# Beyond that, tenants take turns where workers name the queue, or where it was configured. 20,000
# such indexes slowed claims down to one a second; routines.sql of SQLite has the same number.
_OWN_INDEXES_FOR_TENANTS = 100


class QueueNames:
    """The queues that one call of `add` or `restore` is about."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._merged: dict[str, bool] = {}
        self._unknown: set[str] = set()
        self._unmerges = True

    def look_up(self, queues: Collection[str]) -> dict[str, int]:
        """Look queues up; return the `max_pending` of those that have one."""
        if len(queues) == 1:
            [queue] = queues
            found = [(queue, *row) for row in self._tx.execute("max_pending", (queue,)).fetchall()]
        else:
            found = self._tx.execute("max_pendings", (encoded(sorted(queues)),)).fetchall()
        self._merged.update((queue, merged == MERGED) for queue, _, merged in found)
        self._unknown.update(queue for queue in queues if queue not in self._merged)
        return {queue: limit for queue, limit, _ in found if limit is not None}

    def add(self, queues: Iterable[str]) -> TooManyQueues | None:
        """Create those of these queues that do not exist yet, all or none."""
        if not self._unknown:
            return None
        new = self._unknown.intersection(queues)
        if not new:
            return None
        if (refused := refuse_more(self._tx, len(new))) is not None:
            return refused
        self._unknown -= new
        self._tx.add_queues(new)
        self.look_up(new)
        return None

    def is_merged(self, queue: str, tenant: str | None) -> bool:
        """Return whether a job belongs to the merged index; tenants get one of their own."""
        merged = self._merged[queue]
        if not merged or tenant is None or not self._unmerges:
            return merged
        # Jobs of this transaction may be merged and not written yet: they follow with claims.
        if unmerge_for_tenants(self._tx, [queue]):
            merged = self._merged[queue] = False
        else:
            self._unmerges = False  # no further one either: each try costs a statement
        return merged


def refuse_more(tx: Transaction, n: int) -> TooManyQueues | None:
    """Return an error if `n` more queues would exceed the limit."""
    taken, limit = tx.execute("queue_usage").fetchone()
    return too_many_queues(taken, n, limit)


def unmerge(tx: Transaction, queues: Collection[str]) -> None:
    """Give those of these queues that are merged an index of their own."""
    left = tx.execute("unmerge", (encoded(list(queues)),)).rowcount
    for _ in range(left):  # a portion of each: what is held is found in the right index only
        tx.written = True
        unmerge_jobs(tx, queues)


def unmerge_for_tenants(tx: Transaction, queues: Collection[str]) -> bool:
    """Give these queues an index of their own if there is room; return whether any got one."""
    parameters = (encoded(list(queues)), _OWN_INDEXES_FOR_TENANTS)
    if not tx.execute("unmerge_for_tenants", parameters).rowcount:
        return False
    tx.written = True
    return True


def unmerge_jobs(tx: Transaction, first: Collection[str] = ()) -> None:
    """Move a portion of jobs out of the merged index, after their queue left it."""
    for (queue,) in tx.execute("unmerging", (encoded(list(first)),)).fetchall():
        moved = tx.execute("unmerge_jobs", (queue, _UNMERGED_AT_ONCE)).fetchall()
        done = len(moved) < _UNMERGED_AT_ONCE and tx.execute("lock_queue", (queue,)).fetchall()
        if done:
            tx.execute("finish_unmerge", (queue,))
        tx.written = tx.written or bool(moved or done)
        # A claim that found nothing may find something behind the next portion.
        tx.notify = tx.notify or len(moved) == _UNMERGED_AT_ONCE
