"""The API of entries: thin routes over `Entries` and `Control`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock import Access, ConfigurationError, JobNotFound, State
from penstock.apps.entries import shapes
from penstock.apps.entries.control import Control
from penstock.apps.entries.entries import (
    Entries,
    EntryChanged,
    EntryExists,
    EntryNotFound,
)
from penstock.apps.entries.entrytypes import InvalidEntry
from penstock.apps.entries.operations import (
    ALSO_CALLED,
    OPERATIONS,
    OPERATIONS_QUEUE,
    OperationRunning,
    start,
)
from penstock.apps.entries.rows import Chosen, Tally
from penstock.apps.entries.shelves import INSTALL, missing_packages
from penstock.http.problems import Problem, wrong_shape
from penstock.http.routes import Answer, route

OperationName = Annotated[str, Meta(min_length=1, max_length=64)]
JobName = Annotated[str, Meta(min_length=1, max_length=64)]
_LARGEST_ID = 2**63 - 1
_READ_LIMIT = 100
"""Entries that a read by query or category answers with, unless it says how many."""
_EXAMPLE = {"title": "Descale a kettle", "playbook": "Boil vinegar and water, then rinse twice."}


class EntriesRoutes:
    """What the server serves of entries."""

    def __init__(self, entries: Entries, control: Control) -> None:
        self._entries = entries
        self._control = control
        self.refused: str | None = None
        """Why entries cannot be kept in this store, if they cannot."""

    # Entries

    @route(
        "POST",
        "/api/v1/entries/write",
        Access.PUBLISH,
        "Write an entry",
        answers={200: shapes.EntryAnswer},
        examples={"body": {"entity_type": "experience", "category_code": "HOME", "data": _EXAMPLE}},
    )
    async def write(self, body: shapes.EntryWrite) -> shapes.EntryAnswer:
        """Store an entry, which is `pending`; its embedding follows in the background."""
        with self.answering():
            written = await self._entries.write(
                body.entity_type, body.category_code, body.data, entry_id=body.entry_id
            )
        return shapes.answer(written)

    @route(
        "POST",
        "/api/v1/entries/update",
        Access.PUBLISH,
        "Change an entry",
        answers={200: shapes.EntryAnswer},
        examples={"body": {"entry_id": "experience-1", "updates": {"title": "Descale it"}}},
    )
    async def update(self, body: shapes.EntryUpdate) -> shapes.EntryAnswer:
        """Change fields of an entry, which is `pending` then, and embedded again."""
        updates = dict(body.updates)
        category = updates.pop("category_code", None)
        with self.answering():
            if category is not None and not isinstance(category, str):
                raise InvalidEntry("updates.category_code", "is a text")
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
        "POST",
        "/api/v1/entries/read",
        Access.READ,
        "Read entries",
        answers={200: shapes.EntriesAnswer},
        examples={"body": {"ids": ["experience-1"]}},
    )
    async def read(self, body: shapes.EntryRead) -> shapes.EntriesAnswer:
        """Read entries by ids, in this order (404 if none exists), by a query, or by category."""
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
            chosen = self._chosen(body.entity_type, body.category_code)
            return shapes.answers(await self._entries.page(chosen, limit=limit), [])

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
        "Remove entries",
        answers={200: shapes.EntriesDeleted},
        examples={"body": {"entry_id": "experience-1"}},
    )
    async def delete(self, body: shapes.EntryDelete) -> shapes.EntriesDeleted:
        """Remove entries; their vectors leave the index in the background."""
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
        "List entries",
        answers={200: shapes.EntryPage},
        examples={"body": {"entity_type": "experience", "embedding_status": "failed"}},
    )
    async def page(self, body: shapes.EntryListing) -> shapes.EntryPage:
        """Entries that fit, newest first, page by page."""
        with self.answering():
            chosen = self._chosen(body.entity_type, body.category_code, body.embedding_status)
            found = await self._entries.page(
                chosen, after=body.after, limit=body.limit, newest=body.order == "newest"
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
        "Search entries",
        answers={200: shapes.EntryHits},
        examples={"body": {"query": "limescale", "entity_type": "experience"}},
    )
    async def search(self, body: shapes.EntryQuestion) -> shapes.EntryHits:
        """The entries that are nearest to a text, best first, among those that are embedded."""
        with self.answering():
            found = await self._entries.search(
                body.query,
                name=body.entity_type,
                category=body.category_code,
                limit=body.limit,
                mode=body.mode,
            )
        least = float("-inf") if body.min_score is None else body.min_score
        results = [shapes.result(one) for one in found if one.score >= least]
        return shapes.EntryHits(results=results, count=len(results))

    # Operations

    @route(
        "POST",
        "/api/v1/operations/{operation}",
        Access.ADMIN,
        "Start an operation",
        answers={202: shapes.OperationStarted},
        examples={"body": {"payload": {}}},
    )
    async def operate(self, operation: OperationName, body: shapes.OperationRequest) -> Answer:
        """Store the job of an operation; 409 while one of this type waits or runs."""
        with self.answering():
            wanted = OPERATIONS.get(ALSO_CALLED.get(operation, operation))
            if wanted is None:
                known = ", ".join(sorted(OPERATIONS))
                raise Problem(404, f"there is no operation {operation!r}; known are {known}")
            try:
                job = await start(self._entries, wanted, body.payload)
            except msgspec.ValidationError as error:
                kind = OPERATIONS[operation].payload
                raise wrong_shape(error, kind=kind, where="payload") from error
        status = shapes.OPERATION_STATUSES[job.state]
        started = shapes.OperationStarted(job_id=str(job.id), operation=operation, status=status)
        return Answer(202, started)

    @route(
        "GET",
        "/api/v1/operations/jobs/{job_id}",
        Access.READ,
        "Look at an operation",
        answers={200: shapes.OperationShape},
    )
    async def operation(self, job_id: JobName) -> shapes.OperationShape:
        """How an operation stands, and what it came to."""
        unknown = Problem(404, f"there is no operation with the job {job_id}")
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
            # Of an import that was refused, what is wrong with the file.
            left = await self._entries.penstock.checkpoint(job.id)
        return shapes.operation(job, progress, left)

    # The queue

    @route(
        "GET",
        "/admin/queue/status",
        Access.ADMIN,
        "How the queue of entries stands",
        answers={200: shapes.EntriesStatus},
    )
    async def status(self) -> shapes.EntriesStatus:
        """Rows by status and type, and the workers; in constant time."""
        with self.answering():
            paused = await self._control.is_paused()
            counted = await self._control.counts()
            workers = await self._control.workers()
            ended = await self._control.ended()
            tallies = await self._control.tallies()
        shown = [
            shapes.worker(one, tallies.get(one.name, Tally()), datetime.now(UTC), paused=paused)
            for one in workers
        ]
        return shapes.EntriesStatus(
            queue=shapes.EntriesQueue(paused=paused, **counted),
            workers=_workers(self._entries, shown, ended, paused=paused),
        )

    @route(
        "POST",
        "/admin/queue/pause",
        Access.ADMIN,
        "Pause the queue of entries",
        answers={200: shapes.EntriesPaused},
    )
    async def pause(self, query: shapes.EntriesPausing) -> shapes.EntriesPaused:
        """Embed no more; answered when the rows in flight have finished."""
        with self.answering():
            running = await self._control.pause(timedelta(seconds=query.timeout))
        return shapes.EntriesPaused(status="paused", in_flight=running)

    @route(
        "POST",
        "/admin/queue/resume",
        Access.ADMIN,
        "Resume the queue of entries",
        answers={200: shapes.EntriesPaused},
    )
    async def resume(self) -> shapes.EntriesPaused:
        """Embed again."""
        with self.answering():
            await self._control.resume()
        return shapes.EntriesPaused(status="resumed", in_flight=0)

    @route(
        "POST",
        "/admin/queue/drain",
        Access.ADMIN,
        "Drain the queue of entries",
        answers={200: shapes.EntriesDrained},
    )
    async def drain(self, query: shapes.EntriesDraining) -> shapes.EntriesDrained:
        """Wait until all that waits now is embedded; `hold` leaves the queue paused then."""
        with self.answering():
            drained = await self._control.drain(timedelta(seconds=query.timeout), hold=query.hold)
            paused = await self._control.is_paused()
        return shapes.EntriesDrained(
            status=drained.status,
            elapsed=round(drained.elapsed.total_seconds(), 3),
            remaining=drained.remaining,
            paused=paused,
        )

    @route(
        "POST",
        "/admin/queue/retry-failed",
        Access.ADMIN,
        "Try failed entries again",
        answers={200: shapes.EntriesRetried},
    )
    async def retry_failed(self) -> shapes.EntriesRetried:
        """Let every row that failed be embedded again."""
        with self.answering():
            counted = await self._entries.retry_failed()
        return shapes.EntriesRetried(retried=self._control.per_type(counted))

    @route(
        "POST",
        "/admin/queue/requeue-stale",
        Access.ADMIN,
        "Take back entries that take too long",
        answers={200: shapes.EntriesRequeued},
    )
    async def requeue_stale(self, query: shapes.EntriesStaleness) -> shapes.EntriesRequeued:
        """Let rows be embedded anew that a worker has had for too long; it is refused then."""
        with self.answering():
            older = timedelta(minutes=query.threshold_minutes)
            counted = await self._control.requeue_stale(older)
        return shapes.EntriesRequeued(requeued=self._control.per_type(counted))

    # What they share

    def _chosen(self, name: str | None, category: str | None, status: str | None = None) -> Chosen:
        kind = None if name is None else self._entries.types.get(name).name
        return Chosen(kind, category, status)

    async def _check_category(self, entry_id: str, category: str) -> None:
        found = await self._entries.read([entry_id])
        if not found or found[0].category != category:
            raise EntryNotFound(f"there is no entry {entry_id:.200} in category {category}")

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Errors of entries as answers."""
        if self.refused is not None:
            raise Problem(503, self.refused)
        if missing := missing_packages():
            raise Problem(501, f"entries need {', '.join(missing)} on the server: {INSTALL}")
        try:
            yield
        except InvalidEntry as error:
            raise Problem(422, str(error), field=error.field) from error
        except EntryNotFound as error:
            raise Problem(404, str(error)) from error
        except (EntryExists, EntryChanged, OperationRunning) as error:
            raise Problem(409, str(error)) from error
        except ConfigurationError as error:
            raise Problem(503, str(error)) from error


def _workers(
    entries: Entries,
    shown: list[shapes.EntriesWorker],
    ended: Mapping[State, int],
    *,
    paused: bool,
) -> shapes.EntriesWorkers:
    running, here = sum(one.running for one in shown), entries.settings.workers
    done, failed = ended[State.DONE], ended[State.FAILED]
    return shapes.EntriesWorkers(
        status="paused" if paused else "running" if running else "idle" if here else "off",
        num_workers=here,
        running=running,
        workers=shown,
        total_jobs_processed=done + failed,
        total_jobs_succeeded=done,
        total_jobs_failed=failed,
    )
