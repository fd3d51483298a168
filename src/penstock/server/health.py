"""Routes for health checks: liveness, readiness and startup, answered from memory."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any, Literal

import msgspec

from penstock.apps.kit.background import in_background
from penstock.core.errors import PenstockError
from penstock.core.times import from_micros
from penstock.engine.penstock import Penstock
from penstock.web.routes import Answer, route

_log = logging.getLogger(__name__)

INDEXING_API_VERSION = "10.7.0"
"""What clients of the indexing API compare: they refuse a server below 10.2.0."""

CHECK_EVERY = 3.0
"""Seconds between two checks of the store."""
STORE_TIMEOUT = 2.0
"""Seconds within which the store must answer."""


class WorkerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How many workers of the store are alive, and how many have fallen silent."""

    running: int
    silent: int


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The server is alive. `version` is that of the indexing API, `penstock` that of the server.

    `workers` is a few seconds old, and null while the store does not answer.
    """

    status: Literal["healthy"] = "healthy"
    version: str = INDEXING_API_VERSION
    penstock: str = metadata.version("penstock")
    workers: WorkerHealth | None = None


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the server can do its work, and if not, why; the store is checked every few seconds.

    `store_seconds` is how long the store took to answer.
    """

    status: Literal["ready", "not ready"]
    detail: str | None = None
    store_seconds: float | None = None


class Startup(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the server has opened its store; once it has, this does not change any more."""

    status: Literal["started", "starting"]


class HealthRoutes:
    """Health checks; no request waits for anything."""

    def __init__(self, penstock: Penstock, draining: asyncio.Event) -> None:
        self._penstock = penstock
        self._draining = draining
        self._started = False
        self._found = Readiness(status="not ready", detail="the store has not been checked yet")
        self._probe: asyncio.Task[Any] | None = None
        self._workers: WorkerHealth | None = None
        self._healthy = msgspec.json.encode(Health())

    # A probe may add a parameter, for example to bypass caches, and must still be answered.
    @route("GET", "/health", None, any_query=True)
    async def health(self) -> Answer[Health]:
        """Check that the server is alive.

        Answers with 200 as long as the server runs, whether or not the store answers.
        """
        return Answer(200, self._healthy)

    @route("GET", "/health/live", None, any_query=True)
    async def live(self) -> Answer[Health]:
        """Check that the server is alive, as `/health` does.

        For a probe that restarts the server: it fails only if the process does not answer.
        """
        return Answer(200, self._healthy)

    @route(
        "GET",
        "/health/startup",
        None,
        also={503: Startup},
        examples={"200": {"status": "started"}},
        any_query=True,
    )
    async def startup(self) -> Answer[Startup]:
        """Check that the server has started.

        Answers with 200 from the first answer of the store on, whatever happens to it later.
        """
        if self._started:
            return Answer(200, Startup(status="started"))
        return Answer(503, Startup(status="starting"))

    @route(
        "GET",
        "/health/ready",
        None,
        also={503: Readiness},
        examples={"200": {"status": "ready", "detail": None, "store_seconds": 0.001}},
        any_query=True,
    )
    async def ready(self) -> Answer[Readiness]:
        """Check that the server can do its work.

        Ready while the store answers within 2 seconds and the server is not shutting down.
        """
        if self._draining.is_set():
            return Answer(503, Readiness(status="not ready", detail="the server is shutting down"))
        return Answer(200 if self._found.status == "ready" else 503, self._found)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Check the store periodically, inside the block."""
        await self._check()
        try:
            async with in_background(self._check_forever()):
                yield
        finally:
            if self._probe is not None:
                self._probe.cancel()

    async def _check_forever(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY)
            await self._check()

    async def _check(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        # A check that does not end stays the only one, so that none pile up.
        probe = self._probe = self._probe or asyncio.create_task(self._check_store())
        await asyncio.wait({probe}, timeout=STORE_TIMEOUT)
        if not probe.done():
            detail: str | None = f"the store did not answer within {STORE_TIMEOUT:g} seconds"
        else:
            self._probe = None
            detail = probe.result()
        self._healthy = msgspec.json.encode(Health(workers=None if detail else self._workers))
        self._started = self._started or not detail
        before = self._found.status
        self._found = Readiness(
            status="not ready" if detail else "ready",
            detail=detail,
            store_seconds=None if detail else loop.time() - began,
        )
        if detail and before == "ready":
            _log.warning("the server is not ready: %s", detail)

    async def _check_store(self) -> str | None:
        try:
            await self._penstock.newest_log()
            workers = await self._penstock.workers.list()
        except PenstockError as error:
            _log.warning("the store does not answer: %s", error)
            return "the store does not answer"  # strangers do not learn why
        now = from_micros(self._penstock.clock())
        silent = sum(one.is_silent(now) for one in workers)
        self._workers = WorkerHealth(running=len(workers) - silent, silent=silent)
        return None
