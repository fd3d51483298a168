"""Counts and times the verbs of any store."""

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, cast

from penstock.core.store import Store

# The time spent in `wait` says nothing about the store; the clock is not a verb.
_UNTIMED = frozenset({"clock", "wait"})

READS = frozenset(
    {
        *("backlog", "checkpoint", "close", "count", "counters", "departed_tasks", "due"),
        *("edges", "expired", "find", "find_ids", "get", "held", "intervals", "keys", "limits"),
        *("lines", "log", "migration_lock", "newest_log", "oldest_ready", "origin", "progress"),
        *("queues", "read", "ready_tags", "records", "reported", "restored_ids", "schedules"),
        *("set_aside", "size", "summary", "tally", "tokens", "verify", "watch", "workers"),
    }
)
"""The verbs that change nothing; all others write."""


class Timing:
    """How often a verb was called, how long the calls took together, and how many failed.

    `writes` says whether the verb writes to the store.
    """

    __slots__ = ("calls", "errors", "seconds", "writes")

    def __init__(self, *, writes: bool) -> None:
        self.writes = writes
        self.calls = 0
        self.errors = 0
        self.seconds = 0.0


class Observed:
    """Wraps a store; `timings` has the verbs that were called so far, by name.

    When threads call at the same time, a count may rarely miss one.
    """

    def __init__(self, store: Store, timings: dict[str, Timing]) -> None:
        self._observed = store
        self._timings = timings

    def __getattr__(self, name: str) -> Any:
        """Look a verb up once; afterwards it is an attribute of this object."""
        verb = getattr(self._observed, name)
        if name == "tables" and verb is not None:
            return self if verb is self._observed else Observed(verb, self._timings)
        if name in _UNTIMED or not callable(verb):
            return verb
        timing = self._timings.setdefault(name, Timing(writes=name not in READS))
        timed = _timed(verb, timing)
        setattr(self, name, timed)
        return timed


def observe(store: Store, timings: dict[str, Timing]) -> Store:
    """Return the store with its verbs timed."""
    return cast("Store", Observed(store, timings))


def _timed(verb: Callable[..., Awaitable[Any]], timing: Timing) -> Callable[..., Awaitable[Any]]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        began = perf_counter()
        try:
            return await verb(*args, **kwargs)
        except BaseException:
            timing.errors += 1
            raise
        finally:
            timing.calls += 1
            timing.seconds += perf_counter() - began

    return call
