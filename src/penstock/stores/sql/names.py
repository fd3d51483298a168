"""The names of queues: how many there may be, and which have no line of their own.

Every queue with a line of its own costs each claim from all queues one look. So only the first
ones have one, and those that were configured or have jobs of tenants; the ready jobs of all others
stand in one index, in the order in which they start. A queue that nobody has configured goes with
its last job.
"""

from collections.abc import Collection, Iterable

from penstock.core.errors import TooManyQueues
from penstock.core.limits import MOST_QUEUES
from penstock.stores.sql.rows import encoded
from penstock.stores.sql.transaction import Transaction

MERGED = 1
# Jobs that get a line of their own later follow by portions: claims get their turn in between.
_UNMERGED_AT_ONCE = 1_000


class Names:
    """The queues that one call of `add` or `restore` is about."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._merged: dict[str, bool] = {}
        self._unknown: set[str] = set()

    def look_up(self, queues: Collection[str]) -> dict[str, int]:
        """Find queues; returns how many pending jobs they take, of those that have such a limit."""
        if len(queues) == 1:
            [queue] = queues
            found = [(queue, *row) for row in self._tx.execute("max_pending", (queue,)).fetchall()]
        else:
            found = self._tx.execute("max_pendings", (encoded(sorted(queues)),)).fetchall()
        self._merged.update((queue, line == MERGED) for queue, _, line in found)
        self._unknown.update(queue for queue in queues if queue not in self._merged)
        return {queue: limit for queue, limit, _ in found if limit is not None}

    def add(self, queues: Iterable[str]) -> TooManyQueues | None:
        """Make those that are not there yet, all or none of them."""
        if not self._unknown:
            return None
        new = self._unknown.intersection(queues)
        if not new:
            return None
        taken, limit = self._tx.execute("names").fetchone()
        limit = MOST_QUEUES if limit is None else limit
        if taken + len(new) > limit:
            return TooManyQueues(limit)
        self._unknown -= new
        self._tx.add_queues(new)
        self.look_up(new)
        return None

    def is_merged(self, queue: str, tenant: str | None) -> bool:
        """Whether a job stands in the index of all; tenants take turns in a line of its own."""
        merged = self._merged[queue]
        if not merged or tenant is None:
            return merged
        # Jobs of this transaction may be merged and not written yet: they follow with claims.
        if self._tx.execute("unmerge", (encoded([queue]),)).rowcount:
            self._tx.written = True
            merged = self._merged[queue] = False
        return merged


def own_line(tx: Transaction, queues: Collection[str]) -> None:
    """Give those of these queues that are merged a line of their own."""
    if tx.execute("unmerge", (encoded(list(queues)),)).rowcount:
        tx.written = True
        unmerge(tx, queues)


def unmerge(tx: Transaction, first: Collection[str] = ()) -> None:
    """Let a portion of jobs follow a queue that has got a line of its own."""
    for (queue,) in tx.execute("leaving", (encoded(list(first)),)).fetchall():
        moved = tx.execute("unmerge_jobs", (queue, _UNMERGED_AT_ONCE)).fetchall()
        done = len(moved) < _UNMERGED_AT_ONCE and tx.execute("keep_queue", (queue,)).fetchall()
        if done:
            tx.execute("unmerged", (queue,))
        tx.written = tx.written or bool(moved or done)
        # Who found nothing may find something behind the next portion.
        tx.ring = tx.ring or len(moved) == _UNMERGED_AT_ONCE


def remove_unused(tx: Transaction, queues: Collection[str]) -> None:
    """Remove those of these queues that have no job any more, and that nobody has configured."""
    tx.remove_unused(queues)
