"""The ingestion API: thin routes over `Service`."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock import Access, ConfigurationError, Job, JobId, JobQuery, State
from penstock.apps.ingest import shapes
from penstock.apps.ingest.listing import FILTERS, QueueItem
from penstock.apps.ingest.order import NEWEST
from penstock.apps.ingest.requests import common_case, items_of, raw_items
from penstock.apps.ingest.roots import Roots
from penstock.apps.ingest.searching import search as find
from penstock.apps.ingest.service import QUEUE, STATES, Service
from penstock.apps.ingest.settings import Settings
from penstock.apps.ingest.shelves import Shelves
from penstock.http.problems import Problem
from penstock.http.routes import Answer, route

QueueId = Annotated[str, Meta(min_length=1, max_length=200)]
_FAILURES = 20
_EXAMPLE = {
    "item_type": "file",
    "op": "ingest",
    "tenant_id": "shop",
    "collection": "docs",
    "payload": {"file_path": "/srv/shop/README.md"},
}


class IngestRoutes:
    """What the server serves of ingestion."""

    def __init__(
        self, service: Service, shelves: Shelves, roots: Roots, settings: Settings
    ) -> None:
        self._service = service
        self._shelves = shelves
        self._roots = roots
        self._settings = settings

    @route(
        "POST",
        "/api/v1/queue/items",
        Access.PUBLISH,
        "Enqueue items",
        answers={202: shapes.AcceptedItems},
        examples={"body": _EXAMPLE},
    )
    async def enqueue(self, body: shapes.EnqueueItems) -> Answer:
        """Store one item or many, all or none.

        An unfinished item that does the same is answered in place of a new one. What is wrong is
        named field by field, in `problems`.
        """
        return await self._added(raw_items(body))

    @route(
        "POST",
        "/api/v1/ingest",
        Access.PUBLISH,
        "Ingest something",
        answers={202: shapes.AcceptedItems},
        examples={"body": {"path": "/srv/shop/docs", "collection": "docs"}},
    )
    async def ingest(self, body: shapes.IngestRequest) -> Answer:
        """Store the item for a common case: a file or folder, a project, a text, a library."""
        return await self._added([await asyncio.to_thread(common_case, body)])

    @route(
        "GET",
        "/api/v1/queue/items",
        Access.READ,
        "List items",
        answers={200: shapes.ItemList},
    )
    async def listed(self, query: shapes.ItemFilter) -> shapes.ItemList:
        """Items that fit, newest first, a page at a time: go on while `next` is not null."""
        await self._check_store()
        wanted = {name: value for name in FILTERS if (value := getattr(query, name)) is not None}
        found, behind = await self._service.page(
            wanted,
            status=query.status,
            parent=query.parent,
            before=query.before or NEWEST,
            limit=query.limit,
        )
        return shapes.ItemList(items=found, next=behind)

    @route(
        "GET",
        "/api/v1/queue/items/stats",
        Access.READ,
        "Count items",
        answers={200: shapes.ItemStatistics},
    )
    async def counted(self, query: shapes.ItemStatisticsFilter) -> shapes.ItemStatistics:
        """Items by status: in all, by type, by tenant and by collection. From kept totals."""
        await self._check_store()
        return await self._service.stats(query.tenant_id, query.collection)

    @route(
        "GET",
        "/api/v1/queue/items/{queue_id}",
        Access.READ,
        "Look at an item",
        answers={200: shapes.ItemDetail},
    )
    async def item(self, queue_id: QueueId) -> shapes.ItemDetail:
        """An item with what it waits for, its progress, its result and its children."""
        await self._check_store()
        return await detail(self._service, queue_id)

    @route(
        "POST",
        "/api/v1/queue/items/{queue_id}/cancel",
        Access.PUBLISH,
        "Cancel an item",
        answers={200: QueueItem},
    )
    async def stop(self, queue_id: QueueId) -> QueueItem:
        """End a waiting item; a running one is asked to stop. One that has ended: 409."""
        await self._check_store()
        return await self._service.cancel(queue_id)

    @route(
        "POST",
        "/api/v1/queue/items/{queue_id}/retry",
        Access.PUBLISH,
        "Run an item again",
        answers={200: QueueItem},
    )
    async def repeat(self, queue_id: QueueId) -> QueueItem:
        """Run an item again that has failed, with all its attempts. One that runs: 409."""
        await self._check_store()
        return await self._service.retry(queue_id)

    @route(
        "POST",
        "/api/v1/ingest/search",
        Access.READ,
        "Search what was ingested",
        answers={200: shapes.IngestResults},
        examples={"body": {"query": "how are jobs retried?", "collection": "docs"}},
    )
    async def search(self, body: shapes.IngestQuestion) -> shapes.IngestResults:
        """The chunks of a collection that fit a question best: by meaning, by words, or both."""
        return await asyncio.to_thread(find, self._shelves, body)

    async def _added(self, given: Sequence[Mapping[str, Any]]) -> Answer:
        await self._check_store()
        largest = self._settings.max_file_size
        items = await asyncio.to_thread(items_of, given, self._roots, largest)
        added = await self._service.add(items)
        accepted = [
            shapes.AcceptedItem(queue_id=one.queue_id, job_id=one.job_id, duplicate=one.duplicate)
            for one in added
        ]
        return Answer(202, shapes.AcceptedItems(items=accepted))

    async def _check_store(self) -> None:
        try:
            await self._service.prepare()
        except ConfigurationError as error:
            raise Problem(503, f"ingest needs a SQLite or PostgreSQL store: {error}") from error


async def detail(service: Service, queue_id: str) -> shapes.ItemDetail:
    """An item in full; raises `Problem`."""
    app = service.penstock
    found = await service.get(queue_id)
    job = await app.get(found.job_id)
    progress = await app.progress(found.job_id)
    told = None
    if progress is not None:
        told = {"done": progress.done, "total": progress.total, "note": progress.note}
    return shapes.ItemDetail(
        **msgspec.structs.asdict(found),
        explanation=(await app.explain(found.job_id)).text,
        progress=told,
        result=job.returned,
        children=await _children(service, found.job_id),
    )


async def _children(service: Service, job_id: int) -> shapes.ItemChildren:
    app = service.penstock
    tally = await app.children(job_id, queue=QUEUE)  # any job may call any other its parent
    failed = sum(n for state, n in tally.items() if state in STATES["failed"])
    failures: list[Job] = []
    if failed:
        query = JobQuery(
            queue=QUEUE, parent=JobId(job_id), states=STATES["failed"], limit=_FAILURES
        )
        failures = await app.find(query)
    return shapes.ItemChildren(
        total=sum(tally.values()),
        pending=tally.get(State.PENDING, 0),
        in_progress=tally.get(State.RUNNING, 0),
        done=tally.get(State.DONE, 0),
        failed=failed,
        failures=[
            {"queue_id": args["queue_id"], "payload": args["payload"], "error": job.error}
            for job in failures
            for args in [app.secrets.hidden(job.args)]
        ],
    )
