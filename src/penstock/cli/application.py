"""Calls the routes of an application: on a server, or in this process."""

import asyncio
import contextlib
import importlib
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from penstock.apps.kit import Application, Packages
from penstock.client.connection import Connection, InProcessTransport, connect
from penstock.client.wire import Request
from penstock.config import Server, Sources, store_url
from penstock.engine.penstock import Penstock
from penstock.worker.worker import Worker

Body = dict[str, Any]

_RETRIES = 3
_ANSWER_TIME = 60.0
_PACKAGES = ("fastapi", "faiss", "numpy", "tokenizers", "wordllama")
"""The packages that these applications need when they are called in process."""


class Routes:
    """Calls the routes of an application; `is_here` if they are in this process."""

    def __init__(self, connection: Connection, *, is_here: bool) -> None:
        self.connection = connection
        self.is_here = is_here

    async def get(self, path: str, params: Body | None = None) -> Body:
        """Read a resource."""
        return await self.send(Request("GET", path, params=params))

    async def post(self, path: str, body: Body) -> Body:
        """Send a JSON document."""
        return await self.send(Request("POST", path, body=body))

    async def send(self, request: Request) -> Body:
        """Make a request."""
        return await self.connection.ask(request, Body)


@asynccontextmanager
async def application(
    name: str,
    where: Mapping[str, str | None],
    *,
    settings: Mapping[str, Any] | None = None,
    starts: bool = True,
    works: bool = False,
) -> AsyncIterator[Routes]:
    """Connect to an application: of the server at `url`, or else in this process.

    In this process, `store` and `data` are those of `penstock serve` unless given, and `settings`
    replace some of its settings. The background tasks of the application run if it `starts`, its
    jobs are worked off if it `works`.
    """
    if url := where["url"]:
        connection = connect(url, None, retries=_RETRIES, timeout=_ANSWER_TIME)
        try:
            yield Routes(connection, is_here=False)
        finally:
            await connection.close()
        return
    given = {"store": where["store"], "data": where["data"]}
    async with _in_process(name, given, settings or {}, starts=starts, works=works) as connection:
        yield Routes(connection, is_here=True)


@asynccontextmanager
async def _in_process(
    name: str,
    given: Mapping[str, str | None],
    changed: Mapping[str, Any],
    *,
    starts: bool,
    works: bool,
) -> AsyncIterator[Connection]:
    """Serve an application as a server does, without a port and without tokens."""
    from penstock.server.app import Service

    penstock, installed = _installed(name, given, changed)
    service = Service(penstock, [installed])
    async with AsyncExitStack() as stack:
        stack.enter_context(_quiet())
        await stack.enter_async_context(penstock)
        if starts:
            await stack.enter_async_context(installed.running())
        if works:
            await stack.enter_async_context(installed.listening(""))
            await stack.enter_async_context(installed.working())
            await stack.enter_async_context(_working(penstock))
        try:
            yield Connection(name, InProcessTransport(service), 0)
        finally:
            if not starts:  # its end releases what requests have opened
                await stack.enter_async_context(installed.running())


def _installed(
    name: str, given: Mapping[str, str | None], changed: Mapping[str, Any]
) -> tuple[Penstock, Application]:
    """Install an application on the store of `penstock serve`, with its settings."""
    Packages(name, _PACKAGES).check()
    from penstock.server.applications import child_factory

    sources = Sources()
    server = sources.section("", Server, given).settings
    server = msgspec.structs.replace(server, apps=(name,))
    module = importlib.import_module(f"penstock.apps.{name}")
    own = msgspec.structs.replace(sources.section(name, module.Settings).settings, **changed)
    penstock = Penstock(
        store_url(server),
        migrate=server.migrate,
        factory=child_factory(server, sources, **{name: own}),
    )
    return penstock, module.install(penstock, own, Path(server.data).absolute())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Log nothing, here and in child processes: commands report failures of jobs themselves."""
    level = logging.root.level
    logging.root.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logging.root.setLevel(level)


@asynccontextmanager
async def _working(penstock: Penstock) -> AsyncIterator[None]:
    """Run the jobs of the tasks that are registered here; at the end, leave the rest for later."""
    queues = {task.queue for task in penstock.tasks.values()}
    if not queues:  # the application has worker processes of its own
        yield
        return
    running = asyncio.create_task(Worker(penstock, queues=sorted(queues), concurrency=1).run())
    try:
        yield
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
