"""Ingest: one queue for content, files, folders, projects, libraries, deletions and renames.

Other programs use the same queue in plain SQL: its items are the rows of `unified_queue`.
"""

import importlib.util
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock import ConfigurationError, Penstock
from penstock.apps import Application
from penstock.apps.ingest.items import InvalidItem, Item, ItemType, Operation, checked
from penstock.apps.ingest.process import Told
from penstock.apps.ingest.roots import Roots
from penstock.apps.ingest.routes import IngestRoutes
from penstock.apps.ingest.service import Added, Service
from penstock.apps.ingest.settings import Settings
from penstock.apps.ingest.shelves import Shelves
from penstock.apps.pool import Pool
from penstock.http.routes import routes_of

if TYPE_CHECKING:
    from penstock.apps.ingest.handlers import Handlers

__all__ = [
    "Added",
    "InvalidItem",
    "Item",
    "ItemType",
    "Operation",
    "Parts",
    "Service",
    "Settings",
    "assemble",
    "checked",
    "install",
]

_log = logging.getLogger(__name__)

DATA = Path("penstock-data")
NEEDED = ("faiss", "numpy", "pathspec", "tokenizers", "tree_sitter", "wordllama")


class Parts(NamedTuple):
    """What ingestion consists of where items are worked on."""

    service: Service
    shelves: Shelves
    handlers: "Handlers"

    def close(self) -> None:
        """Let go of threads and collections."""
        self.handlers.close()
        self.shelves.close()


def assemble(penstock: Penstock, settings: Settings, data: Path) -> Parts:
    """Ingestion on a Penstock; `handlers.register` makes its task known, for a worker."""
    from penstock.apps.ingest.handlers import Handlers

    settings.check()
    logging.getLogger("faiss").setLevel(logging.WARNING)  # it tells which of its builds it tries
    service, shelves = Service(penstock, settings), Shelves(settings, data)
    return Parts(
        service, shelves, Handlers(service, settings, shelves, Roots(settings.roots, data))
    )


def missing_packages() -> list[str]:
    """What has to be installed before items can be worked on, or searched."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def install(penstock: Penstock, settings: Settings, data: Path | None = None) -> Application:
    """The ingestion API on a Penstock; items are worked on by processes of their own."""
    settings.check()
    folder = (data or DATA).absolute()
    service, shelves = Service(penstock, settings), Shelves(settings, folder)
    roots = Roots(settings.roots, folder)
    told = Told(penstock.url, str(folder), msgspec.structs.replace(settings, roots=roots.roots))
    pool = Pool(
        penstock,
        "penstock.apps.ingest.process",
        told,
        settings.workers,
        service.has_unfinished,
        name="ingest",
    )

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        try:
            yield
        finally:
            shelves.close()

    @asynccontextmanager
    async def listening(_: str) -> AsyncIterator[None]:
        try:
            await service.prepare()
        except ConfigurationError as error:
            _log.info("app ingest is off: %s", error)
            yield
            return
        if missing := missing_packages():
            _log.info("items wait: %s is not installed", ", ".join(missing))
            yield
            return
        async with pool.running():
            yield

    return Application(
        "ingest",
        "One queue for what is to be ingested, and a search over it.",
        list(routes_of(IngestRoutes(service, shelves, roots, settings))),
        running,
        listening=listening,
    )
