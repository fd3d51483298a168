"""What holds vectors and finds the nearest: FAISS, Chroma or Qdrant, behind one protocol."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.vectors.catalogue import Row
from penstock.vectors.embedding import Vectors

Numbers = NDArray[np.int64]


class Neighbours(Protocol):
    """A copy of a catalogue's vectors, by number, that is good at finding the nearest.

    Belongs to one thread. After a crash `put` and `drop` may come once more with the same.
    """

    def put(self, rows: Sequence[Row]) -> None:
        """Add vectors under new numbers."""
        ...

    def drop(self, numbers: Sequence[int]) -> None:
        """Remove what has these numbers; some may be unknown."""
        ...

    def nearest(self, vector: Vectors, k: int, among: Numbers | None) -> list[tuple[int, float]]:
        """Up to k numbers with the cosine, best first; of `among` alone, which is in order."""
        ...

    def clear(self) -> None:
        """Remove all."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


FEW = 1_000
"""So many numbers can be sent along with a question; with more, hits are sorted out afterwards."""


def sifted(
    ask: Callable[[int], list[tuple[int, float]]], k: int, among: Numbers
) -> list[tuple[int, float]]:
    """The best k of `among`, from something that finds the best so many of all.

    Asks for more and more, until there are enough or there is nothing more to be had.
    """
    wanted, allowed = k, set(among.tolist())
    while True:
        wanted *= 4
        found = ask(wanted)
        kept = [(number, score) for number, score in found if number in allowed]
        if len(kept) >= min(k, len(allowed)) or len(found) < wanted:
            return kept[:k]
