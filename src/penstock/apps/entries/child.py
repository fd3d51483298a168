"""One process of the pool: a worker that embeds, until its input ends or it is told to stop."""

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

from penstock import Penstock, PenstockError, Worker
from penstock.apps.entries import operations
from penstock.apps.entries.checking import Checker
from penstock.apps.entries.entries import Entries
from penstock.apps.entries.pool import Told
from penstock.apps.entries.rows import QUEUE

_log = logging.getLogger(__name__)

_POLITE = 10
"""How much requests go before embedding where both want the processor."""
_GRACE = timedelta(seconds=20)
# Several processes share the cores: each takes its part.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


def main() -> None:
    """Embed until it is time to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends our input
    told = msgspec.json.decode(sys.stdin.buffer.readline(), type=Told)
    for name in _THREADS:
        os.environ.setdefault(name, str(max(1, (os.cpu_count() or 1) // told.settings.workers)))
    os.nice(_POLITE)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    asyncio.run(_work(told))


async def _work(told: Told) -> None:
    settings = told.settings
    async with Penstock(told.url, create=False) as penstock:
        entries = Entries(penstock, Path(told.folder), settings=settings)
        entries.register()
        worker = Worker(
            penstock,
            queues=[QUEUE, operations.OPERATIONS_QUEUE],
            # One batch is claimed while another is embedded.
            concurrency=2 * settings.batch_size + len(operations.OPERATIONS),
            name=f"entries:{socket.gethostname()}:{os.getpid()}",
            grace=_GRACE,
            sweep=timedelta(seconds=settings.poll_interval),
        )
        _stop_at_the_end_of_input(worker)
        try:
            async with asyncio.TaskGroup() as group:
                checks = group.create_task(_check(Checker(entries)))
                await worker.run()
                checks.cancel()
        finally:
            entries.close()


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


async def _check(checker: Checker) -> None:
    try:
        await checker.check()
    except PenstockError as error:
        _log.warning("vectors and rows could not be compared: %s", error)


if __name__ == "__main__":
    main()
