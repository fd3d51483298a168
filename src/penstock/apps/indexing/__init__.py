"""Indexing: keeps folders searchable, by jobs that survive crashes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from penstock import Penstock
from penstock.apps.indexing.job import QUEUE, TASK, register
from penstock.apps.indexing.places import Places
from penstock.apps.indexing.routes import IndexingRoutes
from penstock.apps.indexing.runtime_file import runtime_file
from penstock.apps.indexing.search import Searcher
from penstock.apps.indexing.service import Indexing, Status
from penstock.apps.indexing.settings import Settings
from penstock.apps.indexing.watcher import Watcher
from penstock.apps.kit import DATA, Application, Manifest, routes_of

__all__ = ["MANIFEST", "Parts", "Settings", "assemble", "install"]

MANIFEST = Manifest(
    "indexing",
    "Index folders in the background, and search them.",
    queues=(QUEUE,),
    route="POST /index",
    tasks={TASK: ""},
)


class Parts(NamedTuple):
    """The parts of indexing, connected with each other."""

    places: Places
    indexing: Indexing
    searcher: Searcher
    watcher: Watcher


def assemble(penstock: Penstock, settings: Settings, data: Path) -> Parts:
    """Register the task of indexing on a Penstock, and return the parts; nothing runs yet."""
    settings.check()
    MANIFEST.register(penstock)
    places = Places(settings, data)
    register(penstock, settings, places)
    searcher = Searcher(settings, places)
    indexing = Indexing(penstock, settings, places, searcher)
    return Parts(places, indexing, searcher, Watcher(penstock, settings, places, indexing))


def install(penstock: Penstock, settings: Settings, data: Path | None = None) -> Application:
    """Return the indexing application on a Penstock; its collections are in a folder of `data`."""
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
        async with runtime_file(penstock, places.root, address):
            yield

    return Application(
        MANIFEST.name,
        MANIFEST.summary,
        list(routes_of(IndexingRoutes(indexing, places, searcher, status))),
        running,
        listening=listening,
    )
