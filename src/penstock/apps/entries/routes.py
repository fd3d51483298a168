"""The routes of entries, over `Entries`, `EntryQueue` and the operations."""

import asyncio
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock import ConfigurationError, JobNotFound
from penstock.apps.entries import shapes
from penstock.apps.entries.entries import Entries, EntryChanged, EntryExists, EntryNotFound
from penstock.apps.entries.indexes import PACKAGES
from penstock.apps.entries.operations import (
    ALSO_CALLED,
    OPERATIONS,
    OPERATIONS_QUEUE,
    OperationRunning,
    start,
)
from penstock.apps.entries.queue import EntryQueue
from penstock.apps.entries.records import Unwritable
from penstock.apps.entries.rows import EntryQuery, Tally
from penstock.apps.entries.transfers import Options, export_entries, new_upload
from penstock.apps.entries.types import InvalidEntry
from penstock.apps.kit import (
    Call,
    Disconnected,
    JobName,
    Problem,
    Statuses,
    Stream,
    announces_more,
    file_stream,
    route,
    wrong_shape,
)
from penstock.tokens import Access

OperationName = Annotated[str, Meta(min_length=1, max_length=64)]
_LARGEST_ID = 2**63 - 1
_READ_LIMIT = 100
"""Entries returned by a read by query or category that names no limit."""
_EXAMPLE = {"title": "Descale a kettle", "playbook": "Boil vinegar and water, then rinse twice."}


_STATUSES = Statuses(
    {
        InvalidEntry: 422,
        Unwritable: 422,
        EntryNotFound: 404,
        EntryExists: 409,
        EntryChanged: 409,
        OperationRunning: 409,
        ConfigurationError: 503,
    }
)


class EntriesRoutes:
    """The routes of entries, of operations on them, and of their queue."""

    def __init__(self, entries: Entries, queue: EntryQueue) -> None:
        self._entries = entries
        self._queue = queue
        self.refused: str | None = None
        """Why this store cannot hold entries, if it cannot."""

    # Entries

    @route(
        "POST",
        "/api/v1/entries/write",
        Access.PUBLISH,
        examples={"body": {"entity_type": "experience", "category_code": "HOME", "data": _EXAMPLE}},
    )
    async def write(self, body: shapes.EntryWrite) -> shapes.EntryAnswer:
        """Write an entry.

        Stores an entry as `pending` and embeds it in the background.
        """
        with self.answering():
            written = await self._entries.write(
                body.entity_type, body.category_code, body.data, entry_id=body.entry_id
            )
        return shapes.answer(written)

    @route(
        "POST",
        "/api/v1/entries/update",
        Access.PUBLISH,
        examples={"body": {"entry_id": "experience-1", "updates": {"title": "Descale it"}}},
    )
    async def update(self, body: shapes.EntryUpdate) -> shapes.EntryAnswer:
        """Change an entry.

        Changes fields of an entry, which becomes `pending` and is embedded again.
        """
        updates = dict(body.updates)
        category = updates.pop("category_code", None)
        with self.answering():
            if category is not None and not isinstance(category, str):
                raise InvalidEntry("updates.category_code", "must be a text")
            if body.category_code is not None:
                await self._check_category(body.entry_id, body.category_code)
            changed = await self._entries.update(
                body.entry_id,
                updates,
                category=category,
                name=body.entity_type,
                version=body.version,
            )
        return shapes.answer(changed)

    @route(
        "POST", "/api/v1/entries/read", Access.READ, examples={"body": {"ids": ["experience-1"]}}
    )
    async def read(self, body: shapes.EntryRead) -> shapes.EntriesAnswer:
        """Read entries.

        Returns entries by id in the given order (404 if none exists), by query, or by category.
        """
        with self.answering():
            if body.ids is not None:
                return await self._read_ids(body.ids, body)
            limit = body.limit or _READ_LIMIT
            if body.query is not None:
                hits = await self._entries.search(
                    body.query, name=body.entity_type, category=body.category_code, limit=limit
                )
                return shapes.answers([one.entry for one in hits], [])
            if body.category_code is None:
                raise InvalidEntry("ids", "give ids, a query, or a category_code to list")
            query = EntryQuery(self._entries.types.name_of(body.entity_type), body.category_code)
            return shapes.answers(await self._entries.page(query, limit=limit), [])

    async def _read_ids(self, ids: Sequence[str], body: shapes.EntryRead) -> shapes.EntriesAnswer:
        found = await self._entries.read(ids, name=body.entity_type)
        found = [one for one in found if body.category_code in (None, one.category)]
        if not found:
            raise EntryNotFound(f"there is no entry {', '.join(ids):.200}")
        known = {one.id for one in found}
        return shapes.answers(found, [one for one in dict.fromkeys(ids) if one not in known])

    @route(
        "POST",
        "/api/v1/entries/delete",
        Access.PUBLISH,
        examples={"body": {"entry_id": "experience-1"}},
    )
    async def delete(self, body: shapes.EntryDelete) -> shapes.EntriesDeleted:
        """Remove entries.

        Removes entries at once and their vectors in the background.
        """
        ids = [*(body.ids or ()), *([] if body.entry_id is None else [body.entry_id])]
        with self.answering():
            if not ids:
                raise InvalidEntry("ids", "name at least one entry")
            if body.category_code is not None:
                for one in ids:
                    await self._check_category(one, body.category_code)
            removed = await self._entries.delete(ids, name=body.entity_type)
        return shapes.EntriesDeleted(success=True, ids=removed, count=len(removed))

    @route(
        "POST",
        "/api/v1/entries/list",
        Access.READ,
        examples={"body": {"entity_type": "experience", "embedding_status": "failed"}},
    )
    async def page(self, body: shapes.EntryListing) -> shapes.EntryPage:
        """List entries.

        Returns the entries that match, page by page, newest first by default.
        """
        with self.answering():
            query = EntryQuery(
                self._entries.types.name_of(body.entity_type),
                body.category_code,
                body.embedding_status,
            )
            found = await self._entries.page(
                query, after=body.after, limit=body.limit, newest=body.order == "newest"
            )
        return shapes.EntryPage(
            entries=[shapes.entry(one) for one in found],
            count=len(found),
            next=found[-1].number if len(found) == body.limit else None,
        )

    @route(
        "POST",
        "/api/v1/entries/search",
        Access.READ,
        examples={"body": {"query": "limescale", "entity_type": "experience"}},
    )
    async def search(self, body: shapes.EntryQuestion) -> shapes.EntryHits:
        """Search entries.

        Returns the embedded entries most similar to a text, best first.
        """
        with self.answering():
            found = await self._entries.search(
                body.query,
                name=body.entity_type,
                category=body.category_code,
                limit=body.limit,
                mode=body.mode,
            )
        least = float("-inf") if body.min_score is None else body.min_score
        results = [shapes.hit(one) for one in found if one.score >= least]
        return shapes.EntryHits(results=results, count=len(results))

    # Operations

    @route(
        "POST",
        "/api/v1/operations/{operation}",
        Access.ADMIN,
        status=202,
        examples={"body": {"payload": {}}},
    )
    async def operate(
        self, operation: OperationName, body: shapes.OperationRequest
    ) -> shapes.OperationStarted:
        """Start an operation.

        Enqueues the job of an operation; 409 while one of the same type is pending or running.
        """
        with self.answering():
            wanted = OPERATIONS.get(ALSO_CALLED.get(operation, operation))
            if wanted is None:
                known = ", ".join(sorted(OPERATIONS))
                raise Problem(404, f"there is no operation {operation!r}; choose from {known}")
            try:
                job = await start(self._entries, wanted, body.payload)
            except msgspec.ValidationError as error:
                raise wrong_shape(error, kind=wanted.payload, where="payload") from error
        return shapes.started(operation, job)

    @route("GET", "/api/v1/operations/jobs/{job_id}", Access.READ)
    async def operation(self, job_id: JobName) -> shapes.OperationShape:
        """Get an operation.

        Returns the status, progress and result of an operation.
        """
        unknown = Problem(404, f"there is no operation with the job id {job_id}")
        if not (job_id.isascii() and job_id.isdigit() and 0 < int(job_id) <= _LARGEST_ID):
            raise unknown
        with self.answering():
            try:
                job = await self._entries.penstock.get(int(job_id))
            except JobNotFound:
                raise unknown from None
            if job.queue != OPERATIONS_QUEUE:
                raise unknown
            progress = await self._entries.penstock.progress(job.id)
            # An import that was refused leaves its report in the checkpoint.
            left = await self._entries.penstock.checkpoint(job.id)
        return shapes.operation(job, progress, left)

    # The queue

    @route("GET", "/admin/queue/status", Access.ADMIN)
    async def status(self) -> shapes.EntriesStatus:
        """Get the state of the queue of entries.

        Returns rows by status and type, and the workers, in constant time.
        """
        with self.answering():
            paused = await self._queue.is_paused()
            counted = await self._queue.counts()
            workers = await self._queue.workers()
            jobs = await self._queue.jobs()
            tallies = await self._queue.tallies()
        shown = [
            shapes.worker(one, tallies.get(one.name, Tally()), datetime.now(UTC), paused=paused)
            for one in workers
        ]
        return shapes.EntriesStatus(
            queue=shapes.EntriesQueue(paused=paused, **counted),
            workers=shapes.workers(self._entries.settings.workers, shown, jobs, paused=paused),
        )

    @route("POST", "/admin/queue/pause", Access.ADMIN)
    async def pause(self, query: shapes.EntriesPausing) -> shapes.EntriesPaused:
        """Pause the queue of entries.

        Starts no more rows, and answers when those in flight have finished.
        """
        with self.answering():
            running = await self._queue.pause(timedelta(seconds=query.timeout))
        return shapes.EntriesPaused(status="paused", in_flight=running)

    @route("POST", "/admin/queue/resume", Access.ADMIN)
    async def resume(self) -> shapes.EntriesPaused:
        """Resume the queue of entries.

        Starts rows again.
        """
        with self.answering():
            await self._queue.resume()
        return shapes.EntriesPaused(status="resumed", in_flight=0)

    @route("POST", "/admin/queue/drain", Access.ADMIN)
    async def drain(self, query: shapes.EntriesDraining) -> shapes.EntriesDrained:
        """Drain the queue of entries.

        Waits until everything now pending is embedded; `hold` then leaves the queue paused.
        """
        with self.answering():
            drained = await self._queue.drain(timedelta(seconds=query.timeout), hold=query.hold)
            paused = await self._queue.is_paused()
        return shapes.EntriesDrained(
            status=drained.status,
            elapsed=round(drained.elapsed.total_seconds(), 3),
            remaining=drained.remaining,
            paused=paused,
        )

    @route("POST", "/admin/queue/retry-failed", Access.ADMIN)
    async def retry_failed(self) -> shapes.EntriesRetried:
        """Retry failed entries.

        Queues every failed row to be embedded again.
        """
        with self.answering():
            counted = await self._entries.retry_failed()
        return shapes.EntriesRetried(retried=self._queue.per_type(counted))

    @route("POST", "/admin/queue/requeue-stale", Access.ADMIN)
    async def requeue_stale(self, query: shapes.EntriesStaleness) -> shapes.EntriesRequeued:
        """Requeue stale entries.

        Takes rows from workers that have held them for too long; results of those are refused.
        """
        with self.answering():
            older = timedelta(minutes=query.threshold_minutes)
            counted = await self._queue.requeue_stale(older)
        return shapes.EntriesRequeued(requeued=self._queue.per_type(counted))

    # Shared by the routes

    async def _check_category(self, entry_id: str, category: str) -> None:
        found = await self._entries.read([entry_id])
        if not found or found[0].category != category:
            raise EntryNotFound(f"there is no entry {entry_id:.200} in category {category}")

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Turn errors of entries into problems."""
        if self.refused is not None:
            raise Problem(503, self.refused)
        PACKAGES.check_served()
        with _STATUSES.answering():
            yield


# Files

FILE_LIMIT = 256_000_000
"""Maximum size of an uploaded file in bytes."""
_FILE_TIME = 30.0
"""Seconds within which it must arrive."""
_CONTENT_TYPES = {
    "csv": b"text/csv; charset=utf-8",
    "jsonl": b"application/x-ndjson",
    "xlsx": b"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}


class FileRoutes:
    """The routes that import and export files."""

    def __init__(self, entries: Entries, others: EntriesRoutes) -> None:
        self._entries = entries
        self._answering = others.answering

    @route("POST", "/api/v1/entries/import", Access.ADMIN, status=202, reads_body=True)
    async def import_(self, query: shapes.ImportQuery, call: Call) -> shapes.OperationStarted:
        """Import a file of entries.

        Starts the operation `import` with the body as its file; 409 while one is running.

        The import reads and checks the whole file, then stores it in one transaction.
        """
        with self._answering():
            path = await asyncio.to_thread(new_upload, self._entries, query.format)
            options = msgspec.structs.asdict(query)
            kept = {name: options[name] for name in Options.__struct_fields__}
            try:
                await save_body(path, call)
                payload = {**kept, "file": path.name}
                job = await start(self._entries, OPERATIONS["import"], payload)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        return shapes.started("import", job)

    @route(
        "GET", "/api/v1/entries/export", Access.READ, produces="application/x-ndjson", streams=True
    )
    async def export(self, query: shapes.ExportQuery) -> Stream:
        """Export entries to a file.

        Returns the entries that match, oldest first, from one snapshot.
        """
        file = tempfile.TemporaryFile()  # noqa: SIM115 - closed once it is sent
        try:
            with self._answering():
                name = self._entries.types.name_of(query.entity_type)
                wanted = EntryQuery(name, query.category_code)
                await export_entries(self._entries, file, query.format, wanted)
        except BaseException:
            file.close()
            raise
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        name = f"entries.{query.format}"
        headers = [
            (b"content-type", _CONTENT_TYPES[query.format]),
            (b"content-disposition", f'attachment; filename="{name}"'.encode()),
        ]
        return file_stream(file, size, headers)


async def save_body(path: Path, call: Call) -> None:
    """Write the body of a request to a file; raise `Problem` if it is too large or too slow."""
    too_large = Problem(413, f"the file is larger than {FILE_LIMIT:,} bytes")
    if announces_more(call.scope, FILE_LIMIT):
        raise too_large
    size, more = 0, True
    try:
        async with asyncio.timeout(_FILE_TIME):
            with path.open("wb") as file:
                while more:
                    message = await call.receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    size += len(part := message.get("body", b""))
                    if size > FILE_LIMIT:
                        raise too_large
                    file.write(part)
                    more = message.get("more_body", False)
    except TimeoutError:
        raise Problem(408, f"the file did not arrive within {_FILE_TIME:g} seconds") from None
    if not size:
        raise Problem(400, "send the file as the body of the request")
