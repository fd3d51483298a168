"""How verbs are carried out: one at a time, on content that all threads share."""

import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from penstock.core.store import Clock
from penstock.core.times import from_micros
from penstock.stores.alarm import Alarm
from penstock.stores.memory.batch import NOTHING, Batch
from penstock.stores.memory.content import Content

M = TypeVar("M", bound="Performing")
P = ParamSpec("P")
T = TypeVar("T")
Answer = Coroutine[Any, Any, T]


def verb(act: Callable[Concatenate[M, P], T]) -> Callable[Concatenate[M, P], Answer[T]]:
    """Make a verb of the protocol of what looks at the content, or decides and commits once."""

    @wraps(act)
    async def call(store: M, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await store._perform(partial(act, store, *args, **kwargs))  # noqa: SLF001 - its own

    return call


class Performing:
    """The content of a store, and who waits for it to change."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._content = Content()
        self._announced = from_micros(0)
        self._generation = 0
        self._waiters: list[Callable[[], object]] = []
        self._door = threading.Lock()

    async def _perform(self, act: Callable[[], T]) -> T:
        """Do what a verb does; all that it has seen and changed is durable on return."""
        with self._lock:
            return act()

    def _tick(self) -> datetime:
        """The time now, with every job that has fallen due made ready."""
        now = from_micros(self._clock())
        if self._content.tick(now):
            self._wake()
        return now

    def _commit(self, batch: Batch, *, wake: bool = True) -> None:
        """Where every write passes: all of the batch or nothing."""
        self._content.apply(batch)
        if wake and batch != NOTHING:
            self._wake()

    def _wake(self) -> None:
        with self._door:
            self._generation += 1
            waiters, self._waiters = self._waiters, []
        for ring in waiters:
            ring()

    async def wait(self, seen: int, timeout: float) -> int:
        """See `Store.wait`."""
        woken = Alarm()
        left = await self._listen(woken, seen, timeout)
        if left is None:
            return self._generation
        try:
            await woken.wait(left)
        finally:
            with self._door, suppress(ValueError):  # it has rung
                self._waiters.remove(woken.ring)
        return await self._look()

    @verb
    def _listen(self, woken: Alarm, seen: int, timeout: float) -> float | None:
        """Let an alarm ring at the next change; for how long at most, or None if it is time."""
        now = self._tick()
        first = self._content.scheduled.first()
        if first is not None:
            timeout = min(timeout, (first[0] - now).total_seconds())
        queues = self._content.open_queues(None)
        start = self._content.next_opening(queues, self._announced)
        if start is not None and start <= now:
            # Once for all who wait: it may be long until one of them can take it.
            self._announced = now
            self._wake()
        elif start is not None:
            timeout = min(timeout, (start - now).total_seconds())
        if self._generation != seen or timeout <= 0:
            return None
        with self._door:
            self._waiters.append(woken.ring)
        return timeout

    @verb
    def _look(self) -> int:
        self._tick()
        return self._generation

    async def close(self) -> None:
        """See `Store.close`."""
        with self._lock:
            self._wake()
