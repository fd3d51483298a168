"""Readers of a SQLite file, and its write transactions."""

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, ClassVar

from penstock.core.job import Claim, Job
from penstock.core.lifecycle import State
from penstock.core.query import JobQuery
from penstock.core.store import Clock
from penstock.core.tables import Dialect
from penstock.stores.sql import load_queries, rows
from penstock.stores.sql.additions import add_tags
from penstock.stores.sql.database import Current, Freed, Search, Totals, shift
from penstock.stores.sql.rows import encoded
from penstock.stores.sql.transitions import Transitions
from penstock.stores.sqlite.schema import SCRIPTS, statements
from penstock.stores.sqlite.search import searched, tagged, tallied

SQL = load_queries("penstock.stores.sqlite", schema=SCRIPTS.version)

# All of them become one text, which SQLite limits to a billion bytes.
_JOBS_AT_ONCE = 100
_LAST = 2**63 - 1


class SqliteReader:
    """Runs statements on a connection; see `Reader`."""

    dialect: ClassVar[Dialect] = "sqlite"

    def __init__(
        self, connection: sqlite3.Connection | sqlite3.Cursor, clock: Clock, resumable: set[int]
    ) -> None:
        self._connection = connection
        self._execute = connection.execute
        self.clock = clock
        self.resumable = resumable

    def execute(self, name: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        """See `Reader.execute`."""
        return self._execute(SQL[name], parameters)

    def execute_sql(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        """See `Reader.execute_sql`."""
        return self._execute(sql, parameters)

    def search(self, what: Search, query: JobQuery) -> sqlite3.Cursor:
        """See `Reader.search`."""
        tail, parameters = tallied(query) if what == "tally" else searched(query)
        name = f"{what}_tagged" if tagged(query) else what
        return self._execute(f"{SQL[name]} {tail}", parameters)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """See `Reader.snapshot`."""
        self._execute("BEGIN")
        try:
            yield
        finally:
            self._execute("COMMIT")

    def jobs(self, ids: Sequence[int]) -> list[Job]:
        """See `Reader.jobs`."""
        return [rows.job(columns) for columns in self._rows(ids)]

    def _rows(self, ids: Sequence[int]) -> list[list[Any]]:
        """Return the columns of these jobs."""
        found: list[list[Any]] = []
        for start in range(0, len(ids), _JOBS_AT_ONCE):
            wanted = encoded(ids[start : start + _JOBS_AT_ONCE])
            found += rows.jobs.decode(self._execute(SQL["jobs"], (wanted,)).fetchone()[0])
        return found

    def next_change(self, after: int) -> tuple[int | None, bool, int]:
        """See `Reader.next_change`."""
        due, is_rated = self._execute(SQL["next_change"], (after,)).fetchone()
        return due, bool(is_rated), self.clock()

    def fold_totals(self) -> None:
        """See `Reader.fold_totals`; totals are always added up here."""


class SqliteTransaction(SqliteReader):
    """Runs statements of one write transaction; see `Transaction`."""

    def __init__(
        self, connection: sqlite3.Connection | sqlite3.Cursor, clock: Clock, resumable: set[int]
    ) -> None:
        self._connection = connection
        self._execute = connection.execute
        self.clock = clock
        self.now = clock()
        self.resumable = resumable
        self.written = self.notify = self.notify_others = False
        self.freed: set[Freed] = set()
        self.oldest_program = 0

    def enter(self) -> tuple[int | None, int | None]:
        """Learn what the store allows; return the first and last id of external rows.

        Raises an error of the driver if this program may not use the store any more.
        """
        row = self._execute(SQL["external_rows"]).fetchone()
        first, last, self.oldest_program = row
        return first, last

    def executemany(self, name: str, parameters: Sequence[Sequence[Any]]) -> None:
        """See `Transaction.executemany`."""
        self._connection.executemany(SQL[name], parameters)

    def executemany_sql(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """See `Transaction.executemany_sql`."""
        self._connection.executemany(sql, parameters)

    def run_script(self, script: str) -> None:
        """See `Transaction.run_script`."""
        for statement in statements(script):
            self._execute(statement)

    def protect(self, work: Callable[[], Any]) -> Any:
        """See `Transaction.protect`."""
        self._execute("SAVEPOINT penstock_part")
        try:
            answer = work()
        except sqlite3.Error:
            raise  # it may have ended the whole transaction
        except Exception as error:  # noqa: BLE001 - it is the answer to that part
            self._execute("ROLLBACK TO penstock_part")
            answer = error
        self._execute("RELEASE penstock_part")
        return answer

    def is_broken_by(self, error: Exception) -> bool:  # noqa: ARG002 - only the statement is undone
        """See `Transaction.is_broken_by`."""
        return False

    def require_exclusive(self) -> None:
        """See `Transaction.require_exclusive`; a file has one writer at a time."""

    def import_external_rows(self, last: int = _LAST) -> None:
        """Make jobs of rows that other programs inserted, up to this id."""
        if self._execute(SQL["import_external_rows"], (last,)).rowcount:
            self.written = self.notify = self.notify_others = True

    def handle_external_changes(self) -> None:
        """See `Transaction.handle_external_changes`."""
        ended = self._execute(SQL["external_changes"]).fetchall()
        if ended:
            transitions = Transitions(self)
            transitions.add_external(
                (), {job_id: (State(state), actor) for job_id, state, actor in ended}, ()
            )
            transitions.write([])
            self.written = True

    def reserve(self, jobs: int, entries: int) -> tuple[list[int], list[int]]:
        """See `Transaction.reserve`. No other transaction writes meanwhile."""
        last_job, last_log = self._execute(SQL["last_ids"]).fetchone()
        # A range in place of these lists would cost hundreds of instructions an item and slice.
        if jobs == entries == 1:
            return [last_job + 1], [last_log + 1]
        return (
            [*range(last_job + 1, last_job + 1 + jobs)],
            [*range(last_log + 1, last_log + 1 + entries)],
        )

    def lock_ids(self) -> tuple[int, int]:
        """See `Transaction.lock_ids`."""
        last_job, last_log = self._execute(SQL["last_ids"]).fetchone()
        return last_job, last_log

    def keep_ids(self) -> None:
        """See `Transaction.keep_ids`."""
        self.raise_ids(*self.lock_ids())

    def raise_ids(self, last_job: int, last_entry: int) -> None:
        """See `Transaction.raise_ids`."""
        self._execute(SQL["remember_last_ids"], (last_job, last_entry))

    def id_parameter(self, ids: Sequence[int]) -> int:
        """See `Transaction.id_parameter`: without gaps, the first says it all."""
        return ids[0]

    def current(self, ids: Sequence[int]) -> Sequence[Current]:
        """See `Transaction.current`."""
        found = self._execute(SQL["versions"], (encoded(ids),)).fetchone()[0]
        return rows.versions.decode(found)

    def start(self, ids: Sequence[int], wanted: Claim) -> list[Job] | None:
        """See `Transaction.start`.

        Jobs are read before they are written, and so are their tasks, which `pick` does not read.
        """
        _, tokens = self.reserve(0, len(ids))
        jobs = self._started(ids, tokens[0], wanted.worker)
        if wanted.tasks is not None and not all(map(wanted.tasks.take, jobs)):
            return None
        parameters = (tokens[0], self.now, wanted.worker, encoded(ids))
        self._execute(SQL["log_claimed"], parameters)
        self._execute(SQL["start"], parameters)
        totals: Totals = {}
        for queue, n in Counter([job.queue for job in jobs]).items():
            shift(totals, queue, rows.READY, rows.RUNNING, n)
        self.add_totals(totals)
        return jobs

    def _started(self, ids: Sequence[int], token: int, worker: str) -> list[Job]:
        """Return these jobs as the query `start` is going to leave them."""
        started: list[Job] = []
        for row in self._rows(ids):
            attempt, lease_time = row[3], row[13]
            row[1:5] = rows.RUNNING, token, attempt + 1, token
            row[6:9] = self.now, self.now + lease_time, worker
            started.append(rows.job(row))
            token += 1
        return started

    def add_jobs(
        self,
        ids: Sequence[int],
        versions: Sequence[int],
        groups: Sequence[tuple[tuple[Any, ...], Sequence[str]]],
    ) -> None:
        """See `Transaction.add_jobs`."""
        first, ahead, now = ids[0], versions[0] - ids[0], self.now
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
        self._execute(SQL["remove_unused"], (encoded(list(queues)), self.now))
