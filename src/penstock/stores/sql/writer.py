"""Group commit: calls queue up, and all that wait become one transaction.

Whoever holds the lock takes all that wait, and answers each when the commit is durable. Callers
in an event loop leave that to a thread. Callers without one do it themselves, which saves two
thread switches, half of a durable single write.
"""

import asyncio
import contextlib
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.core.errors import StoreError
from penstock.stores.sql.transaction import Transaction

A = TypeVar("A")
C = TypeVar("C")

_MAX_REQUESTS = 1_000
_GO_ON, _STOP = True, False


Verb = Callable[[Transaction, Sequence[C]], Sequence[A | Exception]]
"""Does several calls of one kind at once; an answer that is an exception is raised."""


class Request:
    """One call on its way: its answer is raised if it is an exception."""

    __slots__ = ("answer", "call", "done", "future", "verb")

    def __init__(self, verb: Verb[Any, Any], call: Any, future: asyncio.Future[Any] | None) -> None:
        self.verb = verb
        self.call = call
        self.future = future
        self.answer: Any = None
        self.done = False


class Writer(ABC):
    """Runs write verbs in as few transactions as possible, each durable before it is answered."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._waiting: deque[Request] = deque()
        self._door = threading.Lock()
        self._lock = threading.Lock()
        self._wakeups: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    @abstractmethod
    def _commit_all(self, requests: Sequence[Request]) -> None:
        """Do these requests, with the lock held, in as few transactions as it takes."""

    @abstractmethod
    def _let_go(self) -> None:
        """Close what was opened; the last request is done."""

    def _keep_pace(self) -> None:  # noqa: B027 - not every store has to
        """Called before the lock is taken."""

    async def run(self, verb: Verb[C, A], call: C) -> A:
        """Do `call` with the next transaction; returns or raises when that is durable."""
        loop = asyncio._get_running_loop()  # noqa: SLF001 - the public one raises: 2 µs a call
        if loop is None:
            return self._run_here(verb, call)
        future: asyncio.Future[A] = loop.create_future()
        self._enter(Request(verb, call, future))
        if self._thread is None:
            self._start()
        self._wakeups.put(_GO_ON)
        return await future

    def close(self) -> None:
        """Finish what was accepted, then let go of the store."""
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
        self._let_go()

    def _run_here(self, verb: Verb[C, A], call: C) -> A:
        request = Request(verb, call, None)
        self._enter(request)
        self._keep_pace()
        with self._lock:
            # Whoever held the lock before may have taken this request along.
            while not request.done:
                self._flush()
        if isinstance(request.answer, Exception):
            raise request.answer
        answer: A = request.answer
        return answer

    def _enter(self, request: Request) -> None:
        with self._door:
            if self._closed:
                raise StoreError(f"{self.name} was closed")
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
                self._keep_pace()
                with self._lock:
                    if self._waiting:
                        self._flush()

    def _flush(self) -> None:
        requests: list[Request] = []
        while self._waiting and len(requests) < _MAX_REQUESTS:
            requests.append(self._waiting.popleft())
        try:
            self._commit_all(requests)
        except BaseException:  # Ctrl-C in the caller that does the work of all
            text = f"{self.name}: interrupted; what was asked for may or may not be stored"
            for request in requests:
                request.answer = StoreError(text)
            raise
        finally:
            _answer(requests)


def _answer(requests: Sequence[Request]) -> None:
    loops: dict[asyncio.AbstractEventLoop, list[Request]] = {}
    for request in requests:
        request.done = True
        if request.future is not None:
            loops.setdefault(request.future.get_loop(), []).append(request)
    for loop, answered in loops.items():
        with contextlib.suppress(RuntimeError):  # that loop was closed meanwhile
            loop.call_soon_threadsafe(_resolve, answered)


def _resolve(requests: Sequence[Request]) -> None:
    for request in requests:
        if request.future is None or request.future.done():  # its caller was cancelled
            continue
        if isinstance(request.answer, Exception):
            request.future.set_exception(request.answer)
        else:
            request.future.set_result(request.answer)
