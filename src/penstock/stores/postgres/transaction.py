"""Readers of a PostgreSQL database, and its write transactions."""

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import count
from typing import Any, ClassVar

import psycopg

from penstock.core.job import Claim, Job
from penstock.core.query import JobQuery
from penstock.core.store import Clock
from penstock.core.tables import Cursor, Dialect
from penstock.stores.postgres.arrays import Int8s, Texts
from penstock.stores.postgres.connection import Address, local_settings, renamed
from penstock.stores.postgres.search import searched
from penstock.stores.sql import rows
from penstock.stores.sql.database import Current, Freed, Search, Totals
from penstock.stores.sql.rows import encoded

Connection = psycopg.Connection[Any]

_GONE: Current = (None, -1, None, 0, 0)
# The types of the columns of `add_jobs` after id, version and body.
_COLUMN_TYPES = [
    Int8s, Int8s, Texts, Texts, Int8s, Int8s, Int8s, Int8s, Texts, Texts, Texts, Texts, Texts,
    Texts, Texts, Int8s, Texts, Texts, Int8s, Int8s,
]  # fmt: skip
# Quoted text and comments contain no parameters.
_QUOTED_OR_MARK = re.compile(r"""'[^']*'|"[^"]*"|--[^\n]*|\?""")


class LockMode(IntEnum):
    """How a transaction locks the jobs of the store as a whole."""

    NONE = 0
    """It meets no other transaction: new jobs that do not depend on others."""
    SHARED = 1
    """It locks each job that it changes; transactions that find a job locked skip it."""
    EXCLUSIVE = 2
    """Its decisions rest on many jobs: all transactions with a shared lock wait for its end."""


class NeedsExclusive(Exception):
    """The transaction has to start over with an exclusive lock; nothing was written."""


class PostgresReader:
    """Runs statements on a connection; see `Reader`. Without a clock, the server's decides."""

    dialect: ClassVar[Dialect] = "postgres"

    def __init__(
        self,
        connection: Connection,
        sql: Mapping[str, str],
        where: Address,
        clock: Clock | None,
        resumable: set[int],
    ) -> None:
        self._connection = connection
        self._sql = sql
        self._where = where
        self._clock = clock
        self.resumable = resumable

    def execute(self, name: str, parameters: Sequence[Any] = ()) -> Cursor:
        """See `Reader.execute`."""
        return self._connection.execute(self._sql[name], parameters, binary=True)

    def execute_sql(self, sql: str, parameters: Sequence[Any] = ()) -> Cursor:
        """See `Reader.execute_sql`."""
        return self._connection.execute(_numbered(sql), parameters)

    def search(self, what: Search, query: JobQuery) -> Cursor:
        """See `Reader.search`."""
        name, tail, parameters = searched(what, query)
        text = f"{self._sql[name]} {renamed(tail, self._where.schema)}"
        return self._connection.execute(text, parameters, binary=True)

    def clock(self) -> int:
        """See `Reader.clock`."""
        if self._clock is not None:
            return self._clock()
        return int(self.execute("now").fetchone()[0])

    def snapshot(self) -> contextlib.AbstractContextManager[None]:
        """See `Reader.snapshot`."""
        return self._snapshot()

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[None]:
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
        self._connection.execute(f"{begin}; {local_settings(self._where)}".encode(), prepare=False)
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    def jobs(self, ids: Sequence[int]) -> list[Job]:
        """See `Reader.jobs`."""
        if not ids:
            return []
        return [rows.job(row) for row in self.execute("jobs", (Int8s(ids),))]

    def next_change(self, after: int) -> tuple[int | None, bool, int]:
        """See `Reader.next_change`."""
        now, due, is_rated = self.execute("next_change", (after,)).fetchone()
        return due, is_rated, now if self._clock is None else self._clock()

    def fold_totals(self) -> None:
        """See `Reader.fold_totals`."""
        folded, complete = self.execute("folded_totals").fetchone()
        if complete > folded:
            self.execute("fold_totals", (folded, complete))


class PostgresTransaction(PostgresReader):
    """Runs statements of one write transaction; see `Transaction`."""

    def __init__(
        self,
        connection: Connection,
        sql: Mapping[str, str],
        where: Address,
        resumable: set[int],
        *,
        now: int,
        mode: LockMode,
        oldest_program: int,
    ) -> None:
        self._connection = connection
        self._sql = sql
        self._where = where
        self._entries: Sequence[int] = ()
        self.resumable = resumable
        self.now = now
        self.mode = mode
        self.oldest_program = oldest_program
        self.written = self.notify = self.notify_others = False
        self.freed: set[Freed] = set()
        self.has_foreign_writes = False
        """Whether an application wrote in it."""

    def clock(self) -> int:
        """See `Reader.clock`: when the transaction began, after those that it waited for."""
        return self.now

    def snapshot(self) -> contextlib.AbstractContextManager[None]:
        """See `Reader.snapshot`; not needed inside a transaction with an exclusive lock."""
        return contextlib.nullcontext()

    def run(self, statement: bytes) -> None:
        """Run a statement that is no query."""
        self._connection.execute(statement, prepare=False)
        self.written = True

    @property
    def schema(self) -> str:
        """The schema of the store's tables."""
        return self._where.schema

    def drop(self, table: str) -> None:
        """Drop a table of the schema."""
        self.run(f"DROP TABLE {self._where.schema}.{table}".encode())

    def executemany(self, name: str, parameters: Sequence[Sequence[Any]]) -> None:
        """See `Transaction.executemany`."""
        for one in parameters:
            self.execute(name, one)

    def executemany_sql(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """See `Transaction.executemany_sql`."""
        with self._connection.cursor() as cursor:
            cursor.executemany(_numbered(sql), parameters)

    def run_script(self, script: str) -> None:
        """See `Transaction.run_script`."""
        self.run(script.encode())

    def protect(self, work: Callable[[], Any]) -> Any:
        """See `Transaction.protect`: a failed statement breaks the whole transaction.

        Then the writer gives each caller a transaction of its own, which is rarely needed. A
        savepoint would cost each of them two statements, always.
        """
        self.has_foreign_writes = True
        return work()

    def is_broken_by(self, error: Exception) -> bool:
        """See `Transaction.is_broken_by`."""
        return isinstance(error, psycopg.Error | NeedsExclusive)

    def require_exclusive(self) -> None:
        """See `Transaction.require_exclusive`."""
        if self.mode is not LockMode.EXCLUSIVE:
            raise NeedsExclusive

    def handle_external_changes(self) -> None:
        """See `Transaction.handle_external_changes`; an exclusive one did so when it began."""
        if (
            self.mode is not LockMode.EXCLUSIVE
            and self.execute("any_external_change").fetchone()[0]
        ):
            raise NeedsExclusive

    def reserve(self, jobs: int, entries: int) -> tuple[Sequence[int], Sequence[int]]:
        """See `Transaction.reserve`."""
        found: tuple[Sequence[int], Sequence[int]]
        found = self.execute("reserve", (jobs, entries)).fetchone()
        self._entries = found[1] or self._entries
        return found

    def lock_ids(self) -> tuple[int, int]:
        """See `Transaction.lock_ids`."""
        # A caller's transaction that has added jobs may stay open for minutes, and nobody can
        # go on meanwhile.
        self.run(b"SET LOCAL lock_timeout = '1s'")
        self._connection.execute(self._sql["lock_job_ids"])
        self._connection.execute(self._sql["lock_log_ids"])
        self.run(b"SET LOCAL lock_timeout = 0")
        last_job, last_log = self.execute("last_ids").fetchone()
        return last_job, last_log

    def keep_ids(self) -> None:
        """See `Transaction.keep_ids`: a sequence never goes back."""

    def raise_ids(self, last_job: int, last_entry: int) -> None:
        """See `Transaction.raise_ids`."""
        self.execute("remember_last_ids", (last_job, last_entry))

    def id_parameter(self, ids: Sequence[int]) -> Int8s:
        """See `Transaction.id_parameter`."""
        return Int8s(ids)

    def current(self, ids: Sequence[int]) -> Sequence[Current]:
        """See `Transaction.current`. Jobs that another transaction is changing count as gone."""
        found: list[Current] = [_GONE] * len(ids)
        for place, *current in self.execute("versions", (Int8s(ids),)):
            found[place - 1] = tuple(current)
        missing = [n for n, current in enumerate(found) if current is _GONE]
        if missing:
            wanted = Int8s([ids[n] for n in missing])
            for place, *current in self.execute("versions_finished", (wanted,)):
                found[missing[place - 1]] = tuple(current)
        return found

    def start(self, ids: Sequence[int], wanted: Claim) -> list[Job] | None:
        """See `Transaction.start`; here, a claim comes this way with known tasks only."""
        found = self.execute("start", (self.now, wanted.worker, None, None, Int8s(ids))).fetchall()
        self.written = True
        return [rows.job(row[3:]) for row in found]

    def add_jobs(
        self,
        ids: Sequence[int],
        versions: Sequence[int],
        groups: Sequence[tuple[tuple[Any, ...], Sequence[str]]],
    ) -> None:
        """See `Transaction.add_jobs`."""
        bodies = [payload for _, payloads in groups for payload in payloads]
        each = [options for options, payloads in groups for _ in payloads]
        columns = [
            kind(values)
            for kind, values in zip(_COLUMN_TYPES, zip(*each, strict=True), strict=True)
        ]
        self.execute("add_jobs", (Int8s(ids), Int8s(versions), Texts(bodies), *columns, self.now))
        tagged = [
            job_id
            for job_id, options in zip(ids, each, strict=True)
            if options[rows.TAGS] is not None
        ]
        if tagged:
            self.execute("add_tags_of", (Int8s(tagged),))

    def restore_job(self, columns: Sequence[Any], payload: str) -> None:
        """See `Transaction.restore_job`."""
        self.execute("restore_job", (*columns, payload, self.now))

    def restore_log(self, entries: Sequence[Sequence[Any]], queue: str) -> None:
        """See `Transaction.restore_log`."""
        self.executemany("restore_log", [(*entry, queue, self.now) for entry in entries])

    def add_totals(self, totals: Totals) -> None:
        """See `Transaction.add_totals`."""
        changes = [(queue, stage, n) for (queue, stage), n in totals.items() if n]
        if changes:
            # The id of an entry of this transaction tells its totals from older ones.
            entry = (self._entries or self.reserve(0, 1)[1])[-1]
            self.execute("add_totals", (encoded(changes), entry))
        self.written = True

    def add_queues(self, names: Collection[str]) -> None:
        """See `Transaction.add_queues`. Others may add some of them at the same time."""
        self.execute("add_queues", (Texts(sorted(names)),))

    def remove_unused(self, queues: Collection[str]) -> None:
        """See `Transaction.remove_unused`.

        A transaction that adds jobs to a queue locks the queue until its end. So a queue that is
        locked here, and is seen to have no jobs after that, has none.
        """
        unused = self._unused(queues)
        if unused:
            locked = self.execute("lock_unused", (encoded(unused),)).fetchall()
            unused = self._unused([name for (name,) in locked])
        if unused:
            self.execute("remove_unused", (encoded(unused),))
            self.written = True

    def _unused(self, queues: Collection[str]) -> list[str]:
        found = self.execute("unused", (encoded(list(queues)), self.now)).fetchall()
        return [name for (name,) in found]


@lru_cache(maxsize=1_000)
def _numbered(sql: str) -> str:
    """Return this SQL with numbers for its parameters."""
    numbers = count(1)
    return _QUOTED_OR_MARK.sub(
        lambda found: f"${next(numbers)}" if found[0] == "?" else found[0], sql
    )
