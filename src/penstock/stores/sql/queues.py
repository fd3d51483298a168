"""Queues and limits in the database: what the verbs about them do."""

from collections.abc import Sequence

from penstock.core.errors import QueueInUse, TooManyQueues
from penstock.core.job import JobId, Queue, QueueSettings, configured
from penstock.core.limits import MOST_QUEUES, Limit
from penstock.stores.sql import names, rows, seals
from penstock.stores.sql.transaction import Reading, Transaction


def find(reading: Reading) -> list[Queue]:
    """See `Store.queues`."""
    now = reading.now()
    return [rows.queue(row, now) for row in reading.execute("queues").fetchall()]


def configure(tx: Transaction, calls: Sequence[QueueSettings]) -> list[Queue | Exception]:
    """See `Store.configure`."""
    seals.check_lasting(tx)
    return [_configure_one(tx, settings) for settings in calls]


def _configure_one(tx: Transaction, settings: QueueSettings) -> Queue | TooManyQueues:
    row = tx.execute("queue", (settings.name,)).fetchone()
    queue = Queue(name=settings.name) if row is None else rows.queue(row, tx.now())
    queue = configured(queue, settings)
    if row is None:
        taken, limit = tx.execute("names").fetchone()
        limit = MOST_QUEUES if limit is None else limit
        if taken >= limit:
            return TooManyQueues(limit)
    tx.execute("configure", rows.queue_columns(queue))
    tx.execute("note_configured")
    if not queue.paused:
        names.remove_unused(tx, [queue.name])  # if that took its last setting
    tx.written = tx.ring = tx.ring_others = True
    return queue


def remove(tx: Transaction, calls: Sequence[str]) -> list[bool | Exception]:
    """See `Store.remove_queue`."""
    return [_remove_one(tx, name) for name in calls]


def _remove_one(tx: Transaction, name: str) -> bool | QueueInUse:
    if tx.execute("queue", (name,)).fetchone() is None:
        return False
    (unfinished,) = tx.execute("unfinished_total", (name,)).fetchone()
    if unfinished:
        return QueueInUse(name, unfinished)
    tx.execute("configure", rows.queue_columns(Queue(name=name)))
    tx.execute("note_configured")
    names.remove_unused(tx, [name])
    tx.written = tx.ring = tx.ring_others = True
    return True


def limits(reading: Reading) -> list[Limit]:
    """See `Store.limits`."""
    found = reading.execute("limits").fetchall()
    return [Limit(kind=kind, name=name, concurrency=n) for kind, name, n in found]


def limit(tx: Transaction, calls: Sequence[Limit]) -> list[None]:
    """See `Store.limit`."""
    if any(one.concurrency is not None for one in calls):
        seals.check_lasting(tx)
    for one in calls:
        if one.concurrency is None:
            tx.execute("remove_limit", (one.kind, one.name))
        else:
            tx.execute("set_limit", (one.kind, one.name, one.concurrency))
    tx.execute("note_configured")
    tx.written = tx.ring = tx.ring_others = True
    return [None] * len(calls)


def backlog(reading: Reading, queue: str | None, until: JobId | None) -> tuple[int, JobId]:
    """See `Store.backlog`."""
    newest = reading.execute("last_ids").fetchone()[0] if until is None else until
    n, last = reading.execute("backlog", (queue, newest)).fetchone()
    return n, newest if last is None else last
