"""Notebooks: folders of files that an API and people change at the same time, kept in git."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from penstock import Penstock, RetryPolicy
from penstock.apps.kit import DATA, Application, Manifest, routes_of
from penstock.apps.notebooks.errors import Permanent
from penstock.apps.notebooks.operations.maintenance import Maintenance
from penstock.apps.notebooks.operations.operation import KINDS, QUEUE
from penstock.apps.notebooks.operations.publisher import Publisher
from penstock.apps.notebooks.operations.runner import Runner
from penstock.apps.notebooks.operations.writer import AT_ONCE
from penstock.apps.notebooks.registry import Registry
from penstock.apps.notebooks.routes.contents import ReadingRoutes
from penstock.apps.notebooks.routes.events import Events, OperationRoutes
from penstock.apps.notebooks.routes.files import FileRoutes
from penstock.apps.notebooks.routes.notebooks import RegistryRoutes
from penstock.apps.notebooks.settings import Settings

__all__ = ["MANIFEST", "Settings", "install"]

_FILE = "/api/v1/notebooks/{notebook}/files/{file_id}"
MANIFEST = Manifest(
    "notebooks",
    "Change files of notebooks in order, with their history in git.",
    queues=(QUEUE,),
    route="POST /api/v1/notebooks/{notebook}/files",
    tasks={
        "notebooks.create": "",
        "notebooks.update": f"PUT {_FILE}",
        "notebooks.delete": f"DELETE {_FILE}",
        "notebooks.move": f"PATCH {_FILE}/move",
        "notebooks.commit": "POST /api/v1/events/commit",
        "notebooks.sync": "",
    },
)


def install(penstock: Penstock, settings: Settings, data: Path | None = None) -> Application:
    """Install the notebook API; new notebooks are created in a folder of `data`."""
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it logs every burst of changes
    registry = Registry(penstock, settings, (data or DATA).absolute())
    publisher = Publisher(penstock, settings)
    runner = Runner(penstock, settings, registry, publisher)
    _register(penstock, settings, runner)
    maintenance = Maintenance(penstock, settings, registry, publisher, runner)
    events = Events(penstock, registry)

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        await registry.prepare()
        yield

    @asynccontextmanager
    async def working() -> AsyncIterator[None]:
        if not registry.is_available:
            yield
            return
        async with maintenance.working():
            yield

    return Application(
        MANIFEST.name,
        MANIFEST.summary,
        [
            *routes_of(RegistryRoutes(penstock, registry, publisher, settings)),
            *routes_of(FileRoutes(penstock, registry, publisher, events, settings)),
            *routes_of(ReadingRoutes(registry, settings)),
            *routes_of(OperationRoutes(events, publisher, registry)),
        ],
        running,
        events.stop_waiting,
        working=working,
        slots={QUEUE: AT_ONCE},
    )


def _register(penstock: Penstock, settings: Settings, runner: Runner) -> None:
    """Register a task for each kind of operation."""
    MANIFEST.register(penstock)
    for kind in KINDS:
        penstock.task(
            f"{QUEUE}.{kind}",
            runner.handler(kind),
            queue=QUEUE,
            lease=timedelta(seconds=settings.lease),
            retry=RetryPolicy(
                attempts=settings.max_retries, delay=timedelta(seconds=settings.retry_delay)
            ),
            permanent=(Permanent,),
        )
