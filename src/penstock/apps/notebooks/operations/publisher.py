"""Stores operations as jobs, each after all earlier ones that it overlaps with.

Everything is decided in the transaction that stores the jobs, so that concurrent publishers see
each other's operations.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from penstock import Job, NewJob, Penstock
from penstock.apps.notebooks import requests, tables
from penstock.apps.notebooks.disk.tree import SMALL, Staged, TooLarge, Tree, stored
from penstock.apps.notebooks.errors import Exists, Missing, Permanent
from penstock.apps.notebooks.operations import pending
from penstock.apps.notebooks.operations.operation import (
    QUEUE,
    Kind,
    Operation,
    PathChange,
    correlation_of,
    merged,
)
from penstock.apps.notebooks.paths import DisjointPaths, is_within, parents, parse
from penstock.apps.notebooks.settings import Settings
from penstock.apps.notebooks.tables import File, Notebook
from penstock.jobs import JobId, OnFailure, Scope
from penstock.tables import Transaction

_PATHS_PER_SYNC = 500
_TOGETHER = 100
"""How many members of a batch may start together; all are run again if an earlier one fails."""
_PRIORITY = 8
"""Commits and scans do not wait behind a backlog of operations."""
_KINDS: dict[type[requests.BatchOperation], Kind] = {
    requests.CreateOperation: "create",
    requests.UpdateOperation: "update",
    requests.MoveOperation: "move",
    requests.DeleteOperation: "delete",
}
Contents = Mapping[str, bytes]
"""The contents that are stored with their operations, by staging name."""
_NONE: Contents = MappingProxyType({})


class Conflict(Permanent):
    """A change is based on a version that is not the current one."""

    def __init__(self, path: str, expected: int, actual: int) -> None:
        super().__init__(f"{path!r} is at version {actual}, and the change is based on {expected}")
        self.expected = expected
        self.actual = actual


class Overtaken(Exception):
    """An operation that was to be replaced has already started."""


class Published(NamedTuple):
    """A stored operation, and how many files it affects."""

    job: Job
    operation: Operation
    file_count: int = 1
    discarded: Staged | None = None
    """The content of an operation that this one replaced."""


class Publisher:
    """Stores operations on notebooks as jobs."""

    def __init__(self, penstock: Penstock, settings: Settings) -> None:
        self._penstock = penstock
        self._max_size = settings.max_file_size
        self._max_queue = settings.max_queue
        self._is_limited = False

    async def publish(
        self,
        notebook: Notebook,
        operation: Operation,
        content: bytes | None = None,
        *,
        correlated: bool = False,
    ) -> Published:
        """Store an operation and its content durably; raises `NotebookError`.

        Where the rules allow it, the operation replaces the one before it on the same path. With
        `correlated`, it gets a correlation id, as a batch does.
        """
        contents = _NONE
        if content is not None:
            staged = await self._stage(notebook, content)
            operation = replace(operation, content=staged)
            contents = {staged.name: content} if staged.is_stored else _NONE
        correlation = correlation_of(uuid.uuid4().hex) if correlated else None
        store = partial(self._store, wanted=operation, correlation=correlation, contents=contents)
        try:
            await self._limit_queue()
            try:
                published = await self._penstock.transaction(store)
            except Overtaken:
                published = await self._penstock.transaction(partial(store, merges=False))
        except BaseException:
            await _discard(notebook, [operation.content])
            raise
        await _discard(notebook, [published.discarded])
        return published

    async def publish_batch(
        self,
        notebook: Notebook,
        wanted: Sequence[requests.BatchOperation],
        correlation: str | None,
    ) -> list[Published]:
        """Store operations that run in order until one fails; stores all or none."""
        operations, contents = await self._prepare_batch(notebook, wanted)
        name = correlation_of(correlation or uuid.uuid4().hex)
        try:
            await self._limit_queue()
            return await self._penstock.transaction(
                lambda tx: self._store_batch(tx, operations, name, contents)
            )
        except BaseException:
            await _discard(notebook, [one.content for one in operations])
            raise

    async def publish_scan(self, notebook_id: int) -> None:
        """Store an operation that reads the settings of a notebook and scans all of its files."""
        operation = Operation(notebook=notebook_id, kind="sync")
        new = replace(self._job(operation, frozenset(), None), priority=_PRIORITY)
        await self._penstock.transaction(lambda tx: tx.enqueue([new]))

    async def publish_changes(self, notebook_id: int, changes: Sequence[PathChange]) -> None:
        """Store operations that compare paths with the disk, a limited number per operation."""
        for n in range(0, len(changes), _PATHS_PER_SYNC):
            some = tuple(changes[n : n + _PATHS_PER_SYNC])
            operation = Operation(notebook=notebook_id, kind="sync", changes=some)
            await self._penstock.transaction(partial(self._store, wanted=operation, merges=False))

    async def publish_commit(self, notebook_id: int) -> Job:
        """Store an operation that commits everything that has changed so far."""
        return await self._penstock.transaction(
            lambda tx: self.store_commit(tx, notebook_id, timedelta(0))
        )

    def store_commit(self, tx: Transaction, notebook_id: int, delay: timedelta) -> Job:
        """Store an operation that commits changes, unless one with such a delay is waiting."""
        when = "soon" if delay else "now"
        new = replace(
            self._job(Operation(notebook=notebook_id, kind="commit"), frozenset(), None),
            delay=delay or None,
            priority=_PRIORITY,
            dedupe=f"notebooks.commit:{notebook_id}:{when}",
            scope=Scope.PENDING,
            throttle=f"notebooks.commit:{notebook_id}",  # one at a time; the others take no slot
        )
        return tx.enqueue([new])[0]

    # Contents

    async def upload(self, notebook: Notebook, pieces: AsyncIterator[bytes]) -> Staged:
        """Stage a content as its pieces arrive; raises `TooLarge`."""
        with Tree(Path(notebook.path)).upload(self._max_size) as upload:
            async for piece in pieces:
                await asyncio.to_thread(upload.write, piece)
            return await asyncio.to_thread(upload.finish)

    async def _stage(self, notebook: Notebook, content: bytes) -> Staged:
        """Stage content durably, unless it is small enough to be stored with its operation."""
        self._check_size(content)
        if _is_small(notebook, content):
            return stored(content)
        return await asyncio.to_thread(Tree(Path(notebook.path)).stage, content)

    def _check_size(self, content: bytes) -> None:
        if len(content) > self._max_size:
            raise TooLarge(f"the content is larger than {self._max_size:,} bytes")

    async def _prepare_batch(
        self, notebook: Notebook, wanted: Sequence[requests.BatchOperation]
    ) -> tuple[list[Operation], dict[str, bytes]]:
        """Return the operations of a batch, and the contents that are stored with them."""
        parsed = [(one, parse(one.path), parse(one.to) if one.to else None) for one in wanted]
        contents = [_content(one) for one in wanted]
        for content in contents:
            self._check_size(content or b"")
        small = [
            None if content is None or not _is_small(notebook, content) else stored(content)
            for content in contents
        ]
        large = [None if one else content for one, content in zip(small, contents, strict=True)]
        staged = small
        if any(content is not None for content in large):
            written = await asyncio.to_thread(Tree(Path(notebook.path)).stage_all, large)
            staged = [one or other for one, other in zip(small, written, strict=True)]
        operations = [
            Operation(
                notebook=notebook.id,
                kind=_KINDS[type(one)],
                path=path,
                to=to,
                folder=one.folder,
                exists=None if one.folder else not isinstance(one, requests.CreateOperation),
                content=content,
                fields=one.fields if isinstance(one, requests.Content) else {},
                version=one.version,
            )
            for (one, path, to), content in zip(parsed, staged, strict=True)
        ]
        return operations, {
            one.name: content or b"" for one, content in zip(small, contents, strict=True) if one
        }

    # In the transaction

    def _store(
        self,
        tx: Transaction,
        wanted: Operation,
        correlation: str | None = None,
        contents: Contents = _NONE,
        *,
        merges: bool = True,
    ) -> Published:
        """Store one operation; raises `Overtaken` if one that it replaces has started."""
        reserved = tables.number(tx, "file") if wanted.kind == "create" else 0
        located = _located(tx, wanted, reserved)
        before = pending.newest_on(tx, located.notebook, located.path) if merges else None
        combined = merged(before[1], located) if before else None
        discarded = None
        if before and combined:
            pending.remove(tx, [before[0]])
            if before[1].content and before[1].content != combined.content:
                discarded = before[1].content
                pending.delete_contents(tx, [discarded.name])
            located = combined
        after = _waits_for(tx, located)
        if not after and not combined:
            _check(tx, located)
        elif not combined:
            located = _by_path(wanted, located)
        (job,) = tx.enqueue([self._job(located, after, correlation)])
        if before and combined and not tx.supersede(before[0], by=job.id):
            raise Overtaken
        pending.add(tx, job.id, located)
        pending.store_contents(tx, contents, datetime.now(UTC))
        return Published(job, located, _file_count(tx, located), discarded)

    def _store_batch(
        self, tx: Transaction, wanted: Sequence[Operation], correlation: str, contents: Contents
    ) -> list[Published]:
        reserved = tables.number(tx, "file", len(wanted))
        operations: list[Operation] = []
        after: list[frozenset[int]] = []
        touched: set[str] = set()
        for n, one in enumerate(wanted):
            located = replace(_located(tx, one, reserved + n), member=n)
            after.append(_waits_for(tx, located))
            if after[-1] or not touched.isdisjoint((located.path, *parents(located.path))):
                located = _by_path(one, located)
            touched.update(located.touched)
            operations.append(located)
        jobs = tx.enqueue(
            [
                replace(self._job(one, before, correlation), follows=(first - 1,) if first else ())
                for one, before, first in zip(
                    operations, after, _group_starts(operations), strict=True
                )
            ]
        )
        for job, one in zip(jobs, operations, strict=True):
            pending.add(tx, job.id, one)
        pending.store_contents(tx, contents, datetime.now(UTC))
        return [
            Published(job, one, _file_count(tx, one))
            for job, one in zip(jobs, operations, strict=True)
        ]

    def _job(self, operation: Operation, after: frozenset[int], correlation: str | None) -> NewJob:
        """Return a job that starts when those before it have ended, whatever their outcome."""
        new = self._penstock.tasks[f"{QUEUE}.{operation.kind}"].new(operation)
        return replace(
            new,
            after=tuple(JobId(one) for one in sorted(after)),
            on_failure=OnFailure.RUN,
            correlation=correlation,
            tenant=f"notebook:{operation.notebook}",
        )

    async def _limit_queue(self) -> None:
        if not self._is_limited:  # only now: a server without notebooks has no such queue
            await self._penstock.limits.queue(QUEUE, self._max_queue)
            self._is_limited = True


def check_version(operation: Operation, known: File | None) -> None:
    """Raise `Conflict` if an operation is based on another version than that of the file."""
    actual = known.version if known else 0
    if operation.version is not None and operation.version != actual:
        raise Conflict(operation.path, operation.version, actual)


async def _discard(notebook: Notebook, contents: Sequence[Staged | None]) -> None:
    """Remove contents from the state folder."""
    for one in contents:
        if one is not None and not one.is_stored:
            await asyncio.to_thread(Tree(Path(notebook.path)).discard, one.name)


def _content(one: requests.BatchOperation) -> bytes | None:
    """Return what an operation of a batch writes; a new file is empty by default."""
    if not isinstance(one, requests.Content):
        return None
    is_new = isinstance(one, requests.CreateOperation) and not one.folder
    return one.data or b"" if is_new else one.data


def _is_small(notebook: Notebook, content: bytes) -> bool:
    """Whether a content is stored with its operation.

    Without history there are no backups that tell, after a crash, whether it was put in place.
    """
    return notebook.git and len(content) <= SMALL


def _located(tx: Transaction, wanted: Operation, reserved: int) -> Operation:
    """Return the operation with the path and file id that all operations before it will leave."""
    if wanted.kind == "create" and not wanted.folder:
        return replace(wanted, file=reserved)
    if wanted.file is not None and not wanted.path:
        path = pending.expected_path(tx, wanted.notebook, wanted.file)
        if path is None:
            raise Missing(f"there is no file {wanted.file}")
        wanted = replace(wanted, path=path)
    elif not wanted.folder and wanted.kind in ("update", "delete", "move"):
        known = tables.file_at(tx, wanted.notebook, wanted.path)
        wanted = replace(wanted, file=known.id if known else None)
    if wanted.to is not None and is_within(wanted.to, wanted.path):
        raise Permanent(f"{wanted.path!r} cannot be moved to {wanted.to!r}, which is inside it")
    return wanted


def _by_path(wanted: Operation, located: Operation) -> Operation:
    """Return an operation that waits: another file may be at its path by then."""
    return replace(located, file=wanted.file) if wanted.kind != "create" else located


def _group_starts(operations: Sequence[Operation]) -> Iterator[int]:
    """Yield, for each member of a batch, the first of those that it may start together with.

    They all wait for the member before that one. Writes of different files may start together: the
    writer keeps their order.
    """
    first, paths = 0, DisjointPaths()
    for n, one in enumerate(operations):
        is_free = _is_write(one) and _is_write(operations[first]) and n - first < _TOGETHER
        if not is_free or not paths.add(one.path):
            first, paths = n, DisjointPaths()
            paths.add(one.path)
        yield first


def _is_write(one: Operation) -> bool:
    return one.kind in ("create", "update") and not one.folder


def _waits_for(tx: Transaction, operation: Operation) -> frozenset[int]:
    below = operation.kind != "sync"
    return frozenset(pending.overlapping(tx, operation.notebook, operation.touched, below=below))


def _check(tx: Transaction, operation: Operation) -> None:
    """Refuse at once an operation that cannot succeed, since nothing runs before it."""
    if operation.folder or operation.kind not in ("create", "update", "delete"):
        return
    known = tables.file_at(tx, operation.notebook, operation.path)
    if operation.kind == "create" and known is not None:
        raise Exists(f"there is already a file at {operation.path!r}")
    check_version(operation, known)


def _file_count(tx: Transaction, operation: Operation) -> int:
    if not operation.folder:
        return 1
    return tables.count_files(tx, operation.notebook, operation.path)
