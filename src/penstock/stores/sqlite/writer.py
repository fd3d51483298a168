"""One writer per process and file: group commit, and checkpoints off its path.

Requests queue up; whoever holds the lock takes all that wait, runs them in one transaction and
answers each when the commit is on disk. Callers in an event loop leave that to a thread. Callers
without one do it themselves, which saves two thread switches, half of a durable single write.
"""

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from penstock.core.errors import StoreError
from penstock.stores.sqlite.checkpoint import Checkpointer
from penstock.stores.sqlite.connection import connect, translate
from penstock.stores.sqlite.transaction import Transaction

try:
    import fcntl
except ImportError:  # no file locks here: writers of several processes poll SQLite's own lock
    fcntl = None  # type: ignore[assignment]

A = TypeVar("A")
C = TypeVar("C")

_MAX_REQUESTS = 1_000
_GO_ON, _STOP = True, False


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
        self._connection = connect(path)
        self._checkpointer = Checkpointer(path, self._exclusively)
        self._turn = _Turn(path)
        self._waiting: deque[_Request] = deque()
        self._lock = threading.Lock()
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
        with self._lock:
            if self._closed:
                return
            self._flush()
            self._closed = True
        if self._thread is not None:
            self._wakeups.put(_STOP)
            self._thread.join()
        self._checkpointer.close()
        self._connection.close()
        self._turn.close()

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        with self._lock, self._turn:
            yield

    def _run_here(self, verb: Verb[C, A], call: C) -> A:
        request = _Request(verb, call, None)
        self._enter(request)
        with self._lock:
            # Whoever held the lock before may have taken this request along.
            while not request.done:
                self._flush()
        if isinstance(request.answer, Exception):
            raise request.answer
        answer: A = request.answer
        return answer

    def _enter(self, request: _Request) -> None:
        if self._closed:
            raise StoreError(f"{self._path} was closed")
        self._waiting.append(request)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run_forever, name="penstock-writer", daemon=True
                )
                self._thread.start()

    def _run_forever(self) -> None:
        while self._wakeups.get():
            with self._lock:
                while self._waiting:
                    self._flush()

    def _flush(self) -> None:
        requests: list[_Request] = []
        while self._waiting and len(requests) < _MAX_REQUESTS:
            requests.append(self._waiting.popleft())
        if not requests:
            return
        try:
            self._commit(requests)
        except Exception as error:  # noqa: BLE001 - every caller must be answered
            if len(requests) == 1:
                requests[0].answer = self._translated(error)
            else:  # one of them is the cause: let it fail alone
                for request in requests:
                    try:
                        self._commit([request])
                    except Exception as own:  # noqa: BLE001 - as above
                        request.answer = self._translated(own)
        _answer(requests)

    def _translated(self, error: Exception) -> Exception:
        if isinstance(error, sqlite3.Error):
            translation = translate(error, self._path)
            translation.__cause__ = error
            return translation
        return error

    def _commit(self, requests: Sequence[_Request]) -> None:
        transaction = Transaction(self._connection)
        with self._turn:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for verb, group in groupby(requests, key=lambda request: request.verb):
                    members = list(group)
                    answers = verb(transaction, [request.call for request in members])
                    for request, answer in zip(members, answers, strict=True):
                        request.answer = answer
                self._connection.execute("COMMIT" if transaction.written else "ROLLBACK")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        if transaction.written:
            self._committed(transaction)
            self._checkpointer.consider()


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


class _Turn:
    """Whose turn it is to write, among processes.

    SQLite's own lock is polled with growing pauses, so that under load a writer may wait for
    hundreds of milliseconds while others go first. A file lock wakes the next at once.
    """

    def __init__(self, path: Path) -> None:
        self._fd: int | None = None
        if fcntl is not None:
            name = path.with_name(path.name + "-turn")
            with contextlib.suppress(OSError):
                self._fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def __enter__(self) -> None:
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the lock file; it stays, because another process may hold it."""
        if self._fd is not None:
            os.close(self._fd)
