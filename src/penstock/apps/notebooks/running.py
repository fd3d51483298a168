"""What jobs on notebooks do.

Every one may run twice: files are put in place before the transaction that notes the change and
ends the job, so that a later run finds its own file, or its own rename, and goes on from there.
"""

import asyncio
import logging
import stat
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

from penstock import Cancel, Context, Job, JobQuery, Penstock, Transaction, context
from penstock.apps.notebooks import syncing, tables, touches
from penstock.apps.notebooks.books import Book
from penstock.apps.notebooks.committing import Commit
from penstock.apps.notebooks.errors import Exists, Missing, NotebookError, Passing, Permanent
from penstock.apps.notebooks.files import Tree
from penstock.apps.notebooks.library import Library
from penstock.apps.notebooks.operations import QUEUE, Kind, Operation
from penstock.apps.notebooks.paths import is_within
from penstock.apps.notebooks.publishing import Publisher, check_version
from penstock.apps.notebooks.reconciling import reconcile
from penstock.apps.notebooks.settings import Settings
from penstock.apps.notebooks.shapes import as_result
from penstock.apps.notebooks.tables import File
from penstock.apps.notebooks.writing import ENDED_BADLY, Writer, check_unedited, mime_of

Handler = Callable[[Operation], Coroutine[Any, Any, None]]
_SHORTEST = timedelta(seconds=1)
_TOLD = 100
"""Paths that the result of a commit names as left out."""
_LOGGED = 10
_FEW = 1_000
_RETRY = 60.0
_RULES = frozenset({".gitignore", ".gitattributes"})
_log = logging.getLogger(__name__)


class Runner:
    """Runs operations, in the process that has the notebooks."""

    def __init__(
        self, penstock: Penstock, settings: Settings, library: Library, publisher: Publisher
    ) -> None:
        self._penstock = penstock
        self._library = library
        self._publisher = publisher
        self._interval = settings.commit_interval
        self._author = settings.author
        self._many = settings.commit_paths
        rest = timedelta(seconds=settings.retry_delay)
        self._writer = Writer(penstock, library, self._changed, rest)

    async def write(self, operation: Operation) -> None:
        """Create or update a file. A second run finds the content in place."""
        if operation.folder:
            await self.make_folder(operation)
            return
        await self._writer.write(operation)

    async def delete(self, operation: Operation) -> None:
        """Delete a file or a folder. A second run finds it gone, and forgets it."""
        run, book = await self._begin(operation)
        known = await self._known(operation)

        def note(tx: Transaction) -> dict[str, Any]:
            count = 0
            if operation.folder:
                self._changed(tx, book, [operation.path])
                count = tables.remove_files(tx, operation.notebook, operation.path)
            elif file := tables.file_at(tx, operation.notebook, operation.path):
                tables.remove_file(tx, file.id)
                count = 1
            if not operation.folder:
                self._changed(tx, book, [operation.path])
            return {"path": operation.path, "deleted": True, "file_count": count}

        async with _steady(book, operation):
            if operation.folder:
                hashes = await self._hashes(operation)
                await asyncio.to_thread(_delete_folder, book, operation, hashes, run.job.id)
            else:
                await asyncio.to_thread(_delete, book, operation, known)
            await self._finish(run, note)
            await asyncio.to_thread(book.tree.end, run.job.id)

    async def move(self, operation: Operation) -> None:
        """Move a file or a folder. A second run finds it at its new place."""
        run, book = await self._begin(operation)
        known = await self._known(operation)
        target = str(operation.to)
        await self._refuse_clash(operation, target)

        def note(tx: Transaction, mime: str) -> dict[str, Any]:
            now = datetime.now(UTC)
            if operation.folder:
                self._changed(tx, book, [operation.path, target])
                count = tables.move_files(tx, operation.notebook, operation.path, target, now)
                return {"path": target, "file_count": count}
            file = tables.file_at(tx, operation.notebook, operation.path)
            self._changed(tx, book, [operation.path, target])
            if file is None:
                return {"path": target, "file_count": 1}
            file = file._replace(path=target, updated=now, version=file.version + 1)
            file = file._replace(mime=mime)
            tables.put_file(tx, file)
            return as_result(file)

        async with _steady(book, operation):
            mime = await asyncio.to_thread(_move, book, operation, known, run.job.id)
            await self._finish(run, lambda tx: note(tx, mime))
            await asyncio.to_thread(book.tree.end, run.job.id)

    async def make_folder(self, operation: Operation) -> None:
        """Make a folder. A second run finds it."""
        run, book = await self._begin(operation)
        await asyncio.to_thread(_make_folder, book.tree, operation.path)
        await self._finish(run, lambda _: {"path": operation.path, "file_count": 0})

    async def sync(self, operation: Operation) -> None:
        """Look at paths again, or at all. A second run finds them as they are noted."""
        run = context()
        try:
            if operation.changes:
                book = await self._library.book(operation.notebook)
            else:  # also how this process hears of other settings
                book = await self._library.renewed(operation.notebook)
        except Missing:  # it was removed from the registry
            self._library.close(operation.notebook)
            return
        if not operation.changes:
            await self._scan(book)
            return
        known = await self._penstock.read(
            lambda tx: tables.files_at(tx, book.id, [path for path, _ in operation.changes])
        )
        seen = await asyncio.to_thread(syncing.look, book.tree, operation.changes, known)

        def note(tx: Transaction) -> dict[str, Any]:
            changed = syncing.note(tx, book.id, seen)
            if changed:
                self._changed(tx, book, changed)
            return {"changed": len(changed)}

        await self._finish(run, note)

    async def _scan(self, book: Book) -> None:
        """Publish what differs as operations of its own, which wait for those before them."""
        known = syncing.KnownInTables(self._penstock, book.id)
        seen = await asyncio.to_thread(reconcile, book.tree, known, patient=False)
        await self._publisher.publish_changes(book.id, syncing.changes_in(seen.found))

    async def commit(self, operation: Operation) -> None:
        """Commit what has changed. A second run finds nothing left to commit."""
        run = context()
        book = await self._library.renewed(operation.notebook)
        async with book.committing:
            try:
                made, note_commit = await self._commit(book)
            except Passing as error:
                run.snooze(max(self._interval_of(book), _SHORTEST), str(error))

            def note(tx: Transaction) -> dict[str, Any]:
                held = note_commit(tx)
                told = dict(list(held.items())[:_TOLD])
                if made is None:
                    return {"commit": None, "paths": 0, **({"skipped": told} if told else {})}
                return {"commit": made.id, "paths": len(made.changes), "skipped": told}

            await self._finish(run, note)

    async def commit_now(self, book: Book) -> None:
        """Commit what has changed, without a job: the server stops, or tries again."""
        async with book.committing:
            _, note = await self._commit(book)
            await self._penstock.transact(note)

    async def _commit(
        self, book: Book
    ) -> tuple[Commit | None, Callable[[Transaction], dict[str, str]]]:
        """Commit, and answer with how to note it: which paths are committed, and which are held."""
        (waiting, change), unfinished = await self._penstock.read(
            lambda tx: (tables.uncommitted(tx, book.id), touches.staged_names(tx, book.id))
        )
        before = {path: why for path, why in waiting.items() if why is not None}
        retries = _retries(book, waiting, len(before))
        paths = [path for path, why in waiting.items() if retries or why is None]
        author = book.settings.get("author") or self._author
        book.taken = max(change, book.taken)
        try:
            made, held = await asyncio.to_thread(book.commit, paths, author, unfinished)
        except NotebookError as error:
            await self._note_problem(book, str(error))
            raise
        await self._note_problem(book, None)
        _tell_held(book, held, before)

        def note(tx: Transaction) -> dict[str, str]:
            tables.forget_uncommitted(tx, book.id, change, held, retried=retries)
            return held

        return made, note

    async def _note_problem(self, book: Book, problem: str | None) -> None:
        """Store why commits fail, or that they no longer do, and say so once."""
        if book.problem == problem:
            return
        if problem is None:
            _log.info("notebook %s is committed again", book.name)
        else:
            _log.warning("notebook %s cannot be committed: %s", book.name, problem)
        await self._penstock.transact(lambda tx: tables.note_problem(tx, book.id, problem))
        book.problem = problem

    # How

    def ending(self, kind: Kind, handler: Handler) -> Handler:
        """Let nobody wait any more for an operation that has failed for good."""

        @wraps(handler)
        async def run(operation: Operation) -> None:
            try:
                operation.check_kind(kind)
                await handler(operation)
            except (Permanent, Cancel):
                job_id = context().job.id
                await self._penstock.transact(
                    lambda tx: touches.give_up(tx, [job_id], datetime.now(UTC))
                )
                raise

        return run

    async def _begin(self, operation: Operation) -> tuple[Context, Book]:
        run = context()
        if operation.member:
            await self._check_batch(run.job)
        return run, await self._library.book(operation.notebook)

    async def _check_batch(self, job: Job) -> None:
        """Go no further if a member of the batch before this one has not succeeded."""
        query = JobQuery(
            queue=QUEUE,
            correlation=job.correlation,
            states=ENDED_BADLY,
            newest_first=False,
            limit=1,
        )
        for stopped in await self._penstock.find(query):
            if stopped.id < job.id:
                raise Cancel(f"job {stopped.id} of its batch is {stopped.state}")

    async def _known(self, operation: Operation) -> File | None:
        return await self._penstock.read(
            lambda tx: tables.file_at(tx, operation.notebook, operation.path)
        )

    async def _refuse_clash(self, operation: Operation, path: str) -> None:
        """Refuse a path that some systems take for another; what moves away is no other."""
        clash = await self._penstock.read(lambda tx: tables.collision(tx, operation.notebook, path))
        if clash is not None and not is_within(clash, operation.path):
            raise Exists(f"{clash!r} is the same as {path!r} on systems that ignore case")

    async def _hashes(self, operation: Operation) -> dict[str, str]:
        found = await self._penstock.read(
            lambda tx: tables.files(tx, operation.notebook, f"{operation.path}/")
        )
        return {file.path: file.hash for file in found}

    async def _finish(self, run: Context, note: Callable[[Transaction], dict[str, Any]]) -> None:
        """Note what has changed and end the job, in one transaction."""

        def work(tx: Transaction) -> None:
            result = note(tx)
            touches.end_touches(tx, [run.job.id])
            run.finish(result, connection=tx)

        await self._penstock.transact(work)

    def _changed(self, tx: Transaction, book: Book, paths: list[str]) -> None:
        """Have these paths committed; a folder stands for all that is or was below it."""
        if book.git:
            tables.add_uncommitted(tx, book.id, paths)
            self._have_committed(tx, book)

    def _have_committed(self, tx: Transaction, book: Book) -> None:
        """See to it that a commit comes: some time after the first change, or at once for many."""
        self._publisher.commit(tx, book.id, self._interval_of(book))
        if tables.has_uncommitted(tx, book.id, self._many, after=book.taken):
            self._publisher.commit(tx, book.id, timedelta(0))

    def _interval_of(self, book: Book) -> timedelta:
        own = book.settings.get("commit_interval")
        return timedelta(seconds=self._interval if own is None else own)


def _retries(book: Book, waiting: Mapping[str, str | None], held: int) -> bool:
    """Whether paths that git could not have are tried again with this commit.

    Few always are. Many are when it may make a difference to them, and now and then.
    """
    now = time.monotonic()
    retries = (
        held <= _FEW
        or now - book.retried_at >= _RETRY
        or any(path.rpartition("/")[2] in _RULES for path, why in waiting.items() if why is None)
    )
    if retries:
        book.retried_at = now
    return retries


def _tell_held(book: Book, held: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Say in the log which paths are not committed, once for each and its reason."""
    new = [(path, why) for path, why in held.items() if before.get(path) != why]
    for path, why in new[:_LOGGED]:
        _log.warning("notebook %s: %r is not committed: %s", book.name, path, why)
    if len(new) > _LOGGED:
        more = len(new) - _LOGGED
        _log.warning("notebook %s: %d more paths are not committed", book.name, more)


def _steady(book: Book, operation: Operation) -> AbstractAsyncContextManager[Any]:
    """While all files of a folder change, on the disk and in the tables, nobody compares them."""
    return book.steady if operation.folder else nullcontext()


# On disk, in threads


def _delete(book: Book, operation: Operation, known: File | None) -> None:
    check_version(operation, known)
    if operation.version is not None and known and book.tree.look(operation.path):
        check_unedited(book.tree, operation, known)
    is_other = operation.exists and known is not None and operation.file not in (None, known.id)
    removed = not is_other and book.tree.remove(
        operation.path, known=known.hash if known else None, keep=book.git
    )
    if operation.exists and (is_other or not (removed or known)):
        raise Missing(f"there is no file at {operation.path!r}")


def _delete_folder(book: Book, operation: Operation, hashes: dict[str, str], job: int) -> None:
    tree = book.tree
    if tree.look(operation.path) is not None:
        with tree.beginning(job):
            tree.remove_folder(operation.path, known=hashes.get, keep=book.git)
    elif not hashes and not tree.has_begun(job):
        raise Missing(f"there is no folder {operation.path!r}")


def _move(book: Book, operation: Operation, known: File | None, job: int) -> str:
    """Move it; the MIME type that it has at its new place."""
    tree, target = book.tree, str(operation.to)
    found = tree.look(operation.path)
    if found is not None and stat.S_ISDIR(found.st_mode) != operation.folder:
        raise Permanent(f"{operation.path!r} is {'no' if operation.folder else 'a'} folder")
    if known is not None and operation.file not in (None, known.id):
        raise Missing(f"there is no file {operation.file} at {operation.path!r} any more")
    if found is not None:
        with tree.beginning(job):
            tree.move(operation.path, target)
    elif not _was_moved(tree, operation, known, job):
        raise Missing(f"there is nothing at {operation.path!r} to move")
    return "" if operation.folder else mime_of(tree, target)


def _was_moved(tree: Tree, operation: Operation, known: File | None, job: int) -> bool:
    """Whether an earlier run has moved it: what is at the target is what was at the source."""
    target = str(operation.to)
    if tree.look(target) is None:
        return False
    if operation.folder or known is None:
        return tree.has_begun(job)
    return tree.facts(target).hash == known.hash


def _make_folder(tree: Tree, path: str) -> None:
    found = tree.look(path)
    if found is not None and not stat.S_ISDIR(found.st_mode):
        raise Exists(f"there is a file at {path!r} already")
    tree.make_folder(path)
