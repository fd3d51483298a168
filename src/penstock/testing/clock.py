"""A clock that tests control."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

from penstock.core.errors import ConfigurationError, StoreError
from penstock.core.store import Store
from penstock.core.times import from_micros, to_micros
from penstock.runtime import system_clock
from penstock.testing.calls import call


class Clock:
    """A clock that stands still until a test moves it: `Penstock(url, clock=Clock())`.

    It starts at the current time, or at the given instant. Moving it wakes workers in this process
    that wait for a job to fall due; other processes have their own clocks.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._micros = system_clock() if start is None else _micros(start)
        self._lock = threading.Lock()
        self._here = threading.local()
        self._stores: weakref.WeakSet[Store] = weakref.WeakSet()

    def __call__(self) -> int:
        """Return microseconds since 1970, as stores expect."""
        return getattr(self._here, "micros", None) or self._micros

    def __repr__(self) -> str:
        return f"Clock({self.now.isoformat()})"

    @property
    def now(self) -> datetime:
        """The current instant, in UTC."""
        return from_micros(self())

    def advance(self, by: timedelta) -> datetime:
        """Move the clock forward; return the new instant."""
        if by < timedelta(0):
            raise ConfigurationError("advance only moves forward; to move back, use set")
        with self._lock:
            self._micros += by // timedelta(microseconds=1)
        self._wake()
        return self.now

    def set(self, to: datetime) -> None:
        """Move the clock to an instant, forward or back."""
        with self._lock:
            self._micros = _micros(to)
        self._wake()

    def watch(self, store: Store) -> None:
        """Wake waiters of this store when the clock moves. Opening a store calls this."""
        self._stores.add(store)

    @contextmanager
    def showing(self, instant: datetime) -> Iterator[None]:
        """Return another instant inside the block, to the calling thread only."""
        self._here.micros = _micros(instant)
        try:
            yield
        finally:
            del self._here.micros

    def _wake(self) -> None:
        for store in list(self._stores):
            with suppress(StoreError):  # the store was closed
                call(_notify_due(store))


async def _notify_due(store: Store) -> None:
    """Wait without blocking: a wait that finds a due job wakes all waiters of the store."""
    await store.wait(await store.wait(-1, 0), 0)


def _micros(instant: datetime) -> int:
    if instant.tzinfo is None:
        raise ConfigurationError(f"an instant needs a time zone: {instant.replace(tzinfo=UTC)!r}")
    return to_micros(instant)
