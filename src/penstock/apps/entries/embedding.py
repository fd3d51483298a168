"""The work of the pool: rows that jobs name become vectors, many at a time.

Jobs are run by a worker as always. Their handlers wait for each other and let one of them embed
what all have brought: one call of the embedder, one transaction of the index.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from penstock import Context, Transaction, context, run_sync
from penstock.apps.entries import rows
from penstock.apps.entries.entries import EMBED, Entries
from penstock.apps.entries.rows import QUEUE, Due, Tally
from penstock.apps.entries.shapes import EntryId
from penstock.apps.entries.shelves import Shelf
from penstock.vectors import EmbedderUnavailable, Item

if TYPE_CHECKING:
    from penstock.vectors.embedding import Vectors

_log = logging.getLogger(__name__)

_AT_ONCE = 3
"""Batches at a time: while one is written, two are embedded, which is partly one thread each."""
_DEATHS = 3
"""How many processes may die while they embed a row alone, before it has failed."""

Ids = Annotated[list[EntryId], Meta(min_length=1, max_length=100_000)]
"""The rows that one job is about."""

Vectorised = dict[str, "Vectors | Exception"]
"""For each row its vector, or why it has none."""


class EmbeddingFailed(Exception):
    """A row that could not be embedded, and is not tried again."""


class Request:
    """What one run of a job asks for, and what came of it."""

    __slots__ = ("ended", "error", "ids", "is_done", "is_taken", "job")

    def __init__(self, job: int, ids: Sequence[str]) -> None:
        self.job = job
        self.ids = ids
        self.is_taken = False
        self.is_done = False
        self.ended = asyncio.Event()
        self.error: Exception | None = None


class Tried(NamedTuple):
    """What earlier attempts of a job have come to; its checkpoint."""

    errors: int = 0
    deaths: int = 0
    """Of processes that embedded nothing else at that moment."""


class Batch(NamedTuple):
    """Requests that are embedded together, and what was found of them."""

    requests: Sequence[Request]
    due: Sequence[Due]
    shelf: Shelf


def register(entries: Entries) -> "Embedding":
    """Make the task known, so that workers embed; what runs it."""
    embedding = Embedding(entries)
    entries.penstock.task(EMBED, embedding.embed, queue=QUEUE, permanent=(EmbeddingFailed,))
    return embedding


class Embedding:
    """Embeds the rows of all runs of one worker."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._waiting: deque[Request] = deque()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._alone = asyncio.Lock()
        self.tally = Tally()

    async def embed(self, ids: Ids) -> None:
        """Embed the rows that name this job, and forget the vectors of those that are gone.

        Twice is as good as once: the same text has the same vector, and a vector is only written
        while its row still is at the version that was read.
        """
        try:
            await self._embed(ids)
        except Exception:
            succeeded, failed = self.tally
            self.tally = Tally(succeeded, failed + 1)
            raise
        succeeded, failed = self.tally
        self.tally = Tally(succeeded + 1, failed)

    async def _embed(self, ids: list[str]) -> None:
        run = context()
        if run.attempt > 1 and len(ids) > 1:
            # One of these may be what killed the worker: each goes alone.
            await self._entries.penstock.transact(lambda tx: self._part(tx, run.job.id, ids))
            return
        request = Request(run.job.id, ids)
        tried = Tried() if run.attempt == 1 else Tried(*(run.state or ()))
        if run.attempt == 1:
            await self._embed_together(request)
        else:
            await self._embed_alone(request, run, tried)
        if request.error is not None:
            if tried.errors + 1 >= self._entries.settings.attempts:
                why = f"{type(request.error).__name__}: {request.error}"
                raise EmbeddingFailed(why) from request.error
            await run.checkpoint([tried.errors + 1, tried.deaths])
            raise request.error

    async def _embed_together(self, request: Request) -> None:
        self._waiting.append(request)
        while not request.is_done:
            async with self._turns:
                await self._gather(request)
                if not request.is_taken:
                    await self._work_off(self._take())
            if request.is_taken:
                await request.ended.wait()

    async def _embed_alone(self, request: Request, run: Context, tried: Tried) -> None:
        """Embed a row that may have killed its worker, or was beside one that did.

        All rows of that worker are at their next attempt. This tells them apart: if this process
        dies now, it was this row.
        """
        if tried.deaths >= _DEATHS:
            raise EmbeddingFailed(f"{tried.deaths} processes died while they embedded it alone")
        async with self._alone, AsyncExitStack() as turns:
            for _ in range(_AT_ONCE):
                await turns.enter_async_context(self._turns)
            await run.checkpoint([tried.errors, tried.deaths + 1])
            await asyncio.to_thread(self._work, [request])

    async def _gather(self, request: Request) -> None:
        """Let those come who were claimed with it: they arrive one by one."""
        seen = 0
        while not request.is_taken and seen < len(self._waiting):
            seen = len(self._waiting)
            await asyncio.sleep(0)

    async def _work_off(self, requests: Sequence[Request]) -> None:
        try:
            await asyncio.to_thread(self._work, requests)
        finally:
            # If this run is told to end, the others are not: one of them begins again.
            self._waiting.extendleft(one for one in reversed(requests) if not one.is_done)
            for one in requests:
                one.is_taken = one.is_done
                one.ended.set()

    def _take(self) -> list[Request]:
        """The oldest requests, up to the size of a batch, but one at least."""
        taken: list[Request] = []
        size = 0
        while self._waiting and (
            not taken or size + len(self._waiting[0].ids) <= self._entries.settings.batch_size
        ):
            taken.append(self._waiting.popleft())
            taken[-1].is_taken = True
            taken[-1].ended.clear()
            size += len(taken[-1].ids)
        return taken

    # From here on all runs in a thread.

    def _work(self, requests: Sequence[Request]) -> None:
        try:
            while not self._attempt(requests):
                pass  # another embedder is in use since
        except Exception as error:  # noqa: BLE001 - it is what came of each of them
            for request in requests:
                request.error = error
        for request in requests:
            request.is_done = True

    def _attempt(self, requests: Sequence[Request]) -> bool:
        penstock, entries = self._entries.penstock, self._entries
        jobs = [request.job for request in requests]
        due, configuration = run_sync(
            penstock.read(lambda tx: (rows.due(tx, jobs), entries.embedder(tx)))
        )
        shelf = entries.shelves.of(configuration)
        vectors = vectorise(shelf, due)
        with entries.shelves.writing():
            if not self._write(Batch(requests, due, shelf), vectors):
                return False
        self._tell_failures(requests, due, vectors)
        return True

    def _write(self, batch: Batch, vectors: Vectorised) -> bool:
        """Bring the index to what the rows say now; false if it is another index by now."""
        ids = [one for request in batch.requests for one in request.ids]
        now, configuration = run_sync(
            self._entries.penstock.read(
                lambda tx: (rows.versions(tx, ids), self._entries.embedder(tx))
            )
        )
        if configuration != batch.shelf.configuration:
            return False
        current = [
            row for row in batch.due if now.get(row.id) == (row.job, row.version, "processing")
        ]
        gone = {one for one in ids if one not in now}
        gone.update(row.id for row in current if isinstance(vectors[row.id], Exception))
        if gone:
            batch.shelf.index.delete(sorted(gone))
        items = [item_of(row, vectors[row.id]) for row in current if row.id not in gone]
        if items:
            batch.shelf.index.upsert(items)
        return True

    def _tell_failures(
        self, requests: Sequence[Request], due: Sequence[Due], vectors: Vectorised
    ) -> None:
        jobs = {request.job: request for request in requests}
        failed = [row for row in due if isinstance(vectors[row.id], Exception)]
        shared = []
        for row in failed:
            request, error = jobs[row.job], vectors[row.id]
            if len(request.ids) == 1 and isinstance(error, Exception):
                request.error = error
            else:
                shared.append(row)
        for job in dict.fromkeys(row.job for row in shared):
            ids = [row.id for row in shared if row.job == job]
            run_sync(
                self._entries.penstock.transact(lambda tx: self._part(tx, job, ids))  # noqa: B023 - run at once
            )

    def _part(self, tx: Transaction, job: int, ids: Sequence[str]) -> None:
        """Give each of these rows of a job a job of its own."""
        for one, new in zip(
            ids, tx.enqueue([self._entries.job([one]) for one in ids]), strict=True
        ):
            rows.pass_on(tx, one, job, new.id)


def vectorise(shelf: Shelf, due: Sequence[Due]) -> Vectorised:
    """Embed rows together; where that fails, in halves, so that those fail alone that must."""
    if not due:
        return {}
    try:
        vectors = shelf.embedder.embed([row.text for row in due])
        if len(vectors) != len(due) or not np.isfinite(vectors).all():
            raise ValueError(f"the embedder made no vectors of {len(due)} texts")  # noqa: TRY301 - handled as any error of an embedder
    except EmbedderUnavailable:
        raise  # it is not for the rows
    except Exception as error:  # noqa: BLE001 - an embedder may raise anything
        if len(due) == 1:
            return {due[0].id: error}
        middle = len(due) // 2
        return {**vectorise(shelf, due[:middle]), **vectorise(shelf, due[middle:])}
    return {row.id: vector for row, vector in zip(due, vectors, strict=True)}


def item_of(row: Due, vector: Any) -> Item:
    """A row as the index has it."""
    return Item(
        id=row.id,
        vector=vector,
        text=row.text,
        path=row.category,
        type=row.type,
        metadata=metadata_of(row.digest),
    )


def metadata_of(digest: str) -> Mapping[str, str]:
    """What tells which content of a row a vector is of."""
    return {"digest": digest}
