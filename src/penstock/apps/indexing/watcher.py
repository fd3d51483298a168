"""Keeps watched folders indexed: stores a job when something in a folder changes.

The watched folders are recorded in the collections, so they outlive the server. When a watch
starts, also with the server, a job looks for what changed in the meantime.
"""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from penstock import Penstock, PenstockError
from penstock.apps.indexing.files import Folder
from penstock.apps.indexing.job import Parameters, Watching
from penstock.apps.indexing.places import PACKAGES, Places
from penstock.apps.indexing.service import Indexing
from penstock.apps.indexing.settings import Settings
from penstock.apps.kit import Busy, in_background, locked

_log = logging.getLogger(__name__)

_POLL = 1.0
_RETRY_PAUSE = 5.0
_LONGEST_BURST = 10
"""How many times the debounce time a job waits at most while changes continue."""


class Watched(NamedTuple):
    """A folder to watch, as the arguments of the job for a change."""

    parameters: Parameters
    debounce: float


class Watcher:
    """Watches folders, in one of the processes that share the data folder."""

    def __init__(
        self, penstock: Penstock, settings: Settings, places: Places, indexing: Indexing
    ) -> None:
        self._settings = settings
        self._places = places
        self._indexing = indexing
        self._own = _own_files(penstock.url)
        self._watches: dict[tuple[str, str], tuple[Watched, asyncio.Task[None]]] = {}
        self.is_watching = False

    @property
    def count(self) -> int:
        """The number of watched folders."""
        return len(self._watches)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch folders inside the block."""
        async with in_background(self._run()):
            yield

    async def _run(self) -> None:
        while not PACKAGES.missing():
            if any(folder.watched for _, folder in await self._folders()):
                with suppress(Busy):  # another process watches
                    await self._watch_locked()
            await asyncio.sleep(_POLL)

    async def _watch_locked(self) -> None:
        with locked(self._places.watch_lock, wait=False):
            await self._watch()

    async def _watch(self) -> None:
        self.is_watching = True
        try:
            while True:
                self._adjust(await self._folders())
                await asyncio.sleep(_POLL)
        finally:
            self.is_watching = False
            tasks = [task for _, task in self._watches.values()]
            self._watches.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _folders(self) -> list[tuple[str, Folder]]:
        try:
            return await asyncio.to_thread(self._indexing.folders, None)
        except (OSError, sqlite3.Error) as error:
            _log.warning("watched folders could not be read: %s", error)
            return []

    def _adjust(self, folders: list[tuple[str, Folder]]) -> None:
        """Start and stop watches so that they match the folders as requested now."""
        wanted = {
            (name, folder.path): self._watched(folder) for name, folder in folders if folder.watched
        }
        for place, (watched, task) in list(self._watches.items()):
            if wanted.get(place) != watched:
                task.cancel()
                del self._watches[place]
        for place, watched in wanted.items():
            if place not in self._watches:
                self._watches[place] = watched, asyncio.create_task(self._follow(watched))

    def _watched(self, folder: Folder) -> Watched:
        job = replace(folder.parameters, source="auto", force=False, watching=Watching())
        return Watched(job, folder.debounce or self._settings.watch_debounce)

    async def _follow(self, watched: Watched) -> None:
        """Store a job for each burst of changes, and one for changes before the watch."""
        while True:
            try:
                await self._changes(watched)
            except (OSError, RuntimeError, PenstockError) as error:
                folder = watched.parameters.folder
                _log.warning("%s cannot be watched at the moment: %s", folder, error)
            await asyncio.sleep(_RETRY_PAUSE)

    async def _changes(self, watched: Watched) -> None:
        from watchfiles import awatch

        from penstock.apps.indexing.indexer import walk_through

        folder = watched.parameters.folder
        except_folders = (str(self._places.data),)
        walk = walk_through(
            folder, watched.parameters, self._settings.max_file_size, except_folders
        )

        def concerns(_change: object, path: str) -> bool:
            if path.startswith(self._own):
                return False
            return walk.wants(path) or walk.may_lead_to(path)

        quiet = max(1, round(watched.debounce * 1_000))
        seen = awatch(
            folder,
            watch_filter=concerns,
            step=quiet,
            debounce=_LONGEST_BURST * quiet,
            recursive=watched.parameters.choice.recursive,
            # The first result comes as soon as the watch is established.
            rust_timeout=500,
            yield_on_timeout=True,
        )
        is_known = False
        async for changes in seen:
            if changes or not is_known:
                await self._indexing.enqueue(watched.parameters)
                is_known = True


def _own_files(url: str) -> tuple[str, ...]:
    """Return the files of the store: every job writes to them, and would cause the next one."""
    scheme, _, path = url.partition(":///")
    return (str(Path(path).resolve()),) if scheme == "sqlite" and path else ("\0",)
