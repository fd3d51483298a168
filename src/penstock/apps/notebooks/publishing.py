"""Operations on their way into the queue: placed behind all earlier ones that they overlap with.

Everything here is decided in the transaction that stores the jobs, so that two who publish at once
see each other.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from penstock import Job, JobId, NewJob, OnFailure, Penstock, Scope, Transaction
from penstock.apps.notebooks import tables, touches
from penstock.apps.notebooks.errors import Exists, Missing, Permanent
from penstock.apps.notebooks.files import Staged
from penstock.apps.notebooks.operations import Operation, merged
from penstock.apps.notebooks.paths import Abreast, is_within, parents

_AT_ONCE = 500
_TOGETHER = 100
"""Members of a batch that may begin together: so many look again when one before them fails."""
_SOONER = 8
"""Commits and other settings do not wait behind a backlog of operations."""
Change = tuple[str, str | None]
Contents = Mapping[str, bytes]
"""What operations write, by name, as far as it is stored with them."""
NONE: Contents = MappingProxyType({})


class Conflict(Permanent):
    """A change is based on a version that is not the newest."""

    def __init__(self, path: str, expected: int, actual: int) -> None:
        super().__init__(f"{path!r} is at version {actual}, and the change is based on {expected}")
        self.expected = expected
        self.actual = actual


class Overtaken(Exception):
    """An operation that was to be replaced has begun meanwhile."""


class Published(NamedTuple):
    """A stored operation, what it replaced, and how many files it is about."""

    job: Job
    operation: Operation
    file_count: int = 1
    discarded: Staged | None = None
    """A content that nobody needs any more."""


class Publisher:
    """Stores operations of notebooks as jobs."""

    def __init__(self, penstock: Penstock) -> None:
        self._penstock = penstock

    async def publish(
        self,
        asked: Operation,
        correlation: str | None = None,
        contents: Contents = NONE,
    ) -> Published:
        """Store one operation; where the rules allow it, in the place of the one before."""
        work = partial(self.single, asked=asked, correlation=correlation, contents=contents)
        try:
            return await self._penstock.transact(work)
        except Overtaken:
            return await self._penstock.transact(partial(work, merges=False))

    async def publish_batch(
        self, asked: Sequence[Operation], correlation: str, contents: Contents
    ) -> list[Published]:
        """Store operations that run one after the other until one fails; all or none."""
        return await self._penstock.transact(
            lambda tx: self.batch(tx, asked, correlation, contents)
        )

    async def publish_look(self, notebook: int) -> None:
        """Store that the settings of a notebook, and then all of its files, are to be looked at."""
        operation = Operation(notebook=notebook, kind="sync")
        new = replace(self._job(operation, frozenset(), None), priority=_SOONER)
        await self._penstock.transact(lambda tx: tx.enqueue([new]))

    async def publish_changes(self, notebook: int, changes: Sequence[Change]) -> None:
        """Store that paths are to be looked at again, so many at a time."""
        for n in range(0, len(changes), _AT_ONCE):
            some = tuple(changes[n : n + _AT_ONCE])
            operation = Operation(notebook=notebook, kind="sync", changes=some)
            await self._penstock.transact(partial(self.single, asked=operation, merges=False))

    def single(
        self,
        tx: Transaction,
        asked: Operation,
        correlation: str | None = None,
        contents: Contents = NONE,
        *,
        merges: bool = True,
    ) -> Published:
        """Store one operation in this transaction; raises `Overtaken` where that is `merges`'."""
        reserved = tables.number(tx, "file") if asked.kind == "create" else 0
        wanted = _located(tx, asked, reserved)
        before = touches.newest_on(tx, wanted.notebook, wanted.path) if merges else None
        together = merged(before[1], wanted) if before else None
        discarded = None
        if before and together:
            touches.end_touches(tx, [before[0]])
            if before[1].content and before[1].content != together.content:
                discarded = before[1].content
                touches.drop_contents(tx, [discarded.name])
            wanted = together
        after = _waits_for(tx, wanted)
        if not after and not together:
            _check(tx, wanted)
        elif not together:
            wanted = _by_path(asked, wanted)
        (job,) = tx.enqueue([self._job(wanted, after, correlation)])
        if before and together and not tx.supersede(before[0], by=job.id):
            raise Overtaken
        touches.add_touches(tx, job.id, wanted)
        touches.put_contents(tx, contents, datetime.now(UTC))
        return Published(job, wanted, _file_count(tx, wanted), discarded)

    def batch(
        self, tx: Transaction, asked: Sequence[Operation], correlation: str, contents: Contents
    ) -> list[Published]:
        """Store a batch in this transaction."""
        reserved = tables.number(tx, "file", len(asked))
        wanted: list[Operation] = []
        after: list[frozenset[int]] = []
        touched: set[str] = set()
        for n, one in enumerate(asked):
            located = replace(_located(tx, one, reserved + n), member=n)
            after.append(_waits_for(tx, located))
            if after[-1] or not touched.isdisjoint((located.path, *parents(located.path))):
                located = _by_path(one, located)
            touched.update(located.touched)
            wanted.append(located)
        jobs = tx.enqueue(
            [
                replace(self._job(one, before, correlation), follows=(first - 1,) if first else ())
                for one, before, first in zip(wanted, after, _companies(wanted), strict=True)
            ]
        )
        for job, one in zip(jobs, wanted, strict=True):
            touches.add_touches(tx, job.id, one)
        touches.put_contents(tx, contents, datetime.now(UTC))
        return [
            Published(job, one, _file_count(tx, one)) for job, one in zip(jobs, wanted, strict=True)
        ]

    def commit(self, tx: Transaction, notebook: int, delay: timedelta) -> Job:
        """Store the job that commits what has changed; not a second one while it waits."""
        when = "soon" if delay else "now"
        new = replace(
            self._job(Operation(notebook=notebook, kind="commit"), frozenset(), None),
            delay=delay or None,
            priority=_SOONER,
            dedupe=f"notebooks.commit:{notebook}:{when}",
            scope=Scope.PENDING,
            throttle=f"notebooks.commit:{notebook}",  # one at a time; the others take no slot
        )
        return tx.enqueue([new])[0]

    def _job(self, operation: Operation, after: frozenset[int], correlation: str | None) -> NewJob:
        """A job that begins when those before it have ended, however they ended."""
        new = self._penstock.tasks[f"notebooks.{operation.kind}"].new(operation)
        return replace(
            new,
            after=tuple(JobId(one) for one in sorted(after)),
            on_failure=OnFailure.RUN,
            correlation=correlation,
            tenant=f"notebook:{operation.notebook}",
        )


def _located(tx: Transaction, asked: Operation, reserved: int) -> Operation:
    """The operation with its path and its file's id, as all before it will leave them."""
    if asked.kind == "create" and not asked.folder:
        return replace(asked, file=reserved)
    if asked.file is not None and not asked.path:
        path = touches.expected_path(tx, asked.notebook, asked.file)
        if path is None:
            raise Missing(f"there is no file {asked.file}")
        asked = replace(asked, path=path)
    elif not asked.folder and asked.kind in ("update", "delete", "move"):
        known = tables.file_at(tx, asked.notebook, asked.path)
        asked = replace(asked, file=known.id if known else None)
    if asked.to is not None and is_within(asked.to, asked.path):
        raise Permanent(f"{asked.path!r} cannot be moved to {asked.to!r}, which is inside of it")
    return asked


def _by_path(asked: Operation, located: Operation) -> Operation:
    """An operation that waits: at a path that was asked for may be another file by then."""
    return replace(located, file=asked.file) if asked.kind != "create" else located


def _companies(wanted: Sequence[Operation]) -> Iterator[int]:
    """For each member of a batch, the first of those that it may begin together with.

    All of them wait for the one before that. Writes of different files may begin together: who
    runs them keeps their order.
    """
    first, paths = 0, Abreast()
    for n, one in enumerate(wanted):
        is_free = _is_write(one) and _is_write(wanted[first]) and n - first < _TOGETHER
        if not is_free or not paths.admits(one.path):
            first, paths = n, Abreast()
            paths.admits(one.path)
        yield first


def _is_write(one: Operation) -> bool:
    return one.kind in ("create", "update") and not one.folder


def _waits_for(tx: Transaction, operation: Operation) -> frozenset[int]:
    below = operation.kind != "sync"
    return frozenset(touches.overlapping(tx, operation.notebook, operation.touched, below=below))


def _check(tx: Transaction, wanted: Operation) -> None:
    """Refuse at once what cannot succeed, since nothing comes before it."""
    if wanted.folder or wanted.kind not in ("create", "update", "delete"):
        return
    known = tables.file_at(tx, wanted.notebook, wanted.path)
    if wanted.kind == "create" and known is not None:
        raise Exists(f"there is a file at {wanted.path!r} already")
    check_version(wanted, known)


def check_version(wanted: Operation, known: tables.File | None) -> None:
    """Raise `Conflict` if a change is based on another version than that of the file."""
    actual = known.version if known else 0
    if wanted.version is not None and wanted.version != actual:
        raise Conflict(wanted.path, wanted.version, actual)


def _file_count(tx: Transaction, operation: Operation) -> int:
    if not operation.folder:
        return 1
    return tables.count_files(tx, operation.notebook, operation.path)
