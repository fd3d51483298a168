"""What the verbs of a store on a database stand on: statements by their names, and one transaction.

A database has its own text for each query, under names that all of them share, and its own
way to number jobs and to hand them over; everything else is written once, in this package.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

from penstock.core.job import Job, JobQuery, Scope
from penstock.core.tables import Cursor, Dialect
from penstock.stores.sql.rows import RUNNING

Totals = dict[tuple[str, int], int]
"""How the number of jobs in a queue and stage changes."""

Freed = tuple[str, str, str | None]
"""The queue, the task and the throttle of a job that runs no more."""

Current = tuple[int | None, int, int | None, int, int]
"""What a job is now: its version, stage and end of the lease, what it needs, if it is awaited."""


Search = Literal["find", "find_ids", "tally"]


class Reading(ABC):
    """Runs statements by their names, and those of applications."""

    dialect: Dialect

    @abstractmethod
    def speak(self, sql: str, parameters: Sequence[Any]) -> Cursor:
        """Run a statement of an application; a `?` marks a parameter."""

    @abstractmethod
    def execute(self, name: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Run the query of this name."""

    @abstractmethod
    def search(self, what: Search, query: JobQuery) -> Cursor:
        """Run a search: for jobs or their ids, in the query's order, or the number per stage."""

    @abstractmethod
    def now(self) -> int:
        """The time that the store goes by; inside a transaction, always the same."""

    @abstractmethod
    def moment(self) -> AbstractContextManager[None]:
        """Let all statements inside the block see the store as it is at one moment."""

    @abstractmethod
    def jobs(self, ids: Sequence[int]) -> list[Job]:
        """The jobs with these ids, in this order; unknown ones are left out."""


class Transaction(Reading):
    """A transaction that writes; verbs note here what has to happen after the commit."""

    def __init__(self) -> None:
        self.written = False
        self.ring = False
        self.ring_others = False
        # What had a place among running jobs and gave it back, where limits are in force.
        self.freed: set[Freed] = set()

    @abstractmethod
    def executemany(self, name: str, parameters: Sequence[Sequence[Any]]) -> None:
        """Run the query of this name with each of these."""

    @abstractmethod
    def speak_each(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """Run a statement of an application with each of these."""

    @abstractmethod
    def run_script(self, script: str) -> None:
        """Run statements that have no parameters and no answer."""

    @abstractmethod
    def shelter(self, do: Callable[[], Any]) -> Any:
        """Do a part of the transaction; returns what it raises, if the rest can go on without."""

    @abstractmethod
    def is_broken_by(self, error: Exception) -> bool:
        """Whether nothing can be written any more after this."""

    @abstractmethod
    def link(self) -> None:
        """Tell those who wait for jobs of ends that were written outside of this package."""

    @abstractmethod
    def reserve(self, jobs: int, entries: int) -> tuple[Sequence[int], Sequence[int]]:
        """Numbers for so many jobs and entries of the log, higher than any given before."""

    @abstractmethod
    def stop_numbering(self) -> tuple[int, int]:
        """The highest numbers of a job and of an entry; nobody takes one before the end."""

    @abstractmethod
    def keep_numbers(self) -> None:
        """Never give a number again that was given, although its job will be removed."""

    @abstractmethod
    def number_on(self, last_job: int, last_entry: int) -> None:
        """Give only higher numbers from now on, whatever is removed."""

    @abstractmethod
    def numbers(self, numbers: Sequence[int]) -> Any:
        """These numbers, or a part of them, as the parameter of a query."""

    @abstractmethod
    def current(self, ids: Sequence[int]) -> Sequence[Current]:
        """What these jobs are now, in this order; nobody else changes them before the end."""

    @abstractmethod
    def start(self, ids: Sequence[int], worker: str, now: int) -> list[Job]:
        """Give ready jobs out, which nobody else changes; as they are then, in this order."""

    @abstractmethod
    def add_jobs(
        self,
        ids: Sequence[int],
        versions: Sequence[int],
        now: int,
        groups: Sequence[tuple[tuple[Any, ...], Sequence[str]]],
    ) -> None:
        """Write new jobs: groups of those that share their options, and the payloads of each."""

    @abstractmethod
    def restore_job(self, columns: Sequence[Any], payload: str) -> None:
        """Write a job that comes from elsewhere."""

    @abstractmethod
    def restore_log(self, entries: Sequence[Sequence[Any]], queue: str) -> None:
        """Write the entries about such a job."""

    @abstractmethod
    def add_totals(self, totals: Totals) -> None:
        """Keep the totals that no one counts rows for."""

    @abstractmethod
    def add_queues(self, names: Collection[str]) -> None:
        """Make queues; the first ones of a store have lines of their own."""

    @abstractmethod
    def remove_unused(self, queues: Collection[str]) -> None:
        """Remove those of these queues that have neither jobs nor settings."""

    def dedupe_holder(self, dedupe: str, scope: Scope, but: Collection[int] = ()) -> int | None:
        """Who keeps a job with this dedupe key from being pending."""
        for job_id, stage, held in self.execute("dedupe_holders", (dedupe,)).fetchall():
            if job_id not in but and (stage < RUNNING or Scope.UNFINISHED in (scope, held)):
                return int(job_id)
        return None


def shift(totals: Totals, queue: str, before: int, after: int, n: int = 1) -> None:
    """Note that `n` jobs go from one stage to another."""
    totals[queue, before] = totals.get((queue, before), 0) - n
    totals[queue, after] = totals.get((queue, after), 0) + n
