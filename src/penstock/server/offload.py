"""Keeps long computations off the event loop."""

import asyncio
from collections.abc import Callable, MutableMapping
from concurrent.futures import Executor
from typing import TypeVar
from weakref import WeakKeyDictionary

from penstock.runtime import Runtime

T = TypeVar("T")

# A thread costs about 0.1 ms; this many rows take less than a millisecond.
_FEW = 20
# One thread: several would compete for the interpreter and leave the event loop less of it.
_threads: MutableMapping[Runtime, Executor] = WeakKeyDictionary()


async def offload(runtime: Runtime, rows: int, compute: Callable[[], T]) -> T:
    """Return the result of a computation over `rows` rows; if they are many, use a thread."""
    if rows <= _FEW:
        return compute()
    thread = _threads.get(runtime)
    if thread is None:
        thread = _threads[runtime] = runtime.executor(1, "penstock-offload")
    return await asyncio.get_running_loop().run_in_executor(thread, compute)
