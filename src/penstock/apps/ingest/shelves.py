"""Where what was ingested is kept: a collection for each tenant, collection and branch."""

import hashlib
import os
import shutil
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from penstock.apps.ingest.settings import Settings

if TYPE_CHECKING:
    from penstock.vectors import Collection, Embedder

_MOST_OPEN = 16
_LONGEST = 150
_CATALOGUE = "catalogue.db"
_GONE = ".gone-"


class Place(NamedTuple):
    """Whose collection, which, and of which branch."""

    tenant_id: str
    collection: str
    branch: str


class _Open:
    """An open collection, and how many use it."""

    def __init__(self, collection: "Collection", inode: int) -> None:
        self.collection = collection
        self.inode = inode
        self.users = 0


class Shelves:
    """The collections of one server, opened when they are needed; for any number of threads.

    Other processes may have the same ones open. One that another process has removed is opened
    anew: files are compared, not only their names.
    """

    def __init__(self, settings: Settings, data: Path) -> None:
        self.root = data / "ingest"
        self._settings = settings
        self._lock = threading.Lock()
        self._embedder: Embedder | None = None
        self._open: OrderedDict[Place, _Open] = OrderedDict()

    @property
    def embedder(self) -> "Embedder":
        """What turns text into vectors; opened once."""
        with self._lock:
            return self._embedder_held()

    @contextmanager
    def using(self, place: Place) -> Iterator["Collection"]:
        """A collection, which is made if it is not there; inside the block it stays open."""
        one = self._taken(place)
        try:
            yield one.collection
        finally:
            with self._lock:
                one.users -= 1

    def has(self, place: Place) -> bool:
        """Whether anything was ever ingested there."""
        return (self._folder(place) / _CATALOGUE).exists()

    def remove_tenant(self, tenant_id: str) -> int:
        """Remove all collections of a tenant; how many there were.

        They are put aside in one step, so that nobody opens the half of one.
        """
        folder = self.root / _file_name(tenant_id)
        aside = self.root / f"{_GONE}{uuid.uuid4().hex}"
        with self._lock:
            for place in [one for one in self._open if one.tenant_id == tenant_id]:
                self._open.pop(place).collection.close()
            try:
                folder.rename(aside)
            except FileNotFoundError:
                return 0
        found = len(list(aside.glob(f"*/*/{_CATALOGUE}")))
        shutil.rmtree(aside, ignore_errors=True)
        return found

    def tidy(self) -> None:
        """Remove what a kill has left of a removal."""
        for left in self.root.glob(f"{_GONE}*"):
            shutil.rmtree(left, ignore_errors=True)

    def close(self) -> None:
        """Let go of all collections."""
        with self._lock:
            for one in self._open.values():
                one.collection.close()
            self._open.clear()
            if self._embedder is not None:
                self._embedder.close()
                self._embedder = None

    def _taken(self, place: Place) -> _Open:
        from penstock.vectors import Collection

        with self._lock:
            one = self._open.get(place)
            if one is not None and _inode(self._folder(place)) != one.inode:
                self._open.pop(place).collection.close()
                one = None
            if one is None:
                folder = self._folder(place)
                vectors = self._settings.vectors
                found = Collection.open(folder, self._embedder_held(), vectors=vectors)
                one = self._open[place] = _Open(found, _inode(folder))
            self._open.move_to_end(place)
            one.users += 1
            self._close_idle()
            return one

    def _close_idle(self) -> None:
        for place in [place for place, one in self._open.items() if not one.users]:
            if len(self._open) <= _MOST_OPEN:
                return
            self._open.pop(place).collection.close()

    def _embedder_held(self) -> "Embedder":
        if self._embedder is None:
            from penstock.vectors import open_embedder

            self._embedder = open_embedder(self._settings.embedder)
        return self._embedder

    def _folder(self, place: Place) -> Path:
        return self.root.joinpath(*map(_file_name, place))


def _inode(folder: Path) -> int:
    try:
        return os.stat(folder / _CATALOGUE).st_ino  # noqa: PTH116 - asked for with every batch
    except OSError:
        return 0


def _file_name(name: str) -> str:
    """A name as that of a folder: the same on every file system, and never a way out."""
    quoted = quote(name, safe=" ").replace(".", "%2E")
    if len(quoted) <= _LONGEST:
        return quoted
    return f"{quoted[:100]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"
