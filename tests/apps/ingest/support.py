"""Items to work on, and a place to do it, without a model and without a server."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock import Job, Penstock, Worker
from penstock.apps.ingest import Parts, Settings, assemble, checked
from penstock.apps.ingest.requests import completed
from penstock.apps.ingest.roots import Roots
from penstock.apps.ingest.shelves import Place
from tests.apps.indexing.support import HashEmbedder

HERE = Place("shop", "docs", "main")


class Bench:
    """A store with a queue of items, collections, and workers that can be let loose."""

    def __init__(self, app: Penstock, folder: Path, **settings: Any) -> None:
        self.app = app
        self.folder = folder
        self.settings = Settings(roots=(str(folder),), retry_delay=0, **settings)
        self.parts: Parts = assemble(app, self.settings, folder / "data")
        self.embedder = HashEmbedder()
        self.parts.shelves._embedder = self.embedder
        self.parts.handlers.register()
        self.service = self.parts.service

    async def add(self, item_type: str, op: str, payload: Mapping[str, Any], **fields: Any) -> int:
        """Add an item, as a request would; its job."""
        given = {"tenant_id": "shop", "collection": "docs", **fields}
        item = checked({"item_type": item_type, "op": op, "payload": payload, **given})
        roots = Roots(self.settings.roots, self.folder / "data")
        [added] = await self.service.add([completed(item, roots, 10_000)])
        return added.job_id

    async def work(self, concurrency: int = 50) -> None:
        """Work until nothing is ready or due soon."""
        async with asyncio.timeout(30):
            while True:
                worker = Worker(self.app, queues=["ingest"], concurrency=concurrency)
                await worker.run(until_empty=True)
                counts = await self.app.count()
                if not any(n for (_, state, _), n in counts.items() if not state.final):
                    return
                await self.app.wait(0, 0.05)

    async def run(self, item_type: str, op: str, payload: Mapping[str, Any], **fields: Any) -> Job:
        """Add an item and see it through; its job."""
        job = await self.add(item_type, op, payload, **fields)
        await self.work()
        return await self.app.get(job)

    def chunks(self, place: Place = HERE) -> dict[str, str]:
        """The texts in a collection, by path; several chunks of one path as one."""
        if not self.parts.shelves.has(place):
            return {}
        with self.parts.shelves.using(place) as collection:
            hits = collection.index._run(
                lambda: collection.index._catalogue.hits(
                    dict.fromkeys(collection.index._catalogue.numbers(_ALL), 0.0)
                )
            )
        found: dict[str, str] = {}
        for hit in sorted(hits.values(), key=lambda hit: hit.id):
            found[hit.path] = found.get(hit.path, "") + hit.text
        return found

    def write(self, name: str, text: str | bytes) -> str:
        """Make a file; its path."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)


@asynccontextmanager
async def bench(folder: Path, url: str | None = None, **settings: Any) -> AsyncIterator[Bench]:
    """A bench that is cleared afterwards."""
    async with Penstock(url or f"sqlite:///{folder}/queue.db") as app:
        made = Bench(app, folder, **settings)
        try:
            yield made
        finally:
            made.parts.close()


def _all() -> Any:
    from penstock.vectors import Where

    return Where()


_ALL = _all()
