"""Replicas of an index's vectors: they follow the catalogue and find nearest neighbours."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import ConfigurationError
from penstock.vectors.catalogue import Catalogue, Position, Row
from penstock.vectors.embedders import Vectors

Numbers = NDArray[np.int64]
FEW = 1_000
"""Up to this many item numbers are sent with a query; with more, results are filtered."""


class VectorStore(Protocol):
    """Holds vectors by item number and finds the nearest: FAISS, Chroma or Qdrant.

    A vector store belongs to one thread. After a crash, `put` and `drop` may be repeated.
    """

    def put(self, rows: Sequence[Row]) -> None:
        """Add vectors with new numbers."""
        ...

    def drop(self, numbers: Sequence[int]) -> None:
        """Remove vectors; ignore unknown numbers."""
        ...

    def nearest(self, vector: Vectors, k: int, among: Numbers | None) -> list[tuple[int, float]]:
        """Return up to k numbers and cosines, best first; consider only `among`, in order."""
        ...

    def clear(self) -> None:
        """Remove all vectors."""
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


class Replica(Protocol):
    """Vectors that know up to which position they have followed a catalogue."""

    def after_write(self) -> None:
        """React to a write of this process to the catalogue."""
        ...

    def catch_up(self) -> None:
        """Follow the catalogue to its current position."""
        ...

    def nearest(self, vector: Vectors, k: int, among: Numbers | None) -> list[tuple[int, float]]:
        """Search as `VectorStore.nearest` does."""
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


def open_replica(
    vectors: str, catalogue: Catalogue, folder: Path, name: str, dimensions: int
) -> Replica:
    """Open the replica that a configuration names; raise `ConfigurationError`."""
    kind, _, url = vectors.partition(":")
    if vectors == "faiss":
        from penstock.vectors.faiss import FaissReplica

        return FaissReplica(catalogue, folder, dimensions)
    if kind == "chroma":
        from penstock.vectors.chroma import Chroma

        return StoredReplica(catalogue, Chroma(folder / "chroma", url, name))
    if kind == "qdrant":
        from penstock.vectors.qdrant import Qdrant

        return StoredReplica(catalogue, Qdrant(folder / "qdrant", url, name, dimensions))
    raise ConfigurationError(
        f"{vectors!r} is not a vector store; choose faiss, chroma, qdrant, chroma:URL or qdrant:URL"
    )


def advance(catalogue: Catalogue, vectors: VectorStore, known: Position) -> Position:
    """Apply the changes since `known` to the vectors; return the new position."""
    for numbers in catalogue.removed_since(known.removed):
        vectors.drop(numbers)
    for rows in catalogue.added_since(known.added):
        vectors.put(rows)
    return catalogue.position()


def nearest_among(
    query: Callable[[int], list[tuple[int, float]]], k: int, among: Numbers
) -> list[tuple[int, float]]:
    """Return the best k of `among`, given a query for the best n of all.

    Queries for more and more, until enough are found or there are no more.
    """
    wanted, allowed = k, set(among.tolist())
    while True:
        wanted *= 4
        found = query(wanted)
        kept = [(number, score) for number, score in found if number in allowed]
        if len(kept) >= min(k, len(allowed)) or len(found) < wanted:
            return kept[:k]


class StoredReplica:
    """Vectors that outlive the process; the catalogue records how far they have followed it.

    They follow while other writers of the catalogue are locked out, so that no two processes do
    so at once. After a crash, the interrupted part is repeated.
    """

    def __init__(self, catalogue: Catalogue, vectors: VectorStore) -> None:
        self._catalogue = catalogue
        self._vectors = vectors

    def after_write(self) -> None:
        """Follow at once, so that other programs see the write too."""
        self.catch_up()

    def catch_up(self) -> None:
        """Follow the catalogue to its current position."""
        with self._catalogue.reading():
            if self._followed() == self._catalogue.position():
                return
        with self._catalogue.writing():
            known = self._followed()
            if known.removed < self._catalogue.fact("floor", 0):
                self._vectors.clear()
                known = Position()
            known = advance(self._catalogue, self._vectors, known)
            self._catalogue.keep("followed", [known.added, known.removed])
            self._catalogue.forget_removals(known.removed)

    def nearest(self, vector: Vectors, k: int, among: Numbers | None) -> list[tuple[int, float]]:
        """Query the vector store."""
        return self._vectors.nearest(vector, k, among)

    def close(self) -> None:
        """Close files and connections."""
        self._vectors.close()

    def _followed(self) -> Position:
        return Position(*self._catalogue.fact("followed", [0, 0]))
