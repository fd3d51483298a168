"""Retention: drops the partitions of finished jobs and of the log, by day, and unused queues."""

from penstock.core.job import Retention
from penstock.core.lifecycle import State
from penstock.core.times import span_to_micros
from penstock.stores.postgres.connection import DAY
from penstock.stores.postgres.transaction import PostgresTransaction
from penstock.stores.sql import rows

# A table cannot be dropped while any transaction reads it; others must not queue up behind this
# one meanwhile.
_PATIENCE = b"SET LOCAL lock_timeout = '200ms'"
_SWEPT_AT_ONCE = 1_000


def drop_days(tx: PostgresTransaction, retention: Retention) -> int:
    """Drop the days whose jobs have all expired; return the number of jobs.

    Does nothing while another process does so.
    """
    if not tx.execute("try_lock_partitions").fetchone()[0]:
        return 0
    tx.run(_PATIENCE)
    removed = 0
    kept = set()
    for day, failed in tx.execute("partitions").fetchall():
        if _is_over(tx, day, retention, State.FAILED if failed else State.DONE):
            removed += _drop_partition(tx, day, failed=failed)
        else:
            kept.add(day)
    oldest = min(kept, default=tx.now // DAY)
    for (day,) in tx.execute("log_days").fetchall():
        if day < oldest and _is_over(tx, day, retention, State.FAILED):
            _drop_log(tx, day)
    return removed


def sweep_queues(tx: PostgresTransaction, after: str) -> str:
    """Remove a portion of queues without jobs; return where the next portion begins.

    Two transactions that remove the last jobs of a queue at the same time do not see each other, so
    that the queue stays. Also counts queues that callers' transactions added.
    """
    changed = tx.execute("count_new_queues").rowcount
    changed += tx.execute("drop_receipts").rowcount
    changed += tx.execute("drop_empty_totals", (_SWEPT_AT_ONCE,)).rowcount
    tx.written = tx.written or changed > 0
    found = tx.execute("unconfigured_queues", (after, tx.now, _SWEPT_AT_ONCE)).fetchone()[0]
    names = rows.names.decode(found)
    tx.remove_unused(names)
    return names[-1] if len(names) == _SWEPT_AT_ONCE else ""


def _is_over(tx: PostgresTransaction, day: int, retention: Retention, state: State) -> bool:
    return (day + 1) * DAY <= tx.now - span_to_micros(retention.keeps(state))


def _drop_partition(tx: PostgresTransaction, day: int, *, failed: bool) -> int:
    removed, queues = tx.execute("clear_partition", (2 * day + failed,)).fetchone()
    tx.remove_unused(rows.names.decode(queues))
    tx.execute("clear_mirrored", (2 * day + failed,))
    tx.drop(f"job_{day}_{'failed' if failed else 'ended'}")
    return int(removed)


def _drop_log(tx: PostgresTransaction, day: int) -> None:
    tx.execute("keep_log_entries", (day, tx.now // DAY))
    tx.drop(f"log_{day}")
