"""Background work of the process that has the notebooks open: watching, cleaning up, packing."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from penstock import JobQuery, Penstock, PenstockError, State
from penstock.apps.kit import in_background
from penstock.apps.notebooks import tables
from penstock.apps.notebooks.disk.scan import Difference
from penstock.apps.notebooks.disk.tree import Tree, marker_name
from penstock.apps.notebooks.disk.watcher import Watcher
from penstock.apps.notebooks.errors import NotebookError
from penstock.apps.notebooks.operations import pending
from penstock.apps.notebooks.operations.operation import QUEUE
from penstock.apps.notebooks.operations.publisher import Publisher
from penstock.apps.notebooks.operations.runner import Runner
from penstock.apps.notebooks.operations.sync import StoredFiles, changes_in
from penstock.apps.notebooks.registry import OpenNotebook, Registry
from penstock.apps.notebooks.repository.git import TooSlow
from penstock.apps.notebooks.settings import Settings, is_watched

_log = logging.getLogger(__name__)

_SWEEP = 60.0
_PACK = 3600.0
_UNFINISHED = frozenset({State.PENDING, State.RUNNING})
_AT_ONCE = 1_000_000
_ABANDONED = timedelta(hours=1)
"""After this time, no operation will need a content or a marker that none names now."""


class Maintenance:
    """Looks after the open notebooks: at the start, periodically, and at the end."""

    def __init__(
        self,
        penstock: Penstock,
        settings: Settings,
        registry: Registry,
        publisher: Publisher,
        runner: Runner,
    ) -> None:
        self._penstock = penstock
        self._settings = settings
        self._retention = settings.retention
        self._registry = registry
        self._publisher = publisher
        self._runner = runner

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Keep all notebooks open inside the block, and commit what is left at its end."""
        self._registry.on_change.append(self._follow)
        async with self._registry.working():
            await self._sweep()
            await self._prune()
            for opened in self._registry.open_notebooks:
                await self._begin(opened)
            try:
                async with in_background(self._run()), in_background(self._run_packing()):
                    yield
            finally:
                for opened in self._registry.open_notebooks:
                    await self._end(opened)

    def _follow(self, opened: OpenNotebook) -> None:
        """Start or stop watching a notebook, as its settings say.

        A watcher starts with what has changed since the notebook was last watched.
        """
        if not self._watches(opened):
            opened.stop_watching()
        elif opened.watcher is None:
            opened.start_watching(
                Watcher(
                    opened.tree,
                    StoredFiles(self._penstock, opened.id),
                    partial(self._publish, opened),
                    period=self._settings.scan_interval,
                    is_own=opened.is_own,
                    scan_lock=opened.scan_lock,
                )
            )

    def _watches(self, opened: OpenNotebook) -> bool:
        return is_watched(self._settings, own=opened.settings.get("watch"))

    async def _publish(self, opened: OpenNotebook, found: list[Difference]) -> None:
        await self._publisher.publish_changes(opened.id, changes_in(found))

    async def _begin(self, opened: OpenNotebook) -> None:
        """Scan a notebook that is not watched, and commit what the last run left."""
        if not self._watches(opened):
            await self._publisher.publish_scan(opened.id)
        waiting, _ = await self._penstock.tables.read(lambda tx: tables.uncommitted(tx, opened.id))
        if opened.git and waiting:
            await self._publisher.publish_commit(opened.id)

    async def _end(self, opened: OpenNotebook) -> None:
        if not opened.git:
            return
        try:
            await self._runner.commit_now(opened)
        except (NotebookError, PenstockError) as error:
            _log.warning("notebook %s will be committed at the next start: %s", opened.name, error)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            try:
                await self._sweep()
                await self._prune()
                await self._try_again()
            except (NotebookError, PenstockError) as error:
                _log.warning("maintenance of notebooks failed: %s", error)

    async def _run_packing(self) -> None:
        too_slow: set[int] = set()
        await asyncio.sleep(_SWEEP)
        while True:
            await self._pack(too_slow)
            await asyncio.sleep(_PACK)

    async def _pack(self, too_slow: set[int]) -> None:
        """Pack the repositories of notebooks one by one, except those that are `too_slow`."""
        for opened in self._registry.open_notebooks:
            if opened.id in too_slow:
                continue
            try:
                await asyncio.to_thread(opened.pack)
            except TooSlow as error:
                too_slow.add(opened.id)  # each attempt leaves a temporary file behind
                _log.warning(
                    "the repository of notebook %s is not packed: %s; run 'git gc' there",
                    opened.name,
                    error,
                )
            except (NotebookError, OSError) as error:
                _log.warning("the repository of notebook %s is not packed: %s", opened.name, error)

    async def _prune(self) -> None:
        """Delete operations that ended longer ago than the retention."""
        now = tables.from_micros(self._penstock.clock())
        for state in State:
            if state.final and (kept := self._retention.keeps(state)):
                query = JobQuery(queue=QUEUE, states=frozenset({state}), before=now - kept)
                await self._penstock.bulk(query).delete()

    async def _try_again(self) -> None:
        """Commit held paths again: nothing reports when git can commit them."""
        held = await self._penstock.tables.read(lambda tx: tables.count_uncommitted(tx, held=True))
        for opened in self._registry.open_notebooks:
            if opened.git and (opened.id in held or opened.problem):
                with suppress(NotebookError):  # the reason is stored
                    await self._runner.commit_now(opened)

    async def _sweep(self) -> None:
        """Forget operations that ended without recording it, and contents nobody needs."""
        noted = await self._penstock.tables.read(pending.jobs)
        unfinished = await self._penstock.find_ids(
            JobQuery(queue=QUEUE, states=_UNFINISHED, limit=_AT_ONCE)
        )
        ended = sorted(noted.difference(unfinished))
        marks = {marker_name(job) for job in noted.intersection(unfinished)}
        if ended:
            now = datetime.now(UTC)
            await self._penstock.transaction(lambda tx: pending.abandon(tx, ended, now))
        before = datetime.now(UTC) - _ABANDONED
        if abandoned := await self._penstock.tables.read(
            lambda tx: pending.abandoned_contents(tx, before)
        ):
            await self._penstock.transaction(lambda tx: pending.delete_contents(tx, abandoned))
        for opened in self._registry.open_notebooks:
            names = await self._penstock.tables.read(
                lambda tx, opened=opened: pending.staged_names(tx, opened.id)  # type: ignore[misc] # bound at once
            )
            await asyncio.to_thread(
                _discard_abandoned, opened.tree, names | marks, before.timestamp()
            )


def _discard_abandoned(tree: Tree, names: set[str], before: float) -> None:
    for name in tree.staged():
        if "." in name:
            continue  # a displaced file, which may be somebody's edit
        with suppress(OSError, NotebookError):
            if name not in names and Path(tree.place_of(name)).stat().st_mtime < before:
                tree.discard(name)
