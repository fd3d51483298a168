"""One PostgreSQL database: its write transactions, reads, notifications and partitions."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

import psycopg
from psycopg.errors import LockNotAvailable

from penstock.core.errors import ConfigurationError, StoreError, StoreUnavailable
from penstock.core.job import Job, Retention
from penstock.core.lifecycle import Done
from penstock.core.store import Clock
from penstock.forks import ForkGuard, end_threads
from penstock.runtime import Runtime, system_clock
from penstock.stores import Migrate
from penstock.stores.postgres import external_changes, keyed_jobs, mirrors, timeline
from penstock.stores.postgres.caller_transactions import CallerTransactions, NotPrepared
from penstock.stores.postgres.claims import Claims
from penstock.stores.postgres.connection import address, connect, queries, translated
from penstock.stores.postgres.notifier import PostgresNotifier
from penstock.stores.postgres.partitions import drop_days, sweep_queues
from penstock.stores.postgres.plain_jobs import PlainJobs
from penstock.stores.postgres.presence import introduced
from penstock.stores.postgres.round_trips import RoundTrip
from penstock.stores.postgres.schema import prepare, switch
from penstock.stores.postgres.timeline import UnknownTimeline
from penstock.stores.postgres.transaction import (
    Connection,
    LockMode,
    PostgresReader,
    PostgresTransaction,
)
from penstock.stores.postgres.writer import PostgresWriter
from penstock.stores.sql import (
    additions,
    claims,
    jobs,
    removal,
    reports,
    statistics,
    tables,
    workers,
)
from penstock.stores.sql.database import Addition, Reader, Verb
from penstock.stores.sql.group_commit import GroupCommit
from penstock.stores.sql.limits import has_waiting_jobs

A = TypeVar("A")
C = TypeVar("C")
T = TypeVar("T")

_READER_THREADS = 2
# How long to wait for transactions that are under way, and how often to check, in seconds.
_PATIENCE = 30.0
_POLL = 0.05


class PostgresDatabase:
    """One open database, shared by processes on any number of machines; see `Database`.

    The database's clock decides, unless the runtime has one of its own.
    """

    kind: ClassVar[str] = "postgres"
    install_mirror = staticmethod(mirrors.install)

    def __init__(
        self, url: str, runtime: Runtime, *, create: bool = True, migrate: Migrate | None = None
    ) -> None:
        self._where = address(url)
        self._runtime = runtime
        self._clock: Clock | None = None if runtime.clock is system_clock else runtime.clock
        self.clock: Clock = self._server_time if self._clock is None else self._clock
        self._sql = queries(self._where.schema)
        self._plain_jobs = plain_jobs = PlainJobs()
        self.add_plain = plain_jobs.add
        self.finish_plain = plain_jobs.finish
        claiming = Claims(runtime.monotonic)
        self.claim = claiming.claim
        self._notifier = PostgresNotifier(self._where, runtime)
        self.notify = self._notifier.waiters.wake
        self.wait = self._notifier.wait
        resumable: set[int] = set()
        self._writer, self._settling_writer = (
            PostgresWriter(
                self._where,
                self._sql,
                runtime,
                clock=self._clock,
                modes=self._lock_modes(),
                round_trips={
                    self.add_plain: RoundTrip(plain_jobs, LockMode.NONE, True, "added_by"),  # noqa: FBT003
                    self.claim: RoundTrip(claiming, LockMode.SHARED, False, "claimed_by"),  # noqa: FBT003
                },
                notification=self._notification(),
                after_commit=self._after_commit,
                resumable=resumable,
            )
            for _ in range(2)
        )
        self._guard = ForkGuard(self._where.name, self)
        self._group, self._settling_group = (
            GroupCommit(self._where.name, runtime, writer.commit, self._guard)
            for writer in (self._writer, self._settling_writer)
        )
        self._readers: deque[Connection] = deque()
        self._executor = runtime.executor(_READER_THREADS, "penstock-reader")
        self._submitting = threading.Lock()
        self._callers = CallerTransactions(self._where, self._sql, self._clock)
        self._swept = ""
        self._closed = False
        runtime.forks.join(self._guard)
        with self._guard, translated(self._where.name):
            chosen = self._where.migrate or migrate or "manual"
            prepared = prepare(self._where, create=create, migrate=chosen)
            self._writer.first = prepared.connection
            self._writer.ahead = prepared.ahead
            self._is_held_up = prepared.is_held_up

    def _lock_modes(self) -> dict[Verb[Any, Any], LockMode]:
        """Return the lock modes of verbs; those that are not here take an exclusive lock."""
        return {
            self.add_plain: LockMode.NONE,
            keyed_jobs.add: LockMode.SHARED,
            external_changes.import_rows: LockMode.NONE,
            self.claim: LockMode.SHARED,
            self.finish_plain: LockMode.SHARED,
            reports.write: LockMode.SHARED,
            self._drop_days: LockMode.NONE,
            claims.renew: LockMode.SHARED,
            claims.promote: LockMode.SHARED,
            removal.prune: LockMode.SHARED,
            removal.delete: LockMode.SHARED,
            tables.transact: LockMode.NONE,
            workers.heartbeat: LockMode.NONE,
            workers.deregister: LockMode.NONE,
            workers.drain: LockMode.NONE,
            statistics.write: LockMode.NONE,
        }

    def _server_time(self) -> int:
        """Return the server's time, as near as this process can tell without asking."""
        return self._runtime.clock() + self._writer.ahead

    async def close(self) -> None:
        """See `Database.close`."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(StoreError), self._guard:  # which a fork has closed
            self._notifier.close()
            self._group.close()
            self._settling_group.close()
            self._writer.close()
            self._settling_writer.close()
            self._executor.shutdown()
            while self._readers:
                self._readers.pop().close()
        self._guard.close()

    # Forks: see `Forkable`

    def open_connections(self) -> None:
        """Do nothing: connections are opened when they are needed."""

    def close_connections(self) -> None:
        """Close all connections: a child must not share their sockets."""
        self._notifier.close_connection()
        self._writer.close()
        self._settling_writer.close()
        while self._readers:
            self._readers.pop().close()

    def pause_threads(self, deadline: float) -> bool:
        """End the threads of writers, readers and notifications."""
        with self._submitting:
            executor = self._executor
            self._executor = self._runtime.executor(_READER_THREADS, "penstock-reader")
        return (
            self._notifier.pause(deadline)
            and self._group.pause(deadline)
            and self._settling_group.pause(deadline)
            and end_threads(executor, deadline)
        )

    def resume_threads(self) -> None:
        """Let the threads start when they are needed; waiters look, and then listen again."""
        self._notifier.resume()
        self._group.resume()
        self._settling_group.resume()

    def check_before_fork(self) -> None:
        """Do nothing: connections of the program itself are its own."""

    def after_fork_in_child(self) -> None:
        """Do nothing: the guard refuses this store."""

    # Writing

    async def write(self, verb: Verb[C, A], call: C) -> A:
        """See `Database.write`.

        The ends of plain jobs have a connection of their own, opened when first needed: a worker
        settles some jobs while it claims others, and the server works on both. Where limits are
        in force, claims need the slots that these ends free, and share their transaction.
        """
        chosen: Verb[Any, Any] = verb
        if chosen == additions.add and keyed_jobs.are_independent(cast("Addition", call)):
            chosen = keyed_jobs.add
        is_end: bool = chosen == self.finish_plain
        group = self._settling_group if is_end and not self._plain_jobs.any_limit else self._group
        answer: A = await group.run(chosen, call)
        return answer

    # Reading

    async def read(self, work: Callable[[Reader], T]) -> T:
        """See `Database.read`."""
        self._check_open()
        if await self._in_thread(lambda: self._read(external_changes.any_rows)):
            await self.write(external_changes.import_rows, None)
        return await self._in_thread(lambda: self._read(work))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self._where.name} was closed")

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Do blocking work in another thread, if an event loop runs in this one."""
        loop = asyncio._get_running_loop()  # noqa: SLF001 - the public one raises
        if loop is None:
            return work()
        with self._submitting:
            working = loop.run_in_executor(self._executor, work)
        return await working

    def _read(self, work: Callable[[Reader], T]) -> T:
        with self._guard, translated(self._where.name):
            try:
                return self._read_once(work)
            except psycopg.OperationalError:  # perhaps only of the connection
                while self._readers:
                    self._readers.pop().close()
                return self._read_once(work)

    def _read_once(self, work: Callable[[Reader], T]) -> T:
        try:
            connection = self._readers.pop()
        except IndexError:  # all in use by other threads
            connection = introduced(self._where)
        try:
            reader = PostgresReader(
                connection, self._sql, self._where, self._clock, self._writer.resumable
            )
            answer = work(reader)
        except BaseException:
            connection.close()
            raise
        if len(self._readers) < _READER_THREADS and not self._closed:
            self._readers.append(connection)
        else:
            connection.close()
        return answer

    # Waiting

    async def listen(self) -> int:
        """See `Database.listen`."""
        if not self._notifier.listens:
            await self._in_thread(self._listen)
        return self._notifier.waiters.generation

    def _listen(self) -> None:
        with self._guard:
            self._notifier.listen()

    def _notification(self) -> tuple[str, str] | None:
        """Return what notifies others; this process knows its own by the name."""
        return (self._where.schema, self._notifier.name) if self._where.notify else None

    def _after_commit(self, tx: PostgresTransaction) -> None:
        """Wake waiters here, and others where the transaction itself has not notified them."""
        if tx.notify:
            self.notify()
        name = self._notification()
        if tx.freed and not tx.notify_others and name is not None:
            self._read(
                lambda reader: has_waiting_jobs(reader, tx.freed) and reader.execute("notify", name)
            )

    async def wait_for_writers(self) -> None:
        """See `Database.wait_for_writers`."""
        # An id of its own: transactions that began before have lower ones, also those that have
        # written nothing yet.
        ids = await self.read(lambda reader: reader.execute("reserve", (0, 1)).fetchone()[1])
        newest = ids[0]
        deadline = self._runtime.monotonic() + _PATIENCE
        while (await self.read(jobs.newest_log)) < newest:
            if self._runtime.monotonic() > deadline:
                raise StoreUnavailable(
                    f"{self._where.name}: a transaction that has enqueued jobs is still open; "
                    "end it, and try again"
                )
            await self._in_thread(lambda: self._runtime.sleep(_POLL))
        await self.write(_handle_external_changes, None)

    # Transactions of callers

    async def add_within(self, connection: Any, addition: Addition) -> list[Job]:
        """See `Database.add_within`."""
        new, actor, _ = addition
        queues = {job.queue for job in new}
        await self._prepare_callers(queues)
        add = partial(self._callers.add, connection, new, actor)
        try:
            return await self._on_known_timeline(add)
        except NotPrepared:  # every read imports rows first, if it can
            now = self.clock()
            await self.read(lambda reader: self._callers.prepare(reader, queues, now))
            return await self._on_known_timeline(partial(add, prepared=False))

    async def finish_within(
        self, connection: Any, ended: Sequence[tuple[Job, Done]], actor: str
    ) -> list[Job]:
        """See `Database.finish_within`."""
        await self._prepare_callers(())
        return [
            await self._on_known_timeline(partial(self._callers.finish, connection, *one, actor))
            for one in ended
        ]

    async def _on_known_timeline(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call; raise the floor of ids first if this is too early on a promoted server."""
        try:
            return await call()
        except UnknownTimeline:
            await self.write(timeline.follow, None)
            return await call()

    async def supersede_within(self, *_: Any) -> bool:
        """See `Database.supersede_within`."""
        raise ConfigurationError(
            "a job can only be superseded in a transaction of the store itself"
        )

    async def _prepare_callers(self, queues: Collection[str]) -> None:
        self._check_open()
        now = self.clock()
        if not self._callers.is_prepared(queues, now):
            await self.read(lambda reader: self._callers.prepare(reader, queues, now))

    # Partitions

    async def drop_days(self, retention: Retention) -> int:
        """See `Database.drop_days`."""
        try:
            return await self.write(self._drop_days, retention)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, LockNotAvailable):
                return 0  # somebody reads them; the next time will do
            raise

    def _drop_days(self, tx: PostgresTransaction, calls: Sequence[Retention]) -> list[int]:
        if tx.execute("any_external_change").fetchone()[0]:
            return [0] * len(calls)  # dependents must learn of ends first
        self._swept = sweep_queues(tx, self._swept)
        return [drop_days(tx, retention) for retention in calls]

    # Schema

    async def switch(self) -> None:
        """See `Database.switch`."""
        if self._is_held_up:
            self._is_held_up = await self._in_thread(self._switch)

    def _switch(self) -> bool:
        with self._guard, translated(self._where.name), connect(self._where) as connection:
            return switch(connection, self._where) is not None

    def wal_bytes(self) -> None:
        """See `Database.wal_bytes`; the log belongs to the whole server."""


def _handle_external_changes(_: PostgresTransaction, calls: Sequence[None]) -> list[None]:
    """Take the exclusive lock once: that handles external changes."""
    return list(calls)
