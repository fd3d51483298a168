"""What goes on beside the operations, in the process that has the notebooks."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from penstock import JobQuery, Penstock, PenstockError, State
from penstock.apps.notebooks import tables, touches
from penstock.apps.notebooks.books import Book
from penstock.apps.notebooks.errors import NotebookError
from penstock.apps.notebooks.files import Tree, mark_of
from penstock.apps.notebooks.library import Library
from penstock.apps.notebooks.operations import QUEUE
from penstock.apps.notebooks.publishing import Publisher
from penstock.apps.notebooks.reconciling import Found
from penstock.apps.notebooks.running import Runner
from penstock.apps.notebooks.settings import Settings, is_watched
from penstock.apps.notebooks.syncing import KnownInTables, changes_in
from penstock.apps.notebooks.watching import Watcher

_log = logging.getLogger(__name__)

_SWEEP = 60.0
_UNFINISHED = frozenset({State.PENDING, State.RUNNING})
_AT_ONCE = 1_000_000
_FORGOTTEN = timedelta(hours=1)
"""After that, a content or a mark that no operation names belongs to none to come either."""


class Tender:
    """Looks after the notebooks of a process: at its start, periodically, and at its end."""

    def __init__(
        self,
        penstock: Penstock,
        settings: Settings,
        library: Library,
        publisher: Publisher,
        runner: Runner,
    ) -> None:
        self._penstock = penstock
        self._settings = settings
        self._retention = settings.retention
        self._library = library
        self._publisher = publisher
        self._runner = runner

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Have all notebooks inside the block, and commit what is left at its end."""
        self._library.on_change.append(self._follow)
        async with self._library.working():
            await self._sweep()
            await self._prune()
            for book in self._library.open_books:
                await self._begin(book)
            tending = asyncio.create_task(self._tend())
            try:
                yield
            finally:
                tending.cancel()
                with suppress(asyncio.CancelledError):
                    await tending
                for book in self._library.open_books:
                    await self._end(book)

    def _follow(self, book: Book) -> None:
        """Follow what others do to it, or no longer, as its settings say.

        It begins with what they have done since the last time.
        """
        if not self._watches(book):
            book.stop_watching()
        elif book.watching is None:
            known = KnownInTables(self._penstock, book.id)
            publish = partial(self._publish, book)
            period = self._settings.scan_interval
            book.watcher = Watcher(
                book.tree, known, publish, period=period, is_own=book.is_own, steady=book.steady
            )
            book.watching = asyncio.create_task(book.watcher.run())

    def _watches(self, book: Book) -> bool:
        return is_watched(self._settings, own=book.settings.get("watch"))

    async def _publish(self, book: Book, found: list[Found]) -> None:
        await self._publisher.publish_changes(book.id, changes_in(found))

    async def _begin(self, book: Book) -> None:
        """See what has changed since the last time, and have committed what was left then."""
        if not self._watches(book):
            await self._publisher.publish_look(book.id)
        waiting, _ = await self._penstock.read(lambda tx: tables.uncommitted(tx, book.id))
        if book.git and waiting:
            await self._penstock.transact(
                lambda tx: self._publisher.commit(tx, book.id, timedelta(0))
            )

    async def _end(self, book: Book) -> None:
        if not book.git:
            return
        try:
            await self._runner.commit_now(book)
        except (NotebookError, PenstockError) as error:
            _log.warning("notebook %s is committed at the next start: %s", book.name, error)

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            try:
                await self._sweep()
                await self._prune()
                await self._try_again()
            except (NotebookError, PenstockError) as error:
                _log.warning("notebooks could not be looked after: %s", error)

    async def _prune(self) -> None:
        """Remove operations that have ended longer ago than they are to be kept."""
        now = tables.instant(self._penstock.clock())
        for state in State:
            if state.final and (kept := self._retention.keeps(state)):
                query = JobQuery(queue=QUEUE, states=frozenset({state}), before=now - kept)
                await self._penstock.delete_all(query)

    async def _try_again(self) -> None:
        """Commit paths that git could not have before: nobody tells when it can."""
        held = await self._penstock.read(lambda tx: tables.count_uncommitted(tx, held=True))
        for book in self._library.open_books:
            if book.git and (book.id in held or book.problem):
                with suppress(NotebookError):  # its reason is stored
                    await self._runner.commit_now(book)

    async def _sweep(self) -> None:
        """Forget operations that ended without saying so, and contents that nobody waits for."""
        noted = await self._penstock.read(touches.touching_jobs)
        unfinished = await self._penstock.find_ids(
            JobQuery(queue=QUEUE, states=_UNFINISHED, limit=_AT_ONCE)
        )
        ended = sorted(noted.difference(unfinished))
        marks = {mark_of(job) for job in noted.intersection(unfinished)}
        if ended:
            now = datetime.now(UTC)
            await self._penstock.transact(lambda tx: touches.give_up(tx, ended, now))
        before = datetime.now(UTC) - _FORGOTTEN
        if forgotten := await self._penstock.read(lambda tx: touches.forgotten(tx, before)):
            await self._penstock.transact(lambda tx: touches.drop_contents(tx, forgotten))
        for book in self._library.open_books:
            names = await self._penstock.read(
                lambda tx, book=book: touches.staged_names(tx, book.id)  # type: ignore[misc] # bound at once
            )
            await asyncio.to_thread(
                _discard_forgotten, book.tree, names | marks, before.timestamp()
            )


def _discard_forgotten(tree: Tree, names: set[str], before: float) -> None:
    for name in tree.staged():
        if "." in name:
            continue  # what a content has displaced; it may be an edit of a person
        with suppress(OSError, NotebookError):
            if name not in names and Path(tree.place_of(name)).stat().st_mtime < before:
                tree.discard(name)
