"""One writer per process and file: group commit, and checkpoints off its path.

Requests queue up; whoever holds the lock takes all that wait, runs them in one transaction and
answers each when the commit is on disk. Callers in an event loop leave that to a thread. Callers
without one do it themselves, which saves two thread switches, half of a durable single write.
"""

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from penstock.core.errors import StoreError
from penstock.stores.sqlite.checkpoint import Checkpointer
from penstock.stores.sqlite.connection import BUSY_TIMEOUT, connect, translate
from penstock.stores.sqlite.transaction import Transaction

A = TypeVar("A")
C = TypeVar("C")

_MAX_REQUESTS = 1_000
_GO_ON, _STOP = True, False
# How long to wait between two looks whether another process has ended its transaction.
_FIRST_LOOK, _LAST_LOOK = 0.000_1, 0.002

_log = logging.getLogger(__name__)


Verb = Callable[[Transaction, Sequence[C]], Sequence[A | Exception]]
"""Does several calls of one kind at once; an answer that is an exception is raised."""


class _Request:
    __slots__ = ("answer", "call", "done", "future", "verb")

    def __init__(self, verb: Verb[Any, Any], call: Any, future: asyncio.Future[Any] | None) -> None:
        self.verb = verb
        self.call = call
        self.future = future
        self.answer: Any = None
        self.done = False


class Writer:
    """Runs write verbs in as few transactions as possible, each durable before it is answered."""

    def __init__(self, path: Path, committed: Callable[[Transaction], None]) -> None:
        self._path = path
        self._committed = committed
        self._connection = connect(path, busy_timeout=0)
        self._waiting: deque[_Request] = deque()
        self._door = threading.Lock()
        self._lock = threading.Lock()
        self._checkpointer = Checkpointer(path, self._lock)
        self._wakeups: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def run(self, verb: Verb[C, A], call: C) -> A:
        """Do `call` with the next transaction; returns or raises when that is durable."""
        loop = asyncio._get_running_loop()  # noqa: SLF001 - the public one raises: 2 µs a call
        if loop is None:
            return self._run_here(verb, call)
        future: asyncio.Future[A] = loop.create_future()
        self._enter(_Request(verb, call, future))
        if self._thread is None:
            self._start()
        self._wakeups.put(_GO_ON)
        return await future

    def close(self) -> None:
        """Finish what was accepted, then let go of the file."""
        with self._door:
            if self._closed:
                return
            self._closed = True
        if self._thread is not None:
            self._wakeups.put(_STOP)
            self._thread.join()
        with self._lock:
            while self._waiting:
                self._flush()
        self._checkpointer.close()
        self._connection.close()

    def _run_here(self, verb: Verb[C, A], call: C) -> A:
        request = _Request(verb, call, None)
        self._enter(request)
        self._checkpointer.keep_pace()
        with self._lock:
            # Whoever held the lock before may have taken this request along.
            while not request.done:
                self._flush()
        if isinstance(request.answer, Exception):
            raise request.answer
        answer: A = request.answer
        return answer

    def _enter(self, request: _Request) -> None:
        with self._door:
            if self._closed:
                raise StoreError(f"{self._path} was closed")
            self._waiting.append(request)

    def _start(self) -> None:
        with self._door:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run_forever, name="penstock-writer", daemon=True
                )
                self._thread.start()

    def _run_forever(self) -> None:
        while self._wakeups.get():
            while self._waiting:
                self._checkpointer.keep_pace()
                with self._lock:
                    if self._waiting:
                        self._flush()

    def _flush(self) -> None:
        requests: list[_Request] = []
        while self._waiting and len(requests) < _MAX_REQUESTS:
            requests.append(self._waiting.popleft())
        try:
            for transaction in self._commit_all(requests):
                if transaction.written:
                    self._follow_up(transaction)
        except BaseException:  # Ctrl-C in the caller that does the work of all
            text = f"{self._path}: interrupted; what was asked for may or may not be stored"
            for request in requests:
                request.answer = StoreError(text)
            raise
        finally:
            _answer(requests)

    def _commit_all(self, requests: Sequence[_Request]) -> list[Transaction]:
        try:
            self._begin()
        except sqlite3.Error as error:  # for none of them, however often it were tried
            for request in requests:
                request.answer = self._translated(error)
            return []
        try:
            return [self._commit(requests)]
        except Exception as error:  # noqa: BLE001 - every caller must be answered
            if len(requests) == 1:
                requests[0].answer = self._translated(error)
                return []
            # One of them is the cause: let it fail alone.
            return [done for request in requests for done in self._commit_all([request])]

    def _follow_up(self, transaction: Transaction) -> None:
        """What follows a commit; it must not make a failure of it."""
        try:
            self._committed(transaction)
            self._checkpointer.consider()
        except Exception:  # noqa: BLE001 - workers look by themselves, the WAL grows for a while
            _log.exception("after a commit to %s", self._path)

    def _translated(self, error: Exception) -> Exception:
        if isinstance(error, sqlite3.Error):
            translation = translate(error, self._path)
            translation.__cause__ = error
            return translation
        return error

    def _commit(self, requests: Sequence[_Request]) -> Transaction:
        """Do these requests in the transaction that was begun."""
        transaction = Transaction(self._connection)
        try:
            for verb, group in groupby(requests, key=attrgetter("verb")):
                members = list(group)
                answers = verb(transaction, [request.call for request in members])
                for request, answer in zip(members, answers, strict=True):
                    request.answer = answer
            self._connection.execute("COMMIT" if transaction.written else "ROLLBACK")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return transaction

    def _begin(self) -> None:
        """Begin a transaction when it is this process's turn.

        SQLite's own waiting sleeps up to 100 ms between two looks, while writers that come later
        go first. Looking more often costs little and shortens the wait a hundredfold.
        """
        deadline = time.monotonic() + BUSY_TIMEOUT
        pause = _FIRST_LOOK
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic() > deadline:
                    raise
                time.sleep(pause)
                pause = min(pause * 1.2, _LAST_LOOK)
            else:
                return


def _answer(requests: Sequence[_Request]) -> None:
    loops: dict[asyncio.AbstractEventLoop, list[_Request]] = {}
    for request in requests:
        request.done = True
        if request.future is not None:
            loops.setdefault(request.future.get_loop(), []).append(request)
    for loop, answered in loops.items():
        with contextlib.suppress(RuntimeError):  # that loop was closed meanwhile
            loop.call_soon_threadsafe(_resolve, answered)


def _resolve(requests: Sequence[_Request]) -> None:
    for request in requests:
        if request.future is None or request.future.done():  # its caller was cancelled
            continue
        if isinstance(request.answer, Exception):
            request.future.set_exception(request.answer)
        else:
            request.future.set_result(request.answer)
