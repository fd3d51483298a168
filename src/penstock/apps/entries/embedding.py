"""The task that embeds rows, in batches.

A worker runs each job separately. The handlers collect in one queue, and one of them embeds the
rows of all: one call to the embedder, one transaction on the index.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from penstock import Context, context, run_sync
from penstock.apps.entries import rows
from penstock.apps.entries.entries import EMBED, Entries
from penstock.apps.entries.indexes import VectorIndex
from penstock.apps.entries.rows import QUEUE, DueRow, Tally
from penstock.apps.entries.shapes import EntryId
from penstock.tables import Transaction
from penstock.vectors import EmbedderUnavailable, Item

if TYPE_CHECKING:
    from penstock.vectors import Vectors

_log = logging.getLogger(__name__)

_CONCURRENT_BATCHES = 3
"""While one batch is written, two are embedded, each for part of the time in a single thread."""
_DEATHS = 3
"""How many processes may die while embedding a row alone before it fails."""

Ids = Annotated[list[EntryId], Meta(min_length=1, max_length=100_000)]
"""The rows of one job."""

EmbeddedRows = dict[str, "Vectors | Exception"]
"""The vector of each row, or the error that prevented it."""


class EmbeddingFailed(Exception):
    """A row could not be embedded and has no attempts left."""


class Request:
    """The rows that one run of a job wants embedded, and the result."""

    __slots__ = ("ended", "error", "ids", "is_done", "is_taken", "job")

    def __init__(self, job: int, ids: Sequence[str]) -> None:
        self.job = job
        self.ids = ids
        self.is_taken = False
        self.is_done = False
        self.ended = asyncio.Event()
        self.error: Exception | None = None


class Tried(NamedTuple):
    """The results of earlier attempts of a job, kept in its checkpoint."""

    errors: int = 0
    deaths: int = 0
    """Processes that died while embedding nothing else."""


class Batch(NamedTuple):
    """Requests embedded together, their rows, and the index to write to."""

    requests: Sequence[Request]
    due: Sequence[DueRow]
    target: VectorIndex


def register(entries: Entries) -> "Embedding":
    """Register the task, so that a worker embeds; return its handler's object."""
    embedding = Embedding(entries)
    entries.penstock.task(EMBED, embedding.embed, queue=QUEUE, permanent=(EmbeddingFailed,))
    return embedding


class Embedding:
    """Embeds the rows of all jobs that one worker runs."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._waiting: deque[Request] = deque()
        self._turns = asyncio.Semaphore(_CONCURRENT_BATCHES)
        self._alone = asyncio.Lock()
        self.tally = Tally()

    async def embed(self, ids: Ids) -> None:
        """Embed the rows that name this job, and remove the vectors of rows that are gone.

        Safe to run twice: the same text has the same vector, and a vector is only written while
        its row is at the version that was read.
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
            # One of these rows may have killed the worker: embed each in a job of its own.
            await self._entries.penstock.transaction(lambda tx: self._split(tx, run.job.id, ids))
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
                    await self._run_batch(self._take())
            if request.is_taken:
                await request.ended.wait()

    async def _embed_alone(self, request: Request, run: Context, tried: Tried) -> None:
        """Embed a row that may have killed its worker, or was in a batch with one that did.

        All rows of that worker are at their next attempt. Embedding one at a time tells them
        apart: if this process dies now, this row killed it.
        """
        if tried.deaths >= _DEATHS:
            raise EmbeddingFailed(f"{tried.deaths} processes died while embedding it alone")
        async with self._alone, AsyncExitStack() as turns:
            for _ in range(_CONCURRENT_BATCHES):
                await turns.enter_async_context(self._turns)
            await run.checkpoint([tried.errors, tried.deaths + 1])
            await asyncio.to_thread(self._work, [request])

    async def _gather(self, request: Request) -> None:
        """Wait for the requests of jobs claimed together, which arrive one by one."""
        seen = 0
        while not request.is_taken and seen < len(self._waiting):
            seen = len(self._waiting)
            await asyncio.sleep(0)

    async def _run_batch(self, requests: Sequence[Request]) -> None:
        try:
            await asyncio.to_thread(self._work, requests)
        finally:
            # If this run is cancelled, the others are not: one of them starts again.
            self._waiting.extendleft(one for one in reversed(requests) if not one.is_done)
            for one in requests:
                one.is_taken = one.is_done
                one.ended.set()

    def _take(self) -> list[Request]:
        """Take the oldest requests, up to the batch size but at least one."""
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

    # The methods below run in a thread.

    def _work(self, requests: Sequence[Request]) -> None:
        try:
            while not self._attempt(requests):
                pass  # a rebuild has switched to another embedder
        except Exception as error:  # noqa: BLE001 - becomes the error of each request
            for request in requests:
                request.error = error
        for request in requests:
            request.is_done = True

    def _attempt(self, requests: Sequence[Request]) -> bool:
        penstock, entries = self._entries.penstock, self._entries
        jobs = [request.job for request in requests]
        due, configuration = run_sync(
            penstock.tables.read(lambda tx: (rows.due(tx, jobs), entries.embedder(tx)))
        )
        index = entries.indexes.get(configuration)
        vectors = embed_rows(index, due)
        with entries.indexes.write_lock():
            if not self._write(Batch(requests, due, index), vectors):
                return False
        self._report_failures(requests, due, vectors)
        return True

    def _write(self, batch: Batch, vectors: EmbeddedRows) -> bool:
        """Make the index agree with the rows; return False if another index is in use now."""
        ids = [one for request in batch.requests for one in request.ids]
        now, configuration = run_sync(
            self._entries.penstock.tables.read(
                lambda tx: (rows.versions(tx, ids), self._entries.embedder(tx))
            )
        )
        if configuration != batch.target.configuration:
            return False
        current = [
            row for row in batch.due if now.get(row.id) == (row.job, row.version, "processing")
        ]
        gone = {one for one in ids if one not in now}
        gone.update(row.id for row in current if isinstance(vectors[row.id], Exception))
        if gone:
            batch.target.index.delete(sorted(gone))
        items = [item_of(row, vectors[row.id]) for row in current if row.id not in gone]
        if items:
            batch.target.index.upsert(items)
        return True

    def _report_failures(
        self, requests: Sequence[Request], due: Sequence[DueRow], vectors: EmbeddedRows
    ) -> None:
        """Fail the request of a single row; give each failed row of a larger job its own job."""
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
                self._entries.penstock.transaction(lambda tx: self._split(tx, job, ids))  # noqa: B023 - run at once
            )

    def _split(self, tx: Transaction, job: int, ids: Sequence[str]) -> None:
        """Give each of these rows of a job its own job."""
        for one, new in zip(
            ids, tx.enqueue([self._entries.job([one]) for one in ids]), strict=True
        ):
            rows.reassign_one(tx, one, job, new.id)


def embed_rows(index: VectorIndex, due: Sequence[DueRow]) -> EmbeddedRows:
    """Embed rows together; if that fails, in halves, until only the rows at fault fail."""
    if not due:
        return {}
    try:
        vectors = index.embedder.embed([row.text for row in due])
        if len(vectors) != len(due) or not np.isfinite(vectors).all():
            raise ValueError(f"the embedder returned no valid vectors for {len(due)} texts")  # noqa: TRY301 - handled as any error of an embedder
    except EmbedderUnavailable:
        raise  # not the fault of a row
    except Exception as error:  # noqa: BLE001 - an embedder may raise anything
        if len(due) == 1:
            return {due[0].id: error}
        middle = len(due) // 2
        return {**embed_rows(index, due[:middle]), **embed_rows(index, due[middle:])}
    return {row.id: vector for row, vector in zip(due, vectors, strict=True)}


def item_of(row: DueRow, vector: Any) -> Item:
    """Return a row as an item of the index; the digest tells which content the vector is of."""
    return Item(
        id=row.id,
        vector=vector,
        text=row.text,
        path=row.category,
        type=row.type,
        metadata={"digest": row.digest},
    )
