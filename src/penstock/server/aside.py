"""Computes what may take long in a thread, so that the event loop goes on meanwhile."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# A thread costs about 0.1 ms; so many rows take a millisecond or two.
_FEW = 100


async def aside(size: int, compute: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What this computes from `size` rows: here where they are few, else in a thread."""
    if size <= _FEW:
        return compute(*args, **kwargs)
    return await asyncio.to_thread(compute, *args, **kwargs)
