"""How fast folders are ingested by items, beside the bare pipeline, and how long counting takes."""

import asyncio
import time
from pathlib import Path
from typing import cast

from benchmarks.contenders import Contender
from benchmarks.contenders.indexing import BarePipeline
from benchmarks.contenders.ingest import IngestServer
from benchmarks.scenarios import Figures, Load, Scenario, percentile, timed
from benchmarks.scenarios.indexing import files_of, write_files
from penstock import Penstock
from penstock.apps.ingest import Item, ItemType, Operation, Service, Settings

_OURS = ("penstock",)
_AT_ONCE = 1_000
_ASKED = 200


def folder(contender: Contender, place: Path, load: Load) -> Figures:
    """All files of a folder for the first time; the process that does it is there already."""
    n = files_of(load)
    files = write_files(place / "files", n)
    warm = write_files(place / "warm", 5)
    if contender.name == "bare":
        pipeline = cast("BarePipeline", contender.open(place))
        pipeline.index(warm)
        with timed():
            seconds = pipeline.index(files)
        pipeline.close()
        return {"rate": n / seconds}
    with cast("IngestServer", contender.open(place)) as server:
        server.ingest(warm)
        with timed():
            seconds = server.ingest(files)
    return {"rate": n / seconds}


def stats(_: Contender, place: Path, load: Load) -> Figures:
    """How long it takes to count items, a million unless the load is another."""
    return asyncio.run(_stats(place, load.backlog))


async def _stats(place: Path, n: int) -> Figures:
    async with Penstock(f"sqlite:///{place}/items.db") as app:
        service = Service(app, Settings())
        await _add(service, 0, n // 1_000)
        few = await _asked(service)
        await _add(service, n // 1_000, n)
        many = await _asked(service)
    return {
        "p99": 1_000 * percentile(many, 0.99),
        "growth": sum(many) / sum(few),
        "items": float(n),
    }


async def _add(service: Service, first: int, behind: int) -> None:
    for start in range(first, behind, _AT_ONCE):
        await service.add([_item(place) for place in range(start, min(start + _AT_ONCE, behind))])


def _item(place: int) -> Item:
    return Item(
        item_type=ItemType.CONTENT,
        op=Operation.INGEST,
        tenant_id=f"tenant {place % 20}",
        collection=f"collection {place % 3}",
        payload={"content": f"text {place}"},
    )


async def _asked(service: Service) -> list[float]:
    taken = []
    for _ in range(_ASKED):
        begun = time.perf_counter()
        await service.stats(None, None)
        taken.append(time.perf_counter() - begun)
    return taken


SCENARIOS = (
    Scenario("folder", folder),
    Scenario("stats", stats, _OURS, interleaves=False),
)
