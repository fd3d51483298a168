"""Rebuilds the index with another embedder, while searches go on with the one in use.

The new shelf is filled beside the old one, which stays up to date meanwhile. It takes several
passes: each embeds what the shelf has not, or has of another text. When one finds little to do,
the queue is held, a last pass is made while nobody writes, and a row in the store says which
shelf is in use from then on. Whatever is killed before leaves the old one in use, after it the
new one; a rebuild that is begun again keeps what is there.
"""

import asyncio
from typing import NamedTuple

from penstock import run_sync
from penstock.apps.entries import rows
from penstock.apps.entries.checking import differing, index_items, row_items
from penstock.apps.entries.embedding import item_of, vectorise
from penstock.apps.entries.entries import EMBEDDER, Entries
from penstock.apps.entries.holding import held
from penstock.apps.entries.importing import Progress
from penstock.apps.entries.shelves import Shelf

_LITTLE = 1_000
"""So many rows may be left for the pass during which the queue is held."""
_PASSES = 20


class Rebuilt(NamedTuple):
    """What a rebuild came to."""

    embedder: str
    embedded: int
    removed: int
    requeued: int


async def rebuild(
    entries: Entries, configuration: str, *, progress: Progress = lambda *_: None
) -> Rebuilt:
    """Embed all entries with another embedder, and use it from then on.

    Raises `ConfigurationError` for an embedder that there is not.
    """
    rebuilding = _Rebuilding(entries, configuration, progress)
    await asyncio.to_thread(lambda: rebuilding.shelf.index)
    for _ in range(_PASSES):
        if await asyncio.to_thread(rebuilding.catch_up) <= _LITTLE:
            break
    async with held(entries.penstock):
        progress(rebuilding.embedded, None, "switching")
        await asyncio.to_thread(rebuilding.switch)
        failed = await entries.requeue(sorted(rebuilding.failed), status="embedded")
    return Rebuilt(configuration, rebuilding.embedded, rebuilding.removed, failed)


class _Rebuilding:
    def __init__(self, entries: Entries, configuration: str, progress: Progress) -> None:
        self._entries = entries
        self._penstock = entries.penstock
        self._progress = progress
        self.shelf: Shelf = entries.shelves.of(configuration)
        self.embedded = 0
        self.removed = 0
        self.failed: set[str] = set()
        """Rows that this embedder cannot embed: they fail by themselves when it is in use."""

    def catch_up(self) -> int:
        """One pass; how many rows and vectors differed."""
        found = 0
        for page in differing(row_items(self._entries), index_items(self.shelf)):
            ids = [one for one in page if one not in self.failed]
            self._bring(ids)
            found += len(ids)
            self._progress(self.embedded, None, "embedding")
        return found

    def switch(self) -> None:
        """Make the shelf equal to the rows while nobody writes to any, and use it."""
        with self._entries.shelves.writing():
            while self.catch_up():
                pass
            configuration = self.shelf.configuration
            run_sync(self._penstock.transact(lambda tx: rows.keep(tx, EMBEDDER, configuration)))

    def _bring(self, ids: list[str]) -> None:
        """Bring what the shelf has of these ids to what the rows say."""
        found = {
            row.id: row for row in run_sync(self._penstock.read(lambda tx: rows.embedded(tx, ids)))
        }
        vectors = vectorise(self.shelf, list(found.values()))
        self.failed.update(one for one, it in vectors.items() if isinstance(it, Exception))
        found = {one: row for one, row in found.items() if one not in self.failed}
        gone = [one for one in ids if one not in found]
        if gone:
            self.removed += self.shelf.index.delete(gone)
        if found:
            self.shelf.index.upsert(item_of(row, vectors[row.id]) for row in found.values())
        self.embedded += len(found)
