"""A process that works on items, until its input ends or it is told to stop."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

import msgspec

from penstock import Penstock, Worker
from penstock.apps.ingest.settings import Settings
from penstock.apps.pool import stop_at_the_end_of_input, told, worker_name

_GRACE = timedelta(seconds=20)


class Told(msgspec.Struct, frozen=True):
    """What a process is told."""

    url: str
    data: str
    settings: Settings


def main() -> None:
    """Work on items until it is time to stop."""
    asyncio.run(_work(told(Told)))


async def _work(heard: Told) -> None:
    from penstock.apps.ingest import assemble

    async with Penstock(heard.url, create=False) as penstock:
        parts = assemble(penstock, heard.settings, Path(heard.data))
        parts.handlers.register()
        await parts.service.prepare()
        await parts.service.let_age_count()
        parts.shelves.tidy()
        worker = Worker(
            penstock,
            queues=["ingest"],
            concurrency=heard.settings.concurrency,
            name=worker_name("ingest", os.getpid()),
            grace=_GRACE,
        )
        stop_at_the_end_of_input(worker)
        try:
            await worker.run()
        finally:
            parts.close()
