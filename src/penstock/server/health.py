"""Whether the server lives, and whether it can do its work: answered from memory."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any, Literal

import msgspec

from penstock.apps.beside import beside
from penstock.core.errors import PenstockError
from penstock.core.times import from_micros
from penstock.engine import Penstock
from penstock.http.routes import Answer, route

_log = logging.getLogger(__name__)

INDEXING_API_VERSION = "10.7.0"
"""The version of the indexing API that is served; its clients refuse a server below 10.2.0."""

CHECK_EVERY = 3.0
"""Seconds between two looks at the store."""
PATIENCE = 2.0
"""Seconds within which the store has to answer."""


class WorkerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How many workers of the store were heard of lately, and how many were not."""

    running: int
    silent: int


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The server lives. `version` is that of the indexing API, `penstock` its own.

    `workers` is as it was a few seconds ago; null while the store does not answer.
    """

    status: Literal["healthy"] = "healthy"
    version: str = INDEXING_API_VERSION
    penstock: str = metadata.version("penstock")
    workers: WorkerHealth | None = None


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the server can do its work, and why not; `store_seconds` is how long the store took.

    The store is looked at every few seconds.
    """

    status: Literal["ready", "not ready"]
    detail: str | None = None
    store_seconds: float | None = None


class HealthRoutes:
    """What the server serves of its health; nothing here waits for anything."""

    def __init__(self, penstock: Penstock, stopping: asyncio.Event) -> None:
        self._penstock = penstock
        self._stopping = stopping
        self._found = Readiness(status="not ready", detail="the store was not looked at yet")
        self._look: asyncio.Task[Any] | None = None
        self._workers: WorkerHealth | None = None
        self._healthy = msgspec.json.encode(Health())

    # A probe that adds a parameter, say against caches, must not take a server out of service.
    @route(
        "GET", "/health", None, "Whether the server lives", answers={200: Health}, any_query=True
    )
    async def health(self) -> Answer:
        """Answers while the server lives, whatever becomes of the store."""
        return Answer(200, self._healthy)

    @route(
        "GET",
        "/health/ready",
        None,
        "Whether the server can do its work",
        answers={200: Readiness, 503: Readiness},
        examples={"200": {"status": "ready", "detail": None, "store_seconds": 0.001}},
        any_query=True,
    )
    async def ready(self) -> Answer:
        """Ready while the store answers within 2 seconds and the server does not stop."""
        if self._stopping.is_set():
            return Answer(503, Readiness(status="not ready", detail="the server stops"))
        return Answer(200 if self._found.status == "ready" else 503, self._found)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Look at the store now and then, inside the block."""
        await self._check()
        try:
            async with beside(self._check_forever()):
                yield
        finally:
            if self._look is not None:
                self._look.cancel()

    async def _check_forever(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY)
            await self._check()

    async def _check(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        # A look that does not end stays the only one: no more are piled up behind it.
        look = self._look = self._look or asyncio.create_task(self._ask())
        await asyncio.wait({look}, timeout=PATIENCE)
        if not look.done():
            detail: str | None = f"the store did not answer within {PATIENCE:g} seconds"
        else:
            self._look = None
            detail = look.result()
        self._healthy = msgspec.json.encode(Health(workers=None if detail else self._workers))
        before = self._found.status
        self._found = Readiness(
            status="not ready" if detail else "ready",
            detail=detail,
            store_seconds=None if detail else loop.time() - began,
        )
        if detail and before == "ready":
            _log.warning("not ready: %s", detail)

    async def _ask(self) -> str | None:
        try:
            await self._penstock.newest_log()
            workers = await self._penstock.workers()
        except PenstockError as error:
            _log.warning("the store does not answer: %s", error)
            return "the store does not answer"  # why is none of a stranger's business
        now = from_micros(self._penstock.clock())
        silent = sum(one.is_silent(now) for one in workers)
        self._workers = WorkerHealth(running=len(workers) - silent, silent=silent)
        return None
