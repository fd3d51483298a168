"""One process of the pool: a worker that embeds, until its input ends or it is told to stop."""

import asyncio
import logging
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from penstock import Penstock, PenstockError, Worker
from penstock.apps.entries import operations
from penstock.apps.entries.checking import Checker
from penstock.apps.entries.entries import Entries
from penstock.apps.entries.pool import Told
from penstock.apps.entries.rows import QUEUE
from penstock.apps.pool import stop_at_the_end_of_input, told

_log = logging.getLogger(__name__)

_GRACE = timedelta(seconds=20)
_BEHIND = 3
_MOST_JOBS = 128
"""Jobs that are held at a time: of an import, each has a hundred rows, which are `processing`."""


def main() -> None:
    """Embed until it is time to stop."""
    asyncio.run(_work(told(Told)))


async def _work(heard: Told) -> None:
    settings = heard.settings
    # Threads that compute, and those that they start, go behind the ones that write to the store:
    # who is put aside while it has the lock of the store lets every request wait that writes.
    executor = ThreadPoolExecutor(initializer=os.nice, initargs=(_BEHIND,))
    asyncio.get_running_loop().set_default_executor(executor)
    async with Penstock(heard.url, create=False) as penstock:
        entries = Entries(penstock, Path(heard.folder), settings=settings)
        entries.register()
        worker = Worker(
            penstock,
            queues=[QUEUE, operations.OPERATIONS_QUEUE],
            # One batch is claimed while another is embedded.
            concurrency=min(2 * settings.batch_size, _MOST_JOBS) + len(operations.OPERATIONS),
            name=f"entries:{socket.gethostname()}:{os.getpid()}",
            grace=_GRACE,
            sweep=timedelta(seconds=settings.poll_interval),
        )
        stop_at_the_end_of_input(worker)
        try:
            async with asyncio.TaskGroup() as group:
                checks = group.create_task(_check(Checker(entries)))
                await worker.run()
                checks.cancel()
        finally:
            entries.close()


async def _check(checker: Checker) -> None:
    try:
        await checker.check()
    except PenstockError as error:
        _log.warning("vectors and rows could not be compared: %s", error)
    await checker.follow()
