"""Where items are ingested: on a server, or here, with a worker in this process."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.client.line import Line, line_to
from penstock.client.wire import Request
from penstock.config import Server, Sources
from penstock.core.errors import ConfigurationError
from penstock.engine import Penstock
from penstock.http.problems import converted
from penstock.server.installed import store_url
from penstock.worker.worker import Worker

if TYPE_CHECKING:
    from penstock.apps.ingest import Parts

Body = dict[str, Any]

_LOOK_AGAIN = 0.2
_FINAL = ("done", "failed")


class Backend(Protocol):
    """Where items are ingested."""

    async def add(self, item: Body) -> Body:
        """Store an item."""
        ...

    async def finished(self, accepted: Body) -> Body:
        """The item, when it and what it consists of have ended."""
        ...

    async def stats(self, tenant: str | None, collection: str | None) -> Body:
        """How many items there are."""
        ...

    async def search(self, question: Body) -> Body:
        """What is found."""
        ...


class Remote:
    """A server."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def add(self, item: Body) -> Body:
        """Ask the server for an item."""
        answer = await self._line.ask(Request("POST", "/api/v1/queue/items", body=item), Body)
        accepted: Body = answer["items"][0]
        return accepted

    async def finished(self, accepted: Body) -> Body:
        """Look at the item until it has ended."""
        path = f"/api/v1/queue/items/{accepted['queue_id']}"
        while True:
            item = await self._line.ask(Request("GET", path), Body)
            children = item["children"]
            if item["status"] in _FINAL and not children["pending"] + children["in_progress"]:
                return item
            await asyncio.sleep(_LOOK_AGAIN)

    async def stats(self, tenant: str | None, collection: str | None) -> Body:
        """Ask the server."""
        given = {"tenant_id": tenant, "collection": collection}
        query = {name: value for name, value in given.items() if value}
        request = Request("GET", "/api/v1/queue/items/stats", params=query)
        return await self._line.ask(request, Body)

    async def search(self, question: Body) -> Body:
        """Ask the server."""
        return await self._line.ask(Request("POST", "/api/v1/ingest/search", body=question), Body)


class Local:
    """A store and a data folder, with a worker in this process."""

    def __init__(self, parts: "Parts", data: Path) -> None:
        self._parts = parts
        self._data = data

    async def add(self, item: Body) -> Body:
        """Store an item here; who has a shell may read any file."""
        from penstock.apps.ingest.requests import items_of
        from penstock.apps.ingest.roots import Roots

        items = items_of([item], Roots(("/",), self._data), 10_000_000_000)
        [added] = await self._parts.service.add(items)
        return added._asdict()

    async def finished(self, accepted: Body) -> Body:
        """Work here until nothing is ready."""
        await Worker(self._parts.service.penstock, queues=["ingest"]).run(until_empty=True)
        from penstock.apps.ingest.routes import detail

        return plain(await detail(self._parts.service, accepted["queue_id"]))

    async def stats(self, tenant: str | None, collection: str | None) -> Body:
        """Count here."""
        return plain(await self._parts.service.stats(tenant, collection))

    async def search(self, question: Body) -> Body:
        """Search here."""
        from penstock.apps.ingest import shapes
        from penstock.apps.ingest.searching import search

        asked = converted(question, shapes.IngestQuestion)
        return plain(await asyncio.to_thread(search, self._parts.shelves, asked))


@asynccontextmanager
async def open_backend(where: Mapping[str, str | None]) -> AsyncIterator[Backend]:
    """What the options `url`, `store` and `data` name."""
    if url := where["url"]:
        line = line_to(url, None, retries=3, timeout=60, blocking=False)
        try:
            yield Remote(line)
        finally:
            await line.close()
        return
    async with _local(where["store"], where["data"]) as local:
        yield local


@asynccontextmanager
async def _local(store: str | None, data: str | None) -> AsyncIterator[Local]:
    from penstock.apps.ingest import Settings, assemble, missing_packages

    if missing := missing_packages():
        problem = ConfigurationError(f"ingestion needs {', '.join(missing)}")
        problem.add_note("pip install 'penstock[ingest]'")
        raise problem
    sources = Sources()
    server = sources.section("", Server, {"store": store, "data": data}).settings
    settings = sources.section("ingest", Settings).settings
    folder = Path(server.data)
    async with Penstock(store_url(server)) as app:
        parts = assemble(app, msgspec.structs.replace(settings, roots=("/",)), folder)
        parts.handlers.register()
        try:
            yield Local(parts, folder)
        finally:
            parts.close()


def plain(value: Any) -> Body:
    """A Struct as JSON has it."""
    return msgspec.to_builtins(value)  # type: ignore[no-any-return] # a Struct is a dict then
