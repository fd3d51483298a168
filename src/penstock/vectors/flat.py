"""Vectors in memory, searched exactly by FAISS."""

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from penstock.vectors.catalogue import Row
from penstock.vectors.embedding import Vectors
from penstock.vectors.neighbours import Numbers


class Flat:
    """All vectors in memory; a search looks at each of them, so that its answer is exact."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._index: Any = None  # typed only in part by FAISS
        self.clear()

    def put(self, rows: Sequence[Row]) -> None:
        """Add vectors."""
        numbers = np.array([row.number for row in rows], dtype=np.int64)
        self._index.add_with_ids(np.stack([row.vector for row in rows]), numbers)

    def drop(self, numbers: Sequence[int]) -> None:
        """Remove vectors."""
        self._index.remove_ids(np.array(numbers, dtype=np.int64))

    def nearest(self, vector: Vectors, k: int, among: Numbers | None) -> list[tuple[int, float]]:
        """The nearest by inner product."""
        most = self._index.ntotal if among is None else len(among)
        if not most:
            return []
        # One query is not faster with more threads, and threads of OpenMP do not survive a fork.
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
        """Remove all."""
        self._index = faiss.IndexIDMap2(faiss.IndexFlatIP(self._dimensions))

    def close(self) -> None:
        """Let go of the memory."""
        self.clear()

    def save(self, file: Path) -> int:
        """Write all to a file, wholly or not at all, and return its checksum."""
        unfinished = file.with_suffix(".tmp")
        faiss.write_index(self._index, str(unfinished))
        _sync(unfinished)
        checksum = _checksum(unfinished)
        unfinished.replace(file)
        _sync(file.parent)  # makes the new name durable
        return checksum

    def load(self, file: Path, checksum: int) -> bool:
        """Read what was saved; false, and nothing is changed, if that is not whole."""
        try:
            if _checksum(file) != checksum:
                return False
            index = faiss.read_index(str(file))
        except (OSError, RuntimeError):  # FAISS raises the latter, also for a missing file
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
