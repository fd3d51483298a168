"""An open write transaction on PostgreSQL, and reading from it."""

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import count
from typing import Any

import psycopg

from penstock.core.job import Job, JobQuery
from penstock.core.store import Clock
from penstock.core.tables import Cursor
from penstock.stores.postgres.arrays import Int8s, Texts
from penstock.stores.postgres.connection import Address, local_settings, renamed
from penstock.stores.postgres.searching import searched
from penstock.stores.sql import rows
from penstock.stores.sql.rows import encoded
from penstock.stores.sql.transaction import Current, Reading, Search, Totals, Transaction

Connection = psycopg.Connection[Any]

_GONE: Current = (None, -1, None, 0, 0)
# The columns of `add_jobs` behind id, version and body: which are numbers.
_KINDS = [Int8s, Int8s, Texts, Texts, Int8s, Int8s, Int8s, Int8s, Texts, Texts, Texts, Texts, Texts]
_KINDS += [Texts, Texts, Int8s, Texts, Texts, Int8s]
# What is between quotes, or a comment, has no parameters in it.
_QUOTED_OR_MARK = re.compile(r"""'[^']*'|"[^"]*"|--[^\n]*|\?""")


class Mode(IntEnum):
    """How much of the queue a transaction has to itself."""

    BESIDE = 0
    """It meets nobody: new jobs that have nothing to do with others."""
    SHARED = 1
    """It changes jobs that nobody else changes: each is locked, and who finds it so passes by."""
    ALONE = 2
    """What it decides rests on many jobs: all others that share the queue wait for its end."""


class NeedsAlone(Exception):
    """What was asked for cannot be done beside others; nothing was written."""


class PostgresReading(Reading):
    """Runs statements on a connection."""

    dialect = "postgres"

    def __init__(
        self,
        connection: Connection,
        sql: Mapping[str, str],
        where: Address,
        clock: Clock | None,
    ) -> None:
        super().__init__()
        self._connection = connection
        self._sql = sql
        self._where = where
        self._clock = clock

    def execute(self, name: str, parameters: Sequence[Any] = ()) -> Cursor:
        """See `Reading.execute`."""
        return self._connection.execute(self._sql[name], parameters, binary=True)

    def speak(self, sql: str, parameters: Sequence[Any]) -> Cursor:
        """See `Reading.speak`."""
        return self._connection.execute(_numbered(sql), parameters)

    def search(self, what: Search, query: JobQuery) -> Cursor:
        """See `Reading.search`."""
        name, tail, parameters = searched(what, query)
        text = f"{self._sql[name]} {renamed(tail, self._where.schema)}"
        return self._connection.execute(text, parameters, binary=True)

    def now(self) -> int:
        """See `Reading.now`: by the clock of the server, unless a test has its own."""
        if self._clock is not None:
            return self._clock()
        return int(self.execute("now").fetchone()[0])

    def moment(self) -> contextlib.AbstractContextManager[None]:
        """See `Reading.moment`."""
        return _moment(self._connection, self._where)

    def jobs(self, ids: Sequence[int]) -> list[Job]:
        """See `Reading.jobs`."""
        if not ids:
            return []
        return [rows.job(row) for row in self.execute("jobs", (Int8s(ids),))]


class PostgresTransaction(PostgresReading, Transaction):
    """Runs statements of one transaction."""

    def __init__(
        self,
        connection: Connection,
        sql: Mapping[str, str],
        where: Address,
        now: int,
        mode: Mode,
    ) -> None:
        super().__init__(connection, sql, where, None)
        self._now = now
        self._entries: Sequence[int] = ()
        self.mode = mode
        self.spoken = False
        """Whether an application has a part in it."""

    def now(self) -> int:
        """See `Reading.now`: when it began, behind those that it had to wait for."""
        return self._now

    def moment(self) -> contextlib.AbstractContextManager[None]:
        """See `Reading.moment`; not needed inside a transaction that has the queue alone."""
        return contextlib.nullcontext()

    def run(self, statement: bytes) -> None:
        """Run a statement that is no query."""
        self._connection.execute(statement, prepare=False)
        self.written = True

    @property
    def schema(self) -> str:
        """Where the tables of the store are."""
        return self._where.schema

    def drop(self, table: str) -> None:
        """Remove a table of the schema, with all that is in it."""
        self.run(f"DROP TABLE {self._where.schema}.{table}".encode())

    def executemany(self, name: str, parameters: Sequence[Sequence[Any]]) -> None:
        """See `Transaction.executemany`."""
        for one in parameters:
            self.execute(name, one)

    def speak_each(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """See `Transaction.speak_each`."""
        with self._connection.cursor() as cursor:
            cursor.executemany(_numbered(sql), parameters)

    def run_script(self, script: str) -> None:
        """See `Transaction.run_script`."""
        self.run(script.encode())

    def shelter(self, do: Callable[[], Any]) -> Any:
        """See `Transaction.shelter`: a failed statement spoils all of a transaction.

        Then the writer gives each caller a transaction of its own, which is rarely needed. Two
        more statements for each of them would be paid for always.
        """
        self.spoken = True
        return do()

    def is_broken_by(self, error: Exception) -> bool:
        """See `Transaction.is_broken_by`."""
        return isinstance(error, psycopg.Error | NeedsAlone)

    def link(self) -> None:
        """See `Transaction.link`: who has the queue alone has done so before anything else."""
        if self.mode is not Mode.ALONE and self.execute("any_arrived").fetchone()[0]:
            raise NeedsAlone

    def reserve(self, jobs: int, entries: int) -> tuple[Sequence[int], Sequence[int]]:
        """See `Transaction.reserve`."""
        found: tuple[Sequence[int], Sequence[int]]
        found = self.execute("reserve", (jobs, entries)).fetchone()
        self._entries = found[1] or self._entries
        return found

    def stop_numbering(self) -> tuple[int, int]:
        """See `Transaction.stop_numbering`."""
        # A transaction of somebody else that has added jobs may stay open for minutes, and nobody
        # can move on meanwhile.
        self.run(b"SET LOCAL lock_timeout = '1s'")
        self._connection.execute(self._sql["keep_numbers"])
        self._connection.execute(self._sql["keep_log_numbers"])
        self.run(b"SET LOCAL lock_timeout = 0")
        last_job, last_log = self.execute("last_ids").fetchone()
        return last_job, last_log

    def keep_numbers(self) -> None:
        """See `Transaction.keep_numbers`: a sequence never goes back."""

    def number_on(self, last_job: int, last_entry: int) -> None:
        """See `Transaction.number_on`."""
        self.execute("remember_last_ids", (last_job, last_entry))

    def numbers(self, numbers: Sequence[int]) -> Int8s:
        """See `Transaction.numbers`."""
        return Int8s(numbers)

    def current(self, ids: Sequence[int]) -> Sequence[Current]:
        """See `Transaction.current`. Those that others change just now count as gone."""
        found: list[Current] = [_GONE] * len(ids)
        for place, *current in self.execute("versions", (Int8s(ids),)):
            found[place - 1] = tuple(current)
        missing = [n for n, current in enumerate(found) if current is _GONE]
        if missing:
            wanted = Int8s([ids[n] for n in missing])
            for place, *current in self.execute("versions_finished", (wanted,)):
                found[missing[place - 1]] = tuple(current)
        return found

    def start(self, ids: Sequence[int], worker: str, now: int) -> list[Job]:
        """See `Transaction.start`."""
        found = self.execute("start", (now, worker, Int8s(ids))).fetchall()
        self.written = True
        return [rows.job(row[3:]) for row in found]

    def add_jobs(
        self,
        ids: Sequence[int],
        versions: Sequence[int],
        now: int,
        groups: Sequence[tuple[tuple[Any, ...], Sequence[str]]],
    ) -> None:
        """See `Transaction.add_jobs`."""
        bodies = [payload for _, payloads in groups for payload in payloads]
        each = [options for options, payloads in groups for _ in payloads]
        columns = [
            kind(values) for kind, values in zip(_KINDS, zip(*each, strict=True), strict=True)
        ]
        self.execute("add_jobs", (Int8s(ids), Int8s(versions), Texts(bodies), *columns, now))
        tagged = [
            job_id
            for job_id, options in zip(ids, each, strict=True)
            if options[rows.TAGS] is not None
        ]
        if tagged:
            self.execute("add_tags_of", (Int8s(tagged),))

    def restore_job(self, columns: Sequence[Any], payload: str) -> None:
        """See `Transaction.restore_job`."""
        self.execute("restore_job", (*columns, payload, self._now))

    def restore_log(self, entries: Sequence[Sequence[Any]], queue: str) -> None:
        """See `Transaction.restore_log`."""
        self.executemany("restore_log", [(*entry, queue, self._now) for entry in entries])

    def _last_entry(self) -> int:
        """The number of an entry of this transaction, by which its totals are told from older."""
        return (self._entries or self.reserve(0, 1)[1])[-1]

    def add_totals(self, totals: Totals) -> None:
        """See `Transaction.add_totals`."""
        changes = [(queue, stage, n) for (queue, stage), n in totals.items() if n]
        if changes:
            self.execute("add_totals", (encoded(changes), self._last_entry()))
        self.written = True

    def add_queues(self, names: Collection[str]) -> None:
        """See `Transaction.add_queues`. Others may make some of them at the same time."""
        self.execute("add_queues", (Texts(sorted(names)),))

    def remove_unused(self, queues: Collection[str]) -> None:
        """See `Transaction.remove_unused`.

        Who adds jobs to a queue keeps it for its transaction. So a queue that is locked here, and
        is seen to have none after that, has none.
        """
        unused = self._unused(queues)
        if unused:
            locked = self.execute("lock_unused", (encoded(unused),)).fetchall()
            unused = self._unused([name for (name,) in locked])
        if unused:
            self.execute("remove_unused", (encoded(unused),))
            self.written = True

    def _unused(self, queues: Collection[str]) -> list[str]:
        found = self.execute("unused", (encoded(list(queues)), self._now)).fetchall()
        return [name for (name,) in found]


def ours(tx: Transaction) -> PostgresTransaction:
    """The transaction that a verb of this store was given."""
    if not isinstance(tx, PostgresTransaction):
        raise TypeError(tx)
    return tx


@lru_cache(maxsize=1_000)
def _numbered(sql: str) -> str:
    """This SQL with numbers for its parameters."""
    numbers = count(1)
    return _QUOTED_OR_MARK.sub(
        lambda found: f"${next(numbers)}" if found[0] == "?" else found[0], sql
    )


@contextlib.contextmanager
def _moment(connection: Connection, where: Address) -> Iterator[None]:
    settings = local_settings(where)
    connection.execute(
        f"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; {settings}".encode(), prepare=False
    )
    try:
        yield
    finally:
        connection.execute("COMMIT")
