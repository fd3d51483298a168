"""A clock that tests move."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

from penstock.core.errors import ConfigurationError, StoreError
from penstock.core.store import Store
from penstock.core.times import from_micros, to_micros
from penstock.stores import system_clock
from penstock.testing.calls import call


class Clock:
    """Time that stands still until a test moves it: `Penstock(url, clock=Clock())`.

    It begins now, or at the instant it is given. A move wakes the workers of this process that
    wait for a job to fall due; other processes have clocks of their own.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._micros = system_clock() if start is None else _micros(start)
        self._lock = threading.Lock()
        self._here = threading.local()
        self._stores: weakref.WeakSet[Store] = weakref.WeakSet()

    def __call__(self) -> int:
        """Microseconds since 1970: what stores ask for."""
        return getattr(self._here, "micros", None) or self._micros

    def __repr__(self) -> str:
        return f"Clock({self.now.isoformat()})"

    @property
    def now(self) -> datetime:
        """The instant it shows, in UTC."""
        return from_micros(self())

    def advance(self, by: timedelta) -> datetime:
        """Let so much time pass; the instant it shows then."""
        if by < timedelta(0):
            raise ConfigurationError("time passes forwards; to jump back, use set")
        with self._lock:
            self._micros += by // timedelta(microseconds=1)
        self._wake()
        return self.now

    def set(self, to: datetime) -> None:
        """Jump to an instant, ahead or back."""
        with self._lock:
            self._micros = _micros(to)
        self._wake()

    def watch(self, store: Store) -> None:
        """Wake who waits at this store, from now on, when time moves. Opening a store does it."""
        self._stores.add(store)

    @contextmanager
    def showing(self, instant: datetime) -> Iterator[None]:
        """Show another instant inside the block, to the calling thread only."""
        self._here.micros = _micros(instant)
        try:
            yield
        finally:
            del self._here.micros

    def _wake(self) -> None:
        for store in list(self._stores):
            with suppress(StoreError):  # it was closed
                call(_look_at_the_time(store))


async def _look_at_the_time(store: Store) -> None:
    """A wait that finds a job due tells all who wait at the store."""
    await store.wait(await store.wait(-1, 0), 0)


def _micros(instant: datetime) -> int:
    if instant.tzinfo is None:
        raise ConfigurationError(f"an instant needs a time zone: {instant.replace(tzinfo=UTC)!r}")
    return to_micros(instant)
