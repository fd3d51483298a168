"""Calls of a store from any test, synchronous or not."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from penstock.core.errors import ConfigurationError
from penstock.engine import run_sync

T = TypeVar("T")


def in_loop() -> bool:
    """Whether an event loop runs in this thread."""
    return asyncio._get_running_loop() is not None  # noqa: SLF001 - the public one raises


def call(verb: Coroutine[Any, Any, T]) -> T:
    """Run a call of Penstock to its end, here.

    Where an event loop runs, a thread that has none does it: the loop stands still meanwhile, as
    it does in any assertion.
    """
    if not in_loop():
        return run_sync(verb)
    with ThreadPoolExecutor(1, "penstock-testing") as thread:
        return thread.submit(run_sync, verb).result()


def run(work: Coroutine[Any, Any, T], instead: str) -> T:
    """Run this in an event loop of its own; where one runs already, say what to do `instead`."""
    if in_loop():
        work.close()
        raise ConfigurationError(f"an event loop runs here: {instead}")
    # With a factory, the runner leaves the thread's current event loop alone.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(work)
