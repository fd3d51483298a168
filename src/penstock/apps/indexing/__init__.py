"""Indexing: folders into collections that can be searched, by jobs that survive crashes."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from penstock import Penstock
from penstock.apps import Application
from penstock.apps.indexing.places import Places
from penstock.apps.indexing.routes import IndexingRoutes
from penstock.apps.indexing.runtime import announced
from penstock.apps.indexing.searching import Searcher
from penstock.apps.indexing.service import Indexing
from penstock.apps.indexing.settings import Settings
from penstock.apps.indexing.status import Status
from penstock.apps.indexing.tasks import register
from penstock.apps.indexing.watching import Watcher
from penstock.http.routes import routes_of

__all__ = ["Parts", "Settings", "assemble", "install"]

DATA = Path("penstock-data")


class Parts(NamedTuple):
    """What indexing consists of, put together."""

    places: Places
    indexing: Indexing
    searcher: Searcher
    watcher: Watcher


def assemble(penstock: Penstock, settings: Settings, data: Path) -> Parts:
    """Indexing on a Penstock, whose task is registered; nothing runs yet."""
    settings.check()
    logging.getLogger("faiss").setLevel(logging.WARNING)  # it tells which of its builds it tries
    places = Places(settings, data)
    register(penstock, settings, places)
    searcher = Searcher(settings, places)
    indexing = Indexing(penstock, settings, places, searcher)
    return Parts(places, indexing, searcher, Watcher(penstock, settings, places, indexing))


def install(penstock: Penstock, settings: Settings, data: Path | None = None) -> Application:
    """The indexing API on a Penstock; what is indexed is kept in a folder of `data`."""
    places, indexing, searcher, watcher = assemble(penstock, settings, data or DATA)
    status = Status(penstock, indexing, watcher)

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        try:
            async with status.running(), watcher.running():
                yield
        finally:
            searcher.close()

    @asynccontextmanager
    async def listening(address: str) -> AsyncIterator[None]:
        if not settings.runtime_file:
            yield
            return
        async with announced(penstock, places.root, address):
            yield

    return Application(
        "indexing",
        "Index folders in the background, and search them.",
        list(routes_of(IndexingRoutes(indexing, places, searcher, status))),
        running,
        listening=listening,
    )
