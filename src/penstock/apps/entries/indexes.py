"""The vector indexes of entries: one for each embedder, of which one is in use.

Every writer holds one lock for all indexes and reads the rows while it holds it. So the last write
agrees with the rows, however slow another process was in the meantime.
"""

import hashlib
import re
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.apps.kit import Indexes, LazyEmbedder, OpenEmbedder, Packages, locked

if TYPE_CHECKING:
    from penstock.vectors import Embedder, Index

PACKAGES = Packages("entries", ("faiss", "numpy", "tokenizers", "wordllama"))
"""What embedding and search need."""


class VectorIndex:
    """The embedder of a configuration and the index of its vectors, both opened on first use."""

    def __init__(
        self, folder: Path, configuration: str, open_embedder: OpenEmbedder | None
    ) -> None:
        self.folder = folder
        self.configuration = configuration
        self._indexes = Indexes(LazyEmbedder(configuration, open_embedder))

    @property
    def embedder(self) -> "Embedder":
        """Turns text into vectors."""
        return self._indexes.embedder

    @property
    def index(self) -> "Index":
        """Stores the vectors."""
        return self._indexes.of(self.folder)

    def close(self) -> None:
        """Close both."""
        self._indexes.close()


class VectorIndexes:
    """All indexes in a folder; safe to use from several threads."""

    def __init__(self, folder: Path, open_embedder: OpenEmbedder | None = None) -> None:
        self.folder = folder
        self._open_embedder = open_embedder
        self._lock = threading.Lock()
        self._opened: dict[str, VectorIndex] = {}

    def get(self, configuration: str) -> VectorIndex:
        """Return the index of an embedder; raise `ConfigurationError` if packages are missing."""
        if self._open_embedder is None:
            PACKAGES.check()
        with self._lock:
            if configuration not in self._opened:
                folder = self.folder / folder_name(configuration)
                self._opened[configuration] = VectorIndex(
                    folder, configuration, self._open_embedder
                )
            return self._opened[configuration]

    def write_lock(self) -> AbstractContextManager[None]:
        """Hold the lock for writes to any index inside the block; wait for it if necessary."""
        return locked(self.folder / "writing")

    def check_lock(self) -> AbstractContextManager[None]:
        """Hold the lock for comparing index and rows; raise `Busy` if another process does."""
        return locked(self.folder / "checking", wait=False)

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            opened = list(self._opened.values())
            self._opened.clear()
        for one in opened:
            one.close()


def folder_name(configuration: str) -> str:
    """Return the folder name of an embedder: readable, and unique to its configuration."""
    readable = re.sub(r"[^a-z0-9]+", "-", configuration.lower()).strip("-")[:40]
    return f"{readable}-{hashlib.blake2b(configuration.encode(), digest_size=4).hexdigest()}"
