import asyncio
import time
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager

from penstock.apps.notebooks.files import Facts, Tree
from penstock.apps.notebooks.paths import is_within
from penstock.apps.notebooks.reconciling import Found, Happened, Known, Reconciled, reconcile
from penstock.apps.notebooks.watching import Watcher

DEADLINE = 30


class Shelf:
    """What is known of files, as the tables of a store have it."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.files: dict[str, Known] = {}
        self._last = 0

    def below(self, paths: Collection[str]) -> Iterable[Known]:
        return [
            one
            for one in self.files.values()
            if any(not path or is_within(one.path, path) for path in paths)
        ]

    def with_hashes(self, hashes: Collection[str]) -> Iterable[Known]:
        return [one for one in self.files.values() if one.hash in hashes]

    def apply(self, found: Iterable[Found]) -> None:
        """Know what was found: those that go first, as they may make room for others."""
        told = list(found)
        for one in told:
            if one.file is not None and one.what in {Happened.DELETED, Happened.MOVED}:
                del self.files[one.file.path]
        for one in told:
            if one.facts is not None:
                self.put(one.path, one.facts, one.file)

    def put(self, path: str, facts: Facts, file: Known | None = None) -> None:
        self._last += 1
        number = self._last if file is None else file.id
        self.files[path] = Known(number, path, *facts, at=time.time())

    def look(self, *paths: str, patient: bool = False) -> Reconciled:
        """What others have done, which is known then."""
        result = reconcile(self.tree, self, paths or ("",), patient=patient)
        self.apply(result.found)
        return result

    def told(self, *paths: str) -> list[tuple[str, str]]:
        return sorted((one.what.value, one.path) for one in self.look(*paths).found)

    def hashes(self) -> dict[str, str]:
        return {path: one.hash for path, one in self.files.items()}

    def ids(self) -> dict[str, int]:
        return {path: one.id for path, one in self.files.items()}


class Watching:
    """A watcher at work, and what it has told."""

    def __init__(self, shelf: Shelf, *, is_slow: bool = False) -> None:
        self.shelf = shelf
        self.told: list[Found] = []
        self.changed = asyncio.Event()
        self.is_slow = is_slow
        self.watcher = Watcher(shelf.tree, shelf, self._handle)

    async def _handle(self, found: list[Found]) -> None:
        self.told += found
        if not self.is_slow:
            self.shelf.apply(found)
        self.changed.set()

    async def until(self, is_so: object) -> None:
        """Wait until something is the case; it is looked at whenever something was told."""
        assert callable(is_so)
        async with asyncio.timeout(DEADLINE):
            while not is_so():
                await self.changed.wait()
                self.changed.clear()

    async def until_known(self, path: str, content: str) -> None:
        import hashlib

        digest = hashlib.sha256(content.encode()).hexdigest()
        await self.until(lambda: self.shelf.hashes().get(path) == digest)


@asynccontextmanager
async def watching(shelf: Shelf, *, is_slow: bool = False) -> AsyncIterator[Watching]:
    made = Watching(shelf, is_slow=is_slow)
    task = asyncio.create_task(made.watcher.run())
    try:
        async with asyncio.timeout(DEADLINE):
            while made.watcher.looks < 2:  # the second is when the system tells of changes
                assert not task.done()
                await asyncio.wait([task], timeout=0.02)
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
