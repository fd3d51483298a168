"""The HTTP API of the ingest application."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta

from penstock import ConfigurationError, JobQuery, State
from penstock.apps.ingest import shapes
from penstock.apps.ingest.collections import Collections, digest_of
from penstock.apps.ingest.items import (
    File,
    Folder,
    InvalidItem,
    Item,
    Library,
    Operation,
    Project,
    Rejected,
    checked,
)
from penstock.apps.ingest.order import NEWEST
from penstock.apps.ingest.service import STATES, ItemNotFound, Service
from penstock.apps.ingest.settings import PACKAGES, Roots, Settings
from penstock.apps.ingest.unified_queue import FILTERS, QUEUE, QueueItem
from penstock.apps.kit import Problem, Statuses, is_package_missing, needs_tables, route
from penstock.jobs import JobId
from penstock.tokens import Access

QueueId = Annotated[str, Meta(min_length=1, max_length=200)]
_FAILURES = 20
_STATUSES = Statuses({ItemNotFound: 404})
_EXAMPLE = {
    "item_type": "file",
    "op": "ingest",
    "tenant_id": "shop",
    "collection": "docs",
    "payload": {"file_path": "/srv/shop/README.md"},
}


class IngestRoutes:
    """The routes of items and of the search."""

    def __init__(
        self, service: Service, collections: Collections, roots: Roots, settings: Settings
    ) -> None:
        self._service = service
        self._collections = collections
        self._roots = roots
        self._settings = settings

    @route("POST", "/api/v1/queue/items", Access.PUBLISH, status=202, examples={"body": _EXAMPLE})
    async def enqueue(self, body: shapes.EnqueueItems) -> shapes.AcceptedItems:
        """Enqueue items.

        Store one item or many, in one transaction.

        An unfinished item with the same idempotency key is returned instead of a new one. An error
        lists every invalid field in `problems`.
        """
        return await self._add(given_items(body))

    @route(
        "POST",
        "/api/v1/ingest",
        Access.PUBLISH,
        status=202,
        examples={"body": {"path": "/srv/shop/docs", "collection": "docs"}},
    )
    async def ingest(self, body: shapes.IngestRequest) -> shapes.AcceptedItems:
        """Ingest something.

        Store the item for a common case: a file or folder, a project, a text, a library.
        """
        return await self._add([await asyncio.to_thread(common_case, body)])

    @route("GET", "/api/v1/queue/items", Access.READ)
    async def listed(self, query: shapes.ItemFilter) -> shapes.ItemList:
        """List items.

        Return matching items, newest first, a page at a time: continue while `next` is not null.
        """
        await self._prepare()
        wanted = {name: value for name in FILTERS if (value := getattr(query, name)) is not None}
        with _STATUSES.answering():
            found, next_page = await self._service.page(
                wanted,
                status=query.status,
                parent=query.parent,
                before=query.before or NEWEST,
                limit=query.limit,
            )
        return shapes.ItemList(items=found, next=next_page)

    @route("GET", "/api/v1/queue/items/stats", Access.READ)
    async def counted(self, query: shapes.ItemStatisticsFilter) -> shapes.ItemStatistics:
        """Count items.

        Return the number of items by status: in total, by type, by tenant and by collection. The
        totals are maintained, so that nothing is counted.
        """
        await self._prepare()
        return await self._service.stats(query.tenant_id, query.collection)

    @route("GET", "/api/v1/queue/items/{queue_id}", Access.READ)
    async def item(self, queue_id: QueueId) -> shapes.ItemDetail:
        """Get an item.

        Return an item with an explanation of its state, its progress, its result and its children.
        """
        await self._prepare()
        with _STATUSES.answering():
            return await detail(self._service, queue_id)

    @route("POST", "/api/v1/queue/items/{queue_id}/cancel", Access.PUBLISH)
    async def stop(self, queue_id: QueueId) -> QueueItem:
        """Cancel an item.

        Cancel a waiting item, or ask a running one to stop. An item that has ended: 409.
        """
        await self._prepare()
        with _STATUSES.answering():
            return await self._service.cancel(queue_id)

    @route("POST", "/api/v1/queue/items/{queue_id}/retry", Access.PUBLISH)
    async def repeat(self, queue_id: QueueId) -> QueueItem:
        """Run an item again.

        Run a failed item again, with all its attempts. A running item: 409.
        """
        await self._prepare()
        with _STATUSES.answering():
            return await self._service.retry(queue_id)

    @route(
        "POST",
        "/api/v1/ingest/search",
        Access.READ,
        examples={"body": {"query": "how are jobs retried?", "collection": "docs"}},
    )
    async def search(self, body: shapes.IngestQuestion) -> shapes.IngestResults:
        """Search what was ingested.

        Return the chunks of a collection that match a query best: by meaning, by words, or both.
        """
        return await asyncio.to_thread(search, self._collections, body)

    async def _add(self, given: Sequence[Mapping[str, Any]]) -> shapes.AcceptedItems:
        await self._prepare()
        largest = self._settings.max_file_size
        items = await asyncio.to_thread(checked_items, given, self._roots, largest)
        added = await self._service.add(items)
        return shapes.AcceptedItems(
            items=[shapes.AcceptedItem(**one._asdict()) for one in added],
        )

    async def _prepare(self) -> None:
        try:
            await self._service.prepare()
        except ConfigurationError as error:
            raise Problem(503, needs_tables("ingest", error)) from error


def search(collections: Collections, query: shapes.IngestQuestion) -> shapes.IngestResults:
    """Return the chunks that match a query best; raise `Problem`."""
    PACKAGES.check_served()
    try:
        return collections.search(query)
    except ConfigurationError as error:  # the collection was created with another embedder
        raise Problem(409, str(error)) from error


# Requests as items


def given_items(body: shapes.EnqueueItems) -> list[Mapping[str, Any]]:
    """Return the items of a request, one or many; raise `Problem`."""
    single = {
        name: value
        for name in body.__struct_fields__
        if name != "items" and (value := getattr(body, name)) is not UNSET
    }
    if body.items is UNSET:
        return [single]
    if single:
        raise Problem(422, "items: set either items or the fields of one item", field="items")
    return list(body.items)


def common_case(body: shapes.IngestRequest) -> dict[str, Any]:
    """Return the item that a request describes; raise `Problem`."""
    named = [
        name
        for name in ("path", "project", "content", "library")
        if getattr(body, name) is not None
    ]
    if len(named) != 1:
        raise Problem(422, "set exactly one of path, project, content and library")
    kind, payload = _payload(body, named[0])
    return {
        "item_type": kind,
        "op": "ingest",
        "tenant_id": body.tenant_id,
        "collection": body.collection,
        "branch": body.branch,
        "priority": body.priority,
        "payload": {name: value for name, value in payload.items() if value not in (None, [])},
    }


def _payload(body: shapes.IngestRequest, named: str) -> tuple[str, dict[str, Any]]:
    patterns = {"patterns": body.patterns, "ignore_patterns": body.ignore_patterns}
    if named == "content":
        return "content", {"content": body.content, "document_id": body.document_id}
    if named == "library":
        return "library", {
            "library_name": body.library,
            "library_version": body.version,
            "source_url": body.source,
        }
    if named == "project":
        return "project", {"project_root": body.project, **patterns}
    if os.path.isdir(str(body.path)):  # noqa: PTH112 - never raises, whatever the path
        return "folder", {"folder_path": body.path, **patterns}
    return "file", {"file_path": body.path}


def checked_items(given: Sequence[Mapping[str, Any]], roots: Roots, largest: int) -> list[Item]:
    """Return the items of a request; raise a `Problem` that lists every invalid field."""
    found: list[Item] = []
    problems: dict[str, str] = {}
    for place, one in enumerate(given):
        where = f"items[{place}]." if len(given) > 1 else ""
        try:
            found.append(completed(checked(one), roots, largest))
        except InvalidItem as error:
            problems |= {f"{where}{field}": text for field, text in error.problems.items()}
    if problems:
        problem = Problem(422, str(InvalidItem(problems)), field=next(iter(problems)))
        problem.body["problems"] = problems  # type: ignore[assignment] # a mapping of strings
        raise problem
    return found


def completed(item: Item, roots: Roots, largest: int) -> Item:
    """Check that the file of an item may be read, and add the digest of its current content.

    With the digest, a changed file is another item than the one that may be running now.
    """
    typed = item.typed
    if item.op is Operation.DELETE:
        return item
    if isinstance(typed, File):
        _check_root(roots, "file_path", typed.place)
        if typed.file_hash is None:
            return _with_digest(item, typed.place, largest)
    elif isinstance(typed, Folder):
        _check_root(roots, "folder_path", typed.place)
    elif isinstance(typed, Project):
        _check_root(roots, "project_root", typed.place)
    elif isinstance(typed, Library) and "://" not in str(typed.source_url):
        _check_root(roots, "source_url", str(typed.source_url))
    return item


def _with_digest(item: Item, path: str, largest: int) -> Item:
    try:
        from penstock.vectors import UnreadableFile, read_file
    except ImportError as error:
        if not is_package_missing(error):
            raise
        return item  # a server without the packages only accepts items
    try:
        content = read_file(path, largest)
    except UnreadableFile:
        return item  # it fails when it runs, unless the file exists by then
    payload = {
        **item.payload,
        "file_hash": f"sha256:{digest_of(content)}",
        "size_bytes": len(content),
    }
    return msgspec.structs.replace(item, payload=payload)


def _check_root(roots: Roots, field: str, path: str) -> None:
    try:
        roots.check(path)
    except Rejected as error:
        raise InvalidItem({f"payload.{field}": str(error)}) from error


# Items as answers


async def detail(service: Service, queue_id: str) -> shapes.ItemDetail:
    """Return an item with everything known about it; raise `ItemNotFound`."""
    app = service.penstock
    found = await service.get(queue_id)
    job = await app.get(found.job_id)
    progress = await app.progress(found.job_id)
    return shapes.ItemDetail(
        **msgspec.structs.asdict(found),
        explanation=(await app.explain(found.job_id)).text,
        progress=None
        if progress is None
        else {"done": progress.done, "total": progress.total, "note": progress.note},
        result=job.returned,
        children=await _children(service, found.job_id),
    )


async def _children(service: Service, job_id: int) -> shapes.ItemChildren:
    app = service.penstock
    # Restricted to the queue, because any job may name any other as its parent.
    query = JobQuery(queue=QUEUE, parent=JobId(job_id))
    tally = await app.bulk(query).tally()
    failed = sum(n for state, n in tally.items() if state in STATES["failed"])
    failures = []
    if failed:
        failures = await app.find(
            msgspec.structs.replace(query, states=STATES["failed"], limit=_FAILURES)
        )
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
