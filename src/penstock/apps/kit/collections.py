"""Embedders and vector indexes, opened on first use and shared by the threads of a process."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.vectors import Embedder, Index

OpenEmbedder = Callable[[str], "Embedder"]


class LazyEmbedder:
    """The embedder of a configuration; `opener` replaces `open_embedder`."""

    def __init__(self, configuration: str, opener: OpenEmbedder | None = None) -> None:
        self.configuration = configuration
        self._opener = opener or _open_embedder
        self._lock = threading.Lock()
        self._embedder: Embedder | None = None

    def get(self) -> "Embedder":
        """Return the embedder, opened by the first call."""
        with self._lock:
            if self._embedder is None:
                self._embedder = self._opener(self.configuration)
            return self._embedder

    def close(self) -> None:
        """Close the embedder if it is open; the next call opens it again."""
        with self._lock:
            embedder, self._embedder = self._embedder, None
        if embedder is not None:
            embedder.close()


class Indexes:
    """The vector indexes of one embedder, each in a folder of its own."""

    def __init__(self, embedder: LazyEmbedder, *, vectors: str = "faiss") -> None:
        self._embedder = embedder
        self._vectors = vectors
        self._lock = threading.Lock()
        self._open: dict[Path, Index] = {}

    @property
    def embedder(self) -> "Embedder":
        """The embedder that all of them share."""
        return self._embedder.get()

    def of(self, folder: Path) -> "Index":
        """Return the index in a folder, opened by the first call; created if it does not exist."""
        from penstock.vectors import open_index

        embedder = self.embedder
        with self._lock:
            if folder not in self._open:
                self._open[folder] = open_index(
                    folder,
                    embedder.dimensions,
                    fingerprint=embedder.name,
                    vectors=self._vectors,
                )
            return self._open[folder]

    def close(self) -> None:
        """Close the open indexes and the embedder; the next call opens them again."""
        with self._lock:
            indexes = list(self._open.values())
            self._open.clear()
        for index in indexes:
            index.close()
        self._embedder.close()


def _open_embedder(configuration: str) -> "Embedder":
    logging.getLogger("faiss").setLevel(logging.WARNING)  # it logs which of its builds it tries
    from penstock.vectors import open_embedder

    return open_embedder(configuration)
