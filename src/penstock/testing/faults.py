"""Fault injection: a store whose calls fail on demand."""

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec

from penstock.core.errors import ConfigurationError, StoreError, StoreUnavailable
from penstock.core.store import Store, TableStore
from penstock.engine.penstock import Penstock
from penstock.testing.stores import Proxy

READS = frozenset(
    {
        "backlog", "checkpoint", "count", "departed_tasks", "due", "edges", "expired", "find",
        "find_ids", "get", "held", "keys", "limits", "lines", "log", "migration_lock",
        "newest_log", "oldest_ready", "origin", "progress", "queues", "ready_tags", "records",
        "reported", "restored_ids", "schedules", "set_aside", "tally", "tokens", "wait", "workers",
    }
)  # fmt: skip
"""The methods of a store that change nothing; all others count as writes."""


_METHODS = frozenset(
    name
    for part in (Store, TableStore)
    for name, value in inspect.getmembers(part)
    if inspect.iscoroutinefunction(value)
)


class Fault(msgspec.Struct, frozen=True):
    """Which calls fail, and whether their writes are durable nevertheless."""

    verb: str | None
    first: int
    every: int | None
    durable: bool
    error: Exception | None

    def strikes(self, verb: str, n: int) -> bool:
        """Return whether the n-th call since `fail` fails."""
        if n < self.first or not self.concerns(verb):
            return False
        return n == self.first if self.every is None else (n - self.first) % self.every == 0

    def concerns(self, verb: str) -> bool:
        """Return whether calls of this method count."""
        return verb not in READS if self.verb is None else verb == self.verb


class Faults:
    """Which calls fail, and which have: `with faulty(app) as faults: faults.fail("add")`."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """How often each method was called."""
        self.struck: list[str] = []
        """The methods whose calls failed, in order."""
        self._faults: dict[Fault, int] = {}
        self._lock = threading.Lock()

    def fail(
        self,
        verb: str | None = None,
        *,
        nth: int = 1,
        every: int | None = None,
        durable: bool = False,
        error: Exception | None = None,
    ) -> None:
        """Make the n-th call from now fail, of the method `verb` of `Store` or of all that write.

        With `every=n`, every n-th call after it fails as well, until `clear`. The call fails with
        `StoreUnavailable` before anything is written. With `durable`, its effect is written and
        only the answer is lost: it fails with `StoreError`, which does not say what changed.
        """
        if nth < 1 or (every is not None and every < 1):
            raise ConfigurationError("calls are counted from 1: nth and every must be at least 1")
        if verb is not None and verb not in _METHODS:
            known = ", ".join(sorted(_METHODS))
            raise ConfigurationError(f"a store has no method {verb!r}; its methods are: {known}")
        with self._lock:
            self._faults[Fault(verb, nth, every, durable, error)] = 0

    def clear(self) -> None:
        """Make no further calls fail."""
        with self._lock:
            self._faults.clear()

    def wrap(self, store: Store) -> Store:
        """Return the store with these faults; closing it leaves the real store open."""
        return cast("Store", _Faulty(store, self._strike))

    def _strike(self, verb: str) -> Fault | None:
        """Count a call and return its fault, if any."""
        with self._lock:
            self.calls[verb] += 1
            for fault in self._faults:
                self._faults[fault] += fault.concerns(verb)
            found = next((one for one, n in self._faults.items() if one.strikes(verb, n)), None)
            if found is not None:
                self.struck.append(verb)
                if found.every is None:
                    del self._faults[found]
            return found


class _Faulty(Proxy):
    def __init__(self, store: Store, strike: Callable[[str], Fault | None]) -> None:
        super().__init__(store)
        self._strike = strike

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if name == "tables" and verb is not None:
            return self if verb is self._store else _Faulty(verb, self._strike)
        if not inspect.iscoroutinefunction(verb):
            return verb

        async def failing(*args: Any, **options: Any) -> Any:
            fault = self._strike(name)
            if fault is None:
                return await verb(*args, **options)
            if fault.durable:
                await verb(*args, **options)
                raise fault.error or StoreError(
                    f"the answer to {name} was lost: injected by a test"
                )
            raise fault.error or StoreUnavailable(f"{name} failed: injected by a test")

        return failing


@contextmanager
def faulty(app: Penstock) -> Iterator[Faults]:
    """Inject faults into the store of an app inside the block; see `Faults.fail`."""
    faults = Faults()
    with app.connection.elsewhere(
        app.url, faults.wrap(app.store), app.runtime.with_clock(app.clock)
    ):
        yield faults
