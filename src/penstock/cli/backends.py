"""Where folders are indexed and searched: on a server, or here, with a worker in this process."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.client.line import Line, line_to
from penstock.client.wire import Request
from penstock.config import Server, Sources
from penstock.core.errors import ConfigurationError
from penstock.engine import Penstock
from penstock.http.problems import converted
from penstock.server.installed import origin_of, store_url
from penstock.worker.worker import Worker

if TYPE_CHECKING:
    from penstock.apps.indexing import Parts

Body = dict[str, Any]

_LOOKED_AT = 100


class Backend(Protocol):
    """Where folders are indexed and searched."""

    async def index(self, body: Body) -> Body:
        """Ask for a job."""
        ...

    async def job(self, job_id: str) -> Body:
        """A job as it is now."""
        ...

    async def search(self, body: Body) -> Body:
        """What is found."""
        ...


class Remote:
    """A server."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def index(self, body: Body) -> Body:
        """Ask the server for a job."""
        return await self._line.ask(Request("POST", "/index", body=body), Body)

    async def job(self, job_id: str) -> Body:
        """A job of the server."""
        return await self._line.ask(Request("GET", f"/index/jobs/{job_id}"), Body)

    async def search(self, body: Body) -> Body:
        """What the server finds."""
        return await self._line.ask(Request("POST", "/query", body=body), Body)


class Local:
    """A store and a data folder, without a server."""

    def __init__(self, parts: "Parts") -> None:
        self._parts = parts

    async def index(self, body: Body) -> Body:
        """Store a job here."""
        from penstock.apps.indexing import shapes
        from penstock.apps.indexing.requests import index_parameters

        request = converted(body, shapes.IndexRequest)
        parameters = index_parameters(request, shapes.HowAsked(), self._parts.places)
        job = await self._parts.indexing.enqueue(parameters)
        return _plain(await self._parts.indexing.accepted(job))

    async def job(self, job_id: str) -> Body:
        """A job of the store."""
        return _plain(await self._parts.indexing.detail(job_id))

    async def behind(self, job_id: str) -> list[str]:
        """The jobs that came after this one, oldest first."""
        jobs = (await self._parts.indexing.page(_LOOKED_AT, 0)).jobs
        newer = list(itertools.takewhile(lambda job: job.id != job_id, jobs))
        return [job.id for job in reversed(newer)]

    async def search(self, body: Body) -> Body:
        """What is found here."""
        from penstock.apps.indexing import shapes

        question = converted(body, shapes.Question)
        return _plain(await asyncio.to_thread(self._parts.searcher.search, question))


def open_backend(
    where: Mapping[str, str | None], *, working: bool
) -> AbstractAsyncContextManager[Backend]:
    """What the options `url`, `store` and `data` name; `working`, jobs are run there."""
    url = where["url"]
    return _remote(url) if url else _local(where["store"], where["data"], working=working)


@asynccontextmanager
async def _remote(url: str) -> AsyncIterator[Remote]:
    line = line_to(url, None, retries=3, timeout=60, blocking=False)
    try:
        yield Remote(line)
    finally:
        await line.close()


@asynccontextmanager
async def _local(store: str | None, data: str | None, *, working: bool) -> AsyncIterator[Local]:
    """The applications of this package here; `working`, with a worker."""
    from penstock.apps.indexing import Settings, assemble
    from penstock.apps.indexing.places import INSTALL, missing_packages

    if missing := missing_packages():
        problem = ConfigurationError(f"indexing needs {', '.join(missing)}")
        problem.add_note(INSTALL)
        raise problem
    sources = Sources()
    server = sources.section("", Server, {"store": store, "data": data}).settings
    server = msgspec.structs.replace(server, apps=("indexing",))
    settings = sources.section("indexing", Settings).settings
    # Whoever has a shell here may read those folders anyway.
    allowing = msgspec.structs.replace(settings, allow_external_paths=True)
    origin = origin_of(server, sources, indexing=allowing)
    async with Penstock(store_url(server), origin=origin) as app:
        parts = assemble(app, allowing, Path(server.data))
        try:
            async with _working(app, parts) if working else contextlib.nullcontext():
                yield Local(parts)
        finally:
            parts.searcher.close()


@asynccontextmanager
async def _working(app: Penstock, parts: "Parts") -> AsyncIterator[None]:
    """A worker for indexing jobs, inside the block; what it has begun goes on another time."""
    worker = Worker(app, queues=["indexing"], concurrency=1)
    running = asyncio.create_task(worker.run())
    try:
        async with parts.watcher.running():
            yield
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def _plain(value: Any) -> Body:
    return msgspec.to_builtins(value)  # type: ignore[no-any-return] # a Struct is a dict then
