"""Vectors in memory, searched exactly by FAISS and saved to a file now and then."""

import logging
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from penstock.vectors.catalogue import Catalogue, Position, Row
from penstock.vectors.embedders import Vectors
from penstock.vectors.replicas import Numbers, advance

WORTH_SAVING = 2_000
"""Changes by which the saved file may lag: the next process reads them in a moment."""

_log = logging.getLogger(__name__)


class FaissReplica:
    """A copy of the vectors in each process; it follows the catalogue before a search.

    Now and then a copy is saved to a file, which the catalogue records as `saved`. Without that
    file, or if it is damaged, all vectors are read from the catalogue.
    """

    def __init__(self, catalogue: Catalogue, folder: Path, dimensions: int) -> None:
        self._catalogue = catalogue
        self._folder = folder
        self._vectors = FlatVectors(dimensions)
        self._known = Position()

    def after_write(self) -> None:
        """Do nothing: the copy follows before the next search."""

    def catch_up(self) -> None:
        """Follow the catalogue to its current position."""
        with self._catalogue.reading():
            self._follow()

    def nearest(self, vector: Vectors, k: int, among: Numbers | None) -> list[tuple[int, float]]:
        """Search the copy."""
        return self._vectors.nearest(vector, k, among)

    def close(self) -> None:
        """Save the vectors if that is worthwhile, and free them.

        A process that has only written has no vectors in memory and loads none to save them.
        """
        try:
            if self._known != Position() and self._unsaved() >= WORTH_SAVING:
                self.save()
        except (OSError, RuntimeError) as error:  # FAISS raises RuntimeError; nothing is lost
            _log.warning("vectors in %s were not saved: %s", self._folder, error)
        finally:
            self._vectors.close()

    def save(self) -> None:
        """Save the vectors; other processes cannot write to the catalogue meanwhile."""
        with self._catalogue.writing():
            self._follow()
            self._remove_old_files()
            name = f"vectors-{self._known.added}-{self._known.removed}.faiss"
            checksum = self._vectors.save(self._folder / name)
            saved = [name, checksum, self._known.added, self._known.removed]
            self._catalogue.keep("saved", saved)
            self._catalogue.forget_removals(self._known.removed)

    def _unsaved(self) -> int:
        with self._catalogue.reading():
            newest = self._catalogue.position()
            *_, added, removed = self._catalogue.fact("saved", [0, 0])
        return newest.added - int(added) + newest.removed - int(removed)

    def _follow(self) -> None:
        if self._known == self._catalogue.position():
            return
        known, self._known = self._known, Position()  # if this fails, the next call starts over
        if known == Position() or known.removed < self._catalogue.fact("floor", 0):
            known = self._restored()
        self._known = advance(self._catalogue, self._vectors, known)

    def _restored(self) -> Position:
        """Load the saved file, or start with no vectors; return the position reached."""
        self._vectors.clear()
        if saved := self._catalogue.fact("saved"):
            name, checksum, *known = saved
            reached = Position(*known)
            floor = self._catalogue.fact("floor", 0)
            if reached.removed >= floor and self._vectors.load(self._folder / name, checksum):
                return reached
        return Position()

    def _remove_old_files(self) -> None:
        """Remove the files of earlier processes, except the one that others may be reading."""
        current = (self._catalogue.fact("saved") or [""])[0]
        for file in self._folder.glob("vectors-*"):
            if file.name != current:
                file.unlink(missing_ok=True)


class FlatVectors:
    """All vectors in memory; a search compares each of them, so that its result is exact."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._index: Any = None  # FAISS is only partly typed
        self.clear()

    def put(self, rows: Sequence[Row]) -> None:
        """Add vectors."""
        numbers = np.array([row.number for row in rows], dtype=np.int64)
        self._index.add_with_ids(np.stack([row.vector for row in rows]), numbers)

    def drop(self, numbers: Sequence[int]) -> None:
        """Remove vectors."""
        self._index.remove_ids(np.array(numbers, dtype=np.int64))

    def nearest(self, vector: Vectors, k: int, among: Numbers | None) -> list[tuple[int, float]]:
        """Return the nearest by inner product."""
        most = self._index.ntotal if among is None else len(among)
        if not most:
            return []
        # More threads do not speed up a single query, and OpenMP threads do not survive a fork.
        faiss.omp_set_num_threads(1)
        options = {}
        if among is not None:
            options["params"] = self._only(among)
        scores, numbers = self._index.search(vector.reshape(1, -1), min(k, most), **options)
        found = zip(numbers[0].tolist(), scores[0].tolist(), strict=True)
        return [(number, score) for number, score in found if number >= 0]

    def _only(self, among: Numbers) -> Any:
        parameters: Any = faiss.SearchParameters
        return parameters(sel=faiss.IDSelectorBatch(among))

    def clear(self) -> None:
        """Remove all vectors."""
        self._index = faiss.IndexIDMap2(faiss.IndexFlatIP(self._dimensions))

    def close(self) -> None:
        """Free the memory."""
        self.clear()

    def save(self, file: Path) -> int:
        """Write all vectors to a file, atomically, and return its checksum."""
        unfinished = file.with_suffix(".tmp")
        faiss.write_index(self._index, str(unfinished))
        _sync(unfinished)
        checksum = _checksum(unfinished)
        unfinished.replace(file)
        _sync(file.parent)  # makes the new name durable
        return checksum

    def load(self, file: Path, checksum: int) -> bool:
        """Read a saved file; return False and change nothing if it is damaged."""
        try:
            if _checksum(file) != checksum:
                return False
            index = faiss.read_index(str(file))
        except (OSError, RuntimeError):  # FAISS raises RuntimeError, also for a missing file
            return False
        if index.d != self._dimensions:
            return False
        self._index = index
        return True


def _checksum(file: Path) -> int:
    checksum = 0
    with file.open("rb") as content:
        while part := content.read(1 << 20):
            checksum = zlib.crc32(part, checksum)
    return checksum


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
