"""What the routes do: operations are published, waited for and looked at; files are read."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from penstock import Job, JobFailed, JobNotFound, JobQuery, Penstock, State
from penstock.apps.notebooks import requests, shapes, tables
from penstock.apps.notebooks.errors import Missing
from penstock.apps.notebooks.files import SMALL, Staged, TooLarge, Tree, stored
from penstock.apps.notebooks.library import Library
from penstock.apps.notebooks.operations import QUEUE, Kind, Operation, correlation_of
from penstock.apps.notebooks.paths import parse
from penstock.apps.notebooks.publishing import NONE, Published, Publisher
from penstock.apps.notebooks.settings import Settings
from penstock.apps.notebooks.tables import File, Notebook

_DAY = timedelta(days=1)
_KINDS: dict[type[requests.BatchOperation], Kind] = {
    requests.CreateOperation: "create",
    requests.UpdateOperation: "update",
    requests.MoveOperation: "move",
    requests.DeleteOperation: "delete",
}
_BATCH = 1_000
_SHOWN = 20


class Held(NamedTuple):
    """Paths of a notebook that git cannot have."""

    number: int
    first: list[tuple[str, str]]
    """The first of them, each with the reason."""


class Notebooks:
    """The notebooks of one server, as its routes know them."""

    def __init__(
        self, penstock: Penstock, settings: Settings, library: Library, publisher: Publisher
    ) -> None:
        self._penstock = penstock
        self._settings = settings
        self._library = library
        self._publisher = publisher
        self._stopping = asyncio.Event()
        self._is_limited = False

    def let_go(self) -> None:
        """Answer those who wait, now."""
        self._stopping.set()

    # Notebooks

    async def add(self, asked: requests.NewNotebook) -> Notebook:
        """Register a notebook, and look at what is in it."""
        notebook = await self._library.add(
            asked.name, asked.path, git=asked.git, joins=asked.repository == "join"
        )
        await self._publisher.publish_look(notebook.id)
        return notebook

    async def held(self, notebooks: Sequence[int]) -> dict[int, Held]:
        """The paths of notebooks that git cannot have: how many, and the first with the reason."""

        def look(tx: tables.Statements) -> dict[int, Held]:
            counts = tables.count_uncommitted(tx, held=True)
            return {
                one: Held(n, tables.held_paths(tx, one, _SHOWN) if n else [])
                for one in notebooks
                for n in (counts.get(one, 0),)
            }

        return await self._penstock.read(look)

    async def change(self, notebook: Notebook, asked: requests.NotebookChange) -> Notebook:
        """Store another name or other settings; they count from now on, in every process."""
        name = notebook.name if asked.name is UNSET else asked.name
        settings = notebook.settings
        if asked.settings is not UNSET:
            settings = msgspec.to_builtins(asked.settings)
        changed = await self._library.change(notebook, name, settings)
        await self._publisher.publish_look(notebook.id)
        intervals = {one.settings.get("commit_interval") for one in (notebook, changed)}
        if changed.git and len(intervals) > 1:  # what waits already waits by the old one
            await self.commit(changed)
        return changed

    async def remove(self, notebook: Notebook) -> None:
        """Forget a notebook; its files stay. What waits to run on it fails."""
        await self._library.remove(notebook)
        await self._publisher.publish_look(notebook.id)

    # Publishing

    async def publish(
        self, operation: Operation, content: bytes | None = None, *, together: bool = False
    ) -> Published:
        """Store an operation, and its content unless it is staged; both are durable then.

        With `together` it has a correlation, as a batch has.
        """
        await self._limit()
        staged = operation.content
        contents = (
            {staged.name: content} if staged and staged.is_stored and content is not None else NONE
        )
        try:
            published = await self._publisher.publish(
                operation, correlation_of(uuid.uuid4().hex) if together else None, contents
            )
        except BaseException:
            await self._discard(operation.notebook, [operation.content])
            raise
        await self._discard(operation.notebook, [published.discarded])
        return published

    async def publish_batch(
        self,
        notebook: Notebook,
        asked: Sequence[requests.BatchOperation],
        correlation: str | None,
    ) -> list[Published]:
        """Store operations that run one after the other until one fails; all or none."""
        operations, contents = await self._batch_of(notebook, asked)
        await self._limit()
        name = correlation_of(correlation or uuid.uuid4().hex)
        try:
            return await self._publisher.publish_batch(operations, name, contents)
        except BaseException:
            await self._discard(notebook.id, [one.content for one in operations])
            raise

    async def _batch_of(
        self, notebook: Notebook, asked: Sequence[requests.BatchOperation]
    ) -> tuple[list[Operation], dict[str, bytes]]:
        """The operations that a batch asks for, and their contents as far as none is staged."""
        parsed = [(one, parse(one.path), parse(one.to) if one.to else None) for one in asked]
        contents = [_content(one) for one in asked]
        for content in contents:
            self.check_size(len(content or b""))
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

    async def stage(self, notebook: Notebook, content: bytes) -> Staged:
        """A content that is to be stored with its operation; or in the state folder, durably."""
        self.check_size(len(content))
        if _is_small(notebook, content):
            return stored(content)
        return await asyncio.to_thread(Tree(Path(notebook.path)).stage, content)

    async def stage_stream(self, notebook: Notebook, pieces: AsyncIterator[bytes]) -> Staged:
        """The same, piece by piece as they come."""
        with Tree(Path(notebook.path)).staging(self._settings.max_file_size) as staging:
            async for piece in pieces:
                await asyncio.to_thread(staging.write, piece)
            return await asyncio.to_thread(staging.finish)

    def check_size(self, size: int) -> None:
        """Raise `TooLarge` for a content that has more bytes than are allowed."""
        if size > self._settings.max_file_size:
            raise TooLarge(f"the content has more than {self._settings.max_file_size:,} bytes")

    async def commit(self, notebook: Notebook) -> Job:
        """Have everything committed that has changed so far."""
        return await self._penstock.transact(
            lambda tx: self._publisher.commit(tx, notebook.id, timedelta(0))
        )

    async def _limit(self) -> None:
        if not self._is_limited:  # not before: a server without notebooks shows no such queue
            await self._penstock.limit(QUEUE, self._settings.max_queue)
            self._is_limited = True

    async def _discard(self, notebook_id: int, contents: Sequence[Staged | None]) -> None:
        """Let staged contents go."""
        for one in contents:
            if one is not None and not one.is_stored:
                with suppress(Missing):
                    notebook = await self._library.find(notebook_id)
                    await asyncio.to_thread(Tree(Path(notebook.path)).discard, one.name)

    # Looking

    async def files(self, notebook: Notebook, query: requests.FileListing) -> list[File]:
        """A page of files."""
        return await self._penstock.read(
            lambda tx: tables.files(tx, notebook.id, query.prefix, query.after, query.limit)
        )

    async def file(self, notebook: Notebook, file_id: int) -> File:
        """What is known of a file; raises `Missing`."""
        found = await self._penstock.read(lambda tx: tables.file_by_id(tx, notebook.id, file_id))
        if found is None:
            raise Missing(f"there is no file {file_id} in notebook {notebook.name!r}")
        return found

    async def event(self, event_id: int) -> Job:
        """An operation as it stands; raises `Missing`."""
        try:
            job = await self._penstock.get(event_id)
        except (JobNotFound, OverflowError):
            raise Missing(f"there is no event {event_id}") from None
        if job.queue != QUEUE:
            raise Missing(f"there is no event {event_id}")
        return job

    async def ended(self, event_id: int, timeout: float) -> Job:
        """An operation when it has ended, or when the time is over or the server stops."""
        job = await self.event(event_id)
        if job.state.final:
            return job
        ends = [
            asyncio.create_task(self._end_of(job, timeout)),
            asyncio.create_task(self._stopping.wait()),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        return await self.event(event_id)

    async def _end_of(self, job: Job, timeout: float) -> bool:
        with suppress(JobFailed, JobNotFound, TimeoutError):
            await self._penstock.result(job, timeout=timedelta(seconds=timeout))
        return True

    async def batch(self, batch: str) -> list[Job]:
        """The operations of a batch in their order; raises `Missing`."""
        earlier = await self._correlated(batch)  # by a version that stored the bare name
        found = [*earlier, *await self._correlated(correlation_of(batch))]
        if not found:
            raise Missing(f"there is no batch {batch!r}")
        return found

    async def _correlated(self, correlation: str) -> list[Job]:
        found: list[Job] = []
        while len(found) < _BATCH:
            query = JobQuery(
                queue=QUEUE,
                correlation=correlation,
                after=found[-1].id if found else None,
                newest_first=False,
                limit=_BATCH,
            )
            some = await self._penstock.find(query)
            found += some
            if len(some) < _BATCH:
                break
        return found

    async def metrics(self) -> shapes.OperationMetrics:
        """How many operations there are in each state."""
        totals = dict.fromkeys(State, 0)
        for (queue, state, _), n in (await self._penstock.count([QUEUE])).items():
            if queue == QUEUE:
                totals[state] += n
        failed = frozenset({State.FAILED})
        before = JobQuery(queue=QUEUE, states=failed, before=datetime.now(UTC) - _DAY)
        old = await self._penstock.count_matching(before)
        waiting = await self._penstock.read(tables.count_uncommitted)
        names = {one.id: one.name for one in await self._library.all()}
        return shapes.OperationMetrics(
            **{shapes.STATUSES[state]: n for state, n in totals.items()},
            failed_24h=max(totals[State.FAILED] - old, 0),
            uncommitted={names[one]: n for one, n in waiting.items() if one in names},
        )

    async def actual_version(self, job: Job) -> int:
        """The version of the file that an operation was about, as it is now."""
        operation = shapes.operation_of(job)
        found = await self._penstock.read(
            lambda tx: tables.file_at(tx, operation.notebook, operation.path)
        )
        return found.version if found else 0


def _content(one: requests.BatchOperation) -> bytes | None:
    """What an operation of a batch writes; a new file is empty by default."""
    if not isinstance(one, requests.Content):
        return None
    is_new = isinstance(one, requests.CreateOperation) and not one.folder
    return one.data or b"" if is_new else one.data


def _is_small(notebook: Notebook, content: bytes) -> bool:
    """Whether a content is stored with its operation.

    Without a history there is no copy that would tell whether it was put in place before a crash.
    """
    return notebook.git and len(content) <= SMALL
