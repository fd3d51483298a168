"""`Entries`: writes, reads and searches entries, and queues their embedding."""

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from penstock import ConfigurationError, NewJob, Penstock, RetryPolicy
from penstock.apps.entries import rows
from penstock.apps.entries.indexes import VectorIndex, VectorIndexes
from penstock.apps.entries.rows import MIRROR, QUEUE, TABLES, Content, EntryQuery, Row
from penstock.apps.entries.settings import Settings
from penstock.apps.entries.types import EntryType, EntryTypes, InvalidEntry, digest_of
from penstock.apps.kit import Manifest, OpenEmbedder
from penstock.tables import Statements, Transaction

MANIFEST = Manifest(
    "entries",
    "Store entries and search them by meaning.",
    queues=("entries", "entries-operations"),
    route="POST /api/v1/entries/write",
    tasks={
        "entries.embed": "",
        **{
            f"entries.{name}": f"POST /api/v1/operations/{name}"
            for name in ("import", "rebuild", "reembed", "sync")
        },
    },
)
EMBED = "entries.embed"
"""The task that embeds rows."""
EMBEDDER = "embedder"
"""The named value that holds the configuration of the embedder in use."""
ROWS_PER_JOB = 100
"""How many rows one job embeds when many are queued at once."""
_DEATHS = 100
"""Attempts left for workers that are killed; meanwhile the row that kills them is found."""
_TRIES = 100
_LARGEST_ID = 200

Progress = Callable[[int, int | None, str], None]
"""Called by long operations with how much is done, the total if known, and the current step."""


class EntryNotFound(Exception):
    """No entry has this id."""


class EntryExists(Exception):
    """An entry already has this id."""


class EntryChanged(Exception):
    """The entry is at another version than the one given."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of an entry.

    `version` grows with every change. `embedding_status` is `pending`, `processing`, `embedded` or
    `failed`; `embedding_error` says why it failed.
    """

    id: str
    type: str
    category: str
    data: dict[str, Any]
    version: int
    embedding_status: str
    embedding_error: str | None
    embedding_attempts: int
    created_at: datetime
    updated_at: datetime
    number: int


class EntryMatch(msgspec.Struct, frozen=True):
    """An entry that a search found, and its similarity; 1 means equal."""

    entry: Entry
    score: float


class Entries:
    """Entries in the store of a Penstock, with their vectors in a folder.

    Call `prepare` first: it creates the tables. `open_embedder` replaces
    `penstock.vectors.open_embedder`, for example to embed with a model of your own.
    """

    def __init__(
        self,
        penstock: Penstock,
        folder: str | Path,
        *,
        settings: Settings | None = None,
        types: Sequence[EntryType] = (),
        open_embedder: OpenEmbedder | None = None,
    ) -> None:
        MANIFEST.register(penstock)
        self.penstock = penstock
        self.settings = settings or Settings()
        known = self.settings.check()
        self.types = EntryTypes([*known, *types]) if types else known
        self.indexes = VectorIndexes(Path(folder), open_embedder)

    async def prepare(self) -> None:
        """Create the tables or migrate them."""
        await self.penstock.tables.prepare("entries", TABLES)
        await self.penstock.tables.mirror(MIRROR)
        if await self.penstock.tables.read(lambda tx: rows.value(tx, EMBEDDER)) is None:
            await self.penstock.transaction(
                lambda tx: rows.add_value(tx, EMBEDDER, self.settings.embedder)
            )

    def register(self) -> None:
        """Register the tasks, so that a `Worker` on these queues runs them.

        A server does not call this: separate processes run its jobs.
        """
        from penstock.apps.entries import embedding, operations  # needs the vector packages

        embedding.register(self)
        operations.register(self)

    def close(self) -> None:
        """Close the embedders and indexes."""
        self.indexes.close()

    # Writes

    def content(
        self, name: str, category: str, data: Mapping[str, Any], entry_id: str | None = None
    ) -> Content:
        """Return the content of a row; raise `InvalidEntry` if its type does not allow it."""
        kind = self.types.get(name)
        kind.check_category(category)
        encoded = kind.check(data)
        text = kind.text(data)
        made = f"{kind.name}-{uuid.uuid4().hex}" if entry_id is None else _checked_id(entry_id)
        digest = digest_of(kind.name, category, text)
        return Content(made, kind.name, category, digest, encoded, text)

    def job(self, ids: Sequence[str]) -> NewJob:
        """Return a job that embeds the rows naming it and removes vectors of rows that are gone."""
        settings = self.settings
        return NewJob(
            task=EMBED,
            payload=msgspec.json.encode({"ids": ids}).decode(),
            queue=QUEUE,
            # The key makes a job for a changed row wait for the one that runs. A job of many rows
            # has none: versions fence its rows as well.
            key=f"entries:{ids[0]}" if len(ids) == 1 else None,
            lease=timedelta(seconds=settings.lease),
            retry=RetryPolicy(
                attempts=settings.attempts + _DEATHS,
                delay=timedelta(seconds=settings.retry_delay),
            ),
        )

    async def write(
        self, name: str, category: str, data: Mapping[str, Any], *, entry_id: str | None = None
    ) -> Entry:
        """Store an entry and queue its embedding, in one transaction.

        Raises `InvalidEntry`, and `EntryExists` if the given id is taken.
        """
        content = self.content(name, category, data, entry_id)

        def work(tx: Transaction) -> Entry:
            (job,) = tx.enqueue([self.job([content.id])])
            if not rows.add(tx, content, job.id, self._now()):
                raise EntryExists(f"entry {content.id} already exists; update it instead")
            return entry_of(rows.get(tx, [content.id])[content.id])

        return await self.penstock.transaction(work)

    async def update(
        self,
        entry_id: str,
        updates: Mapping[str, Any],
        *,
        category: str | None = None,
        name: str | None = None,
        version: int | None = None,
    ) -> Entry:
        """Change fields of an entry and queue its embedding; None removes a field.

        Raises `EntryNotFound`, `InvalidEntry`, and `EntryChanged` if the entry is not at the given
        version.
        """
        wanted = self.types.name_of(name)
        for _ in range(_TRIES):
            before = await self._row(entry_id, wanted)
            if version is not None and before.version != version:
                raise EntryChanged(
                    f"entry {entry_id} is at version {before.version}, not {version}"
                )
            data = self.types.get(before.type).updated(msgspec.json.decode(before.data), updates)
            content = self.content(before.type, category or before.category, data, entry_id)
            with suppress(_Conflict):
                return await self.penstock.transaction(
                    lambda tx: self._change(tx, before, content)  # noqa: B023 - awaited at once
                )
        raise EntryChanged(f"entry {entry_id} keeps changing; try again")

    def _change(self, tx: Transaction, before: Row, content: Content) -> Entry:
        """Raises `_Conflict` if the row has changed since it was read."""
        if (before.embedding_status, before.embedding_attempts) == ("pending", 0):
            done = rows.rewrite(tx, content, before.version, self._now())
        else:
            # The job before its row, as workers lock them: the other order deadlocks.
            (job,) = tx.enqueue([self.job([content.id])])
            done = rows.replace(tx, content, before.version, job.id, self._now())
        if not done:
            raise _Conflict
        return entry_of(rows.get(tx, [content.id])[content.id])

    async def delete(self, ids: Sequence[str], *, name: str | None = None) -> list[str]:
        """Remove entries, and their vectors in the background; return the ids removed.

        Raises `EntryNotFound` if none of them exists.
        """
        wanted = self.types.name_of(name)

        def work(tx: Transaction) -> list[str]:
            tx.enqueue([self.job(list(ids))])
            removed = rows.remove(tx, ids, wanted)
            if not removed:
                raise EntryNotFound(f"there is no entry {', '.join(ids):.200}")
            return removed

        return await self.penstock.transaction(work)

    # Reads

    async def read(self, ids: Sequence[str], *, name: str | None = None) -> list[Entry]:
        """Return entries by id, in this order, without the unknown ones."""
        wanted = self.types.name_of(name)
        found = await self.penstock.tables.read(lambda tx: rows.get(tx, ids))
        return [
            entry_of(found[one])
            for one in dict.fromkeys(ids)
            if one in found and wanted in (None, found[one].type)
        ]

    async def page(
        self, query: EntryQuery, *, after: int | None = None, limit: int = 100, newest: bool = True
    ) -> list[Entry]:
        """Return matching entries, newest or oldest first, that follow the entry number `after`."""
        found = await self.penstock.tables.read(
            lambda tx: rows.page(tx, query, after, limit, newest=newest)
        )
        return [entry_of(row) for row in found]

    async def search(
        self,
        query: str,
        *,
        name: str | None = None,
        category: str | None = None,
        limit: int = 10,
        mode: str = "vector",
    ) -> list[EntryMatch]:
        """Return the embedded entries most similar to a text, best first."""
        from penstock.vectors import Where

        where = Where(
            types=() if name is None else (self.types.get(name).name,),
            paths=() if category is None else (category,),
        )
        current = await self.current_index()

        def find() -> dict[str, float]:
            vector = None if mode == "bm25" else current.embedder.embed([query])[0]
            hits = current.index.search(vector, query, k=limit, where=where, mode=mode)
            return {hit.id: hit.score for hit in hits}

        scores = await asyncio.to_thread(find)
        return [
            EntryMatch(entry, scores[entry.id])
            for entry in await self.read(list(scores))
            if entry.embedding_status != "failed"  # its vector is about to be removed
        ]

    async def current_index(self) -> VectorIndex:
        """Return the index in use."""
        return self.indexes.get(await self.penstock.tables.read(self.embedder))

    def embedder(self, tx: Statements) -> str:
        """Return the configuration of the embedder in use."""
        return rows.value(tx, EMBEDDER) or self.settings.embedder

    async def counts(self) -> dict[tuple[str, str], int]:
        """Count the entries by type and status, in constant time."""
        return await self.penstock.tables.read(rows.counts)

    # Requeues

    async def requeue(self, ids: Sequence[str], *, status: str) -> int:
        """Queue the entries that have this status to be embedded again; return how many."""

        def work(tx: Transaction) -> int:
            (job,) = tx.enqueue([self.job(list(ids))])
            changed = rows.reassign(tx, ids, job.id, status=status)
            if not changed:
                raise _Conflict  # rolls the job back
            return changed

        try:
            return await self.penstock.transaction(work)
        except _Conflict:
            return 0

    async def retry_failed(self) -> dict[str, int]:
        """Queue all failed entries to be embedded again; return how many, by type."""
        return await self.requeue_all(EntryQuery(embedding_status="failed"))

    async def requeue_all(self, query: EntryQuery) -> dict[str, int]:
        """Queue matching entries to be embedded again; return how many, by type.

        The query must name an `embedding_status`.
        """
        if query.embedding_status is None:
            raise ConfigurationError("requeue_all needs a query with an embedding_status")
        counted: dict[str, int] = {}
        after = ""
        while True:
            start = after
            found = await self.penstock.tables.read(
                lambda tx: rows.ids_after(tx, query, start, ROWS_PER_JOB)  # noqa: B023 - awaited at once
            )
            if not found:
                return counted
            after = found[-1][0]
            for kind in dict.fromkeys(name for _, name in found):
                ids = [one for one, name in found if name == kind]
                n = await self.requeue(ids, status=query.embedding_status)
                counted[kind] = counted.get(kind, 0) + n

    async def _row(self, entry_id: str, name: str | None) -> Row:
        row = (await self.penstock.tables.read(lambda tx: rows.get(tx, [entry_id]))).get(entry_id)
        if row is None or name not in (None, row.type):
            raise EntryNotFound(f"there is no entry {entry_id:.200}")
        return row

    def _now(self) -> int:
        return int(self.penstock.clock())


class _Conflict(Exception):
    """The row was changed concurrently; rolls the transaction back."""


def entry_of(row: Row) -> Entry:
    """Return the entry of a row."""
    return Entry(
        id=row.id,
        type=row.type,
        category=row.category,
        data=msgspec.json.decode(row.data),
        version=row.version,
        embedding_status=row.embedding_status,
        embedding_error=row.embedding_error,
        embedding_attempts=row.embedding_attempts,
        created_at=_instant(row.created_at),
        updated_at=_instant(row.updated_at),
        number=row.number,
    )


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def _instant(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def _checked_id(entry_id: str) -> str:
    if not 1 <= len(entry_id) <= _LARGEST_ID or not entry_id.isprintable() or " " in entry_id:
        raise InvalidEntry(
            "entry_id", f"must have 1 to {_LARGEST_ID} printable characters and no spaces"
        )
    return entry_id
