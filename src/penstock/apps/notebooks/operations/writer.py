"""Writes files, many at once.

A worker runs the jobs as usual. Their handlers pass on what they have to write, and whatever has
accumulated is put in place, flushed and recorded together: each folder is flushed once, and all
these jobs end in one transaction. Members of a batch keep their order.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from penstock import Cancel, Context, Job, JobQuery, Penstock, Snooze, State, context
from penstock.apps.kit import Batcher
from penstock.apps.notebooks import tables
from penstock.apps.notebooks.disk.placement import Placer
from penstock.apps.notebooks.disk.tree import Facts, Tree
from penstock.apps.notebooks.errors import Exists, Missing, NotebookError, Permanent
from penstock.apps.notebooks.operations import pending
from penstock.apps.notebooks.operations.operation import QUEUE, Operation
from penstock.apps.notebooks.operations.publisher import Conflict, check_version
from penstock.apps.notebooks.paths import DisjointPaths
from penstock.apps.notebooks.registry import OpenNotebook, Registry
from penstock.apps.notebooks.shapes import as_result
from penstock.apps.notebooks.tables import File
from penstock.tables import Statements, Transaction

UNSUCCESSFUL = frozenset({State.FAILED, State.CANCELLED})
_NOT_DONE = UNSUCCESSFUL | {State.PENDING, State.RUNNING}
AT_ONCE = 128
"""Operations that run at the same time; most of them wait to be written together."""

MarkChanged = Callable[[Transaction, OpenNotebook, list[str]], None]
Placed = tuple[Facts, str] | None
"""The facts and MIME type of a content that was put in place; None if only metadata changes."""


class Write(NamedTuple):
    """A file to write for the run of a job."""

    run: Context
    operation: Operation

    @property
    def job(self) -> Job:
        """The job."""
        return self.run.job


class Stop(NamedTuple):
    """A member of a batch that has not succeeded, and the signal for those after it."""

    job: int
    signal: Exception


class WriteState(NamedTuple):
    """What is known of the paths of writes, and the contents that are stored with them."""

    files: Mapping[str, File]
    clashes: Mapping[str, str]
    """Paths that some file systems treat as the same as another one, with that one."""
    contents: Mapping[str, bytes]
    uncommitted: frozenset[str]
    """Paths that have changed since their last commit: their contents are not in history yet."""


class Writer:
    """Writes files for all runs of one worker, one group at a time per notebook."""

    def __init__(
        self, penstock: Penstock, registry: Registry, mark_changed: MarkChanged, rest: timedelta
    ) -> None:
        """Create a writer.

        `mark_changed` schedules a commit of paths. After `rest`, a waiting member of a batch
        retries.
        """
        self._penstock = penstock
        self._registry = registry
        self._mark_changed = mark_changed
        self._rest = rest
        self._together: Batcher[int, Write, None] = Batcher(self._work, AT_ONCE)

    async def write(self, operation: Operation) -> None:
        """Write a file, together with others that are due; the job has ended on return."""
        await self._together.ask(operation.notebook, Write(context(), operation))

    async def _work(self, notebook: int, asked: Sequence[Write]) -> list[Exception | None]:
        opened = await self._registry.open(notebook)
        answers: dict[int, Exception] = {}
        for group in _disjoint_groups(asked):
            answers |= await self._write(opened, group)
        return [answers.get(one.job.id) for one in asked]

    async def _write(self, opened: OpenNotebook, group: Sequence[Write]) -> dict[int, Exception]:
        """Write a group as far as possible; return the errors of the others by job."""
        stops = await self._stops(group)
        known = await self._penstock.tables.read(lambda tx: _known(tx, opened.id, group))
        placed, failed = await asyncio.to_thread(self._place_all, opened, group, known, stops)
        return failed | await self._record(opened, placed)

    async def _stops(self, group: Sequence[Write]) -> dict[str | None, Stop]:
        """Return, for each batch, its first member outside the group that has not succeeded."""
        batches: dict[str | None, set[int]] = {}
        for one in group:
            if one.operation.member is not None:
                batches.setdefault(one.job.correlation, set()).add(one.job.id)
        stops: dict[str | None, Stop] = {}
        for correlation, ours in batches.items():
            query = JobQuery(
                queue=QUEUE,
                correlation=correlation,
                states=_NOT_DONE,
                newest_first=False,
                limit=len(ours),
            )
            if others := set(await self._penstock.find_ids(query)) - ours:
                first = await self._penstock.get(min(others))
                stops[correlation] = self._stop(first, has_failed=first.state in UNSUCCESSFUL)
        return stops

    def _stop(self, job: Job, *, has_failed: bool) -> Stop:
        if has_failed:
            return Stop(job.id, Cancel(f"job {job.id} of its batch has not succeeded"))
        return Stop(job.id, Snooze(self._rest, f"job {job.id} of its batch comes first"))

    async def _record(
        self, opened: OpenNotebook, placed: Sequence[tuple[Write, Placed]]
    ) -> dict[int, Exception]:
        """Record writes and end their jobs in one transaction; if that fails, one by one."""
        if not placed:
            return {}
        try:
            await self._penstock.transaction(lambda tx: self._record_all(tx, opened, placed))
        except Exception as error:  # noqa: BLE001 - raised in the run that it belongs to
            if len(placed) == 1:
                return {placed[0][0].job.id: error}
        else:
            return {}
        failed: dict[int, Exception] = {}
        for one in placed:
            failed |= await self._record(opened, [one])
        return failed

    def _record_all(
        self, tx: Transaction, opened: OpenNotebook, placed: Sequence[tuple[Write, Placed]]
    ) -> None:
        known = tables.files_at(tx, opened.id, [write.operation.path for write, _ in placed])
        files = [_written(tx, write.operation, found, known) for write, found in placed]
        for file in files:
            tables.put_file(tx, file)
        if paths := [write.operation.path for write, found in placed if found is not None]:
            self._mark_changed(tx, opened, paths)
        pending.remove(tx, [write.job.id for write, _ in placed])
        pending.delete_contents(tx, _stored([write for write, _ in placed]))
        results = [as_result(file) for file in files]
        runs = [write.run for write, _ in placed]
        Context.finish_all(list(zip(runs, results, strict=True)), connection=tx)

    # On disk, in a thread

    def _place_all(
        self,
        opened: OpenNotebook,
        group: Sequence[Write],
        known: WriteState,
        stops: dict[str | None, Stop],
    ) -> tuple[list[tuple[Write, Placed]], dict[int, Exception]]:
        placed: list[tuple[Write, Placed]] = []
        failed: dict[int, Exception] = {}
        with Placer(opened.tree, keep=opened.git) as placer:
            placer.prepare(known.contents)
            for write in group:
                job = write.job
                stop = None if write.operation.member is None else stops.get(job.correlation)
                if stop is not None and stop.job < job.id:
                    failed[job.id] = stop.signal
                    continue
                try:
                    placed.append((write, _place(opened, placer, write, known)))
                except NotebookError as error:
                    failed[job.id] = error
                    stops[job.correlation] = self._stop(
                        job, has_failed=isinstance(error, Permanent)
                    )
            placer.flush()
        return placed, failed


def _disjoint_groups(asked: Sequence[Write]) -> Iterator[list[Write]]:
    """Yield the writes in order, in groups whose paths do not affect each other."""
    group: list[Write] = []
    paths = DisjointPaths()
    for one in sorted(asked, key=lambda write: write.job.id):
        if not paths.add(one.operation.path):
            yield group
            group, paths = [], DisjointPaths()
            paths.add(one.operation.path)
        group.append(one)
    yield group


def _known(tx: Statements, notebook: int, group: Sequence[Write]) -> WriteState:
    paths = [one.operation.path for one in group]
    files = tables.files_at(tx, notebook, paths)
    clashes = {
        path: clash
        for path in paths
        if path not in files and (clash := tables.collision(tx, notebook, path)) is not None
    }
    uncommitted = frozenset(tables.uncommitted_among(tx, notebook, paths))
    return WriteState(files, clashes, pending.contents(tx, _stored(group)), uncommitted)


def _stored(writes: Sequence[Write]) -> list[str]:
    """Return the names of the contents that are stored with these writes."""
    contents = [write.operation.content for write in writes]
    return [one.name for one in contents if one is not None and one.is_stored]


def _place(opened: OpenNotebook, placer: Placer, write: Write, known: WriteState) -> Placed:
    operation, tree = write.operation, opened.tree
    path, file = operation.path, known.files.get(operation.path)
    if path in known.clashes:
        raise Exists(f"{known.clashes[path]!r} is the same as {path!r} on systems that ignore case")
    found = placer.look(path)
    check_version(operation, file)
    if operation.version is not None and file is not None and found is not None:
        check_unedited(tree, operation, file)
    is_there = file is not None or found is not None
    staged = operation.content
    is_own = staged is not None and placer.was_placed(staged, path)
    if operation.exists is False and is_there and not is_own:
        raise Exists(f"{path!r} already exists")
    is_other = file is not None and operation.file not in (None, file.id)
    if operation.exists and (is_other or not is_there):
        raise Missing(f"there is no longer a file at {path!r}")
    if staged is None:
        if not is_there:
            raise Missing(f"there is no file at {path!r}")
        return None
    is_committed = file is not None and path not in known.uncommitted
    facts = placer.place(staged, path, committed=file.hash if file and is_committed else None)
    opened.remember_write(path, facts)
    return facts, tree.mime_type(path)


def check_unedited(tree: Tree, operation: Operation, known: File) -> None:
    """Raise `Conflict` if a change based on a version would overwrite a newer edit."""
    facts = tree.facts(operation.path)
    ours = operation.content.hash if operation.content else None
    if facts.hash not in (known.hash, ours):
        raise Conflict(operation.path, known.version, known.version + 1)


# In the transaction


def _written(
    tx: Transaction, operation: Operation, found: Placed, known: Mapping[str, File]
) -> File:
    """Return the file as it is to be known after a write."""
    now = datetime.now(UTC)
    file = known.get(operation.path)
    if file is None:
        if found is None:
            raise Missing(f"there is no file at {operation.path!r}")
        number = operation.file or tables.number(tx, "file")
        file = tables.new_file(operation.notebook, operation.path, number, now)
        fields = {**operation.initial, **operation.fields}
    else:
        fields = operation.fields
        if operation.reset:
            fields = {"title": None, "description": None, "properties": {}, **fields}
        file = file._replace(version=file.version + 1, updated=now)
    if found is not None:
        file = tables.with_facts(file, found[0])._replace(mime=found[1])
    return tables.changed_fields(file, fields)
