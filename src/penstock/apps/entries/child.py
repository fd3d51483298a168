"""One process of the pool: a worker that embeds, until its input ends or it is told to stop."""

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from penstock import Penstock, PenstockError, Worker
from penstock.apps.entries import embedding, operations, rows
from penstock.apps.entries.checking import Checker
from penstock.apps.entries.entries import Entries
from penstock.apps.entries.pool import NAME, Told
from penstock.apps.entries.rows import QUEUE
from penstock.apps.pool import stop_at_the_end_of_input, told, worker_name

_log = logging.getLogger(__name__)

_GRACE = timedelta(seconds=20)
_BEHIND = 3
_TOLD_EVERY = 0.5
"""Seconds after which others see how many jobs were ended."""
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
        embedding_task = embedding.register(entries)
        operations.register(entries)
        worker = Worker(
            penstock,
            queues=[QUEUE, operations.OPERATIONS_QUEUE],
            # One batch is claimed while another is embedded.
            concurrency=min(2 * settings.batch_size, _MOST_JOBS) + len(operations.OPERATIONS),
            name=worker_name(NAME, os.getpid()),
            grace=_GRACE,
            sweep=timedelta(seconds=settings.poll_interval),
        )
        stop_at_the_end_of_input(worker)
        try:
            async with asyncio.TaskGroup() as group:
                checks = group.create_task(_check(Checker(entries)))
                counting = group.create_task(_keep_tally(entries, worker.name, embedding_task))
                await worker.run()
                checks.cancel()
                counting.cancel()
            await penstock.transact(lambda tx: rows.forget_tally(tx, worker.name))
        finally:
            entries.close()


async def _keep_tally(entries: Entries, worker: str, embedding_task: embedding.Embedding) -> None:
    """Keep how many jobs this worker has ended where the server shows it, for ever."""
    kept = None
    while True:
        if (tally := embedding_task.tally) != kept:
            try:
                await entries.penstock.transact(lambda tx: rows.keep_tally(tx, worker, tally))
                kept = tally
            except PenstockError as error:
                _log.warning("how many jobs were ended could not be kept: %s", error)
        await asyncio.sleep(_TOLD_EVERY)


async def _check(checker: Checker) -> None:
    try:
        await checker.check()
    except PenstockError as error:
        _log.warning("vectors and rows could not be compared: %s", error)
    await checker.follow()
