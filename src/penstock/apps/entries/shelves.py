"""Where the vectors of entries are: one shelf for each embedder, of which one is in use.

Whoever writes to a shelf holds the lock of all of them, and looks at the rows while it does. So
what is written last is what the rows say, whichever process was slow meanwhile.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import ConfigurationError

if TYPE_CHECKING:
    from penstock.vectors import Embedder, Index

NEEDED = ("faiss", "numpy", "tokenizers", "wordllama")
INSTALL = "pip install 'penstock[entries]'"

OpenEmbedder = Callable[[str], "Embedder"]


class Busy(Exception):
    """Another process has the lock."""


def missing_packages() -> list[str]:
    """What has to be installed before anything can be embedded or searched."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


class Shelf:
    """The embedder of a configuration, and the index with its vectors; opened when asked for."""

    def __init__(self, folder: Path, configuration: str, opening: OpenEmbedder) -> None:
        self.folder = folder
        self.configuration = configuration
        self._opening = opening
        self._lock = threading.RLock()
        self._embedder: Embedder | None = None
        self._index: Index | None = None

    @property
    def embedder(self) -> "Embedder":
        """What turns text into vectors."""
        with self._lock:
            if self._embedder is None:
                self._embedder = self._opening(self.configuration)
            return self._embedder

    @property
    def index(self) -> "Index":
        """Where the vectors are."""
        from penstock.vectors import open_index

        with self._lock:
            if self._index is None:
                embedder = self.embedder
                self._index = open_index(
                    self.folder, embedder.dimensions, fingerprint=embedder.name
                )
            return self._index

    def close(self) -> None:
        """Let go of both."""
        with self._lock:
            index, self._index = self._index, None
            embedder, self._embedder = self._embedder, None
        if index is not None:
            index.close()
        if embedder is not None:
            embedder.close()


class Shelves:
    """All shelves in a folder; for any number of threads."""

    def __init__(self, folder: Path, opening: OpenEmbedder | None = None) -> None:
        self.folder = folder
        self._opening = opening or _open_embedder
        self._lock = threading.Lock()
        self._open: dict[str, Shelf] = {}

    def of(self, configuration: str) -> Shelf:
        """The shelf of an embedder."""
        with self._lock:
            if configuration not in self._open:
                folder = self.folder / shelf_name(configuration)
                self._open[configuration] = Shelf(folder, configuration, self._opening)
            return self._open[configuration]

    def writing(self) -> AbstractContextManager[None]:
        """Hold the lock of all shelves, inside the block; waits for whoever has it."""
        return locked(self.folder / "writing")

    def checking(self) -> AbstractContextManager[None]:
        """Be the one who compares shelves and rows; raises `Busy` if another one does."""
        return locked(self.folder / "checking", wait=False)

    def close(self) -> None:
        """Let go of all of them."""
        with self._lock:
            shelves = list(self._open.values())
            self._open.clear()
        for shelf in shelves:
            shelf.close()


def shelf_name(configuration: str) -> str:
    """The name of a shelf's folder: readable, and another one for each configuration."""
    readable = re.sub(r"[^a-z0-9]+", "-", configuration.lower()).strip("-")[:40]
    return f"{readable}-{hashlib.blake2b(configuration.encode(), digest_size=4).hexdigest()}"


@contextmanager
def locked(file: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock on a file, inside the block; it ends with the process. Raises `Busy`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(str(file)) from None
        yield
    finally:
        os.close(handle)


def _open_embedder(configuration: str) -> "Embedder":
    if missing := missing_packages():
        raise ConfigurationError(f"entries need {', '.join(missing)}: {INSTALL}")
    from penstock.vectors import open_embedder

    return open_embedder(configuration)
