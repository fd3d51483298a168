"""Ingest: one queue for content, files, folders, projects, libraries, deletions and renames.

Other programs use the same queue in plain SQL: its items are the rows of `unified_queue`.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock import ConfigurationError, Penstock, Worker
from penstock.apps.ingest.collections import Collections
from penstock.apps.ingest.items import InvalidItem, Item, ItemType, Operation, checked
from penstock.apps.ingest.routes import IngestRoutes
from penstock.apps.ingest.service import ItemNotFound, Service
from penstock.apps.ingest.settings import PACKAGES, Roots, Settings
from penstock.apps.ingest.unified_queue import QUEUE, TASK, Added
from penstock.apps.kit import (
    DATA,
    Application,
    Manifest,
    Pool,
    needs_tables,
    routes_of,
    startup_message,
    stop_with_server,
    worker_name,
)

if TYPE_CHECKING:
    from penstock.apps.ingest.tasks import Handlers

__all__ = [
    "MANIFEST",
    "PACKAGES",
    "Added",
    "InvalidItem",
    "Item",
    "ItemNotFound",
    "ItemType",
    "Operation",
    "Parts",
    "Service",
    "Settings",
    "assemble",
    "checked",
    "install",
    "main",
]

MANIFEST = Manifest(
    "ingest",
    "One queue for everything to ingest, and a search over it.",
    queues=(QUEUE,),
    route="POST /api/v1/queue/items",
    tasks={TASK: ""},
)

_GRACE = timedelta(seconds=20)
_log = logging.getLogger(__name__)


class Parts(NamedTuple):
    """The parts of the application where items run."""

    service: Service
    collections: Collections
    handlers: "Handlers"

    def close(self) -> None:
        """End threads and close collections."""
        self.handlers.close()
        self.collections.close()


def assemble(penstock: Penstock, settings: Settings, data: Path) -> Parts:
    """Create the parts; call `handlers.register` to register the task for a worker."""
    from penstock.apps.ingest.tasks import Handlers

    settings.check()
    MANIFEST.register(penstock)
    service, collections = Service(penstock, settings), Collections(settings, data)
    roots = Roots(settings.roots, data)
    return Parts(service, collections, Handlers(service, settings, collections, roots))


def install(penstock: Penstock, settings: Settings, data: Path | None = None) -> Application:
    """Return the application; the worker processes of the server run its items."""
    settings.check()
    MANIFEST.register(penstock)
    folder = (data or DATA).absolute()
    service, collections = Service(penstock, settings), Collections(settings, folder)
    roots = Roots(settings.roots, folder)
    startup = Startup(
        penstock.url, str(folder), msgspec.structs.replace(settings, roots=roots.roots)
    )
    pool = Pool(
        penstock, __name__, startup, settings.workers, service.has_unfinished, name=MANIFEST.name
    )

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        try:
            yield
        finally:
            collections.close()

    @asynccontextmanager
    async def listening(_: str) -> AsyncIterator[None]:
        try:
            await service.prepare()
        except ConfigurationError as error:
            _log.info("%s", needs_tables(MANIFEST.name, error))
            yield
            return
        if missing := PACKAGES.missing():
            _log.info("items wait: %s is not installed", ", ".join(missing))
            yield
            return
        async with pool.running():
            yield

    return Application(
        MANIFEST.name,
        MANIFEST.summary,
        list(routes_of(IngestRoutes(service, collections, roots, settings))),
        running,
        listening=listening,
    )


# Worker processes


class Startup(msgspec.Struct, frozen=True):
    """The message that a worker process is started with."""

    url: str
    data: str
    settings: Settings


def main() -> None:
    """Run items in a worker process until its server stops it."""
    asyncio.run(_work(startup_message(Startup)))


async def _work(startup: Startup) -> None:
    async with Penstock(startup.url, create=False) as penstock:
        parts = assemble(penstock, startup.settings, Path(startup.data))
        parts.handlers.register()
        await parts.service.prepare()
        await parts.service.promote_by_age()
        parts.collections.clean_up()
        worker = Worker(
            penstock,
            queues=[QUEUE],
            concurrency=startup.settings.concurrency,
            name=worker_name(MANIFEST.name, os.getpid()),
            grace=_GRACE,
        )
        stop_with_server(worker)
        try:
            await worker.run()
        finally:
            parts.close()
