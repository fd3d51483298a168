"""Keeps long computations off the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# A thread costs about 0.1 ms; this many rows take less than a millisecond.
_FEW = 20
# One thread: several would compete for the interpreter and leave the event loop less of it.
_thread = ThreadPoolExecutor(1, "penstock-offload")


async def offload(rows: int, compute: Callable[[], T]) -> T:
    """Return the result of a computation over `rows` rows; if they are many, use a thread."""
    if rows <= _FEW:
        return compute()
    return await asyncio.get_running_loop().run_in_executor(_thread, compute)
