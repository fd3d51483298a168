"""An open write transaction on PostgreSQL, and reading from it."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

import psycopg

from penstock.core.job import Job, JobQuery
from penstock.core.store import Clock
from penstock.stores.postgres.arrays import Int8s, Texts
from penstock.stores.postgres.connection import renamed
from penstock.stores.postgres.searching import searched
from penstock.stores.sql import rows
from penstock.stores.sql.rows import encoded
from penstock.stores.sql.transaction import Current, Cursor, Reading, Search, Totals, Transaction

Connection = psycopg.Connection[Any]

_GONE: Current = (None, -1, None, 0, 0)
# The columns of `add_jobs` behind id, version and body: which are numbers.
_KINDS = [Int8s, Int8s, Texts, Texts, Int8s, Int8s, Int8s, Texts, Texts, Texts, Texts, Texts]
_KINDS += [Texts, Texts, Int8s, Texts, Texts, Int8s]


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

    def __init__(
        self, connection: Connection, sql: Mapping[str, str], schema: str, clock: Clock | None
    ) -> None:
        super().__init__()
        self._connection = connection
        self._sql = sql
        self._schema = schema
        self._clock = clock

    def execute(self, name: str, parameters: Sequence[Any] = ()) -> Cursor:
        """See `Reading.execute`."""
        return self._connection.execute(self._sql[name], parameters, binary=True)

    def search(self, what: Search, query: JobQuery) -> Cursor:
        """See `Reading.search`."""
        name, tail, parameters = searched(what, query)
        text = f"{self._sql[name]} {renamed(tail, self._schema)}"
        return self._connection.execute(text, parameters, binary=True)

    def now(self) -> int:
        """See `Reading.now`: by the clock of the server, unless a test has its own."""
        if self._clock is not None:
            return self._clock()
        return int(self.execute("now").fetchone()[0])

    def moment(self) -> contextlib.AbstractContextManager[None]:
        """See `Reading.moment`."""
        return _moment(self._connection)

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
        schema: str,
        now: int,
        mode: Mode,
    ) -> None:
        super().__init__(connection, sql, schema, None)
        self._now = now
        self._entries: Sequence[int] = ()
        self.mode = mode

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
        return self._schema

    def drop(self, table: str) -> None:
        """Remove a table of the schema, with all that is in it."""
        self.run(f"DROP TABLE {self._schema}.{table}".encode())

    def executemany(self, name: str, parameters: Sequence[Sequence[Any]]) -> None:
        """See `Transaction.executemany`."""
        for one in parameters:
            self.execute(name, one)

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


def ours(tx: Transaction) -> PostgresTransaction:
    """The transaction that a verb of this store was given."""
    if not isinstance(tx, PostgresTransaction):
        raise TypeError(tx)
    return tx


@contextlib.contextmanager
def _moment(connection: Connection) -> Iterator[None]:
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    try:
        yield
    finally:
        connection.execute("COMMIT")
