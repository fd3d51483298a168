"""Keeps the vector index equal to the rows, and rebuilds it with another embedder.

A rebuild fills the new index next to the one in use, which serves searches and stays up to date.
It makes several passes; each embeds the rows that the new index lacks or has with another text.
When a pass finds little to do, the rebuild pauses the queue, makes a last pass while nobody writes,
and stores which index is in use. A process killed before that leaves the old index in use, one
killed after it the new index. A rebuild that starts again keeps what is already embedded.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock import PenstockError, run_sync
from penstock.apps.entries import rows
from penstock.apps.entries.entries import EMBEDDER, Entries, Progress
from penstock.apps.entries.indexes import VectorIndex
from penstock.apps.entries.queue import paused_queue
from penstock.apps.kit import Busy

_log = logging.getLogger(__name__)

PAGE = 1_000
_FALLBACK_INTERVAL = 60.0
_LITTLE = 1_000
"""How many differences may be left for the pass that runs while the queue is paused."""
_PASSES = 20


# Repair


class Repaired(NamedTuple):
    """What a repair did: vectors removed that had no row, rows requeued that had no vector."""

    removed: int = 0
    requeued: int = 0


class Reconciler:
    """Makes the index in use equal to the rows."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._penstock = entries.penstock

    async def repair(self) -> Repaired | None:
        """Compare index and rows while others write; None if another process is doing so."""
        current = await self._entries.current_index()

        def work() -> Repaired:
            with self._entries.indexes.check_lock():
                return self._compare(current)

        try:
            repaired = await asyncio.to_thread(work)
        except Busy:
            return None
        if any(repaired):
            text = "removed %d vectors without a row; %d rows are embedded again"
            _log.warning(text, *repaired)
        return repaired

    async def remove_failed_forever(self) -> None:
        """Remove the vectors of failed rows soon after they fail, until cancelled.

        The process that embeds a row removes its vector if that fails. But a job can also be
        cancelled, or fail after it has killed its workers. The row has then failed, and may still
        have the vector of its former text, or one that was written at that moment.
        """
        seen = 0
        while True:
            try:
                while await asyncio.to_thread(self.remove_failed):
                    pass
                seen = await self._penstock.wait(seen, _FALLBACK_INTERVAL)
            except PenstockError as error:
                _log.warning("cannot read which rows have failed, retrying: %s", error)
            await asyncio.sleep(self._entries.settings.poll_interval)

    def remove_failed(self) -> bool:
        """Remove the vectors of one page of failed rows; return False if there are none."""
        read, entries = self._penstock.tables.read, self._entries
        if not run_sync(read(lambda tx: rows.failed(tx, 1))):
            return False
        with entries.indexes.write_lock():
            ids = run_sync(read(lambda tx: rows.failed(tx, PAGE)))
            known, embedder = run_sync(
                read(lambda tx: (rows.digests(tx, ids), entries.embedder(tx)))
            )
            current = entries.indexes.get(embedder)
            _remove_stale(current, known, current.index.metadata(ids))
            run_sync(self._penstock.transaction(lambda tx: rows.forget_failed(tx, ids)))
        return True

    def _compare(self, current: VectorIndex) -> Repaired:
        removed = requeued = 0
        for page in differing(row_digests(self._entries), index_digests(current)):
            gone, lost = self._repair(current, page)
            removed, requeued = removed + gone, requeued + lost
        return Repaired(removed, requeued)

    def _repair(self, current: VectorIndex, ids: Sequence[str]) -> tuple[int, int]:
        """Compare again under the lock, since rows and index were read at different moments."""
        with self._entries.indexes.write_lock():
            known = run_sync(self._penstock.tables.read(lambda tx: rows.digests(tx, ids)))
            items = current.index.metadata(ids)
            gone = _remove_stale(current, known, items)
            lost = [
                one
                for one, (digest, status) in known.items()
                if status == "embedded" and _digest(items.get(one)) != digest
            ]
        requeued = run_sync(self._entries.requeue(lost, status="embedded")) if lost else 0
        return gone, requeued


def _remove_stale(
    current: VectorIndex, known: Mapping[str, tuple[str, str]], items: Iterable[str]
) -> int:
    """Remove vectors whose rows are gone or have failed; return how many."""
    gone = [one for one in items if known.get(one, ("", "failed"))[1] == "failed"]
    if gone:
        current.index.delete(gone)
    return len(gone)


# Comparison


def differing(
    known: Iterator[tuple[str, str]], items: Iterator[tuple[str, str]]
) -> Iterator[list[str]]:
    """Yield, in pages, the ids that only one side has, or both with different digests.

    Both sides must be ordered by id.
    """
    found: list[str] = []
    end = ("\U0010ffff" * 300, "")
    row, item = next(known, end), next(items, end)
    while row is not end or item is not end:
        if row != item:
            found.append(min(row[0], item[0]))
        step = min(row[0], item[0])
        row = next(known, end) if row[0] == step else row
        item = next(items, end) if item[0] == step else item
        if len(found) >= PAGE:
            yield found
            found = []
    if found:
        yield found


def row_digests(entries: Entries) -> Iterator[tuple[str, str]]:
    """Yield id and digest of the rows that are embedded, ordered by id."""
    after = ""
    while page := run_sync(
        entries.penstock.tables.read(lambda tx: rows.embedded_after(tx, after, PAGE))  # noqa: B023 - at once
    ):
        yield from page
        after = page[-1][0]


def index_digests(current: VectorIndex) -> Iterator[tuple[str, str]]:
    """Yield id and digest of the vectors, ordered by id."""
    after = ""
    while page := current.index.metadata(after=after, limit=PAGE):
        yield from ((one, _digest(metadata)) for one, metadata in page.items())
        after = max(page)


def _digest(metadata: Mapping[str, Any] | None) -> str:
    return "" if metadata is None else str(metadata.get("digest", ""))


# Rebuild


class Rebuilt(NamedTuple):
    """The result of a rebuild; `requeued` rows were refused by the new embedder."""

    embedder: str
    embedded: int
    removed: int
    requeued: int


async def rebuild(
    entries: Entries, configuration: str, *, progress: Progress = lambda *_: None
) -> Rebuilt:
    """Embed all entries with another embedder, then use it.

    Raises `ConfigurationError` for an unknown embedder.
    """
    task = _Rebuild(entries, configuration, progress)
    await asyncio.to_thread(lambda: task.target.index)
    for _ in range(_PASSES):
        if await asyncio.to_thread(task.catch_up) <= _LITTLE:
            break
    async with paused_queue(entries.penstock):
        progress(task.embedded, None, "switching")
        await asyncio.to_thread(task.switch)
        failed = await entries.requeue(sorted(task.failed), status="embedded")
    return Rebuilt(configuration, task.embedded, task.removed, failed)


class _Rebuild:
    def __init__(self, entries: Entries, configuration: str, progress: Progress) -> None:
        self._entries = entries
        self._penstock = entries.penstock
        self._progress = progress
        self.target: VectorIndex = entries.indexes.get(configuration)
        self.embedded = 0
        self.removed = 0
        self.failed: set[str] = set()
        """Rows that the new embedder refuses; they fail by themselves once it is in use."""

    def catch_up(self) -> int:
        """Make one pass; return how many rows and vectors differed."""
        found = 0
        for page in differing(row_digests(self._entries), index_digests(self.target)):
            ids = [one for one in page if one not in self.failed]
            self._update(ids)
            found += len(ids)
            self._progress(self.embedded, None, "embedding")
        return found

    def switch(self) -> None:
        """Make the target equal to the rows while nobody writes, and use it."""
        with self._entries.indexes.write_lock():
            while self.catch_up():
                pass
            name = self.target.configuration
            run_sync(self._penstock.transaction(lambda tx: rows.set_value(tx, EMBEDDER, name)))

    def _update(self, ids: list[str]) -> None:
        """Make the target agree with the rows of these ids."""
        from penstock.apps.entries.embedding import embed_rows, item_of  # needs the vector packages

        found = {
            row.id: row
            for row in run_sync(self._penstock.tables.read(lambda tx: rows.embedded(tx, ids)))
        }
        vectors = embed_rows(self.target, list(found.values()))
        self.failed.update(one for one, it in vectors.items() if isinstance(it, Exception))
        found = {one: row for one, row in found.items() if one not in self.failed}
        gone = [one for one in ids if one not in found]
        if gone:
            self.removed += self.target.index.delete(gone)
        if found:
            self.target.index.upsert(item_of(row, vectors[row.id]) for row in found.values())
        self.embedded += len(found)
