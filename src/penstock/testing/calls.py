"""Calls to Penstock from synchronous and asynchronous tests."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from penstock.core.errors import ConfigurationError
from penstock.engine.penstock import run_sync

T = TypeVar("T")


def in_loop() -> bool:
    """Return whether an event loop runs in this thread."""
    return asyncio._get_running_loop() is not None  # noqa: SLF001 - the public one raises


def call(verb: Coroutine[Any, Any, T]) -> T:
    """Run a call to Penstock to completion and return its result.

    If an event loop runs here, another thread makes the call, and the loop blocks meanwhile.
    """
    if not in_loop():
        return run_sync(verb)
    with ThreadPoolExecutor(1, "penstock-testing") as thread:
        return thread.submit(run_sync, verb).result()


def run(work: Coroutine[Any, Any, T], instead: str) -> T:
    """Run a coroutine in a new event loop; if one runs already, raise and say what `instead`."""
    if in_loop():
        work.close()
        raise ConfigurationError(f"an event loop is already running: {instead}")
    # With a factory, the runner leaves the thread's current event loop alone.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(work)
