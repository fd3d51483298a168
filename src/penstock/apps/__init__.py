"""The systems that stand on the queue; each is a folder that uses the public API alone.

A module here offers `Settings`, a Struct whose fields are set in the section of its name, and
`install(penstock, settings, data)`, which registers its tasks and returns an `Application`; `data`
is the folder for what the server keeps.

The names of its jobs begin with its own name, which `namespaces.NAMESPACES` reserves for its
routes. Its handlers decode arguments into types that hold nothing a route would refuse: a job may
have been put into the database by other means.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.http.routes import Route


class Application(NamedTuple):
    """What a server serves of an installed application, and what runs beside it meanwhile."""

    name: str
    summary: str
    routes: Sequence[Route]
    running: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext
    let_go: Callable[[], None] = lambda: None
    """Called when the server stops listening: those who wait for something get their answers."""
    listening: Callable[[str], AbstractAsyncContextManager[Any]] = lambda _: nullcontext()
    """What lasts while the server listens at this address; in one of its processes."""
    working: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext
    """What works beside the jobs that the server runs; not where it runs none (`workers = 0`)."""
    slots: Mapping[str, int] = MappingProxyType({})
    """Queues with a worker of their own, which runs so many jobs at a time: they work together."""
