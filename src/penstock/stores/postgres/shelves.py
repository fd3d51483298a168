"""Removes finished jobs by the day: their tables are dropped, at no cost per job."""

from penstock.core.job import Retention
from penstock.core.lifecycle import State
from penstock.core.times import span_to_micros
from penstock.stores.postgres.connection import DAY
from penstock.stores.postgres.transaction import PostgresTransaction

# A table cannot be dropped while a transaction of anybody looks at it; others must not queue up
# behind this one meanwhile.
_PATIENCE = b"SET LOCAL lock_timeout = '200ms'"


def drop_days(tx: PostgresTransaction, retention: Retention) -> int:
    """Drop the days whose jobs are all past their time; how many jobs went.

    Who finds another one at it leaves it to that one.
    """
    if not tx.execute("drop_alone").fetchone()[0]:
        return 0
    tx.run(_PATIENCE)
    removed = 0
    kept = set()
    for day, failed in tx.execute("shelves").fetchall():
        if _is_over(tx, day, retention, State.FAILED if failed else State.DONE):
            removed += _drop_shelf(tx, day, failed=failed)
        else:
            kept.add(day)
    oldest = min(kept, default=tx.now() // DAY)
    for (day,) in tx.execute("log_days").fetchall():
        if day < oldest and _is_over(tx, day, retention, State.FAILED):
            _drop_log(tx, day)
    return removed


def _is_over(tx: PostgresTransaction, day: int, retention: Retention, state: State) -> bool:
    return (day + 1) * DAY <= tx.now() - span_to_micros(retention.keeps(state))


def _drop_shelf(tx: PostgresTransaction, day: int, *, failed: bool) -> int:
    (removed,) = tx.execute("clear_shelf", (2 * day + failed,)).fetchone()
    tx.execute("clear_mirrored", (2 * day + failed,))
    tx.drop(f"job_{day}_{'failed' if failed else 'ended'}")
    return int(removed)


def _drop_log(tx: PostgresTransaction, day: int) -> None:
    tx.execute("keep_entries", (day, tx.now() // DAY))
    tx.drop(f"log_{day}")
