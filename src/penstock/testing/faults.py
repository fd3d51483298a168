"""Faults on demand: a store whose calls fail when a test says so."""

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec

from penstock.core.errors import ConfigurationError, StoreError, StoreUnavailable
from penstock.core.store import Store
from penstock.engine import Penstock
from penstock.testing.proxy import Proxy

READING = frozenset(
    {
        "backlog", "checkpoint", "count", "due", "edges", "expired", "find", "find_ids", "get",
        "held", "histories", "keys", "limits", "lines", "log", "newest_log", "notes",
        "oldest_ready", "origin", "places", "progress", "queues", "ready_tags", "schedules",
        "sealed", "tally", "tokens", "wait", "workers",
    }
)  # fmt: skip
"""The verbs that change nothing. All others count as writes, also those that are new."""


class Fault(msgspec.Struct, frozen=True):
    """One order to fail: which calls, and whether what they wrote is durable nevertheless."""

    verb: str | None
    first: int
    every: int | None
    durable: bool
    error: Exception | None

    def strikes(self, verb: str, n: int) -> bool:
        """Whether the n-th call is one that it wants; a call is counted from the order on."""
        if n < self.first or not self.concerns(verb):
            return False
        return n == self.first if self.every is None else (n - self.first) % self.every == 0

    def concerns(self, verb: str) -> bool:
        """Whether it is about this verb."""
        return verb not in READING if self.verb is None else verb == self.verb


class Faults:
    """What shall fail, and what did: `with faulty(app) as faults: faults.fail("add")`."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """How often each verb was called."""
        self.struck: list[str] = []
        """The verbs of the calls that failed, in their order."""
        self._orders: dict[Fault, int] = {}
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
        """Let the n-th call from now fail: of a verb of `Store`, or of all that write.

        With `every`, also each so-manieth call after it, until `clear`. The call fails before
        anything is written, with `StoreUnavailable`. With `durable` it is written, and only the
        answer is lost: `StoreError`, which does not say that nothing has changed.
        """
        if nth < 1 or (every is not None and every < 1):
            raise ConfigurationError("calls are counted from 1: nth and every are 1 or more")
        if verb is not None and not inspect.iscoroutinefunction(getattr(Store, verb, None)):
            known = ", ".join(name for name in vars(Store) if not name.startswith("_"))
            raise ConfigurationError(f"a store has no verb {verb!r}; its verbs are: {known}")
        with self._lock:
            self._orders[Fault(verb, nth, every, durable, error)] = 0

    def clear(self) -> None:
        """Let nothing fail any more."""
        with self._lock:
            self._orders.clear()

    def wrap(self, store: Store) -> Store:
        """The same store, failing as ordered; closing it leaves the real one open."""
        return cast("Store", _Faulty(store, self._strike))

    def _strike(self, verb: str) -> Fault | None:
        """Count a call; the fault that it meets, if any."""
        with self._lock:
            self.calls[verb] += 1
            for fault in self._orders:
                self._orders[fault] += fault.concerns(verb)
            found = next((one for one, n in self._orders.items() if one.strikes(verb, n)), None)
            if found is not None:
                self.struck.append(verb)
                if found.every is None:
                    del self._orders[found]
            return found


class _Faulty(Proxy):
    def __init__(self, store: Store, strike: Callable[[str], Fault | None]) -> None:
        super().__init__(store)
        self._strike = strike

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if not inspect.iscoroutinefunction(verb):
            return verb

        async def failing(*args: Any, **options: Any) -> Any:
            fault = self._strike(name)
            if fault is None:
                return await verb(*args, **options)
            if fault.durable:
                await verb(*args, **options)
                raise fault.error or StoreError(
                    f"the answer to {name} was lost, by order of a test"
                )
            raise fault.error or StoreUnavailable(f"{name} failed, by order of a test")

        return failing


@contextmanager
def faulty(app: Penstock) -> Iterator[Faults]:
    """Let calls of an app's store fail inside the block, as ordered; see `Faults.fail`."""
    faults = Faults()
    with app.elsewhere(app.url, faults.wrap(app.store), app.clock):
        yield faults
