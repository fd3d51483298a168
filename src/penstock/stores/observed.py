"""A store that is observed: every verb is counted and timed, whatever the store."""

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, cast

from penstock.core.store import Store

# Waiting is what it is for: its time says nothing about the store. The clock is no verb.
_UNTIMED = frozenset({"clock", "wait"})


class Timing:
    """How often a verb was called, how long the calls took together, and how many failed."""

    __slots__ = ("calls", "errors", "seconds")

    def __init__(self) -> None:
        self.calls = 0
        self.errors = 0
        self.seconds = 0.0


class Observed:
    """Stands before a store; `timings` has the verbs that were called so far, by name.

    Threads may call at the same time: a count may then, rarely, miss one.
    """

    def __init__(self, store: Store, timings: dict[str, Timing]) -> None:
        self._observed = store
        self._timings = timings

    def __getattr__(self, name: str) -> Any:
        """Look a verb up once; from then on it is an attribute of its own."""
        verb = getattr(self._observed, name)
        if name in _UNTIMED or not callable(verb):
            return verb
        timed = _timed(verb, self._timings.setdefault(name, Timing()))
        setattr(self, name, timed)
        return timed


def observe(store: Store, timings: dict[str, Timing]) -> Store:
    """The same store, with its verbs timed."""
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
