"""Key lines: which pending jobs become visible to claims, or blocked, after others changed.

`core.key_line` decides. Here are the facts that it decides on, at most three jobs of each key
however many wait behind them, and the update. No other transaction changes pending jobs of a key
meanwhile: SQLite has one writer, and PostgreSQL an exclusive lock. The update compares each job
with what was read, and on PostgreSQL a unique index keeps a second visible job of a key out.
"""

from collections.abc import Collection

from penstock.core.key_line import Queued, rearranged, waiting
from penstock.core.lifecycle import Waiting
from penstock.stores.sql.database import Transaction
from penstock.stores.sql.rows import BLOCKED, RUNNING, STAGE_OF_WAITING, encoded

_WAITING = [*STAGE_OF_WAITING]  # by stage

Restaged = tuple[int, str, int, int]
"""A job that waits for something else now: its id, its queue, and its stage before and after."""


def rearrange(
    tx: Transaction, keys: Collection[str], released: Collection[int] = ()
) -> list[Restaged]:
    """Rearrange the lines of these keys, and jobs that need fewer others than before."""
    changes = _Changes(tx)
    lines = changes.release(released).union(keys) if released else keys
    if lines:
        changes.rearrange(lines)
    return changes.write()


class _Changes:
    """Jobs that go from one stage to another."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._ids: dict[tuple[int, int], list[int]] = {}

    def release(self, ids: Collection[int]) -> set[str]:
        """Make jobs without a key visible if they need no others; return the keys of the rest."""
        now, keys = self._tx.now, set[str]()
        for job_id, key, needs, run_at in self._tx.execute("blocked_jobs", (encoded(ids),)):
            now_waiting = waiting(run_at, now, needs=needs)
            if now_waiting is Waiting.BLOCKED:
                continue
            if key is None:
                self._add(job_id, BLOCKED, now_waiting)
            else:
                keys.add(key)
        return keys

    def rearrange(self, keys: Collection[str]) -> None:
        """Make the right job of each key visible."""
        lines: dict[str, list[Queued[int]]] = {}
        stages: dict[int, int] = {}
        running: set[str] = set()
        for key, job_id, stage, needs, run_at in self._tx.execute("key_lines", (encoded(keys),)):
            if stage == RUNNING:
                running.add(key)
            else:
                stages[job_id] = stage
                pending = Queued(job_id, _WAITING[stage], needs, run_at)
                lines.setdefault(key, []).append(pending)
        now = self._tx.now
        for key, line in lines.items():
            for job_id, now_waiting in rearranged(line, now, running=key in running):
                self._add(job_id, stages[job_id], now_waiting)

    def _add(self, job_id: int, before: int, after: Waiting) -> None:
        self._ids.setdefault((before, STAGE_OF_WAITING[after]), []).append(job_id)

    def write(self) -> list[Restaged]:
        """Write the changes: a job becomes visible after the visible one of its key is blocked."""
        return [
            (job_id, queue, before, after)
            for (before, after), ids in sorted(self._ids.items())
            for job_id, queue in self._tx.execute(
                "restage", (encoded(ids), before, after)
            ).fetchall()
        ]
