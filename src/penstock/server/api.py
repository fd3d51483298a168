"""What every server serves: jobs, queues, workers, schedules, history, the log, health."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from penstock.apps import Application
from penstock.core.secrets import Secrets
from penstock.engine import Penstock
from penstock.http.routes import Route, routes_of
from penstock.server.bulk import BulkRoutes
from penstock.server.health import HealthRoutes
from penstock.server.history import HistoryRoutes
from penstock.server.jobs import JobRoutes
from penstock.server.queues import QueueRoutes
from penstock.server.relations import RelationRoutes
from penstock.server.schedules import ScheduleRoutes
from penstock.server.store import StoreRoutes
from penstock.server.stream import StreamRoutes
from penstock.server.workers import WorkerRoutes
from penstock.stores.observed import Timing


def install(
    penstock: Penstock,
    stopping: asyncio.Event,
    routes: Iterable[Route] = (),
    *,
    secrets: Secrets,
    timings: Mapping[str, Timing],
) -> Application:
    """What every server serves, and these routes besides.

    `stopping` is set when those who wait should go; `timings` are how long the store took.
    """
    health = HealthRoutes(penstock, stopping)
    stream = StreamRoutes(penstock, stopping)
    owners = (
        JobRoutes(penstock, secrets),
        BulkRoutes(penstock),
        RelationRoutes(penstock),
        QueueRoutes(penstock, stopping),
        WorkerRoutes(penstock),
        ScheduleRoutes(penstock, secrets),
        HistoryRoutes(penstock),
        StoreRoutes(penstock, timings),
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
        [*(route for owner in owners for route in routes_of(owner)), *routes],
        running,
    )
