"""An open write transaction, and what the verbs of the store share inside one."""

import sqlite3
from collections.abc import Callable, Collection, Sequence

from penstock.core.job import Job, Scope
from penstock.stores.sql import load_queries
from penstock.stores.sqlite import rows
from penstock.stores.sqlite.rows import RUNNING, encoded

SQL = load_queries("penstock.stores.sqlite")

# All of them become one text, which SQLite limits to a billion bytes.
_JOBS_AT_ONCE = 100

Totals = dict[tuple[str, int], int]
"""How the number of jobs in a queue and stage changes."""

Freed = tuple[str, str, str | None]
"""The queue, the task and the throttle of a job that runs no more."""


class Transaction:
    """Runs statements; verbs note here what has to happen after the commit."""

    def __init__(self, connection: sqlite3.Connection | sqlite3.Cursor) -> None:
        self.execute: Callable[..., sqlite3.Cursor] = connection.execute
        self.executemany: Callable[..., sqlite3.Cursor] = connection.executemany
        self.written = False
        self.ring = False
        self.ring_others = False
        # What had a place among running jobs and gave it back, where limits are in force.
        self.freed: set[Freed] = set()

    def jobs(self, ids: Sequence[int]) -> list[Job]:
        """The jobs with these ids, in this order; unknown ones are left out."""
        return jobs(self.execute, ids)

    def dedupe_holder(self, dedupe: str, scope: Scope, but: Collection[int] = ()) -> int | None:
        """Who keeps a job with this dedupe key from being pending."""
        for job_id, stage, held in self.execute(SQL["dedupe_holders"], (dedupe,)).fetchall():
            if job_id not in but and (stage < RUNNING or Scope.UNFINISHED in (scope, held)):
                return int(job_id)
        return None

    def add_totals(self, totals: Totals) -> None:
        """Keep the totals that no one counts rows for."""
        for (queue, stage), n in totals.items():
            if n:
                self.execute(SQL["add_totals"], (queue, stage, n))
        self.written = True


def jobs(execute: Callable[..., sqlite3.Cursor], ids: Sequence[int]) -> list[Job]:
    """The jobs with these ids, in this order; unknown ones are left out."""
    found: list[Job] = []
    for start in range(0, len(ids), _JOBS_AT_ONCE):
        wanted = encoded(ids[start : start + _JOBS_AT_ONCE])
        row = execute(SQL["jobs"], (wanted,)).fetchone()[0]
        found += [rows.job(columns) for columns in rows.jobs.decode(row)]
    return found


def shift(totals: Totals, queue: str, before: int, after: int, n: int = 1) -> None:
    """Note that `n` jobs go from one stage to another."""
    totals[queue, before] = totals.get((queue, before), 0) - n
    totals[queue, after] = totals.get((queue, after), 0) + n
