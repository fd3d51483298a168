"""The protocol between the verbs of a SQL store and its database.

A `Database` runs reads and writes and notifies waiting workers. Verbs are plain functions over a
`Reader` or a `Transaction`, written once in this package. Each dialect has its own text for every
named query and its own way to number, lock and partition rows.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from penstock.core.job import Claim, Job, JobId, NewJob, Retention
from penstock.core.lifecycle import Done
from penstock.core.query import JobQuery
from penstock.core.superseding import Tail
from penstock.core.tables import Cursor, Dialect, Mirror
from penstock.core.transition import Change

A = TypeVar("A")
C = TypeVar("C")
T = TypeVar("T")

Totals = dict[tuple[str, int], int]
"""Changes of the number of jobs, by queue and stage."""

Freed = tuple[str, str, str | None]
"""The queue, the task and the throttle of a job that stopped running."""

Current = tuple[int | None, int, int | None, int, int]
"""A job's version, stage, lease deadline, number of unresolved dependencies and awaited flag."""

Addition = tuple[Sequence[NewJob], str, Tail | None]
"""One call of `add`: the new jobs, the actor, and the tail that a superseding job was merged with.
"""

Transition = tuple[Sequence[Change], str]
"""One call of `transition`: the changes and the actor."""

Search = Literal["find", "find_ids", "tally"]


class Reader(Protocol):
    """Runs named queries, and statements of applications, on one connection."""

    dialect: ClassVar[Dialect]
    resumable: set[int]
    """Jobs running here that may have a checkpoint; a hint that saves settles a statement."""

    def execute(self, name: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Run the named query."""
        ...

    def execute_sql(self, sql: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Run a statement of an application; `?` marks a parameter."""
        ...

    def search(self, what: Search, query: JobQuery) -> Cursor:
        """Run a search for jobs or ids, in the query's order, or for the number per stage."""
        ...

    def clock(self) -> int:
        """Return the store's time, in microseconds since 1970."""
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Let all statements inside the block see the same state of the database."""
        ...

    def jobs(self, ids: Sequence[int]) -> list[Job]:
        """Return the jobs with these ids, in this order; unknown ids are left out."""
        ...

    def next_change(self, after: int) -> tuple[int | None, bool, int]:
        """Return when the next job falls due or a pause ends, after an instant, and two more.

        The second value says whether a rate may hold jobs, the third is the current time.
        """
        ...

    def fold_totals(self) -> None:
        """Add up totals that transactions noted row by row, where a database does so."""
        ...


class Transaction(Reader, Protocol):
    """A write transaction; verbs also note here what must happen after the commit."""

    now: int
    """The time of the transaction."""
    written: bool
    """Whether there is anything to commit."""
    notify: bool
    """Whether to wake waiters of this process after the commit."""
    notify_others: bool
    """Whether to wake waiters of other processes as well."""
    freed: set[Freed]
    """Jobs that stopped running while limits are in force; others may wait for their slots."""
    oldest_program: int
    """The schema that a program must know at least: migrations up to it have been switched."""

    def executemany(self, name: str, parameters: Sequence[Sequence[Any]]) -> None:
        """Run the named query with each of these parameters."""
        ...

    def executemany_sql(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """Run a statement of an application with each of these parameters."""
        ...

    def run_script(self, script: str) -> None:
        """Run statements without parameters and results."""
        ...

    def protect(self, work: Callable[[], Any]) -> Any:
        """Run a part of the transaction; return what it raises if the rest can go on without it."""
        ...

    def is_broken_by(self, error: Exception) -> bool:
        """Return whether nothing can be written any more after this error."""
        ...

    def require_exclusive(self) -> None:
        """Make sure that no other transaction changes jobs; it may start over to get the lock."""
        ...

    def handle_external_changes(self) -> None:
        """Resolve the dependencies on jobs that other programs ended."""
        ...

    def reserve(self, jobs: int, entries: int) -> tuple[Sequence[int], Sequence[int]]:
        """Reserve ids for jobs and log entries, higher than any before."""
        ...

    def lock_ids(self) -> tuple[int, int]:
        """Return the highest ids of a job and a log entry; nobody takes one before the end."""
        ...

    def keep_ids(self) -> None:
        """Never assign the ids of removed jobs again."""
        ...

    def raise_ids(self, last_job: int, last_entry: int) -> None:
        """Assign only ids higher than these from now on."""
        ...

    def id_parameter(self, ids: Sequence[int]) -> Any:
        """Return consecutive reserved ids in the form that queries of this dialect take."""
        ...

    def current(self, ids: Sequence[int]) -> Sequence[Current]:
        """Return the current state of these jobs, in this order, locked until the end."""
        ...

    def start(self, ids: Sequence[int], wanted: Claim) -> list[Job] | None:
        """Start ready jobs, which no other transaction changes; return them in this order.

        Returns None, and starts none, if the claim does not know the task of one of them.
        """
        ...

    def add_jobs(
        self,
        ids: Sequence[int],
        versions: Sequence[int],
        groups: Sequence[tuple[tuple[Any, ...], Sequence[str]]],
    ) -> None:
        """Insert new jobs: groups with the same options, and the payloads of each group."""
        ...

    def restore_job(self, columns: Sequence[Any], payload: str) -> None:
        """Insert a job of another store."""
        ...

    def restore_log(self, entries: Sequence[Sequence[Any]], queue: str) -> None:
        """Insert the log entries of such a job."""
        ...

    def add_totals(self, totals: Totals) -> None:
        """Update the kept totals."""
        ...

    def add_queues(self, names: Collection[str]) -> None:
        """Insert queues; the first ones of a store have indexes of their own."""
        ...

    def remove_unused(self, queues: Collection[str]) -> None:
        """Remove those of these queues that have neither jobs nor settings."""
        ...


Verb = Callable[[Any, Sequence[C]], Sequence[A | Exception]]
"""Runs several calls of one kind in a transaction; an answer that is an exception is raised."""


class Database(Protocol):
    """One open database: runs reads and writes, and notifies waiters."""

    kind: ClassVar[str]

    @property
    def claim(self) -> Verb[Claim, list[Job] | None]:
        """The verb of `Store.claim`; None if another transaction has to go on."""
        ...

    @property
    def add_plain(self) -> Verb[Addition, list[Job]] | None:
        """The verb that adds jobs without keys and dependencies in one statement, if any."""
        ...

    @property
    def finish_plain(self) -> Verb[Transition, list[Job | None]] | None:
        """The verb that ends running jobs without keys and dependents in one statement, if any."""
        ...

    @property
    def install_mirror(self) -> Verb[Mirror, None]:
        """The verb of `TableStore.add_mirror`."""
        ...

    async def write(self, verb: Verb[C, A], call: C) -> A:
        """Run a call with the next transaction; return or raise when that is durable."""
        ...

    async def read(self, work: Callable[[Reader], T]) -> T:
        """Run a read, after rows that other programs inserted have become jobs."""
        ...

    def clock(self) -> int:
        """Return the store's time, as near as this process can tell without a statement."""
        ...

    async def listen(self) -> int:
        """Start listening for changes by other processes; return the current generation."""
        ...

    def notify(self) -> None:
        """Wake all waiters of this process."""
        ...

    async def wait(self, seen: int, timeout: float) -> int:
        """Wait for a generation other than `seen`, or for this time; return the current one."""
        ...

    async def add_within(self, connection: Any, addition: Addition) -> list[Job]:
        """Add jobs inside the transaction of a caller's own connection."""
        ...

    async def finish_within(
        self, connection: Any, ended: Sequence[tuple[Job, Done]], actor: str
    ) -> list[Job]:
        """Settle runs as done inside the transaction of a caller's own connection."""
        ...

    async def supersede_within(self, connection: Any, job_id: JobId, by: JobId, actor: str) -> bool:
        """Supersede a pending job inside the transaction of a caller's own connection."""
        ...

    async def drop_days(self, retention: Retention) -> int | None:
        """Drop whole days of finished jobs; None where jobs are not partitioned by day."""
        ...

    async def wait_for_writers(self) -> None:
        """Wait until all transactions that began before this call have ended."""
        ...

    async def switch(self) -> None:
        """Switch what older programs held up when the store was opened, if they have ended."""
        ...

    def wal_bytes(self) -> int | None:
        """Return the size of the write-ahead log, where it belongs to the store."""
        ...

    async def close(self) -> None:
        """Finish accepted writes and release all resources."""
        ...


def shift(totals: Totals, queue: str, before: int, after: int, n: int = 1) -> None:
    """Note that jobs move from one stage to another."""
    totals[queue, before] = totals.get((queue, before), 0) - n
    totals[queue, after] = totals.get((queue, after), 0) + n
