"""What tests of imports, exports and rebuilds share; also a program that imports, to be killed."""

import asyncio
import hashlib
import io
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from penstock import Penstock, Worker
from penstock.apps.entries import Entries, Settings, embedding, holding, operations, rows
from penstock.apps.entries.checking import index_items
from penstock.apps.entries.formats import BadRecord, Record, read
from penstock.apps.entries.importing import Options, Report, import_records
from penstock.apps.entries.rebuilding import rebuild
from penstock.apps.entries.rows import QUEUE, Chosen
from penstock.vectors import EmbeddingRefused

LONG = timedelta(seconds=60)
DIMENSIONS = {"letters": 16, "others": 24}


class Letters:
    """An embedder that costs nothing: other texts have other vectors. It refuses poison."""

    def __init__(self, configuration: str) -> None:
        self.name = configuration
        self.dimensions = DIMENSIONS[configuration]

    def embed(self, texts: Sequence[str]) -> Any:
        if self.name == "others" and any("poison" in text for text in texts):
            raise EmbeddingRefused("there is poison in it")
        vectors = [self._vector(text) for text in texts]
        return np.array(vectors, np.float32).reshape(len(texts), self.dimensions)

    def _vector(self, text: str) -> Any:
        digest = hashlib.blake2b(f"{self.name} {text}".encode(), digest_size=self.dimensions)
        vector = np.frombuffer(digest.digest(), np.uint8).astype(np.float32) - 127.5
        return vector / np.linalg.norm(vector)

    def close(self) -> None:
        """It has nothing open."""


@asynccontextmanager
async def opened(url: str, folder: Path) -> AsyncIterator[Entries]:
    """Entries in a store, whose embedder costs nothing."""
    async with Penstock(url) as penstock:
        entries = Entries(
            penstock, folder, settings=Settings(embedder="letters", lease=5), opening=Letters
        )
        await entries.prepare()
        try:
            yield entries
        finally:
            entries.close()


@asynccontextmanager
async def working(entries: Entries) -> AsyncIterator[None]:
    """Have a worker that embeds, inside the block."""
    if not hasattr(entries, "registered"):
        embedding.register(entries)
        operations.register(entries)
        entries.registered = True  # type: ignore[attr-defined] # a note for ourselves
    worker = Worker(
        entries.penstock, queues=[QUEUE, operations.OPERATIONS_QUEUE], sweep=timedelta(seconds=0.1)
    )
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        with suppress(asyncio.CancelledError):
            await running


async def embedded(entries: Entries) -> None:
    """Have all rows embedded."""
    async with working(entries):
        drained = await entries.penstock.drain(QUEUE, timeout=LONG)
        assert drained.status == "drained", drained


def lines(numbers: Iterable[int], text: str = "text", **more: Any) -> bytes:
    """Records as lines of JSON."""
    found = [{**record(n, text), **more} for n in numbers]
    return "\n".join(map(json.dumps, found)).encode()


def record(n: int, text: str = "text") -> dict[str, Any]:
    """A manual with a number."""
    data = {"title": f"title {n}", "content": f"{text} {n}"}
    return {"id": f"m-{n}", "entity_type": "manual", "category_code": "A", "data": data}


def records(
    entries: Entries, content: bytes, kind: str = "jsonl"
) -> "Iterable[Record | BadRecord]":
    return read(io.BytesIO(content), kind, entries.types)


async def imported(entries: Entries, content: bytes, name: str = "1", **options: Any) -> Report:
    return await import_records(entries, records(entries, content), Options(**options), name=name)


async def contents(entries: Entries) -> dict[str, str]:
    """What the manuals say, by their ids."""
    found = await entries.page(Chosen(), limit=100_000)
    return {one.id: one.data["content"] for one in found}


async def until(entries: Entries, asked: Callable[[], Awaitable[bool]]) -> None:
    """Return when it is so; asked after every change of the store."""
    seen = 0
    async with asyncio.timeout(30):
        while not await asked():
            seen = await entries.penstock.wait(seen, 1)


async def is_paused(entries: Entries) -> bool:
    """Whether nothing is embedded."""
    return any(one.paused for one in await entries.penstock.queues() if one.name == QUEUE)


async def assert_index_equals_rows(entries: Entries) -> None:
    """What the shelf in use has are the rows that are embedded, with the vectors of their texts."""
    found = await entries.page(Chosen(embedding_status="embedded"), limit=100_000)
    ids = [one.id for one in found]
    due = await entries.penstock.read(lambda tx: rows.embedded(tx, ids))
    shelf = await entries.shelf()
    items = dict(index_items(shelf))
    assert items == {row.id: row.digest for row in due}
    some = due[:: 1 + len(due) // 200]
    for row, vector in zip(some, shelf.embedder.embed([row.text for row in some]), strict=True):
        hits = shelf.index.search(vector, k=3, mode="vector")
        assert any(hit.id == row.id and hit.score > 0.999 for hit in hits), row.id


async def main(url: str, folder: str, content: bytes | None) -> None:
    """Put a file in the place of all entries, or rebuild the index; telling each step."""

    def tell(_done: int, _total: int | None, note: str) -> None:
        sys.stdout.write(f"{note}\n")
        sys.stdout.flush()

    holding.HOLD = timedelta(seconds=float(os.environ.get("HOLD", "30")))
    async with opened(url, Path(folder)) as entries:
        if content is None:
            await rebuild(entries, "others", progress=tell)
        else:
            found, options = records(entries, content), Options(mode="replace")
            await import_records(entries, found, options, name="1", progress=tell)
        tell(0, 0, "over")


if __name__ == "__main__":
    _, its_url, its_folder, *files = sys.argv
    asyncio.run(main(its_url, its_folder, Path(files[0]).read_bytes() if files else None))
