"""The Store protocol on one SQLite file."""

import asyncio
import contextlib
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from penstock.core.errors import ConfigurationError, StoreError
from penstock.core.job import Claim, Job, JobId
from penstock.core.lifecycle import Done
from penstock.core.mirror import Mirror
from penstock.core.size import StoreSize
from penstock.core.store import Clock
from penstock.stores.sql import adding, starting
from penstock.stores.sql.adding import Addition
from penstock.stores.sql.claiming import next_start
from penstock.stores.sql.store import SqlStore, answered
from penstock.stores.sql.tables import Joined
from penstock.stores.sql.transaction import Reading, Transaction
from penstock.stores.sql.writer import Verb
from penstock.stores.sqlite import mirrors
from penstock.stores.sqlite.bell import Bell
from penstock.stores.sqlite.connection import connect, prepared, translated
from penstock.stores.sqlite.forks import note_closed, note_opened, refuse_inherited
from penstock.stores.sqlite.transaction import SQL, SqliteReading, SqliteTransaction, adopt
from penstock.stores.sqlite.writer import SqliteWriter

A = TypeVar("A")
C = TypeVar("C")
T = TypeVar("T")

_READER_THREADS = 2
# Who reads waits so long for the jobs of newcomers, while others write; then it goes without them.
_PATIENCE = 1.0


class SqliteStore(SqlStore):
    """Jobs in one SQLite file, durable on return, shared by the processes of one machine."""

    kind = "sqlite"

    def __init__(self, path: str | os.PathLike[str], clock: Clock, *, create: bool = True) -> None:
        super().__init__()
        self._path = Path(path)
        self._clock = clock
        refuse_inherited(self._path)
        with translated(self._path):
            first = prepared(self._path, create=create)
            first.execute("PRAGMA query_only = ON")
            self._readers: deque[sqlite3.Connection] = deque([first])
            self._watcher = connect(self._path)
            self._writer = SqliteWriter(self._path, clock, self._committed)
        self._bell = Bell(self._path, self._change_counter, self._matters)
        self._marks: tuple[str, str] | None = None
        self._threads = ThreadPoolExecutor(_READER_THREADS, "penstock-reader")
        self._closed = False
        self._opened = note_opened(self._path)

    async def size(self) -> StoreSize:
        """See `Store.size`."""
        found = await super().size()
        try:
            log = self._path.with_name(f"{self._path.name}-wal").stat().st_size
        except FileNotFoundError:
            log = 0
        return replace(found, wal_bytes=log)

    async def wait(self, seen: int, timeout: float) -> int:
        """See `Store.wait`."""
        now = self._bell.listen()
        if now != seen:
            return now
        due = await self._read(self._next_change)
        clock = self._clock()
        if due is not None and due <= clock:
            # Once for all who wait here: it may be long until one of them can take it.
            self._announced = clock
            self._bell.ring(others=False)
        elif due is not None:
            timeout = min(timeout, (due - clock) / 1e6)
        return await self._bell.wait(seen, timeout)

    def _next_change(self, reading: Reading) -> int | None:
        """When the next job falls due, a pause ends, or a rate lets a job start."""
        (due,) = reading.execute("next_due", (self._announced,)).fetchone()
        start = next_start(reading.execute, self._announced, reading.now())
        return min((at for at in (due, start) if at is not None), default=None)

    async def close(self) -> None:
        """See `Store.close`."""
        if self._closed:
            return
        self._closed = True
        self._bell.close()
        self._writer.close()
        self._threads.shutdown()
        self._watcher.close()
        while self._readers:
            self._readers.pop().close()
        note_closed(self._opened)

    async def mirror(self, mirror: Mirror) -> None:
        """See `Store.mirror`."""
        await self._write(mirrors.install, mirror)

    def _claim(self, tx: Transaction, calls: Sequence[Claim]) -> list[list[Job]]:
        tx.link()
        return starting.claim(tx, calls)

    # How verbs reach the file

    def _write(self, verb: Verb[C, A], call: C) -> Coroutine[Any, Any, A]:
        return self._writer.run(verb, call)

    async def _read(self, read: Callable[[Reading], T]) -> T:
        if self._closed:
            raise StoreError(f"{self._path} was closed")
        loop = asyncio._get_running_loop()  # noqa: SLF001 - the public one raises
        if loop is None:
            return self._read_adopted(read)
        return await loop.run_in_executor(self._threads, self._read_adopted, read)

    def _read_adopted(self, read: Callable[[Reading], T]) -> T:
        """Read when every row that another program has added has its job."""
        if self._read_here(_has_newcomers):
            with translated(self._path):
                self._writer.adopt(_PATIENCE)
        return self._read_here(read)

    def _read_here(self, read: Callable[[Reading], T]) -> T:
        with translated(self._path):
            try:
                connection = self._readers.pop()
            except IndexError:  # all in use by other threads
                connection = connect(self._path, reads=True)
            try:
                return read(SqliteReading(connection, self._clock))
            finally:
                if len(self._readers) < _READER_THREADS:
                    self._readers.append(connection)
                else:
                    connection.close()

    def _committed(self, transaction: Transaction) -> None:
        if transaction.ring:
            self._bell.ring(others=transaction.ring_others or self._frees_room(transaction))

    def _frees_room(self, transaction: Transaction) -> bool:
        return bool(transaction.freed) and self._read_here(
            lambda reading: self._is_wanted(reading, transaction.freed)
        )

    def _change_counter(self) -> int:
        with translated(self._path):
            return int(self._watcher.execute("PRAGMA data_version").fetchone()[0])

    def _matters(self) -> bool:
        """Whether there was more than greetings since the last time; those come all day long."""
        before = self._marks
        with translated(self._path):
            self._marks = self._watcher.execute(SQL["marks"]).fetchone()
        if before is None or self._marks is None:
            return True
        return before[0] == self._marks[0] or before[1] != self._marks[1]

    async def _add_within(self, connection: Any, call: Addition) -> list[Job]:
        with self._joined(connection) as transaction:
            return answered(adding.add(transaction, [call]))

    async def finish(
        self, ended: Sequence[tuple[Job, Done]], *, actor: str, connection: Any
    ) -> list[Job]:
        """See `Store.finish`."""
        with self._joined(connection) as transaction:
            return self._finish_within(transaction, ended, actor)

    async def supersede(self, job_id: JobId, by: JobId, *, actor: str, connection: Any) -> bool:
        """See `Store.supersede`."""
        with self._joined(connection) as transaction:
            return self._supersede_within(transaction, job_id, by, actor)

    @contextlib.contextmanager
    def _joined(self, connection: Any) -> Iterator[Transaction]:
        """The caller's own transaction, as ours."""
        if isinstance(connection, Joined):
            yield connection.tx
            return
        connection = _of_driver(connection)
        with translated(self._path):
            # Rows come as we need them, whatever the caller's connection makes of them.
            cursor = connection.cursor()
            cursor.row_factory = None
            text_factory, connection.text_factory = connection.text_factory, str
            try:
                self._join(connection, cursor)
                transaction = SqliteTransaction(cursor, self._clock)
                adopt(transaction)
                yield transaction
            finally:
                connection.text_factory = text_factory

    def _join(self, connection: sqlite3.Connection, cursor: sqlite3.Cursor) -> None:
        """Make sure that the caller's transaction is one on this file."""
        file = cursor.execute("PRAGMA database_list").fetchone()[2]
        if not (file and self._path.samefile(file)):
            raise ConfigurationError(f"the connection is to {file!r}, not to {self._path}")
        if not connection.in_transaction:
            if connection.isolation_level is None:
                raise ConfigurationError(
                    "the connection is in autocommit mode: begin a transaction first"
                )
            cursor.execute("BEGIN IMMEDIATE")


def _of_driver(connection: Any) -> sqlite3.Connection:
    """The connection of the driver: as given, or inside a connection or session of SQLAlchemy."""
    given = connection
    module = type(given).__module__.split(".")
    if module[0] == "sqlalchemy" and "asyncio" not in module:
        if hasattr(given, "get_bind"):  # a session
            given = given.connection()
        given = getattr(getattr(given, "connection", None), "dbapi_connection", None)
    if not isinstance(given, sqlite3.Connection):
        raise ConfigurationError(
            "a SQLite store takes a sqlite3.Connection, a connection of Django, or a synchronous "
            "connection or session of SQLAlchemy, as connection, "
            f"not a {type(connection).__name__}"
        )
    return given


def _has_newcomers(reading: Reading) -> bool:
    return reading.execute("newcomers").fetchone()[0] is not None
