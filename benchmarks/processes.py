"""Fresh processes, so that no run inherits caches, threads or memory from another."""

import faulthandler
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE_SECONDS = 1_800
"""A process that hangs longer prints where, and dies."""


@contextmanager
def started(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Iterator[Future[T]]:
    """Run a module-level function in a process of its own, beside the body."""
    with ProcessPoolExecutor(
        max_workers=1,
        mp_context=get_context("spawn"),
        initializer=_limit_patience,
    ) as pool:
        yield pool.submit(function, *args, **kwargs)


def _limit_patience() -> None:
    faulthandler.dump_traceback_later(PATIENCE_SECONDS, exit=True)


def run(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a module-level function in a process of its own and wait for its answer."""
    with started(function, *args, **kwargs) as answer:
        return answer.result()
