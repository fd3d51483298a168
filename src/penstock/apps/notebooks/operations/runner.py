"""The handlers of notebook operations.

Each may run twice: files are put in place before the transaction that records the change and ends
the job, so a second run finds its own file or its own rename and continues from there.
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

from penstock import Cancel, Context, Job, JobQuery, Penstock, context
from penstock.apps.notebooks import tables
from penstock.apps.notebooks.disk.scan import scan
from penstock.apps.notebooks.disk.tree import Tree
from penstock.apps.notebooks.errors import Exists, Missing, NotebookError, Permanent, Transient
from penstock.apps.notebooks.operations import pending, sync
from penstock.apps.notebooks.operations.operation import QUEUE, Kind, Operation
from penstock.apps.notebooks.operations.publisher import Publisher, check_version
from penstock.apps.notebooks.operations.writer import UNSUCCESSFUL, Writer, check_unedited
from penstock.apps.notebooks.paths import is_within
from penstock.apps.notebooks.registry import OpenNotebook, Registry
from penstock.apps.notebooks.repository.commits import Commit
from penstock.apps.notebooks.settings import Settings
from penstock.apps.notebooks.shapes import as_result
from penstock.apps.notebooks.tables import File
from penstock.tables import Statements, Transaction

Handler = Callable[[Operation], Coroutine[Any, Any, None]]
_SHORTEST = timedelta(seconds=1)
_LISTED = 100
"""How many skipped paths the result of a commit lists."""
_LOGGED = 10
_FEW_HELD = 1_000
_RETRY = 60.0
_GIT_RULES = frozenset({".gitignore", ".gitattributes"})
_log = logging.getLogger(__name__)


class Runner:
    """Runs operations in the process that has the notebooks open."""

    def __init__(
        self, penstock: Penstock, settings: Settings, registry: Registry, publisher: Publisher
    ) -> None:
        self._penstock = penstock
        self._registry = registry
        self._publisher = publisher
        self._interval = settings.commit_interval
        self._author = settings.author
        self._commit_paths = settings.commit_paths
        rest = timedelta(seconds=settings.retry_delay)
        self._writer = Writer(penstock, registry, self._mark_changed, rest)

    async def write(self, operation: Operation) -> None:
        """Create or update a file. A second run finds the content in place."""
        if operation.folder:
            await self.make_folder(operation)
            return
        await self._writer.write(operation)

    async def delete(self, operation: Operation) -> None:
        """Delete a file or a folder. A second run finds it gone and forgets it."""
        run, opened = await self._start(operation)
        known = await self._known(operation)
        committed = await self._committed(operation)

        def record(tx: Transaction) -> dict[str, Any]:
            count = 0
            if operation.folder:
                self._mark_changed(tx, opened, [operation.path])
                count = tables.remove_files(tx, operation.notebook, operation.path)
            elif file := tables.file_at(tx, operation.notebook, operation.path):
                tables.remove_file(tx, file.id)
                count = 1
            if not operation.folder:
                self._mark_changed(tx, opened, [operation.path])
            return {"path": operation.path, "deleted": True, "file_count": count}

        async with _scan_locked(opened, operation):
            if operation.folder:
                await asyncio.to_thread(_delete_folder, opened, operation, committed, run.job.id)
            else:
                await asyncio.to_thread(_delete, opened, operation, known, committed)
            await self._finish(run, record)
            await asyncio.to_thread(opened.tree.clear_mark, run.job.id)

    async def move(self, operation: Operation) -> None:
        """Move a file or a folder. A second run finds it at its new path."""
        run, opened = await self._start(operation)
        known = await self._known(operation)
        target = str(operation.to)
        await self._refuse_clash(operation, target)

        def record(tx: Transaction, mime: str) -> dict[str, Any]:
            now = datetime.now(UTC)
            if operation.folder:
                self._mark_changed(tx, opened, [operation.path, target])
                count = tables.move_files(tx, operation.notebook, operation.path, target, now)
                return {"path": target, "file_count": count}
            file = tables.file_at(tx, operation.notebook, operation.path)
            self._mark_changed(tx, opened, [operation.path, target])
            if file is None:
                return {"path": target, "file_count": 1}
            file = file._replace(path=target, mime=mime, updated=now, version=file.version + 1)
            tables.put_file(tx, file)
            return as_result(file)

        async with _scan_locked(opened, operation):
            mime = await asyncio.to_thread(_move, opened, operation, known, run.job.id)
            await self._finish(run, lambda tx: record(tx, mime))
            await asyncio.to_thread(opened.tree.clear_mark, run.job.id)

    async def make_folder(self, operation: Operation) -> None:
        """Create a folder. A second run finds it."""
        run, opened = await self._start(operation)
        await asyncio.to_thread(_make_folder, opened.tree, operation.path)
        await self._finish(run, lambda _: {"path": operation.path, "file_count": 0})

    async def sync(self, operation: Operation) -> None:
        """Compare paths, or all files, with the disk. A second run finds no difference."""
        run = context()
        try:
            if operation.changes:
                opened = await self._registry.open(operation.notebook)
            else:  # this is also how the process learns of changed settings
                opened = await self._registry.refresh(operation.notebook)
        except Missing:  # the notebook was removed
            self._registry.close(operation.notebook)
            return
        if not operation.changes:
            await self._scan(opened)
            return
        known = await self._penstock.tables.read(
            lambda tx: tables.files_at(tx, opened.id, [path for path, _ in operation.changes])
        )
        seen = await asyncio.to_thread(sync.look, opened.tree, operation.changes, known)

        def record(tx: Transaction) -> dict[str, Any]:
            changed = sync.record(tx, opened.id, seen)
            if changed:
                self._mark_changed(tx, opened, changed)
            return {"changed": len(changed)}

        await self._finish(run, record)

    async def _scan(self, opened: OpenNotebook) -> None:
        """Scan a notebook and publish sync operations, which wait for those before them."""
        known = sync.StoredFiles(self._penstock, opened.id)
        seen = await asyncio.to_thread(scan, opened.tree, known, patient=False)
        await self._publisher.publish_changes(opened.id, sync.changes_in(seen.found))

    async def commit(self, operation: Operation) -> None:
        """Commit what has changed. A second run finds nothing to commit."""
        run = context()
        opened = await self._registry.refresh(operation.notebook)
        async with opened.commit_lock:
            try:
                made, record_commit = await self._commit(opened)
            except Transient as error:
                run.snooze(max(self._interval_of(opened), _SHORTEST), str(error))

            def record(tx: Transaction) -> dict[str, Any]:
                held = record_commit(tx)
                listed = dict(list(held.items())[:_LISTED])
                if made is None:
                    return {"commit": None, "paths": 0, **({"skipped": listed} if listed else {})}
                return {"commit": made.id, "paths": len(made.changes), "skipped": listed}

            await self._finish(run, record)

    async def commit_now(self, opened: OpenNotebook) -> None:
        """Commit what has changed without a job, for a stop of the server or a retry."""
        async with opened.commit_lock:
            _, record = await self._commit(opened)
            await self._penstock.transaction(record)

    async def _commit(
        self, opened: OpenNotebook
    ) -> tuple[Commit | None, Callable[[Transaction], dict[str, str]]]:
        """Commit; return the commit and a function that records the committed and held paths."""
        (waiting, change), unfinished = await self._penstock.tables.read(
            lambda tx: (tables.uncommitted(tx, opened.id), pending.staged_names(tx, opened.id))
        )
        before = {path: why for path, why in waiting.items() if why is not None}
        retries = _retries(opened, waiting, len(before))
        paths = [path for path, why in waiting.items() if retries or why is None]
        author = opened.settings.get("author") or self._author
        opened.last_change = max(change, opened.last_change)
        try:
            made, held = await asyncio.to_thread(opened.commit, paths, author, unfinished)
        except NotebookError as error:
            await self._record_problem(opened, str(error))
            raise
        await self._record_problem(opened, None)
        _log_held(opened, held, before)

        def record(tx: Transaction) -> dict[str, str]:
            tables.forget_uncommitted(tx, opened.id, change, held, retried=retries)
            return held

        return made, record

    async def _record_problem(self, opened: OpenNotebook, problem: str | None) -> None:
        """Store and log why commits fail, or that they succeed again, when it changes."""
        if opened.problem == problem:
            return
        if problem is None:
            _log.info("notebook %s is committed again", opened.name)
        else:
            _log.warning("notebook %s cannot be committed: %s", opened.name, problem)
        await self._penstock.transaction(lambda tx: tables.record_problem(tx, opened.id, problem))
        opened.problem = problem

    # Steps

    def handler(self, kind: Kind) -> Handler:
        """Return the handler of a task; it forgets operations that fail permanently."""
        handlers: dict[Kind, Handler] = {
            "create": self.write,
            "update": self.write,
            "move": self.move,
            "delete": self.delete,
            "sync": self.sync,
            "commit": self.commit,
        }
        handle = handlers[kind]

        @wraps(handle)
        async def run(operation: Operation) -> None:
            try:
                operation.check_kind(kind)
                await handle(operation)
            except (Permanent, Cancel):
                job_id = context().job.id
                await self._penstock.transaction(
                    lambda tx: pending.abandon(tx, [job_id], datetime.now(UTC))
                )
                raise

        return run

    async def _start(self, operation: Operation) -> tuple[Context, OpenNotebook]:
        run = context()
        if operation.member:
            await self._check_batch(run.job)
        return run, await self._registry.open(operation.notebook)

    async def _check_batch(self, job: Job) -> None:
        """Raise `Cancel` if an earlier member of the batch has not succeeded."""
        query = JobQuery(
            queue=QUEUE,
            correlation=job.correlation,
            states=UNSUCCESSFUL,
            newest_first=False,
            limit=1,
        )
        for stopped in await self._penstock.find(query):
            if stopped.id < job.id:
                raise Cancel(f"job {stopped.id} of its batch is {stopped.state}")

    async def _known(self, operation: Operation) -> File | None:
        return await self._penstock.tables.read(
            lambda tx: tables.file_at(tx, operation.notebook, operation.path)
        )

    async def _refuse_clash(self, operation: Operation, path: str) -> None:
        """Refuse a path that some systems treat as the same as another one that stays."""
        clash = await self._penstock.tables.read(
            lambda tx: tables.collision(tx, operation.notebook, path)
        )
        if clash is not None and not is_within(clash, operation.path):
            raise Exists(f"{clash!r} is the same as {path!r} on systems that ignore case")

    async def _committed(self, operation: Operation) -> dict[str, str | None]:
        """Return the known files at and below a path, with the hashes of those in history."""

        def read(tx: Statements) -> dict[str, str | None]:
            at = tables.file_at(tx, operation.notebook, operation.path)
            below = tables.files(tx, operation.notebook, f"{operation.path}/")
            found = [*below, *([at] if at else [])]
            paths = [file.path for file in found]
            changed = tables.uncommitted_among(tx, operation.notebook, paths)
            return {file.path: None if file.path in changed else file.hash for file in found}

        return await self._penstock.tables.read(read)

    async def _finish(self, run: Context, record: Callable[[Transaction], dict[str, Any]]) -> None:
        """Record what has changed and end the job in one transaction."""

        def work(tx: Transaction) -> None:
            result = record(tx)
            pending.remove(tx, [run.job.id])
            run.finish(result, connection=tx)

        await self._penstock.transaction(work)

    def _mark_changed(self, tx: Transaction, opened: OpenNotebook, paths: list[str]) -> None:
        """Schedule a commit of these paths; a folder covers all that is or was below it."""
        if opened.git:
            tables.add_uncommitted(tx, opened.id, paths)
            self._schedule_commit(tx, opened)

    def _schedule_commit(self, tx: Transaction, opened: OpenNotebook) -> None:
        """Schedule a commit some time after the first change, and at once if there are many."""
        self._publisher.store_commit(tx, opened.id, self._interval_of(opened))
        if tables.has_uncommitted(tx, opened.id, self._commit_paths, after=opened.last_change):
            self._publisher.store_commit(tx, opened.id, timedelta(0))

    def _interval_of(self, opened: OpenNotebook) -> timedelta:
        own = opened.settings.get("commit_interval")
        return timedelta(seconds=self._interval if own is None else own)


def _retries(opened: OpenNotebook, waiting: Mapping[str, str | None], held: int) -> bool:
    """Whether this commit tries held paths again.

    A few are always tried. Many are tried when a change may matter to them, and periodically.
    """
    now = time.monotonic()
    retries = (
        held <= _FEW_HELD
        or now - opened.retried_at >= _RETRY
        or any(
            path.rpartition("/")[2] in _GIT_RULES for path, why in waiting.items() if why is None
        )
    )
    if retries:
        opened.retried_at = now
    return retries


def _log_held(opened: OpenNotebook, held: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Log which paths are not committed, once per path and reason."""
    new = [(path, why) for path, why in held.items() if before.get(path) != why]
    for path, why in new[:_LOGGED]:
        _log.warning("notebook %s: %r is not committed: %s", opened.name, path, why)
    if len(new) > _LOGGED:
        more = len(new) - _LOGGED
        _log.warning("notebook %s: %d more paths are not committed", opened.name, more)


def _scan_locked(opened: OpenNotebook, operation: Operation) -> AbstractAsyncContextManager[Any]:
    """Prevent scans while all files of a folder change on disk and in the tables."""
    return opened.scan_lock if operation.folder else nullcontext()


# On disk, in threads


def _delete(
    opened: OpenNotebook,
    operation: Operation,
    known: File | None,
    committed: Mapping[str, str | None],
) -> None:
    check_version(operation, known)
    if operation.version is not None and known and opened.tree.look(operation.path):
        check_unedited(opened.tree, operation, known)
    is_other = operation.exists and known is not None and operation.file not in (None, known.id)
    removed = not is_other and opened.tree.remove(
        operation.path, committed=committed.get(operation.path), keep=opened.git
    )
    if operation.exists and (is_other or not (removed or known)):
        raise Missing(f"there is no file at {operation.path!r}")


def _delete_folder(
    opened: OpenNotebook, operation: Operation, committed: Mapping[str, str | None], job: int
) -> None:
    tree = opened.tree
    if tree.look(operation.path) is not None:
        with tree.started(job):
            tree.remove_folder(operation.path, committed=committed.get, keep=opened.git)
    elif not committed and not tree.has_started(job):
        raise Missing(f"there is no folder {operation.path!r}")


def _move(opened: OpenNotebook, operation: Operation, known: File | None, job: int) -> str:
    """Move it; return its MIME type at the new path."""
    tree, target = opened.tree, str(operation.to)
    found = tree.look(operation.path)
    if found is not None and stat.S_ISDIR(found.st_mode) != operation.folder:
        raise Permanent(f"{operation.path!r} is {'not ' if operation.folder else ''}a folder")
    if known is not None and operation.file not in (None, known.id):
        raise Missing(f"file {operation.file} is no longer at {operation.path!r}")
    if found is not None:
        with tree.started(job):
            tree.move(operation.path, target)
    elif not _was_moved(tree, operation, known, job):
        raise Missing(f"there is nothing at {operation.path!r} to move")
    return "" if operation.folder else tree.mime_type(target)


def _was_moved(tree: Tree, operation: Operation, known: File | None, job: int) -> bool:
    """Whether an earlier run has moved it: the target is what the source was."""
    target = str(operation.to)
    if tree.look(target) is None:
        return False
    if operation.folder or known is None:
        return tree.has_started(job)
    return tree.facts(target).hash == known.hash


def _make_folder(tree: Tree, path: str) -> None:
    found = tree.look(path)
    if found is not None and not stat.S_ISDIR(found.st_mode):
        raise Exists(f"there is already a file at {path!r}")
    tree.make_folder(path)
