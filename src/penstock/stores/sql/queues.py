"""Queues, their settings, and limits."""

from collections.abc import Collection, Sequence
from datetime import datetime

from penstock.core.errors import QueueInUse, TooManyQueues
from penstock.core.job import JobId
from penstock.core.limits import Limit
from penstock.core.queue import Queue, QueueQuery, QueueSettings, QueueSummary, apply_settings
from penstock.core.times import from_micros
from penstock.stores.sql import migration_lock, queue_names, rows
from penstock.stores.sql.database import Reader, Transaction
from penstock.stores.sql.limits import MERGED, MOST_TASKS
from penstock.stores.sql.rows import STAGES, encoded

_NO_LIMIT = 2**62


def find(reader: Reader, query: QueueQuery) -> list[Queue]:
    """See `Store.queues`."""
    now = reader.clock()
    limit = _NO_LIMIT if query.limit is None else query.limit
    if query.names is None:
        wanted = (query.after or "", query.contains or "", limit)
        return [rows.queue(row, now) for row in reader.execute("queues", wanted)]
    found = reader.execute("queues_named", (encoded(query.names),)).fetchall()
    return [rows.queue(row, now) for row in found if query.wants(row[0])][:limit]


def oldest_ready(reader: Reader, queues: Collection[str] | None) -> dict[str, datetime]:
    """See `Store.oldest_ready`; of the jobs that are ready already."""
    with reader.snapshot():
        found = _oldest_ready(reader, queues)
    return {queue: from_micros(at) for queue, at in found.items()}


def _oldest_ready(reader: Reader, queues: Collection[str] | None) -> dict[str, int]:
    if queues is None:
        (wanted,) = reader.execute("ready_queues").fetchone()
    else:
        wanted = encoded(sorted(queues))
    found = [
        *reader.execute("oldest_ready", (wanted,)),
        *reader.execute("oldest_of_tenants", (wanted,)),
    ]
    holders = reader.execute("holding_limits").fetchall()
    for (held,) in [*holders, *reader.execute("holding_tasks", (MOST_TASKS,)).fetchall()]:
        for tenant, queue, priority in reader.execute("held_groups", (held,)).fetchall():
            if queue != MERGED and (queues is None or queue in queues):
                group = (held, tenant, queue, priority)
                found.append((queue, *reader.execute("oldest_held", group).fetchone()))
    merged = reader.execute("oldest_held_merged").fetchall()
    found += [one for one in merged if queues is None or one[0] in queues]
    oldest: dict[str, int] = {}
    for queue, at in found:
        if at is not None:
            oldest[queue] = min(at, oldest.get(queue, at))
    return oldest


def summary(reader: Reader, without: frozenset[str], now: int) -> QueueSummary:
    """See `Store.summary`; of the jobs that are ready already."""
    with reader.snapshot():
        left_out = (encoded(sorted(without)),)
        n, paused = reader.execute("count_queues", (*left_out, now)).fetchone()
        found = reader.execute("total_summary", left_out).fetchall()
        ready = _oldest_ready(reader, None)
    oldest = min((at for queue, at in ready.items() if queue not in without), default=None)
    return QueueSummary(
        queues=n,
        paused=paused,
        counts={STAGES[stage]: total for stage, total in found},
        oldest_ready=None if oldest is None else from_micros(oldest),
    )


def configure(tx: Transaction, calls: Sequence[QueueSettings]) -> list[Queue | Exception]:
    """See `Store.configure`."""
    migration_lock.check_lasting(tx)
    return [_configure_one(tx, settings) for settings in calls]


def _configure_one(tx: Transaction, settings: QueueSettings) -> Queue | TooManyQueues:
    row = tx.execute("queue", (settings.name,)).fetchone()
    queue = Queue(name=settings.name) if row is None else rows.queue(row, tx.now)
    queue = apply_settings(queue, settings)
    if row is None and (refused := queue_names.refuse_more(tx, 1)) is not None:
        return refused
    tx.execute("configure", rows.queue_columns(queue))
    tx.execute("count_configuration")
    if not queue.paused:
        tx.remove_unused([queue.name])  # if that was its last setting
    tx.written = tx.notify = tx.notify_others = True
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
    tx.execute("count_configuration")
    tx.remove_unused([name])
    tx.written = tx.notify = tx.notify_others = True
    return True


def limits(reader: Reader) -> list[Limit]:
    """See `Store.limits`."""
    found = reader.execute("limits").fetchall()
    return [Limit(kind=kind, name=name, concurrency=n) for kind, name, n in found]


def limit(tx: Transaction, calls: Sequence[Limit]) -> list[None]:
    """See `Store.limit`."""
    if any(one.concurrency is not None for one in calls):
        migration_lock.check_lasting(tx)
    for one in calls:
        if one.concurrency is None:
            tx.execute("remove_limit", (one.kind, one.name))
        else:
            tx.execute("set_limit", (one.kind, one.name, one.concurrency))
    tx.execute("count_configuration")
    tx.written = tx.notify = tx.notify_others = True
    return [None] * len(calls)


def backlog(reader: Reader, queue: str | None, until: JobId | None) -> tuple[int, JobId]:
    """See `Store.backlog`."""
    newest = reader.execute("last_ids").fetchone()[0] if until is None else until
    n, last = reader.execute("backlog", (queue, newest)).fetchone()
    return n, newest if last is None else last
