"""Notebooks: folders of files that an API and people change at the same time, kept in git."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from penstock import Penstock
from penstock.apps import Application
from penstock.apps.notebooks.events import OperationRoutes
from penstock.apps.notebooks.library import Library
from penstock.apps.notebooks.operations import QUEUE
from penstock.apps.notebooks.publishing import Publisher
from penstock.apps.notebooks.reading_routes import ReadingRoutes
from penstock.apps.notebooks.registry_routes import RegistryRoutes
from penstock.apps.notebooks.routes import FileRoutes
from penstock.apps.notebooks.running import Runner
from penstock.apps.notebooks.service import Notebooks
from penstock.apps.notebooks.settings import Settings
from penstock.apps.notebooks.tasks import register
from penstock.apps.notebooks.tending import Tender
from penstock.apps.notebooks.writing import AT_ONCE
from penstock.http.routes import routes_of

__all__ = ["Settings", "install"]

DATA = Path("penstock-data")


def install(penstock: Penstock, settings: Settings, data: Path | None = None) -> Application:
    """The notebook API on a Penstock; new notebooks are made in a folder of `data`."""
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it tells of every burst
    library = Library(penstock, settings, (data or DATA).absolute())
    publisher = Publisher(penstock)
    runner = Runner(penstock, settings, library, publisher)
    register(penstock, settings, runner)
    tender = Tender(penstock, settings, library, publisher, runner)
    notebooks = Notebooks(penstock, settings, library, publisher)

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        await library.prepare()
        yield

    @asynccontextmanager
    async def working() -> AsyncIterator[None]:
        if library.unavailable:
            yield
            return
        async with tender.working():
            yield

    return Application(
        "notebooks",
        "Change files of notebooks in order, with their history in git.",
        [
            *routes_of(RegistryRoutes(notebooks, library, settings)),
            *routes_of(FileRoutes(notebooks, library, settings)),
            *routes_of(ReadingRoutes(notebooks, library, settings)),
            *routes_of(OperationRoutes(notebooks, library)),
        ],
        running,
        notebooks.let_go,
        working=working,
        slots={QUEUE: AT_ONCE},
    )
