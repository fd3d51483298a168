"""Entries: rows whose embeddings follow in the background; the object that programs hold."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from penstock import ConfigurationError, NewJob, Penstock, RetryPolicy, Transaction
from penstock.apps.entries import rows
from penstock.apps.entries.entrytypes import EntryType, EntryTypes, InvalidEntry, digest_of
from penstock.apps.entries.rows import QUEUE, Chosen, Content, Row
from penstock.apps.entries.settings import Settings
from penstock.apps.entries.shelves import OpenEmbedder, Shelf, Shelves
from penstock.apps.entries.tables import MIRROR, TABLES

T = TypeVar("T")

EMBED = "entries.embed"
EMBEDDER = "embedder"
"""The fact that names the embedder in use."""
TOGETHER = 100
"""Rows that one job embeds where many are queued at once."""
_DEATHS = 100
"""How often a row is taken up again whose process was killed: by whom, is found out meanwhile."""
_TRIES = 100
_LARGEST_ID = 200


class EntryNotFound(Exception):
    """There is no entry with this id."""


class EntryExists(Exception):
    """An entry has this id already."""


class EntryChanged(Exception):
    """The entry is at another version than the caller knows."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as it was at one moment.

    `version` grows with every change. `embedding_status` is `pending`, `processing`, `embedded` or
    `failed`: then `embedding_error` says why.
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


class Found(msgspec.Struct, frozen=True):
    """An entry that was searched for, and how near it is: 1 is the same."""

    entry: Entry
    score: float


class Entries:
    """Entries in the store of a Penstock, their vectors in a folder.

    `prepare` makes the tables, before anything else. `opening` opens embedders by their
    configurations, in place of `penstock.vectors.open_embedder`.
    """

    def __init__(
        self,
        penstock: Penstock,
        folder: str | Path,
        *,
        settings: Settings | None = None,
        types: Sequence[EntryType] = (),
        opening: OpenEmbedder | None = None,
    ) -> None:
        self.penstock = penstock
        self.settings = settings or Settings()
        known = self.settings.check()
        self.types = EntryTypes([*known, *types]) if types else known
        self.shelves = Shelves(Path(folder), opening)

    async def prepare(self) -> None:
        """Make the tables, or bring them up to date."""
        await self.penstock.tables("entries", TABLES)
        await self.penstock.mirror(MIRROR)
        if await self.penstock.read(lambda tx: rows.fact(tx, EMBEDDER)) is None:
            await self.penstock.transact(
                lambda tx: rows.keep_first(tx, EMBEDDER, self.settings.embedder)
            )

    def register(self) -> None:
        """Make the tasks known to the Penstock, so that a `Worker` with these queues runs them.

        A server does not: it has processes of its own for them.
        """
        from penstock.apps.entries import embedding, operations  # with what vectors need

        embedding.register(self)
        operations.register(self)

    def close(self) -> None:
        """Let go of embedders and indexes."""
        self.shelves.close()

    # Writing

    def content(
        self, name: str, category: str, data: Mapping[str, Any], entry_id: str | None = None
    ) -> Content:
        """An entry as a row; raises `InvalidEntry` for what its type does not allow."""
        kind = self.types.get(name)
        kind.check_category(category)
        encoded = kind.check(data)
        text = kind.text(data)
        made = f"{kind.name}-{uuid.uuid4().hex}" if entry_id is None else _checked_id(entry_id)
        digest = digest_of(kind.name, category, text)
        return Content(made, kind.name, category, digest, encoded, text)

    def job(self, ids: Sequence[str]) -> NewJob:
        """A job that embeds the rows of these ids that name it, and forgets those that are gone."""
        settings = self.settings
        return NewJob(
            task=EMBED,
            payload=msgspec.json.encode({"ids": ids}).decode(),
            queue=QUEUE,
            # What changes while it is embedded waits for that; many rows are fenced all the same.
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
        """Store an entry; its embedding follows.

        Raises `InvalidEntry`, and `EntryExists` if the id that is given is taken.
        """
        content = self.content(name, category, data, entry_id)

        def work(tx: Transaction) -> Entry:
            (job,) = tx.enqueue([self.job([content.id])])
            if not rows.add(tx, content, job.id, self._now()):
                raise EntryExists(f"there is an entry {content.id}: update it")
            return entry_of(rows.get(tx, [content.id])[content.id])

        return await self.penstock.transact(work)

    async def update(
        self,
        entry_id: str,
        updates: Mapping[str, Any],
        *,
        category: str | None = None,
        name: str | None = None,
        version: int | None = None,
    ) -> Entry:
        """Change fields of an entry; None removes one. It is embedded again.

        Raises `EntryNotFound`, `InvalidEntry`, and `EntryChanged` if it is not at this version.
        """
        wanted = None if name is None else self.types.get(name).name
        for _ in range(_TRIES):
            before = await self._row(entry_id, wanted)
            if version is not None and before.version != version:
                raise EntryChanged(
                    f"entry {entry_id} is at version {before.version}, not {version}"
                )
            data = self.types.get(before.type).updated(msgspec.json.decode(before.data), updates)
            content = self.content(before.type, category or before.category, data, entry_id)
            with suppress(_Overtaken):
                return await self.penstock.transact(
                    lambda tx: self._change(tx, before, content)  # noqa: B023 - awaited at once
                )
        raise EntryChanged(f"entry {entry_id} keeps changing; try again")

    def _change(self, tx: Transaction, before: Row, content: Content) -> Entry:
        """Raises `_Overtaken` if it has changed since it was looked at."""
        if (before.embedding_status, before.embedding_attempts) == ("pending", 0):
            done = rows.rewrite(tx, content, before.version, self._now())
        else:
            # The job first: workers lock a job and then its rows.
            (job,) = tx.enqueue([self.job([content.id])])
            done = rows.replace(tx, content, before.version, job.id, self._now())
        if not done:
            raise _Overtaken
        return entry_of(rows.get(tx, [content.id])[content.id])

    async def delete(self, ids: Sequence[str], *, name: str | None = None) -> list[str]:
        """Remove entries, and their vectors soon after; the ids of those that there were."""
        wanted = None if name is None else self.types.get(name).name

        def work(tx: Transaction) -> list[str]:
            tx.enqueue([self.job(list(ids))])
            removed = rows.remove(tx, ids, wanted)
            if not removed:
                raise EntryNotFound(f"there is no entry {', '.join(ids):.200}")
            return removed

        return await self.penstock.transact(work)

    # Reading

    async def read(self, ids: Sequence[str], *, name: str | None = None) -> list[Entry]:
        """Entries by their ids, in this order; unknown ones are left out."""
        wanted = None if name is None else self.types.get(name).name
        found = await self.penstock.read(lambda tx: rows.get(tx, ids))
        return [
            entry_of(found[one])
            for one in dict.fromkeys(ids)
            if one in found and wanted in (None, found[one].type)
        ]

    async def page(
        self, chosen: Chosen, *, after: int | None = None, limit: int = 100, newest: bool = True
    ) -> "list[Entry]":
        """The entries that fit, newest first unless asked otherwise, behind one's number."""
        found = await self.penstock.read(
            lambda tx: rows.page(tx, chosen, after, limit, newest=newest)
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
    ) -> "list[Found]":
        """The entries that are nearest to a text, best first; none that has failed."""
        from penstock.vectors import Where

        where = Where(
            types=() if name is None else (self.types.get(name).name,),
            paths=() if category is None else (category,),
        )
        shelf = await self.shelf()

        def find() -> dict[str, float]:
            vector = None if mode == "bm25" else shelf.embedder.embed([query])[0]
            hits = shelf.index.search(vector, query, k=limit, where=where, mode=mode)
            return {hit.id: hit.score for hit in hits}

        scores = await asyncio.to_thread(find)
        return [
            Found(entry, scores[entry.id])
            for entry in await self.read(list(scores))
            if entry.embedding_status != "failed"  # its vector is on its way out
        ]

    async def shelf(self) -> Shelf:
        """The shelf in use."""
        return self.shelves.of(await self.penstock.read(self.embedder))

    def embedder(self, tx: Any) -> str:
        """The configuration of the embedder in use."""
        return rows.fact(tx, EMBEDDER) or self.settings.embedder

    async def counts(self) -> dict[tuple[str, str], int]:
        """How many entries there are of each type and status; constant time."""
        return await self.penstock.read(rows.counts)

    # Embedding again

    async def requeue(self, ids: Sequence[str], *, status: str) -> int:
        """Have those of these rows embedded again that have this status; how many."""

        def work(tx: Transaction) -> int:
            (job,) = tx.enqueue([self.job(list(ids))])
            changed = rows.hand_over(tx, ids, job.id, status=status)
            if not changed:
                raise _Overtaken  # and no job
            return changed

        try:
            return await self.penstock.transact(work)
        except _Overtaken:
            return 0

    async def retry_failed(self) -> dict[str, int]:
        """Have all rows that failed embedded again; how many of each type."""
        return await self.requeue_all(Chosen(embedding_status="failed"))

    async def requeue_all(self, chosen: Chosen) -> dict[str, int]:
        """Have the rows that fit embedded again, which have a status; how many of each type."""
        if chosen.embedding_status is None:
            raise ConfigurationError("rows are embedded again by their status")
        counted: dict[str, int] = {}
        after = ""
        while True:
            start = after
            found = await self.penstock.read(
                lambda tx: rows.ids_after(tx, chosen, start, TOGETHER)  # noqa: B023 - awaited at once
            )
            if not found:
                return counted
            after = found[-1][0]
            for kind in dict.fromkeys(name for _, name in found):
                ids = [one for one, name in found if name == kind]
                n = await self.requeue(ids, status=chosen.embedding_status)
                counted[kind] = counted.get(kind, 0) + n

    async def _row(self, entry_id: str, name: str | None) -> Row:
        row = (await self.penstock.read(lambda tx: rows.get(tx, [entry_id]))).get(entry_id)
        if row is None or name not in (None, row.type):
            raise EntryNotFound(f"there is no entry {entry_id:.200}")
        return row

    def _now(self) -> int:
        return int(self.penstock.clock())


class _Overtaken(Exception):
    """Others have changed the row meanwhile: nothing of this transaction counts."""


def entry_of(row: Row) -> Entry:
    """A row as an entry."""
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
        raise InvalidEntry("entry_id", f"1 to {_LARGEST_ID} printable characters without spaces")
    return entry_id
