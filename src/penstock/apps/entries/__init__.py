"""Entries: records that are stored at once, embedded in the background, and found by meaning."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from penstock import ConfigurationError, Penstock
from penstock.apps.entries.entries import (
    MANIFEST,
    Entries,
    Entry,
    EntryChanged,
    EntryExists,
    EntryMatch,
    EntryNotFound,
)
from penstock.apps.entries.indexes import PACKAGES
from penstock.apps.entries.processes import pool_of
from penstock.apps.entries.queue import EntryQueue
from penstock.apps.entries.routes import EntriesRoutes, FileRoutes
from penstock.apps.entries.rows import EntryQuery
from penstock.apps.entries.settings import Settings
from penstock.apps.entries.types import EntryType, Field, InvalidEntry
from penstock.apps.kit import DATA, Application, needs_tables, routes_of

__all__ = [
    "Entries",
    "Entry",
    "EntryChanged",
    "EntryExists",
    "EntryMatch",
    "EntryNotFound",
    "EntryQuery",
    "EntryQueue",
    "EntryType",
    "Field",
    "InvalidEntry",
    "Settings",
    "install",
]

_log = logging.getLogger(__name__)


def install(penstock: Penstock, settings: Settings, data: Path | None = None) -> Application:
    """Return the entries application; vectors are stored in a folder of `data`.

    Separate processes run its jobs, so this registers no tasks.
    """
    entries = Entries(penstock, (data or DATA) / "entries", settings=settings)
    queue = EntryQueue(entries)
    routes = EntriesRoutes(entries, queue)

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        try:
            await entries.prepare()
        except ConfigurationError as error:
            routes.refused = needs_tables(MANIFEST.name, error)
            _log.info("app entries is off: %s", error)
        try:
            yield
        finally:
            entries.close()

    @asynccontextmanager
    async def working() -> AsyncIterator[None]:
        if routes.refused or PACKAGES.missing() or not settings.workers:
            yield
            return
        await _log_pending(queue)
        async with pool_of(entries).running():
            yield

    return Application(
        MANIFEST.name,
        MANIFEST.summary,
        [*routes_of(routes), *routes_of(FileRoutes(entries, routes))],
        running,
        working=working,
    )


async def _log_pending(queue: EntryQueue) -> None:
    """Log how many entries are pending when the server starts."""
    pending = dict((await queue.counts())["pending"])
    total = pending.pop("total")
    if not total:
        _log.debug("No pending embeddings on startup")
        return
    parts = ", ".join(f"{n} {name}" for name, n in pending.items())
    _log.info(
        "Found %d pending embeddings on startup (%s). Workers will process them.", total, parts
    )
