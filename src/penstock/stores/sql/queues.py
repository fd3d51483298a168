"""Queues and limits in the database: what the verbs about them do."""

from collections.abc import Collection, Sequence

from penstock.core.errors import QueueInUse, TooManyQueues
from penstock.core.job import JobId, Overall, Queue, QueueQuery, QueueSettings, configured
from penstock.core.limits import MOST_QUEUES, Limit
from penstock.core.times import from_micros
from penstock.stores.sql import names, rows, seals
from penstock.stores.sql.claiming import MERGED, Execute
from penstock.stores.sql.rows import STAGES, encoded
from penstock.stores.sql.transaction import Reading, Transaction

_NO_LIMIT = 2**62


def find(reading: Reading, query: QueueQuery) -> list[Queue]:
    """See `Store.queues`."""
    now = reading.now()
    limit = _NO_LIMIT if query.limit is None else query.limit
    if query.names is None:
        wanted = (query.after or "", query.contains or "", limit)
        return [rows.queue(row, now) for row in reading.execute("queues", wanted)]
    found = reading.execute("queues_named", (encoded(query.names),)).fetchall()
    return [rows.queue(row, now) for row in found if query.wants(row[0])][:limit]


def oldest_ready(execute: Execute, queues: Collection[str] | None) -> dict[str, int]:
    """See `Store.oldest_ready`; of the jobs that are ready already."""
    if queues is None:
        (wanted,) = execute("ready_queues").fetchone()
    else:
        wanted = encoded(sorted(queues))
    found = [*execute("oldest_ready", (wanted,)), *execute("oldest_of_tenants", (wanted,))]
    for (held,) in execute("holders").fetchall():
        for tenant, queue, priority in execute("held_places", (held,)).fetchall():
            if queue != MERGED and (queues is None or queue in queues):
                place = (held, tenant, queue, priority)
                found.append((queue, *execute("oldest_held", place).fetchone()))
    merged = execute("oldest_held_merged").fetchall()
    found += [one for one in merged if queues is None or one[0] in queues]
    oldest: dict[str, int] = {}
    for queue, at in found:
        if at is not None:
            oldest[queue] = min(at, oldest.get(queue, at))
    return oldest


def overall(reading: Reading, without: frozenset[str]) -> Overall:
    """See `Store.overall`; of the jobs that are ready already."""
    left_out = (encoded(sorted(without)),)
    n, paused = reading.execute("number_of_queues", (*left_out, reading.now())).fetchone()
    found = reading.execute("totals_together", left_out).fetchall()
    ready = oldest_ready(reading.execute, None)
    oldest = min((at for queue, at in ready.items() if queue not in without), default=None)
    return Overall(
        queues=n,
        paused=paused,
        counts={STAGES[stage]: total for stage, total in found},
        oldest_ready=None if oldest is None else from_micros(oldest),
    )


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
