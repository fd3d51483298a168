"""Operations on items: add, get, list, count, cancel, retry."""

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from msgspec.structs import replace

from penstock import JobQuery, Penstock, RetryPolicy, State
from penstock.apps.ingest import unified_queue
from penstock.apps.ingest.items import InvalidItem, Item, ItemType
from penstock.apps.ingest.order import NEWEST, Reach, before, key_of, reach_of
from penstock.apps.ingest.settings import Settings
from penstock.apps.ingest.shapes import ItemStatistics
from penstock.apps.ingest.unified_queue import QUEUE, Added, QueueItem, Row
from penstock.jobs import JobId
from penstock.tables import Transaction

_MOST_DEPENDENCIES = 1_000
_SCANNED = 500
_STEPS = 10
STATES = {
    "pending": frozenset({State.PENDING}),
    "in_progress": frozenset({State.RUNNING}),
    "done": frozenset({State.DONE}),
    "failed": frozenset({State.FAILED, State.CANCELLED, State.SUPERSEDED}),
}
"""The states of jobs that each status covers."""


class ItemNotFound(LookupError):
    """There is no item with this ID."""


class Service:
    """The items of one store."""

    def __init__(self, penstock: Penstock, settings: Settings) -> None:
        self.penstock = penstock
        self._settings = settings
        self._leases = settings.leases_by_type()
        self._is_ready = False

    async def prepare(self) -> None:
        """Create the tables; raise `ConfigurationError` if the store cannot have tables."""
        if not self._is_ready:
            await unified_queue.prepare(self.penstock)
            self._is_ready = True

    async def promote_by_age(self) -> None:
        """Let waiting items gain priority with age. This creates the queue, so workers call it."""
        ages = tuple(timedelta(seconds=age) for age in self._settings.promote_after)
        await self.penstock.limits.queue(QUEUE, promote_after=ages or None)

    async def has_unfinished(self) -> bool:
        """Return whether there are unfinished items."""
        counts = await self.penstock.count([QUEUE])
        unfinished = (State.PENDING, State.RUNNING)
        return any(
            n for (queue, state, _), n in counts.items() if queue == QUEUE if state in unfinished
        )

    async def add(
        self, items: Sequence[Item], *, parent: int | None = None, run_at: datetime | None = None
    ) -> list[Added]:
        """Store items in one transaction.

        An unfinished item with the same idempotency key is returned instead of a new one.
        """
        await self.prepare()
        ids = [str(uuid.uuid4()) for _ in items]  # the same if the transaction is repeated
        return await self.penstock.transaction(
            lambda tx: self.add_within(tx, items, ids, parent=parent, run_at=run_at)
        )

    def add_within(
        self,
        tx: Transaction,
        items: Sequence[Item],
        ids: Sequence[str],
        *,
        parent: int | None = None,
        run_at: datetime | None = None,
    ) -> list[Added]:
        """Store items inside a transaction, as `add` does; `ids` are the IDs of new items."""
        waits = before(tx, [(NEWEST, _reach(item)) for item in items])
        rows = [
            self._row(
                item,
                queue_id,
                () if _purges(item) else after,
                parent=parent,
                run_at=run_at,
            )
            for item, queue_id, after in zip(items, ids, waits, strict=True)
        ]
        return unified_queue.add(tx, rows)

    def _row(
        self,
        item: Item,
        queue_id: str,
        after: Sequence[int],
        *,
        parent: int | None = None,
        run_at: datetime | None = None,
    ) -> Row:
        lease = self._leases.get(item.item_type.value, self._settings.lease)
        delay = timedelta(seconds=self._settings.retry_delay)
        return Row(
            queue_id=queue_id,
            item_type=item.item_type.value,
            op=item.op.value,
            tenant_id=item.tenant_id,
            collection=item.collection,
            priority=item.priority,
            idempotency_key=item.idempotency_key,
            payload_json=json.dumps(item.payload, ensure_ascii=False),
            max_retries=item.max_retries,
            branch=item.branch,
            metadata=json.dumps(item.metadata, ensure_ascii=False),
            key=_key(item),
            after=tuple(sorted(after)[-_MOST_DEPENDENCIES:]),
            parent=parent,
            run_at=run_at,
            lease=timedelta(seconds=lease),
            retry=RetryPolicy(attempts=item.max_retries + 1, delay=delay),
        )

    async def before(self, jobs: Sequence[tuple[int, Reach]]) -> list[list[int]]:
        """Return the unfinished items that must end before each of these."""
        return await self.penstock.tables.read(lambda tx: before(tx, jobs))

    # Reading

    async def get(self, queue_id: str) -> QueueItem:
        """Return an item; raise `ItemNotFound`."""
        await self.prepare()
        found = await self.penstock.tables.read(lambda tx: unified_queue.get(tx, queue_id))
        if found is None:
            raise ItemNotFound(f"there is no item {queue_id}")
        return self._without_secrets(found)

    def _without_secrets(self, item: QueueItem) -> QueueItem:
        hide = self.penstock.secrets.hidden
        return replace(item, payload=hide(item.payload), metadata=hide(item.metadata))

    async def page(
        self,
        wanted: Mapping[str, str],
        *,
        status: str | None = None,
        parent: str | None = None,
        before: int = NEWEST,
        limit: int = 50,
    ) -> tuple[list[QueueItem], int | None]:
        """Return matching items, newest first, and where the next page starts; None at the end.

        The cost of a page does not depend on the number of items: rare matches are spread over
        several pages, which may have fewer than `limit` items.
        """
        await self.prepare()
        of = None if parent is None else JobId((await self.get(parent)).job_id)
        query = JobQuery(
            queue=QUEUE,
            states=None if status is None else STATES[status],
            tenant=wanted.get("tenant_id"),
            parent=of,
            after=JobId(before),
            limit=limit if wanted.keys() <= {"tenant_id"} else max(limit, _SCANNED),
        )
        found: list[QueueItem] = []
        for _ in range(_STEPS):
            ids = await self.penstock.find_ids(query)
            if ids:
                items = await self.penstock.tables.read(
                    partial(unified_queue.find, jobs=ids, wanted=wanted)
                )
                found += map(self._without_secrets, items)
            if len(found) > limit or (len(found) == limit and ids):
                return found[:limit], found[limit - 1].job_id
            if len(ids) < query.limit:
                return found, None
            query = replace(query, after=ids[-1])
        return found, query.after

    async def stats(self, tenant_id: str | None, collection: str | None) -> ItemStatistics:
        """Return the number of items in each status, from maintained totals."""
        await self.prepare()
        rows = await self.penstock.tables.read(
            lambda tx: unified_queue.totals(tx, tenant_id or "", collection or "")
        )
        counted = ItemStatistics(total={}, by_type={}, by_tenant={}, by_collection={})
        for tenant, of, kind, status, n in rows:
            for counts in (
                counted.total,
                counted.by_type.setdefault(kind, {}),
                counted.by_tenant.setdefault(tenant, {}),
                counted.by_collection.setdefault(of, {}),
            ):
                counts[status] = counts.get(status, 0) + n
        return counted

    # Changing

    async def cancel(self, queue_id: str) -> QueueItem:
        """Cancel a waiting item, or ask a running one to stop."""
        await self.penstock.cancel((await self.get(queue_id)).job_id)
        return await self.get(queue_id)

    async def retry(self, queue_id: str) -> QueueItem:
        """Run a failed item again, with all its attempts."""
        await self.penstock.retry((await self.get(queue_id)).job_id)
        return await self.get(queue_id)


def _reach(item: Item) -> Reach:
    reach = reach_of(item.item_type, item.op, item.collection_name, item.payload)
    if reach is None:
        raise InvalidItem({"payload": "does not match the type of the item"})
    return reach


def _purges(item: Item) -> bool:
    """Return whether an item cancels older waiting items instead of waiting for them."""
    return item.item_type in (ItemType.DELETE_TENANT, ItemType.DELETE_DOCUMENT)


def _key(item: Item) -> str | None:
    """Return the key of an item with one place; others have dependencies instead."""
    if item.item_type is ItemType.RENAME or _purges(item):
        return None
    return key_of(*item.collection_name, item.typed.place)
