"""The Store protocol on PostgreSQL."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import psycopg
from psycopg.errors import LockNotAvailable

from penstock.core.errors import ConfigurationError, StoreError, StoreUnavailable
from penstock.core.job import (
    Change,
    Claim,
    Job,
    JobId,
    LogEntry,
    LogId,
    NewJob,
    Retention,
    Tail,
)
from penstock.core.lifecycle import Done
from penstock.core.mirror import Mirror
from penstock.core.seal import Seal
from penstock.core.store import Clock
from penstock.stores.postgres import arriving, finishing, mirrors
from penstock.stores.postgres.bell import Bell
from penstock.stores.postgres.beside import Beside, depends
from penstock.stores.postgres.claiming import Claims
from penstock.stores.postgres.connection import address, connect, prepare, queries, translated
from penstock.stores.postgres.shelves import drop_days, sweep_queues
from penstock.stores.postgres.transaction import (
    Connection,
    Mode,
    NeedsAlone,
    PostgresReading,
    PostgresTransaction,
    ours,
)
from penstock.stores.postgres.within import Joining
from penstock.stores.postgres.writer import PostgresWriter
from penstock.stores.sql import (
    attendance,
    history,
    removing,
    rows,
    starting,
    tables,
)
from penstock.stores.sql.adding import Addition
from penstock.stores.sql.claiming import next_start
from penstock.stores.sql.store import SqlStore, answered
from penstock.stores.sql.tables import Joined
from penstock.stores.sql.transaction import Reading, Transaction
from penstock.stores.sql.writer import Verb

A = TypeVar("A")
C = TypeVar("C")
T = TypeVar("T")

_READER_THREADS = 2
# How long to wait for transactions of others that are under way, and how often to look.
_PATIENCE = 30.0
_LOOK = 0.05


class PostgresStore(SqlStore):
    """Jobs in one PostgreSQL database, shared by processes on any number of machines."""

    kind = "postgres"

    def __init__(self, url: str, clock: Clock | None, *, create: bool = True) -> None:
        super().__init__()
        self._where = address(url)
        self._clock = clock
        self.clock: Clock = self._server_time if clock is None else clock
        self._sql = queries(self._where.schema)
        with translated(self._where.name):
            ahead = prepare(self._where, create=create)
        self._beside = Beside()
        self._claims = Claims()
        self._bell = Bell(self._where)
        self._writer = PostgresWriter(self._where, self._sql, clock, self._modes(), self._after)
        self._writer.ahead = ahead
        if self._where.notify:
            self._writer.rings_as(self._bell.name)
        self._readers: deque[Connection] = deque()
        self._threads = ThreadPoolExecutor(_READER_THREADS, "penstock-reader")
        self._joining = Joining(self._where, self._sql, clock)
        self._swept = ""
        self._closed = False

    def _modes(self) -> dict[Verb[Any, Any], Mode]:
        """How much of the queue each verb needs to itself; those that are not here, all of it."""
        return {
            self._beside.add: Mode.BESIDE,
            arriving.adopt_beside: Mode.BESIDE,
            self._claim: Mode.SHARED,
            self._finish: Mode.SHARED,
            self._noting.write: Mode.SHARED,
            self._drop_days: Mode.BESIDE,
            starting.renew: Mode.SHARED,
            starting.let_in: Mode.SHARED,
            removing.prune: Mode.SHARED,
            removing.delete: Mode.SHARED,
            tables.transact: Mode.BESIDE,
            attendance.greet: Mode.BESIDE,
            attendance.dismiss: Mode.BESIDE,
            attendance.drain: Mode.BESIDE,
            history.write: Mode.BESIDE,
        }

    def _server_time(self) -> int:
        """The server's time, as near as this process can tell without asking."""
        return time.time_ns() // 1000 + self._writer.ahead

    async def close(self) -> None:
        """See `Store.close`."""
        if self._closed:
            return
        self._closed = True
        self._bell.close()
        self._writer.close()
        self._threads.shutdown()
        while self._readers:
            self._readers.pop().close()

    async def mirror(self, mirror: Mirror) -> None:
        """See `Store.mirror`."""
        await self._write(mirrors.install, mirror)

    # How verbs reach the database

    async def _write(self, verb: Verb[C, A], call: C) -> A:
        return await self._writer.run(verb, call)

    async def _read(self, read: Callable[[Reading], T]) -> T:
        if self._closed:
            raise StoreError(f"{self._where.name} was closed")
        if await self._aside(lambda: self._read_here(arriving.has_newcomers)):
            await self._write(arriving.adopt_beside, None)
        return await self._aside(lambda: self._read_here(read))

    async def _aside(self, do: Callable[[], T]) -> T:
        """Do what takes time where it keeps no event loop waiting."""
        loop = asyncio._get_running_loop()  # noqa: SLF001 - the public one raises
        return do() if loop is None else await loop.run_in_executor(self._threads, do)

    def _read_here(self, read: Callable[[Reading], T]) -> T:
        with translated(self._where.name):
            try:
                return self._read_once(read)
            except psycopg.OperationalError:  # perhaps only of the connection
                while self._readers:
                    self._readers.pop().close()
                return self._read_once(read)

    def _read_once(self, read: Callable[[Reading], T]) -> T:
        try:
            connection = self._readers.pop()
        except IndexError:  # all in use by other threads
            connection = connect(self._where)
        try:
            answer = read(PostgresReading(connection, self._sql, self._where, self._clock))
        except BaseException:
            connection.close()
            raise
        if len(self._readers) < _READER_THREADS and not self._closed:
            self._readers.append(connection)
        else:
            connection.close()
        return answer

    def _after(self, transaction: PostgresTransaction) -> None:
        """What follows a commit: who waits here is woken, and others where it was not yet said."""
        if transaction.ring:
            self._bell.ring()
        if transaction.freed and not transaction.ring_others and self._where.notify:
            self._read_here(
                lambda reading: (
                    self._is_wanted(reading, transaction.freed)
                    and reading.execute("ring", (self._where.schema, self._bell.name))
                )
            )

    async def seal(self, seal: Seal | None, *, was: Seal | None) -> bool:
        """See `Store.seal`. Waits for those who began to write before."""
        if not await super().seal(seal, was=was):
            return False
        # A number of its own: who has entered before is below it, also who has written nothing yet.
        numbers = await self._read(lambda reading: reading.execute("reserve", (0, 1)).fetchone()[1])
        newest = numbers[0]
        deadline = time.monotonic() + _PATIENCE
        while (await self.newest_log()) < newest:
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"{self._where.name}: a transaction that has enqueued jobs is still open; "
                    "end it, and try again"
                )
            await self._aside(lambda: time.sleep(_LOOK))
        await self._write(self._link_arrived, None)
        return True

    def _link_arrived(self, _tx: Transaction, calls: Sequence[None]) -> list[None]:
        """Have the queue alone once: that links what has come with the last transactions."""
        return list(calls)

    async def wait(self, seen: int, timeout: float) -> int:
        """See `Store.wait`."""
        if not self._bell.listens:
            await self._aside(self._bell.listen)
        now = self._bell.seen()
        if now != seen:
            return now
        due, clock = await self._read(self._look_ahead)
        if due is not None and due <= clock:
            # Once for all who wait here: it may be long until one of them can take it.
            self._announced = clock
            self._bell.ring()
        elif due is not None:
            timeout = min(timeout, (due - clock) / 1e6)
        return await self._bell.wait(seen, timeout)

    def _look_ahead(self, reading: Reading) -> tuple[int | None, int]:
        """When the next job falls due, a pause ends, or a rate lets a job start; and the time."""
        clock, due, is_rated = reading.execute("next_change", (self._announced,)).fetchone()
        now = clock if self._clock is None else self._clock()
        if is_rated:
            start = next_start(reading.execute, self._announced, now)
            due = min((at for at in (due, start) if at is not None), default=None)
        return due, now

    # Adding

    async def add(
        self,
        jobs: Sequence[NewJob],
        *,
        actor: str,
        connection: Any = None,
        tail: Tail | None = None,
        reason: str | None = None,
    ) -> list[Job]:
        """See `Store.add`."""
        alone = connection is None and tail is None and reason is None
        if alone and not any(map(depends, jobs)):
            return await self._write(self._beside.add, (jobs, actor, None))
        return await super().add(jobs, actor=actor, connection=connection, tail=tail, reason=reason)

    async def _add_within(self, connection: Any, call: Addition) -> list[Job]:
        if isinstance(connection, Joined):
            return connection.guarded(lambda: self._add_joined(ours(connection.tx), call))
        jobs, actor, _ = call
        await self._prepare_to_join({job.queue for job in jobs})
        return await self._joining.add(connection, jobs, actor)

    def _add_joined(self, tx: PostgresTransaction, call: Addition) -> list[Job]:
        if tx.mode is not Mode.ALONE and any(map(depends, call[0])):
            raise NeedsAlone
        return answered(self._beside.add(tx, [call]))

    async def _prepare_to_join(self, queues: Collection[str]) -> None:
        if not self._joining.is_prepared(queues, self.clock()):
            await self._read(lambda reading: self._joining.prepare(reading, queues))

    # Claiming

    def _claim(self, tx: Transaction, calls: Sequence[Claim]) -> list[list[Job]]:
        return self._claims.claim(tx, calls)

    # Moving on

    async def transition(self, changes: Sequence[Change], *, actor: str) -> list[Job | None]:
        """See `Store.transition`."""
        ids = {change.job.id for change in changes}
        if changes and len(ids) == len(changes) and all(map(finishing.finishes, changes)):
            return await self._write(self._finish, (changes, actor))
        return await super().transition(changes, actor=actor)

    async def finish(
        self, ended: Sequence[tuple[Job, Done]], *, actor: str, connection: Any
    ) -> list[Job]:
        """See `Store.finish`."""
        if isinstance(connection, Joined):
            tx = ours(connection.tx)
            return connection.guarded(lambda: self._finish_joined(tx, ended, actor))
        await self._prepare_to_join(())
        return [await self._joining.finish(connection, *one, actor) for one in ended]

    async def supersede(self, job_id: JobId, by: JobId, *, actor: str, connection: Any) -> bool:
        """See `Store.supersede`."""
        if not isinstance(connection, Joined):
            raise ConfigurationError("a job takes another's place in a transaction of the store")
        tx = ours(connection.tx)
        return connection.guarded(lambda: self._supersede_joined(tx, job_id, by, actor))

    def _supersede_joined(
        self, tx: PostgresTransaction, job_id: JobId, by: JobId, actor: str
    ) -> bool:
        if tx.mode is not Mode.ALONE:
            raise NeedsAlone
        return self._supersede_within(tx, job_id, by, actor)

    def _finish_joined(
        self, tx: PostgresTransaction, ended: Sequence[tuple[Job, Done]], actor: str
    ) -> list[Job]:
        if tx.mode is not Mode.ALONE:
            raise NeedsAlone
        return self._finish_within(tx, ended, actor)

    def _finish(
        self, tx: Transaction, calls: Sequence[tuple[Sequence[Change], str]]
    ) -> Sequence[list[Job | None] | Exception]:
        """End jobs that run here and that no other job depends on; others with the queue alone."""
        tx = ours(tx)
        answers = finishing.finish(tx, calls)
        left = [
            (
                [change for change, job in zip(changes, ended, strict=True) if job is None],
                actor,
            )
            for (changes, actor), ended in zip(calls, answers, strict=True)
        ]
        any_left = any(changes for changes, _ in left)
        if any_left and tx.mode is not Mode.ALONE:
            raise NeedsAlone
        if self._noting.resumable:
            self._noting.settle(tx, answers)
        return _merged(answers, self._transition(tx, left)) if any_left else answers

    # Retention

    async def prune(self, retention: Retention, limit: int, *, whole_days: bool = False) -> int:
        """See `Store.prune`."""
        if not whole_days:
            return await super().prune(retention, limit)
        try:
            return await self._write(self._drop_days, retention)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, LockNotAvailable):
                return 0  # somebody looks at them; the next time will do
            raise

    def _drop_days(self, tx: Transaction, calls: Sequence[Retention]) -> list[int]:
        tx = ours(tx)
        if tx.execute("any_arrived").fetchone()[0]:
            return [0] * len(calls)  # who waits for them must hear first
        self._swept = sweep_queues(tx, self._swept)
        return [drop_days(tx, retention) for retention in calls]

    # The log and its sums

    async def log(
        self, job_id: JobId | None = None, *, after: LogId | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        """See `Store.log`."""
        if job_id is not None:
            return await super().log(job_id, after=after, limit=limit)

        def read(reading: Reading) -> list[LogEntry]:
            (complete,) = reading.execute("complete").fetchone()
            found = reading.execute("log", (after or 0, limit, complete)).fetchall()
            return [rows.log_entry(row) for row in found]

        return await self._read(read)

    async def newest_log(self) -> LogId:
        """See `Store.newest_log`."""
        found = await self._read(lambda reading: reading.execute("complete").fetchone())
        return LogId(found[0])

    async def digest(self, limit: int) -> int:
        """See `Store.digest`. Also adds up the totals."""

        def read(reading: Reading) -> tuple[history.Digest, int]:
            folded, complete = reading.execute("folded").fetchone()
            if complete > folded:
                reading.execute("fold", (folded, complete))
            return history.digest(reading, limit, complete), complete

        counted, _ = await self._read(read)
        if counted.end == counted.start and counted.forget_before is None:
            return 0
        return await self._write(history.write, counted)


def _merged(
    answers: Sequence[Sequence[Job | None]], rest: Sequence[list[Job | None] | Exception]
) -> list[list[Job | None] | Exception]:
    """The answers, with those in place of each None that are about the rest."""
    whole: list[list[Job | None] | Exception] = []
    for answer, more in zip(answers, rest, strict=True):
        if isinstance(more, Exception):
            if any(answer):  # a part of it was written
                raise more
            whole.append(more)
        else:
            others = iter(more)
            whole.append([next(others) if job is None else job for job in answer])
    return whole
