"""A process that works on items, until its input ends or it is told to stop."""

import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import msgspec

from penstock import Penstock, Worker
from penstock.apps.ingest.settings import Settings

_POLITE = 5
"""How much requests go before ingestion, where both want the processor."""
_GRACE = timedelta(seconds=20)
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


class Told(msgspec.Struct, frozen=True):
    """What the process is told, on its standard input: others can read command lines."""

    url: str
    data: str
    settings: Settings


def main() -> None:
    """Work on items until it is time to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends our input
    told = msgspec.json.decode(sys.stdin.buffer.readline(), type=Told)
    for name in _THREADS:  # before NumPy is there, which asks once
        os.environ.setdefault(name, "1")
    os.nice(_POLITE)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    asyncio.run(_work(told))


async def _work(told: Told) -> None:
    from penstock.apps.ingest import assemble

    async with Penstock(told.url, create=False) as penstock:
        parts = assemble(penstock, told.settings, Path(told.data))
        parts.handlers.register()
        await parts.service.prepare()
        parts.shelves.tidy()
        worker = Worker(
            penstock,
            queues=["ingest"],
            concurrency=told.settings.concurrency,
            name=f"ingest:{socket.gethostname()}:{os.getpid()}",
            grace=_GRACE,
        )
        _stop_at_the_end_of_input(worker)
        try:
            await worker.run()
        finally:
            parts.close()


def _stop_at_the_end_of_input(worker: Worker) -> None:
    """The server holds the other end: however it ends, so does this process."""
    loop = asyncio.get_running_loop()
    lifeline = sys.stdin.fileno()

    def look() -> None:
        with suppress(OSError):
            if os.read(lifeline, 1024):
                return
        loop.remove_reader(lifeline)
        worker.stop()

    loop.add_reader(lifeline, look)
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
