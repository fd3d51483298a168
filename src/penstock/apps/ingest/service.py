"""What routes, commands and handlers do with items: add, look at, list, cancel, retry, count."""

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from penstock import JobId, JobQuery, Penstock, RetryPolicy, State, Transaction
from penstock.apps.ingest import listing, relation
from penstock.apps.ingest.items import InvalidItem, Item, ItemType
from penstock.apps.ingest.order import NEWEST, Reach, before, key_of, reach_of
from penstock.apps.ingest.settings import Settings
from penstock.apps.ingest.shapes import ItemStatistics
from penstock.http.problems import Problem

QUEUE = relation.QUEUE
TASK = relation.TASK
_MOST_EDGES = 1_000
_LOOKED_AT = 500
_STEPS = 10
STATES = {
    "pending": frozenset({State.PENDING}),
    "in_progress": frozenset({State.RUNNING}),
    "done": frozenset({State.DONE}),
    "failed": frozenset({State.FAILED, State.CANCELLED, State.SUPERSEDED}),
}
"""The states of jobs that a status stands for."""


class Added(NamedTuple):
    """An item that was asked for: its id, its job, and whether it was there already."""

    queue_id: str
    job_id: int
    duplicate: bool


class Service:
    """The items of one store."""

    def __init__(self, penstock: Penstock, settings: Settings) -> None:
        self.penstock = penstock
        self._settings = settings
        self._leases = settings.leases_by_type()
        self._is_ready = False

    async def prepare(self) -> None:
        """Make the tables; raises `ConfigurationError` on a store that can have none."""
        if not self._is_ready:
            await relation.prepare(self.penstock)
            self._is_ready = True

    async def let_age_count(self) -> None:
        """Have waiting items gain on others; not before there are any, so that no queue shows."""
        ages = tuple(timedelta(seconds=age) for age in self._settings.promote_after)
        await self.penstock.limit(QUEUE, promote_after=ages or None)

    async def has_unfinished(self) -> bool:
        """Whether there are items to work on."""
        counts = await self.penstock.count([QUEUE])
        unfinished = (State.PENDING, State.RUNNING)
        return any(
            n for (queue, state, _), n in counts.items() if queue == QUEUE if state in unfinished
        )

    async def add(
        self, items: Sequence[Item], *, parent: int | None = None, run_at: datetime | None = None
    ) -> list[Added]:
        """Store these items in one transaction, all or none.

        An unfinished item that does the same is answered in place of a new one.
        """
        await self.prepare()
        ids = [str(uuid.uuid4()) for _ in items]  # the same when the work is run again
        return await self.penstock.transact(
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
        """As `add`, inside a transaction; `ids` are those of new items."""
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
        return [Added(one.queue_id, one.job_id, one.duplicate) for one in relation.add(tx, rows)]

    def _row(
        self,
        item: Item,
        queue_id: str,
        after: Sequence[int],
        *,
        parent: int | None = None,
        run_at: datetime | None = None,
    ) -> relation.Row:
        lease = self._leases.get(item.item_type.value, self._settings.lease)
        delay = timedelta(seconds=self._settings.retry_delay)
        return relation.Row(
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
            after=tuple(sorted(after)[-_MOST_EDGES:]),
            parent=parent,
            run_at=run_at,
            lease=timedelta(seconds=lease),
            retry=RetryPolicy(attempts=item.max_retries + 1, delay=delay),
        )

    async def before(self, asked: Sequence[tuple[int, Reach]]) -> list[list[int]]:
        """The unfinished items that have to end before each of these."""
        return await self.penstock.read(lambda tx: before(tx, asked))

    # Looking

    async def get(self, queue_id: str) -> listing.QueueItem:
        """An item; raises `Problem`."""
        await self.prepare()
        found = await self.penstock.read(lambda tx: listing.get(tx, queue_id))
        if found is None:
            raise Problem(404, f"there is no item {queue_id}")
        return self._shown(found)

    def _shown(self, item: listing.QueueItem) -> listing.QueueItem:
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
    ) -> tuple[list[listing.QueueItem], int | None]:
        """Items that fit, newest first, and where the next page begins; None at the end.

        A page costs the same however many items there are: what fits rarely is spread over
        several, which may have less than `limit` items.
        """
        await self.prepare()
        of = None if parent is None else JobId((await self.get(parent)).job_id)
        query = JobQuery(
            queue=QUEUE,
            states=None if status is None else STATES[status],
            tenant=wanted.get("tenant_id"),
            parent=of,
            after=JobId(before),
            limit=limit if wanted.keys() <= {"tenant_id"} else max(limit, _LOOKED_AT),
        )
        found: list[listing.QueueItem] = []
        for _ in range(_STEPS):
            ids = await self.penstock.find_ids(query)
            if ids:
                items = await self.penstock.read(partial(listing.among, jobs=ids, wanted=wanted))
                found += map(self._shown, items)
            if len(found) > limit or (len(found) == limit and ids):
                return found[:limit], found[limit - 1].job_id
            if len(ids) < query.limit:
                return found, None
            query = replace(query, after=ids[-1])
        return found, query.after

    async def stats(self, tenant_id: str | None, collection: str | None) -> ItemStatistics:
        """How many items there are in each status; from kept totals."""
        await self.prepare()
        rows = await self.penstock.read(
            lambda tx: listing.totals(tx, tenant_id or "", collection or "")
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

    # Steering

    async def cancel(self, queue_id: str) -> listing.QueueItem:
        """End a waiting item, or ask a running one to stop."""
        await self.penstock.cancel((await self.get(queue_id)).job_id)
        return await self.get(queue_id)

    async def retry(self, queue_id: str) -> listing.QueueItem:
        """Run an item again that has failed, with all its attempts."""
        await self.penstock.retry((await self.get(queue_id)).job_id)
        return await self.get(queue_id)


def _reach(item: Item) -> Reach:
    whose = (item.tenant_id, item.collection, item.branch)
    reach = reach_of(item.item_type, item.op, whose, item.payload)
    if reach is None:
        raise InvalidItem({"payload": "does not fit its type"})
    return reach


def _purges(item: Item) -> bool:
    """Whether an item cancels what waits for the same, instead of waiting for it."""
    return item.item_type in (ItemType.DELETE_TENANT, ItemType.DELETE_DOCUMENT)


def _key(item: Item) -> str | None:
    """Items of one place take turns; what reaches further has edges."""
    if item.item_type is ItemType.RENAME or _purges(item):
        return None
    return key_of(item.tenant_id, item.collection, item.branch, item.typed.place)
