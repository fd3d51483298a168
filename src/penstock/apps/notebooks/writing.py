"""Writes of files, many at once.

Jobs are run by a worker as always. Their handlers hand over what they have to write, and what has
come together is put in place, flushed to the disk and noted together: each folder is flushed once,
and all these jobs end in one transaction. Members of a batch keep their order here.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from penstock import Cancel, Context, Job, JobQuery, Penstock, Snooze, State, Transaction, context
from penstock.apps.batching import Batcher
from penstock.apps.notebooks import tables, touches
from penstock.apps.notebooks.books import Book
from penstock.apps.notebooks.errors import Exists, Missing, NotebookError, Permanent
from penstock.apps.notebooks.files import Facts, Tree
from penstock.apps.notebooks.library import Library
from penstock.apps.notebooks.mime import HEAD, mime_type
from penstock.apps.notebooks.operations import QUEUE, Operation
from penstock.apps.notebooks.paths import Abreast
from penstock.apps.notebooks.placing import Placer
from penstock.apps.notebooks.publishing import Conflict, check_version
from penstock.apps.notebooks.shapes import as_result
from penstock.apps.notebooks.tables import File

ENDED_BADLY = frozenset({State.FAILED, State.CANCELLED})
_NOT_DONE = ENDED_BADLY | {State.PENDING, State.RUNNING}
AT_ONCE = 128
"""Operations that run at a time; most of them wait to be written together."""

Changed = Callable[[Transaction, Book, list[str]], None]
Placed = tuple[Facts, str] | None
"""What was put in place, and its MIME type; None for a change of metadata alone."""


class Write(NamedTuple):
    """A write that a run of a job asks for."""

    run: Context
    operation: Operation

    @property
    def job(self) -> Job:
        """The job that is run."""
        return self.run.job


class Stop(NamedTuple):
    """A member of a batch that has not succeeded, and what becomes of those after it."""

    job: int
    signal: Exception


class Known(NamedTuple):
    """What is known of the paths of writes, and the contents that are stored with them."""

    files: Mapping[str, File]
    clashes: Mapping[str, str]
    """Paths that some systems take for another, and for which."""
    contents: Mapping[str, bytes]


class Writer:
    """Writes files for all runs of one worker; one group at a time in each notebook."""

    def __init__(
        self, penstock: Penstock, library: Library, changed: Changed, rest: timedelta
    ) -> None:
        """`changed` has paths committed; after `rest`, a member of a batch looks again."""
        self._penstock = penstock
        self._library = library
        self._changed = changed
        self._rest = rest
        self._together: Batcher[int, Write, None] = Batcher(self._work, AT_ONCE)

    async def write(self, operation: Operation) -> None:
        """Write, with whatever others write now; the job has ended then."""
        await self._together.ask(operation.notebook, Write(context(), operation))

    async def _work(self, notebook: int, asked: Sequence[Write]) -> list[Exception | None]:
        book = await self._library.book(notebook)
        answers: dict[int, Exception] = {}
        for group in _abreast(asked):
            answers |= await self._write(book, group)
        return [answers.get(one.job.id) for one in asked]

    async def _write(self, book: Book, group: Sequence[Write]) -> dict[int, Exception]:
        """Write those that can be written; what became of the others."""
        stops = await self._stops(group)
        known = await self._penstock.read(lambda tx: _known(tx, book.id, group))
        placed, failed = await asyncio.to_thread(self._place_all, book, group, known, stops)
        return failed | await self._note(book, placed)

    async def _stops(self, group: Sequence[Write]) -> dict[str | None, Stop]:
        """For each batch, the first member outside of the group that has not succeeded."""
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
                stops[correlation] = self._stop(first, is_over=first.state in ENDED_BADLY)
        return stops

    def _stop(self, job: Job, *, is_over: bool) -> Stop:
        if is_over:
            return Stop(job.id, Cancel(f"job {job.id} of its batch has not succeeded"))
        return Stop(job.id, Snooze(self._rest, f"job {job.id} of its batch comes first"))

    async def _note(
        self, book: Book, placed: Sequence[tuple[Write, Placed]]
    ) -> dict[int, Exception]:
        """Note them and end their jobs together; if that fails, one by one."""
        if not placed:
            return {}
        try:
            await self._penstock.transact(lambda tx: self._note_all(tx, book, placed))
        except Exception as error:  # noqa: BLE001 - it is raised where it belongs
            if len(placed) == 1:
                return {placed[0][0].job.id: error}
        else:
            return {}
        failed: dict[int, Exception] = {}
        for one in placed:
            failed |= await self._note(book, [one])
        return failed

    def _note_all(
        self, tx: Transaction, book: Book, placed: Sequence[tuple[Write, Placed]]
    ) -> None:
        known = tables.files_at(tx, book.id, [write.operation.path for write, _ in placed])
        files = [_written(tx, write.operation, found, known) for write, found in placed]
        for file in files:
            tables.put_file(tx, file)
        if changed := [write.operation.path for write, found in placed if found is not None]:
            self._changed(tx, book, changed)
        touches.end_touches(tx, [write.job.id for write, _ in placed])
        touches.drop_contents(tx, _stored([write for write, _ in placed]))
        results = [as_result(file) for file in files]
        runs = [write.run for write, _ in placed]
        Context.finish_all(list(zip(runs, results, strict=True)), connection=tx)

    # On disk, in a thread

    def _place_all(
        self, book: Book, group: Sequence[Write], known: Known, stops: dict[str | None, Stop]
    ) -> tuple[list[tuple[Write, Placed]], dict[int, Exception]]:
        placed: list[tuple[Write, Placed]] = []
        failed: dict[int, Exception] = {}
        with Placer(book.tree, keep=book.git) as placer:
            placer.prepare(known.contents)
            for write in group:
                job = write.job
                stop = None if write.operation.member is None else stops.get(job.correlation)
                if stop is not None and stop.job < job.id:
                    failed[job.id] = stop.signal
                    continue
                try:
                    placed.append((write, _place(book, placer, write, known)))
                except NotebookError as error:
                    failed[job.id] = error
                    stops[job.correlation] = self._stop(job, is_over=isinstance(error, Permanent))
            placer.flush()
        return placed, failed


def _abreast(asked: Sequence[Write]) -> Iterator[list[Write]]:
    """Writes in their order, in groups of such that do not touch each other."""
    group: list[Write] = []
    paths = Abreast()
    for one in sorted(asked, key=lambda write: write.job.id):
        if not paths.admits(one.operation.path):
            yield group
            group, paths = [], Abreast()
            paths.admits(one.operation.path)
        group.append(one)
    yield group


def _known(tx: tables.Statements, notebook: int, group: Sequence[Write]) -> Known:
    paths = [one.operation.path for one in group]
    files = tables.files_at(tx, notebook, paths)
    clashes = {
        path: clash
        for path in paths
        if path not in files and (clash := tables.collision(tx, notebook, path)) is not None
    }
    return Known(files, clashes, touches.contents(tx, _stored(group)))


def _stored(writes: Sequence[Write]) -> list[str]:
    """The names of the contents that are stored with these."""
    contents = [write.operation.content for write in writes]
    return [one.name for one in contents if one is not None and one.is_stored]


def _place(book: Book, placer: Placer, write: Write, known: Known) -> Placed:
    operation, tree = write.operation, book.tree
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
        raise Exists(f"there is something at {path!r} already")
    is_other = file is not None and operation.file not in (None, file.id)
    if operation.exists and (is_other or not is_there):
        raise Missing(f"there is no file at {path!r} any more")
    if staged is None:
        if not is_there:
            raise Missing(f"there is no file at {path!r}")
        return None
    facts = placer.place(staged, path, known=file.hash if file else None)
    book.wrote(path, facts)
    return facts, mime_of(tree, path)


def check_unedited(tree: Tree, operation: Operation, known: File) -> None:
    """A change that is based on a version must not overwrite an edit that nobody has seen."""
    facts = tree.facts(operation.path)
    ours = operation.content.hash if operation.content else None
    if facts.hash not in (known.hash, ours):
        raise Conflict(operation.path, known.version, known.version + 1)


def mime_of(tree: Tree, path: str) -> str:
    """What kind of content a file has: by its name or, if that says nothing, its beginning."""
    named = mime_type(path)
    if named != "application/octet-stream":
        return named
    with tree.open(path) as file:
        return mime_type(path, file.read(HEAD))


# In the transaction


def _written(
    tx: Transaction, operation: Operation, found: Placed, known: Mapping[str, File]
) -> File:
    """The file as it is to be known after a write."""
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
