"""An open write transaction on a SQLite file, and reading from one."""

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from penstock.core.job import Job, JobQuery
from penstock.core.lifecycle import State
from penstock.core.store import Clock
from penstock.stores.sql import load_queries, rows
from penstock.stores.sql.adding import add_tags
from penstock.stores.sql.moving import Moving
from penstock.stores.sql.rows import encoded
from penstock.stores.sql.transaction import (
    Current,
    Reading,
    Search,
    Totals,
    Transaction,
    shift,
)
from penstock.stores.sqlite.connection import statements
from penstock.stores.sqlite.searching import searched, tagged, tallied

SQL = load_queries("penstock.stores.sqlite")

# All of them become one text, which SQLite limits to a billion bytes.
_JOBS_AT_ONCE = 100
_LAST = 2**63 - 1


class SqliteReading(Reading):
    """Runs statements on a connection."""

    dialect = "sqlite"

    def __init__(self, connection: sqlite3.Connection | sqlite3.Cursor, clock: Clock) -> None:
        super().__init__()
        self._connection = connection
        self._execute = connection.execute
        self._clock = clock

    def execute(self, name: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        """See `Reading.execute`."""
        return self._execute(SQL[name], parameters)

    def speak(self, sql: str, parameters: Sequence[Any]) -> sqlite3.Cursor:
        """See `Reading.speak`."""
        return self._execute(sql, parameters)

    def search(self, what: Search, query: JobQuery) -> sqlite3.Cursor:
        """See `Reading.search`."""
        tail, parameters = tallied(query) if what == "tally" else searched(query)
        name = f"{what}_tagged" if tagged(query) else what
        return self._execute(f"{SQL[name]} {tail}", parameters)

    def now(self) -> int:
        """See `Reading.now`."""
        return self._clock()

    @contextlib.contextmanager
    def moment(self) -> Iterator[None]:
        """See `Reading.moment`."""
        self._execute("BEGIN")
        try:
            yield
        finally:
            self._execute("COMMIT")

    def jobs(self, ids: Sequence[int]) -> list[Job]:
        """See `Reading.jobs`."""
        found: list[Job] = []
        for start in range(0, len(ids), _JOBS_AT_ONCE):
            wanted = encoded(ids[start : start + _JOBS_AT_ONCE])
            row = self._execute(SQL["jobs"], (wanted,)).fetchone()[0]
            found += [rows.job(columns) for columns in rows.jobs.decode(row)]
        return found


class SqliteTransaction(SqliteReading, Transaction):
    """Runs statements of one transaction."""

    def executemany(self, name: str, parameters: Sequence[Sequence[Any]]) -> None:
        """See `Transaction.executemany`."""
        self._connection.executemany(SQL[name], parameters)

    def speak_each(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """See `Transaction.speak_each`."""
        self._connection.executemany(sql, parameters)

    def run_script(self, script: str) -> None:
        """See `Transaction.run_script`."""
        for statement in statements(script):
            self._execute(statement)

    def shelter(self, do: Callable[[], Any]) -> Any:
        """See `Transaction.shelter`."""
        self._execute("SAVEPOINT penstock_part")
        try:
            answer = do()
        except sqlite3.Error:
            raise  # it may have ended the whole transaction
        except Exception as error:  # noqa: BLE001 - it is the answer of that part
            self._execute("ROLLBACK TO penstock_part")
            answer = error
        self._execute("RELEASE penstock_part")
        return answer

    def is_broken_by(self, error: Exception) -> bool:  # noqa: ARG002 - only the statement is undone
        """See `Transaction.is_broken_by`."""
        return False

    def link(self) -> None:
        """See `Transaction.link`: jobs that programs have ended with SQL alone."""
        ended = self._execute(SQL["arrived"]).fetchall()
        if ended:
            moving = Moving(self, self.now())
            moving.arrive(
                (), (), {job_id: (State(state), actor) for job_id, state, actor in ended}, ()
            )
            moving.write([])
            self.written = True

    def reserve(self, jobs: int, entries: int) -> tuple[list[int], list[int]]:
        """See `Transaction.reserve`. Nobody else writes meanwhile."""
        last_job, last_log = self._execute(SQL["last_ids"]).fetchone()
        return _following(last_job, jobs), _following(last_log, entries)

    def stop_numbering(self) -> tuple[int, int]:
        """See `Transaction.stop_numbering`."""
        last_job, last_log = self._execute(SQL["last_ids"]).fetchone()
        return last_job, last_log

    def keep_numbers(self) -> None:
        """See `Transaction.keep_numbers`."""
        self.number_on(*self.stop_numbering())

    def number_on(self, last_job: int, last_entry: int) -> None:
        """See `Transaction.number_on`."""
        self._execute(SQL["remember_last_ids"], (last_job, last_entry))

    def numbers(self, numbers: Sequence[int]) -> int:
        """See `Transaction.numbers`: there are no gaps, so that the first says it all."""
        return numbers[0]

    def current(self, ids: Sequence[int]) -> Sequence[Current]:
        """See `Transaction.current`."""
        found = self._execute(SQL["versions"], (encoded(ids),)).fetchone()[0]
        return rows.versions.decode(found)

    def start(self, ids: Sequence[int], worker: str, now: int) -> list[Job]:
        """See `Transaction.start`."""
        _, tokens = self.reserve(0, len(ids))
        parameters = (tokens[0], now, worker, encoded(ids))
        self._execute(SQL["log_claimed"], parameters)
        self._execute(SQL["start"], parameters)
        jobs = self.jobs(ids)
        totals: Totals = {}
        for queue, n in Counter([job.queue for job in jobs]).items():
            shift(totals, queue, rows.READY, rows.RUNNING, n)
        self.add_totals(totals)
        return jobs

    def add_jobs(
        self,
        ids: Sequence[int],
        versions: Sequence[int],
        now: int,
        groups: Sequence[tuple[tuple[Any, ...], Sequence[str]]],
    ) -> None:
        """See `Transaction.add_jobs`."""
        first, ahead = ids[0], versions[0] - ids[0]
        for options, payloads in groups:
            is_plain = options[rows.RARE] == rows.NONE_OF_THEM
            columns = options[: rows.RARE.start] if is_plain else options
            n = len(payloads)
            if n == 1:
                query = SQL["add_plain_job" if is_plain else "add_job"]
                self._execute(query, (first, first + ahead, now, *columns))
                self._execute(SQL["add_payload"], (first, payloads[0]))
            else:
                query = SQL["add_plain_jobs" if is_plain else "add_jobs"]
                self._execute(SQL["add_payloads"], (encoded(payloads), first))
                self._execute(query, (first, first + n - 1, ahead, now, *columns))
            if not is_plain:
                add_tags(self, range(first, first + n), options)
            first += n

    def restore_job(self, columns: Sequence[Any], payload: str) -> None:
        """See `Transaction.restore_job`."""
        self._execute(SQL["restore_job"], columns)
        self._execute(SQL["add_payload"], (columns[0], payload))

    def restore_log(self, entries: Sequence[Sequence[Any]], queue: str) -> None:  # noqa: ARG002 - the job has it
        """See `Transaction.restore_log`."""
        self.executemany("restore_log", entries)

    def add_totals(self, totals: Totals) -> None:
        """See `Transaction.add_totals`."""
        for (queue, stage), n in totals.items():
            if n:
                self._execute(SQL["add_totals"], (queue, stage, n))
        self.written = True

    def add_queues(self, names: Collection[str]) -> None:
        """See `Transaction.add_queues`."""
        self.executemany("add_queue", [(name,) for name in sorted(names)])

    def remove_unused(self, queues: Collection[str]) -> None:
        """See `Transaction.remove_unused`."""
        self._execute(SQL["remove_unused"], (encoded(list(queues)), self.now()))


def adopt(transaction: SqliteTransaction) -> None:
    """Make the jobs of all newcomers: rows that other programs have added to a table of ours."""
    if transaction.execute("adopt", (_LAST,)).rowcount:
        transaction.written = transaction.ring = transaction.ring_others = True


def _following(last: int, n: int) -> list[int]:
    """The next numbers. A range would cost hundreds of instructions for each item and slice."""
    return [last + 1] if n == 1 else [*range(last + 1, last + 1 + n)]
