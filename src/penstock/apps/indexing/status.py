"""How it stands with indexing: kept in memory, so that asking costs nothing and never fails."""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from penstock import Job, JobQuery, Penstock, PenstockError, State
from penstock.apps.beside import beside
from penstock.apps.indexing import shapes
from penstock.apps.indexing.service import Indexing
from penstock.apps.indexing.tasks import QUEUE, TASK
from penstock.apps.indexing.watching import Watcher

_log = logging.getLogger(__name__)

_LOOK_AGAIN = 1.0
_PAUSE = 0.25


class Status:
    """Follows the store; `now` is what was seen last."""

    def __init__(self, penstock: Penstock, indexing: Indexing, watcher: Watcher) -> None:
        self._penstock = penstock
        self._indexing = indexing
        self._found = shapes.IndexStatus()
        self._running: Job | None = None
        self._watcher = watcher

    def now(self) -> shapes.IndexStatus:
        """How it stands, as it was a moment ago."""
        ran = None
        if self._running is not None and self._running.started_at is not None:
            since = self._penstock.clock() / 1e3 - self._running.started_at.timestamp() * 1e3
            ran = max(0, round(since))
        watcher = shapes.FileWatcher(
            running=self._watcher.is_watching, watched_folders=self._watcher.count
        )
        return msgspec.structs.replace(self._found, running_time_ms=ran, file_watcher=watcher)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow, inside the block."""
        await self._look()
        async with beside(self._follow()):
            yield

    async def _follow(self) -> None:
        seen = 0
        while True:
            try:
                seen = await self._penstock.wait(seen, _LOOK_AGAIN)
            except PenstockError as error:
                _log.warning("the store could not be asked for indexing jobs: %s", error)
            await asyncio.sleep(_PAUSE)
            await self._look()

    async def _look(self) -> None:
        try:
            counts = await self._indexing.counts()
            query = JobQuery(
                queue=QUEUE,
                task=TASK,
                states=frozenset({State.RUNNING}),
                newest_first=False,
                limit=1,
            )
            running = await self._penstock.find(query)
            progress = await self._penstock.progress(running[0].id) if running else None
            folders = await asyncio.to_thread(self._indexing.folders, None)
        except (PenstockError, OSError, sqlite3.Error) as error:
            _log.warning("the state of indexing could not be read: %s", error)
            return  # what was seen last stays
        indexed = [one for _, one in folders if one.indexed_at is not None]
        self._running = running[0] if running else None
        self._found = shapes.IndexStatus(
            total_documents=sum(one.files for _, one in folders),
            total_chunks=sum(one.chunks for _, one in folders),
            indexing_in_progress=bool(running),
            current_job_id=shapes.id_of(running[0]) if running else None,
            progress_percent=shapes.percent(running[0], progress) if running else 0.0,
            last_indexed_at=max(
                (one.indexed_at for one in indexed if one.indexed_at), default=None
            ),
            indexed_folders=[one.path for one in indexed],
            queue_length=counts[State.PENDING],
            running_jobs=counts[State.RUNNING],
        )
