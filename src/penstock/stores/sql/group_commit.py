"""Group commit: calls queue up, and all that wait share one transaction.

The thread that holds the lock takes all waiting calls and answers each when the commit is durable.
Callers in an event loop leave that to a background thread. Callers without a loop do it
themselves, which saves two thread switches, half of a durable single write.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.core.errors import StoreError
from penstock.forks import ForkGuard
from penstock.runtime import Runtime
from penstock.stores.sql.database import Verb

A = TypeVar("A")
C = TypeVar("C")

_MAX_REQUESTS = 1_000


class Request:
    """One waiting call; an answer that is an exception is raised."""

    __slots__ = ("answer", "call", "done", "future", "verb")

    def __init__(self, verb: Verb[Any, Any], call: Any, future: asyncio.Future[Any] | None) -> None:
        self.verb = verb
        self.call = call
        self.future = future
        self.answer: Any = None
        self.done = False


class GroupCommit:
    """Runs write verbs in as few transactions as possible, each durable before it is answered.

    `commit` runs requests in as few transactions as it takes and sets their answers. `throttle` is
    called before the lock is taken, without it. Threads enter the `guard` before they do either.
    """

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        commit: Callable[[Sequence[Request]], None],
        guard: ForkGuard,
        throttle: Callable[[], None] | None = None,
    ) -> None:
        self.lock = threading.Lock()
        self._name = name
        self._guard = guard
        self._commit = commit
        self._throttle = throttle
        self._waiting: deque[Request] = deque()
        self._entry = threading.Lock()
        self._background = runtime.background(self._flush_all, "penstock-writer")
        self._closed = False
        self._paused = False

    async def run(self, verb: Verb[C, A], call: C) -> A:
        """Run a call with the next transaction; return or raise when that is durable."""
        loop = asyncio._get_running_loop()  # noqa: SLF001 - the public one raises: 2 µs a call
        if self._guard.forked:
            raise self._guard.refusal()
        if loop is None and not self._waiting:
            with self._guard:
                if self._throttle is not None:
                    self._throttle()
                if self.lock.acquire(blocking=False):
                    return self._run_alone(verb, call)
        request = Request(verb, call, None if loop is None else loop.create_future())
        with self._entry:
            if self._closed:
                raise StoreError(f"{self._name} was closed")
            self._waiting.append(request)
        if request.future is not None:
            self._background.wake()
            awaited: A = await request.future
            return awaited
        self._run_here(request)
        if isinstance(request.answer, Exception):
            raise request.answer
        answer: A = request.answer
        return answer

    def _run_alone(self, verb: Verb[C, A], call: C) -> A:
        """Run a call that nobody shares its transaction with; release the lock."""
        request = Request(verb, call, None)
        try:
            if self._closed:
                raise StoreError(f"{self._name} was closed")
            self._commit((request,))
        finally:
            self.lock.release()
        if isinstance(request.answer, Exception):
            raise request.answer
        answer: A = request.answer
        return answer

    def _run_here(self, request: Request) -> None:
        """Run a call that waits, in its own thread, together with all others that wait."""
        try:
            with self._guard:
                if self._throttle is not None:
                    self._throttle()
                with self.lock:
                    # The previous holder of the lock may have taken this request along.
                    while not request.done:
                        self._flush()
        except StoreError as error:  # closed for a fork, and cannot be opened again
            self._refuse_all(error)

    def close(self) -> None:
        """Finish what was accepted; refuse further calls."""
        with self._entry:
            self._closed = True
        self._background.close()
        with self.lock:
            while self._waiting:
                self._flush()

    def pause(self, deadline: float) -> bool:
        """End the thread after the transaction under way; see `Background.pause`."""
        self._paused = True
        return self._background.pause(deadline)

    def resume(self) -> None:
        """Undo `pause`."""
        self._paused = False
        self._background.resume()
        if self._waiting:
            self._background.wake()

    def _flush_all(self) -> None:
        while self._waiting and not self._paused:
            try:
                with self._guard:
                    if self._throttle is not None:
                        self._throttle()
                    with self.lock:
                        if self._waiting:
                            self._flush()
            except StoreError as error:  # closed for a fork, and cannot be opened again
                self._refuse_all(error)

    def _refuse_all(self, error: StoreError) -> None:
        requests: list[Request] = []
        with contextlib.suppress(IndexError):
            while True:
                requests.append(self._waiting.popleft())
        for request in requests:
            request.answer = error
        _answer(requests)

    def _flush(self) -> None:
        requests: list[Request] = []
        while self._waiting and len(requests) < _MAX_REQUESTS:
            requests.append(self._waiting.popleft())
        try:
            self._commit(requests)
        except BaseException:  # Ctrl-C in the caller that works for all
            text = f"{self._name}: interrupted; the changes may or may not be stored"
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
