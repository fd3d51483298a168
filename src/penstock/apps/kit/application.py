"""An installed application, as a server sees it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.web.routes import Route


class Application(NamedTuple):
    """The routes of an installed application, and what runs in the background of its server."""

    name: str
    summary: str
    routes: Sequence[Route]
    running: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext
    """Entered while the server runs, in each of its processes."""
    on_shutdown: Callable[[], None] = lambda: None
    """Called when the server stops listening, to answer the requests that still wait."""
    listening: Callable[[str], AbstractAsyncContextManager[Any]] = lambda _: nullcontext()
    """Entered with the server's address while it listens, in one of its processes."""
    working: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext
    """Entered while the server runs jobs; not with `workers = 0`."""
    slots: Mapping[str, int] = MappingProxyType({})
    """Queues with a worker of their own, and how many jobs it runs at a time."""
