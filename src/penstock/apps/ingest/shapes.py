"""Bodies, queries and answers of the ingest API."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.apps.ingest.unified_queue import QueueItem
from penstock.apps.kit import Name, PathText, Position

Status = Literal["pending", "in_progress", "done", "failed"]


class EnqueueItems(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One item, or up to 1,000 in `items`, which are stored in one transaction.

    An item has `item_type`, `op`, `tenant_id`, `collection` and `payload`; `branch` (`main`),
    `priority` (0 to 10, or a name), `metadata` and `max_retries` (3) are optional.
    """

    items: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=1_000)] | UnsetType = UNSET
    item_type: Any = UNSET
    op: Any = UNSET
    tenant_id: Any = UNSET
    collection: Any = UNSET
    branch: Any = UNSET
    priority: Any = UNSET
    payload: Any = UNSET
    metadata: Any = UNSET
    max_retries: Any = UNSET


class IngestRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The common cases: set one of `path`, `project`, `content` and `library`.

    A `path` may be a file or a folder. `source` is the location of the documentation of a library.
    The default priority is that of a user who is waiting.
    """

    path: PathText | None = None
    project: PathText | None = None
    content: Annotated[str, Meta(max_length=800_000)] | None = None
    document_id: PathText | None = None
    library: Name | None = None
    version: Name | None = None
    source: PathText | None = None
    patterns: list[PathText] = []
    ignore_patterns: list[PathText] = []
    tenant_id: Name = "default"
    collection: Name = "default"
    branch: Name = "main"
    priority: Annotated[int, Meta(ge=0, le=10)] | str = "immediate"


class AcceptedItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that was stored, or an equal unfinished one that existed already."""

    queue_id: str
    job_id: int
    duplicate: bool


class AcceptedItems(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request to enqueue, in the order of the request."""

    items: list[AcceptedItem]


class ItemFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which items to list; `parent` is the ID of a folder or project item.

    `before` is the `next` of the previous page.
    """

    status: Status | None = None
    item_type: Name | None = None
    op: Name | None = None
    tenant_id: Name | None = None
    collection: Name | None = None
    branch: Name | None = None
    parent: Name | None = None
    before: Position | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 50


class ItemList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of items, newest first; `next` is null on the last page.

    If filters match rarely, a page may have few items or none and still a `next`.
    """

    items: list[QueueItem]
    next: int | None


class ItemChildren(msgspec.Struct, frozen=True, kw_only=True):
    """The items of a folder or project by status; `failures` has some of the failed ones."""

    total: int
    pending: int
    in_progress: int
    done: int
    failed: int
    failures: list[dict[str, Any]]


class ItemDetail(QueueItem, frozen=True, kw_only=True):
    """An item with an explanation of its state, its progress, its result and its children."""

    explanation: str
    progress: dict[str, Any] | None
    result: Any
    children: ItemChildren


class ItemStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The number of items in each status: in total, by type, by tenant, by collection."""

    total: dict[str, int]
    by_type: dict[str, dict[str, int]]
    by_tenant: dict[str, dict[str, int]]
    by_collection: dict[str, dict[str, int]]


class ItemStatisticsFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which items to count."""

    tenant_id: Name | None = None
    collection: Name | None = None


class IngestQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A search query and where to search."""

    query: Annotated[str, Meta(min_length=1, max_length=10_000)]
    tenant_id: Name = "default"
    collection: Name = "default"
    branch: Name = "main"
    top_k: Annotated[int, Meta(ge=1, le=1_000)] = 5
    mode: Literal["hybrid", "vector", "bm25"] = "hybrid"
    under: PathText | None = None


class IngestResult(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk that matches the query."""

    id: str
    text: str
    path: str
    score: float
    metadata: dict[str, Any]


class IngestResults(msgspec.Struct, frozen=True, kw_only=True):
    """Matching chunks, best first."""

    results: list[IngestResult]
