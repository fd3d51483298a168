"""Computes what may take long in a thread, so that the event loop goes on meanwhile."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# A thread costs about 0.1 ms; so many rows take less than a millisecond.
_FEW = 20
# One at a time: several would take turns at the interpreter, and leave the event loop fewer.
_thread = ThreadPoolExecutor(1, "penstock-aside")


async def aside(size: int, compute: Callable[[], T]) -> T:
    """What this computes from `size` rows: here where they are few, else in a thread."""
    if size <= _FEW:
        return compute()
    return await asyncio.get_running_loop().run_in_executor(_thread, compute)
