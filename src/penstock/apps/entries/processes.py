"""The processes that embed entries for a server: when they start, and what each one runs."""

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock import Penstock, PenstockError, State, Worker
from penstock.apps.entries import operations, rows
from penstock.apps.entries.entries import MANIFEST, Entries
from penstock.apps.entries.operations import OPERATIONS, OPERATIONS_QUEUE
from penstock.apps.entries.reconciliation import Reconciler
from penstock.apps.entries.rows import QUEUE
from penstock.apps.entries.settings import Settings
from penstock.apps.kit import Pool, startup_message, stop_with_server, worker_name
from penstock.tables import Transaction

if TYPE_CHECKING:
    from penstock.apps.entries.embedding import Embedding

_log = logging.getLogger(__name__)

_GRACE = timedelta(seconds=20)
_NICE = 3
_TALLY_INTERVAL = 0.5
_MOST_JOBS = 128
"""Jobs held at a time: each job of an import has a hundred rows, all of them `processing`."""


class ProcessSettings(msgspec.Struct, frozen=True):
    """What a process needs to know."""

    url: str
    folder: str
    settings: Settings


def pool_of(entries: Entries) -> Pool:
    """Return the processes of a server; they start once there are entries."""
    needed = ProcessSettings(entries.penstock.url, str(entries.indexes.folder), entries.settings)

    async def is_needed() -> bool:
        if not await _has_work(entries):
            return False
        await _clean_up(entries)
        return True

    return Pool(
        entries.penstock, __name__, needed, entries.settings.workers, is_needed, name=MANIFEST.name
    )


async def _has_work(entries: Entries) -> bool:
    """Return whether there are entries, vectors or jobs."""
    if any((await entries.counts()).values()) or entries.indexes.folder.exists():
        return True
    queues = (QUEUE, OPERATIONS_QUEUE)
    return any(
        n
        for (queue, state, _), n in (await entries.penstock.count(queues)).items()
        if queue in queues and state in (State.PENDING, State.RUNNING)
    )


async def _clean_up(entries: Entries) -> None:
    """Remove what earlier processes left behind, and retry failed rows if configured."""
    known = {one.name for one in await entries.penstock.workers.list()}

    def work(tx: Transaction) -> None:
        rows.merge_counts(tx)
        rows.delete_tallies(tx, rows.tallies(tx).keys() - known)

    await entries.penstock.transaction(work)
    if entries.settings.retry_failed:
        await entries.retry_failed()


def main() -> None:
    """Run one process: a worker that embeds until it is stopped or its input ends."""
    asyncio.run(_work(startup_message(ProcessSettings)))


async def _work(given: ProcessSettings) -> None:
    from penstock.apps.entries import embedding  # needs the vector packages

    settings = given.settings
    # Threads that compute run at a lower priority than those that write to the store: a thread
    # preempted while it holds the store's lock blocks every request that writes.
    executor = ThreadPoolExecutor(initializer=os.nice, initargs=(_NICE,))
    asyncio.get_running_loop().set_default_executor(executor)
    async with Penstock(given.url, create=False) as penstock:
        entries = Entries(penstock, Path(given.folder), settings=settings)
        embedder = embedding.register(entries)
        operations.register(entries)
        worker = Worker(
            penstock,
            queues=[QUEUE, OPERATIONS_QUEUE],
            # Claims one batch while it embeds another.
            concurrency=min(2 * settings.batch_size, _MOST_JOBS) + len(OPERATIONS),
            name=worker_name(MANIFEST.name, os.getpid()),
            grace=_GRACE,
            sweep=timedelta(seconds=settings.poll_interval),
        )
        stop_with_server(worker)
        try:
            async with asyncio.TaskGroup() as group:
                repairs = group.create_task(_repair(Reconciler(entries)))
                tally = group.create_task(_publish_tally(entries, worker.name, embedder))
                await worker.run()
                repairs.cancel()
                tally.cancel()
            await penstock.transaction(lambda tx: rows.delete_tallies(tx, [worker.name]))
        finally:
            entries.close()


async def _publish_tally(entries: Entries, worker: str, embedder: "Embedding") -> None:
    """Store how many jobs this worker has ended, where the server reads it, until cancelled."""
    stored = None
    while True:
        if (tally := embedder.tally) != stored:
            try:
                await entries.penstock.transaction(lambda tx: rows.set_tally(tx, worker, tally))
                stored = tally
            except PenstockError as error:
                _log.warning("cannot store how many jobs were ended: %s", error)
        await asyncio.sleep(_TALLY_INTERVAL)


async def _repair(reconciler: Reconciler) -> None:
    try:
        await reconciler.repair()
    except PenstockError as error:
        _log.warning("cannot compare vectors and rows: %s", error)
    await reconciler.remove_failed_forever()
