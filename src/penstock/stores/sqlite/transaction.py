"""An open write transaction, and what the verbs of the store share inside one."""

import sqlite3
from collections.abc import Callable, Collection

from penstock.core.job import Job, Scope
from penstock.stores.sql import load_queries
from penstock.stores.sqlite import rows
from penstock.stores.sqlite.rows import RUNNING

SQL = load_queries("penstock.stores.sqlite")

Totals = dict[tuple[str, int], int]
"""How the number of jobs in a queue and stage changes."""


class Transaction:
    """Runs statements; verbs note here what has to happen after the commit."""

    def __init__(self, connection: sqlite3.Connection | sqlite3.Cursor) -> None:
        self.execute: Callable[..., sqlite3.Cursor] = connection.execute
        self.executemany: Callable[..., sqlite3.Cursor] = connection.executemany
        self.written = False
        self.ring = False
        self.ring_others = False

    def jobs(self, ids: str) -> list[Job]:
        """The jobs with these ids, given as a JSON array, in its order."""
        return jobs(self.execute, ids)

    def dedupe_holder(self, dedupe: str, scope: Scope, but: Collection[int] = ()) -> int | None:
        """Who keeps a job with this dedupe key from being pending."""
        for job_id, stage, held in self.execute(SQL["dedupe_holders"], (dedupe,)).fetchall():
            if job_id not in but and (stage < RUNNING or Scope.UNFINISHED in (scope, held)):
                return int(job_id)
        return None

    def add_totals(self, totals: Totals) -> None:
        """Keep the totals that no one counts rows for."""
        self.executemany(SQL["add_totals"], [(*key, n) for key, n in totals.items() if n])
        self.written = True


def jobs(execute: Callable[..., sqlite3.Cursor], ids: str) -> list[Job]:
    """The jobs with these ids, given as a JSON array, in its order."""
    found = execute(SQL["jobs"], (ids,)).fetchone()[0]
    return [rows.job(row) for row in rows.jobs.decode(found)]


def shift(totals: Totals, queue: str, before: int, after: int, n: int = 1) -> None:
    """Note that `n` jobs go from one stage to another."""
    totals[queue, before] = totals.get((queue, before), 0) - n
    totals[queue, after] = totals.get((queue, after), 0) + n
