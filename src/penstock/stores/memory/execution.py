"""How verbs are executed: one at a time, on content that all threads share."""

import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from penstock.core.times import from_micros
from penstock.runtime import Runtime
from penstock.stores.memory.batch import NOTHING, WriteBatch
from penstock.stores.memory.content import Content
from penstock.stores.waiter import Waiter

M = TypeVar("M", bound="Executor")
P = ParamSpec("P")
T = TypeVar("T")
Answer = Coroutine[Any, Any, T]


def verb(act: Callable[Concatenate[M, P], T]) -> Callable[Concatenate[M, P], Answer[T]]:
    """Turn a method that reads the content, or decides and commits once, into a verb."""

    @wraps(act)
    async def call(store: M, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await store._execute(partial(act, store, *args, **kwargs))  # noqa: SLF001 - its own

    return call


class Executor:
    """The content of a store, and the waiters that a change of it wakes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._content = Content(runtime.random.getrandbits(63))
        self._announced = from_micros(0)
        self._generation = 0
        self._waiters: list[Callable[[], object]] = []
        self._waiters_lock = threading.Lock()

    async def _execute(self, act: Callable[[], T]) -> T:
        """Execute a verb; everything that it has read and changed is durable on return."""
        with self._lock:
            return act()

    def _tick(self) -> datetime:
        """Return the time now, after making every job ready that has fallen due."""
        now = from_micros(self._runtime.clock())
        if self._content.tick(now):
            self._wake()
        return now

    def _commit(self, batch: WriteBatch, *, wake: bool = True) -> None:
        """Apply a batch, all of it or nothing: every write passes here."""
        self._content.apply(batch)
        if wake and batch != NOTHING:
            self._wake()

    def _wake(self) -> None:
        with self._waiters_lock:
            self._generation += 1
            waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()

    async def wait(self, seen: int, timeout: float) -> int:
        """See `Store.wait`."""
        waiter = Waiter()
        left = await self._register(waiter, seen, timeout)
        if left is None:
            return self._generation
        try:
            await waiter.wait(left)
        finally:
            with self._waiters_lock, suppress(ValueError):  # it was woken
                self._waiters.remove(waiter.wake)
        return await self._present_generation()

    @verb
    def _register(self, waiter: Waiter, seen: int, timeout: float) -> float | None:
        """Let the next change wake a waiter.

        Returns for how long it should wait at most; None if there is nothing to wait for.
        """
        now = self._tick()
        first = self._content.scheduled.first()
        if first is not None:
            timeout = min(timeout, (first[0] - now).total_seconds())
        start = self._content.next_opening(self._announced)
        if start is not None and start <= now:
            # Once for all waiters: it may be long until one of them can claim a job.
            self._announced = now
            self._wake()
        elif start is not None:
            timeout = min(timeout, (start - now).total_seconds())
        if self._generation != seen or timeout <= 0:
            return None
        with self._waiters_lock:
            self._waiters.append(waiter.wake)
        return timeout

    @verb
    def _present_generation(self) -> int:
        self._tick()
        return self._generation

    async def close(self) -> None:
        """See `Store.close`."""
        with self._lock:
            self._wake()
