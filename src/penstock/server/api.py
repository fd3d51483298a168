"""What every server serves: jobs, queues, workers, schedules, history, the log, health."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.apps import Application
from penstock.engine import Penstock
from penstock.http.routes import routes_of
from penstock.server.bulk import BulkRoutes
from penstock.server.health import HealthRoutes
from penstock.server.history import HistoryRoutes
from penstock.server.jobs import JobRoutes
from penstock.server.queues import QueueRoutes
from penstock.server.schedules import ScheduleRoutes
from penstock.server.stream import StreamRoutes
from penstock.server.workers import WorkerRoutes


def install(penstock: Penstock, stopping: asyncio.Event) -> Application:
    """What every server serves; `stopping` is set when those who wait should go."""
    health = HealthRoutes(penstock, stopping)
    stream = StreamRoutes(penstock, stopping)
    owners = (
        JobRoutes(penstock),
        BulkRoutes(penstock),
        QueueRoutes(penstock, stopping),
        WorkerRoutes(penstock),
        ScheduleRoutes(penstock),
        HistoryRoutes(penstock),
        stream,
        health,
    )

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        async with health.running(), stream.running():
            yield

    return Application(
        "server",
        "Jobs, queues, workers, schedules, history, the log, health.",
        [route for owner in owners for route in routes_of(owner)],
        running,
    )
