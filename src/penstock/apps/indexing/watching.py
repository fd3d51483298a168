"""Keeps watched folders indexed: a change in one of them becomes a job on it.

Which folders are watched is stored with the collections, so that it outlives the server. When a
folder begins to be watched, also at every start, a job looks for what changed while nobody did.
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
from penstock.apps.beside import beside
from penstock.apps.indexing.files import Busy, Folder, held
from penstock.apps.indexing.parameters import Parameters, Watching
from penstock.apps.indexing.places import Places, missing_packages
from penstock.apps.indexing.service import Indexing
from penstock.apps.indexing.settings import Settings

_log = logging.getLogger(__name__)

_LOOK_AGAIN = 1.0
_RETRY_PAUSE = 5.0
_LONGEST_BURST = 10
"""Changes without a pause are waited for so many times as long as the pause."""


class Watched(NamedTuple):
    """A folder to be watched, and the job that a change becomes."""

    parameters: Parameters
    debounce: float


class Watcher:
    """Watches folders, in one process of all that share the data folder."""

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
        """How many folders are watched."""
        return len(self._watches)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch, inside the block."""
        async with beside(self._run()):
            yield

    async def _run(self) -> None:
        while not missing_packages():
            if any(folder.watched for _, folder in await self._folders()):
                with suppress(Busy):  # another process watches
                    await self._watch_alone()
            await asyncio.sleep(_LOOK_AGAIN)

    async def _watch_alone(self) -> None:
        with held(self._places.watch_lock, wait=False):
            await self._watch()

    async def _watch(self) -> None:
        self.is_watching = True
        try:
            while True:
                self._adjust(await self._folders())
                await asyncio.sleep(_LOOK_AGAIN)
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
        """Watch what is to be watched as it is wanted now, and nothing else."""
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
        """Enqueue a job for each burst of changes, and one for what was before."""
        while True:
            try:
                await self._changes(watched)
            except (OSError, RuntimeError, PenstockError) as error:
                folder = watched.parameters.folder
                _log.warning("%s is not watched for the moment: %s", folder, error)
            await asyncio.sleep(_RETRY_PAUSE)

    async def _changes(self, watched: Watched) -> None:
        from watchfiles import awatch

        from penstock.apps.indexing.indexer import walk_through

        folder = watched.parameters.folder
        besides = (str(self._places.data),)
        walk = walk_through(folder, watched.parameters, self._settings.max_file_size, besides)

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
            # A first answer at once, when it is sure that nothing is missed any more.
            rust_timeout=500,
            yield_on_timeout=True,
        )
        is_known = False
        async for changes in seen:
            if changes or not is_known:
                await self._indexing.enqueue(watched.parameters)
                is_known = True


def _own_files(url: str) -> tuple[str, ...]:
    """The files of the store: every job writes to them, and would cause the next."""
    scheme, _, path = url.partition(":///")
    return (str(Path(path).resolve()),) if scheme == "sqlite" and path else ("\0",)
