"""Entries: rows that are written at once, and whose embeddings always follow."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from penstock import ConfigurationError, Penstock
from penstock.apps import Application
from penstock.apps.entries.control import Control
from penstock.apps.entries.entries import (
    Entries,
    Entry,
    EntryChanged,
    EntryExists,
    EntryNotFound,
    Found,
)
from penstock.apps.entries.entrytypes import EntryType, Field, InvalidEntry
from penstock.apps.entries.filing import FileRoutes
from penstock.apps.entries.pool import pool_of
from penstock.apps.entries.routes import EntriesRoutes
from penstock.apps.entries.rows import Chosen
from penstock.apps.entries.settings import Settings
from penstock.apps.entries.shelves import missing_packages
from penstock.http.routes import routes_of

__all__ = [
    "Chosen",
    "Control",
    "Entries",
    "Entry",
    "EntryChanged",
    "EntryExists",
    "EntryNotFound",
    "EntryType",
    "Field",
    "Found",
    "InvalidEntry",
    "Settings",
    "install",
]

DATA = Path("penstock-data")

_log = logging.getLogger(__name__)


def install(penstock: Penstock, settings: Settings, data: Path | None = None) -> Application:
    """The API of entries on a Penstock; vectors are kept in a folder of `data`.

    Its jobs are run by processes of its own, so that this one gets no task to run.
    """
    logging.getLogger("faiss").setLevel(logging.WARNING)  # it tells which of its builds it tries
    entries = Entries(penstock, (data or DATA) / "entries", settings=settings)
    control = Control(entries)
    routes = EntriesRoutes(entries, control)

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        try:
            await entries.prepare()
        except ConfigurationError as error:
            routes.refused = f"entries need a SQLite or PostgreSQL store: {error}"
            _log.info("app entries is off: %s", error)
        try:
            yield
        finally:
            entries.close()

    @asynccontextmanager
    async def working() -> AsyncIterator[None]:
        if routes.refused or missing_packages() or not settings.workers:
            yield
            return
        await _log_pending(control)
        async with pool_of(entries).running():
            yield

    return Application(
        "entries",
        "Keep entries that can be searched by what they mean.",
        [*routes_of(routes), *routes_of(FileRoutes(entries, routes))],
        running,
        working=working,
    )


async def _log_pending(control: Control) -> None:
    """Log how many entries wait to be embedded when the server starts."""
    pending = dict((await control.counts())["pending"])
    total = pending.pop("total")
    if not total:  # a server that has nothing to do says nothing but where it is
        _log.debug("No pending embeddings on startup")
        return
    parts = ", ".join(f"{n} {name}" for name, n in pending.items())
    _log.info(
        "Found %d pending embeddings on startup (%s). Workers will process them.", total, parts
    )
