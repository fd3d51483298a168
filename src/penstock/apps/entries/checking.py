"""Compares the vectors with the rows, page by page, and repairs what differs."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock import PenstockError, run_sync
from penstock.apps.entries import rows
from penstock.apps.entries.entries import Entries
from penstock.apps.entries.shelves import Busy, Shelf

_log = logging.getLogger(__name__)

PAGE = 1_000
_LOOK_AGAIN = 60.0


class Checked(NamedTuple):
    """What a check found: vectors that had no row, and rows that had no vector of theirs."""

    forgotten: int = 0
    requeued: int = 0


class Checker:
    """Brings the shelf in use and the rows together."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._penstock = entries.penstock

    async def check(self) -> Checked | None:
        """Compare all of them, while others write; None if another process does it already."""
        shelf = await self._entries.shelf()

        def work() -> Checked:
            with self._entries.shelves.checking():
                return self._compare(shelf)

        try:
            checked = await asyncio.to_thread(work)
        except Busy:
            return None
        if any(checked):
            text = "%d vectors had no row and were removed; %d rows are embedded again"
            _log.warning(text, *checked)
        return checked

    async def follow(self) -> None:
        """Take vectors out of the index whose rows have failed, soon after they have, for ever.

        Whoever embeds a row takes its vector out if that fails. But a job may also end by other
        hands, when it is cancelled or has killed its workers: the row has failed then, and may
        have the vector of its former text, or one that was written at that moment.
        """
        seen = 0
        while True:
            try:
                while await asyncio.to_thread(self.forget_failed):
                    pass
                seen = await self._penstock.wait(seen, _LOOK_AGAIN)
            except PenstockError as error:
                _log.warning("rows that have failed could not be read, trying again: %s", error)
            await asyncio.sleep(self._entries.settings.poll_interval)

    def forget_failed(self) -> bool:
        """Do so with some of them; false if there are none."""
        read, entries = self._penstock.read, self._entries
        if not run_sync(read(lambda tx: rows.failed(tx, 1))):
            return False
        with entries.shelves.writing():
            ids = run_sync(read(lambda tx: rows.failed(tx, PAGE)))
            known, embedder = run_sync(
                read(lambda tx: (rows.digests(tx, ids), entries.embedder(tx)))
            )
            shelf = entries.shelves.of(embedder)
            _forget(shelf, known, shelf.index.metadata(ids))
            run_sync(self._penstock.transact(lambda tx: rows.looked_at(tx, ids)))
        return True

    def _compare(self, shelf: Shelf) -> Checked:
        forgotten = requeued = 0
        for page in differing(row_items(self._entries), index_items(shelf)):
            gone, lost = self._repair(shelf, page)
            forgotten, requeued = forgotten + gone, requeued + lost
        return Checked(forgotten, requeued)

    def _repair(self, shelf: Shelf, ids: Sequence[str]) -> tuple[int, int]:
        """Look again while nobody writes: what differs then, differs."""
        with self._entries.shelves.writing():
            known = run_sync(self._penstock.read(lambda tx: rows.digests(tx, ids)))
            items = shelf.index.metadata(ids)
            gone = _forget(shelf, known, items)
            lost = [
                one
                for one, (digest, status) in known.items()
                if status == "embedded" and _digest(items.get(one)) != digest
            ]
        requeued = run_sync(self._entries.requeue(lost, status="embedded")) if lost else 0
        return gone, requeued


def _forget(shelf: Shelf, known: Mapping[str, tuple[str, str]], items: Iterable[str]) -> int:
    """Remove vectors whose rows are gone or have failed; how many."""
    gone = [one for one in items if known.get(one, ("", "failed"))[1] == "failed"]
    if gone:
        shelf.index.delete(gone)
    return len(gone)


def differing(
    known: Iterator[tuple[str, str]], items: Iterator[tuple[str, str]]
) -> Iterator[list[str]]:
    """The ids that are on one side only, or with another digest; both sides are in order."""
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


def row_items(entries: Entries) -> Iterator[tuple[str, str]]:
    """The rows that are embedded, by id, with their digests."""
    after = ""
    while page := run_sync(
        entries.penstock.read(lambda tx: rows.embedded_after(tx, after, PAGE))  # noqa: B023 - at once
    ):
        yield from page
        after = page[-1][0]


def index_items(shelf: Shelf) -> Iterator[tuple[str, str]]:
    """The items of the index, by id, with their digests."""
    after = ""
    while page := shelf.index.metadata(after=after, limit=PAGE):
        yield from ((one, _digest(metadata)) for one, metadata in page.items())
        after = max(page)


def _digest(metadata: Mapping[str, Any] | None) -> str:
    return "" if metadata is None else str(metadata.get("digest", ""))
