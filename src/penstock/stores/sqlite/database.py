"""One SQLite file: its write transactions, reads, checkpoints and notifications."""

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from penstock.core.errors import StoreError
from penstock.core.job import Job, JobId, Retention
from penstock.core.lifecycle import Done
from penstock.forks import File, ForkGuard, end_threads
from penstock.runtime import Runtime
from penstock.stores import Migrate
from penstock.stores.sql import additions, claims, transitions
from penstock.stores.sql.database import Addition, Freed, Reader
from penstock.stores.sql.group_commit import GroupCommit, Request
from penstock.stores.sql.limits import has_waiting_jobs
from penstock.stores.sql.tables import answered
from penstock.stores.sqlite import mirrors, plain_jobs
from penstock.stores.sqlite.caller_connections import joined, run_within
from penstock.stores.sqlite.checkpoints import Checkpointer
from penstock.stores.sqlite.connection import (
    BUSY_TIMEOUT,
    DRIVER_ERRORS,
    connect,
    translate,
    translated,
)
from penstock.stores.sqlite.forks import (
    is_open_here,
    note_closed,
    note_inherited,
    note_opened,
    refuse_inherited,
)
from penstock.stores.sqlite.notifier import SqliteNotifier
from penstock.stores.sqlite.schema import enter, prepared, switch
from penstock.stores.sqlite.transaction import SQL, SqliteReader, SqliteTransaction

T = TypeVar("T")

_READER_THREADS = 2
# How long a reader waits for externally inserted rows to be imported while others write, in
# seconds; then it reads without them.
_IMPORT_PATIENCE = 1.0
# So many external rows become jobs in 0.1 seconds: other programs wait no longer than that.
_IMPORTED_AT_ONCE = 1_000
# Pauses between attempts to begin, while another process has a transaction open. Most are over
# within a few milliseconds: until then the pauses stay short, so that hardly any time is lost
# between two writers.
_FIRST_PAUSE, _LAST_PAUSE = 0.000_1, 0.002
_SHORT_WAIT = 0.004
# On a crowded file, all our writers pause together at this interval and for this long, by their
# common clock: other programs try ten times a second, and most give up after five seconds.
_CLEAR_EVERY_NS, _CLEAR_FOR_NS = 2_400_000_000, 110_000_000
# A file is crowded when most of the last transactions had to wait: each counts for a tenth.
_CROWDED, _SHARE = 0.5, 0.1

_FAILED_SYNCS = frozenset({sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC})

_verb_of = attrgetter("verb")
_log = logging.getLogger(__name__)


class SqliteDatabase:
    """One open file, shared by the processes of one machine; see `Database`."""

    kind: ClassVar[str] = "sqlite"
    claim = staticmethod(claims.claim)
    install_mirror = staticmethod(mirrors.install)
    add_plain = None
    finish_plain = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        runtime: Runtime,
        *,
        create: bool = True,
        migrate: Migrate = "auto",
        restarts_log: bool = True,
    ) -> None:
        self._path = Path(path)
        self._runtime = runtime
        self.clock = runtime.clock
        self._resumable: set[int] = set()
        self._crowding = 0.0
        self._marks: tuple[str, str] | None = None
        self._closed = False
        self._create = create
        self._migrate = migrate
        self._is_held_up = False
        self._opened: File | None = None
        self._is_inherited = False
        self._readers: deque[sqlite3.Connection] = deque()
        self._guard = ForkGuard(str(path), self)
        self._group = GroupCommit(str(path), runtime, self._commit, self._guard, self._throttle)
        self._checkpointer = Checkpointer(
            self._path, runtime, self._group.lock, restarts=restarts_log
        )
        self.write = self._group.run
        self._notifier = SqliteNotifier(
            self._path, runtime, self._change_counter, self._last_change_matters
        )
        self.notify = self._notifier.waiters.wake
        self.wait = self._notifier.waiters.wait
        self._executor = runtime.executor(_READER_THREADS, "penstock-reader")
        self._submitting = threading.Lock()
        runtime.forks.join(self._guard)
        with self._guard:
            pass  # that has opened it

    def open_connections(self) -> None:
        """Open the file: see `Forkable`."""
        refuse_inherited(self._path, self._runtime)
        with translated(self._path), contextlib.ExitStack() as opened:
            runtime, migrate = self._runtime, self._migrate
            first = prepared(self._path, create=self._create, migrate=migrate, runtime=runtime)
            opened.callback(first.close)
            self._presence, self._is_held_up = enter(
                first, self._path, migrate=migrate, runtime=runtime
            )
            opened.callback(self._presence.close)
            first.execute("PRAGMA query_only = ON")
            self._watcher = connect(self._path, runtime=runtime)
            opened.callback(self._watcher.close)
            self._connection = connect(self._path, runtime=runtime, busy_timeout=0)
            opened.callback(self._connection.close)
            self._checkpointer.open()
            self._readers.append(first)
            opened.pop_all()  # all went well: they stay open
        self._opened = note_opened(self._path, self._runtime)
        self._create = False  # from now on, it is missing if it does not exist

    async def close(self) -> None:
        """See `Database.close`."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(StoreError), self._guard:  # which a fork has closed
            self._notifier.close()
            self._group.close()
            self._checkpointer.close()
            self._connection.close()
            self._executor.shutdown()
            self._watcher.close()
            while self._readers:
                self._readers.pop().close()
            self._presence.close()
            self._note_closed()
        self._guard.close()

    # Forks: see `Forkable`

    def close_connections(self) -> None:
        """Close the file, so that a child can open it."""
        self._notifier.close_pipes()
        self._checkpointer.close_files()
        self._connection.close()
        self._watcher.close()
        while self._readers:
            self._readers.pop().close()
        self._presence.close()
        self._note_closed()

    def _note_closed(self) -> None:
        assert self._opened is not None  # noqa: S101 - it is open
        note_closed(self._opened, self._runtime)

    def pause_threads(self, deadline: float) -> bool:
        """End the threads of writer, readers, checkpoints and notifications."""
        with self._submitting:
            executor = self._executor
            self._executor = self._runtime.executor(_READER_THREADS, "penstock-reader")
        return (
            self._notifier.pause(deadline)
            and self._group.pause(deadline)
            and self._checkpointer.pause(deadline)
            and end_threads(executor, deadline)
        )

    def resume_threads(self) -> None:
        """Let the threads start when they are needed; waiters look, and then listen again."""
        self._notifier.resume()
        self._checkpointer.resume()
        self._group.resume()

    def check_before_fork(self) -> None:
        """Find out whether the program itself has a connection to the file."""
        self._is_inherited = self._opened is not None and is_open_here(self._opened)

    def after_fork_in_child(self) -> None:
        """Refuse the file to this process if its parent still has it open."""
        if self._is_inherited and self._opened is not None:
            note_inherited(self._opened, self._runtime)

    # Writing

    def _throttle(self) -> None:
        """Let other programs and checkpoints have their turn before a transaction."""
        if self._crowding > _CROWDED:
            self._keep_clear()  # a moment for checkpoints, too
        self._checkpointer.throttle()

    def _commit(self, requests: Sequence[Request], patience: float = BUSY_TIMEOUT) -> None:
        """Run requests in one transaction, or each in its own if one of them fails."""
        if len(requests) == 1 and requests[0].verb is additions.add and self._add_plain(*requests):
            return
        try:
            self._begin(patience)
        except DRIVER_ERRORS as error:  # it would fail for each of them
            for request in requests:
                request.answer = self._translated(error)
            return
        try:
            tx = self._run(requests)
        except Exception as error:  # noqa: BLE001 - every caller must be answered
            if len(requests) == 1:
                requests[0].answer = self._translated(error)
            else:  # one of them is the cause: let it fail alone
                for request in requests:
                    self._commit([request])
            return
        if tx.written:
            self._after_commit(tx.freed, here=tx.notify, elsewhere=tx.notify_others)

    def _add_plain(self, request: Request) -> bool:
        """Add a single plain job in one statement; return whether the request was answered."""
        if self._crowding > _CROWDED:
            return False
        try:
            request.answer = plain_jobs.add(self._connection, request.call, self.clock())
        except Exception as error:  # noqa: BLE001 - every caller must be answered
            if _is_busy(error):
                return False
            request.answer = self._failed_commit(error)
            return True
        if request.answer is None:
            return False
        self._crowding -= _SHARE * self._crowding
        self._after_commit(here=True, elsewhere=True)
        return True

    def _run(self, requests: Sequence[Request]) -> SqliteTransaction:
        """Run requests in the transaction that was begun, and end it."""
        tx = SqliteTransaction(self._connection, self.clock, self._resumable)
        try:
            first, last = tx.enter()
            if first is not None and last is not None:
                self._import_external_rows(tx, first, last)
            for verb, group in groupby(requests, key=_verb_of):
                members = list(group)
                answers = verb(tx, [request.call for request in members])
                for request, answer in zip(members, answers, strict=True):
                    request.answer = answer
            try:
                self._connection.execute("COMMIT" if tx.written else "ROLLBACK")
            except DRIVER_ERRORS as error:
                raise self._failed_commit(error) from error
        except BaseException:
            self._roll_back()
            raise
        return tx

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _failed_commit(self, error: Exception) -> Exception:
        """Return the error for a commit that failed.

        When its sync fails, a commit is complete in the log, and SQLite would find it there if all
        processes crashed before the next one overwrites it.
        """
        if getattr(error, "sqlite_errorcode", 0) not in _FAILED_SYNCS:
            return self._translated(error)
        try:
            self._roll_back()
            self._begin()
            for change in (1, -1):
                self._connection.execute(SQL["overwrite_log"], (change,))
            self._connection.execute("COMMIT")
        except DRIVER_ERRORS:
            with contextlib.suppress(*DRIVER_ERRORS):
                self._roll_back()
            doubt = StoreError(
                f"{self._path}: the commit failed ({error}); the changes may or may not be stored"
            )
            doubt.__cause__ = error
            return doubt
        return self._translated(error)

    def _begin(self, patience: float = BUSY_TIMEOUT) -> None:
        """Begin a transaction when it is this process's turn.

        SQLite's own waiting sleeps up to 100 ms between two attempts, while writers that come
        later go first. Trying more often costs little and shortens the wait a hundredfold.
        """
        since = None
        pause = _FIRST_PAUSE
        while True:
            if self._crowding > _CROWDED:
                self._keep_clear()
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                now = self._runtime.monotonic()
                since = now if since is None else since
                if not _is_busy(error) or now > since + patience:
                    raise
                self._runtime.sleep(pause)
                if now > since + _SHORT_WAIT:
                    pause = min(pause * 1.2, _LAST_PAUSE)
            else:
                self._crowding += _SHARE * ((since is not None) - self._crowding)
                return

    def _keep_clear(self) -> None:
        """Leave a crowded file to programs that try less often, now and then."""
        since = self._runtime.file_time() % _CLEAR_EVERY_NS
        if since < _CLEAR_FOR_NS:
            self._runtime.sleep((_CLEAR_FOR_NS - since) / 1e9)

    def _import_external_rows(self, tx: SqliteTransaction, first: int, last: int) -> None:
        """Make jobs of rows that other programs inserted; let others write between portions."""
        for until in range(first + _IMPORTED_AT_ONCE - 1, last, _IMPORTED_AT_ONCE):
            tx.import_external_rows(until)
            self._connection.execute("COMMIT")
            self._checkpointer.request()
            self._group.lock.release()
            try:
                self._throttle()
            finally:
                self._group.lock.acquire()
            self._begin()
            tx.enter()
        tx.import_external_rows()

    def _after_commit(self, freed: Collection[Freed] = (), *, here: bool, elsewhere: bool) -> None:
        """Notify waiters and request a checkpoint; a failure here is none of the commit."""
        try:
            if here:
                self.notify()
                if elsewhere or (
                    freed and self._read(lambda reader: has_waiting_jobs(reader, freed))
                ):
                    self._notifier.notify_others()
            self._checkpointer.request()
        except Exception:  # noqa: BLE001 - workers look by themselves, the log grows for a while
            _log.exception("after a commit to %s", self._path)

    def _translated(self, error: Exception) -> Exception:
        if isinstance(error, DRIVER_ERRORS):
            translation = translate(error, self._path)
            translation.__cause__ = error
            return translation
        return error

    # Reading

    async def read(self, work: Callable[[Reader], T]) -> T:
        """See `Database.read`."""
        if self._closed:
            raise StoreError(f"{self._path} was closed")
        return await self._in_thread(lambda: self._read_imported(work))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Do blocking work in another thread, if an event loop runs in this one."""
        loop = asyncio._get_running_loop()  # noqa: SLF001 - the public one raises
        if loop is None:
            return work()
        with self._submitting:
            working = loop.run_in_executor(self._executor, work)
        return await working

    def _read_imported(self, work: Callable[[Reader], T]) -> T:
        with self._guard:
            if self._read(_has_external_rows):
                self._import_now()
            return self._read(work)

    def _import_now(self) -> None:
        """Import external rows, unless others keep the file for too long."""
        self._throttle()
        if not self._group.lock.acquire(timeout=_IMPORT_PATIENCE):
            return
        request = Request(_do_nothing, None, None)  # every transaction imports them first
        try:
            self._commit([request], _IMPORT_PATIENCE)
        finally:
            self._group.lock.release()
        error = request.answer
        if isinstance(error, Exception) and not _is_busy(error.__cause__):
            raise error

    def _read(self, work: Callable[[Reader], T]) -> T:
        with translated(self._path):
            try:
                connection = self._readers.pop()
            except IndexError:  # all in use by other threads
                connection = connect(self._path, runtime=self._runtime, reads=True)
            try:
                return work(SqliteReader(connection, self.clock, self._resumable))
            finally:
                if len(self._readers) < _READER_THREADS:
                    self._readers.append(connection)
                else:
                    connection.close()

    # Waiting

    async def listen(self) -> int:
        """See `Database.listen`."""
        with self._guard:
            return self._notifier.listen()

    def _change_counter(self) -> int:
        with self._guard, translated(self._path):
            return int(self._watcher.execute("PRAGMA data_version").fetchone()[0])

    def _last_change_matters(self) -> bool:
        """Return whether more than heartbeats was written since the last call; those never end."""
        before = self._marks
        with self._guard, translated(self._path):
            self._marks = self._watcher.execute(SQL["change_marks"]).fetchone()
        if before is None or self._marks is None:
            return True
        return before[0] == self._marks[0] or before[1] != self._marks[1]

    # Transactions of callers

    async def add_within(self, connection: Any, addition: Addition) -> list[Job]:
        """See `Database.add_within`."""
        return await self._within(connection, lambda tx: additions.add(tx, [addition]))

    async def finish_within(
        self, connection: Any, ended: Sequence[tuple[Job, Done]], actor: str
    ) -> list[Job]:
        """See `Database.finish_within`."""
        return await self._within(connection, lambda tx: transitions.finish(tx, [(ended, actor)]))

    async def supersede_within(self, connection: Any, job_id: JobId, by: JobId, actor: str) -> bool:
        """See `Database.supersede_within`."""
        return await self._within(
            connection, lambda tx: transitions.supersede(tx, [(job_id, by, actor)])
        )

    async def _within(
        self, connection: Any, verb: Callable[[SqliteTransaction], Sequence[T | Exception]]
    ) -> T:
        def work(connection: Any) -> T:
            with translated(self._path), joined(connection, self._path) as cursor:
                tx = SqliteTransaction(cursor, self.clock, self._resumable)
                tx.enter()
                tx.import_external_rows()
                return answered(verb(tx))

        return await run_within(connection, work)

    # Schema

    async def switch(self) -> None:
        """See `Database.switch`."""
        if self._is_held_up:
            self._is_held_up = await self._in_thread(self._switch)

    def _switch(self) -> bool:
        with (
            self._guard,
            translated(self._path),
            contextlib.closing(connect(self._path, runtime=self._runtime)) as connection,
        ):
            return switch(connection, self._path, runtime=self._runtime) is not None

    # What only PostgreSQL needs

    async def drop_days(self, retention: Retention) -> None:
        """See `Database.drop_days`; jobs are not partitioned here."""

    async def wait_for_writers(self) -> None:
        """See `Database.wait_for_writers`; a file has one writer at a time."""

    def wal_bytes(self) -> int:
        """See `Database.wal_bytes`."""
        try:
            return self._runtime.files.stat(f"{self._path}-wal").st_size
        except FileNotFoundError:
            return 0


def _has_external_rows(reader: Reader) -> bool:
    return reader.execute("external_rows").fetchone()[0] is not None


def _do_nothing(_: SqliteTransaction, calls: Sequence[None]) -> list[None]:
    return list(calls)


def _is_busy(error: BaseException | None) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
