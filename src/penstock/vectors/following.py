"""Keeps the vectors of an index up to date with its catalogue."""

import logging
from pathlib import Path
from typing import Protocol

from penstock.core.errors import ConfigurationError
from penstock.vectors.catalogue import Catalogue
from penstock.vectors.embedding import Vectors
from penstock.vectors.flat import Flat
from penstock.vectors.neighbours import Neighbours, Numbers
from penstock.vectors.values import Position

WORTH_SAVING = 2_000
"""Changes that the saved file may lag behind: the next process reads them in a moment."""

log = logging.getLogger(__name__)


class Follower(Protocol):
    """Vectors that know how far they have followed a catalogue."""

    def after_write(self) -> None:
        """The catalogue was written to by this process."""
        ...

    def catch_up(self) -> None:
        """Follow the catalogue to where it is now."""
        ...

    def nearest(self, vector: Vectors, k: int, among: Numbers | None) -> list[tuple[int, float]]:
        """As `Neighbours.nearest`."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


def follower(
    vectors: str, catalogue: Catalogue, folder: Path, name: str, dimensions: int
) -> Follower:
    """The one map from a configuration to what holds the vectors."""
    kind, _, url = vectors.partition(":")
    if vectors == "faiss":
        return InMemory(catalogue, folder, dimensions)
    if kind == "chroma":
        from penstock.vectors.chroma import Chroma

        return Kept(catalogue, Chroma(folder / "chroma", url, name))
    if kind == "qdrant":
        from penstock.vectors.qdrant import Qdrant

        return Kept(catalogue, Qdrant(folder / "qdrant", url, name, dimensions))
    raise ConfigurationError(
        f"there is no {vectors!r} to hold vectors; known are faiss, chroma, qdrant, chroma:URL "
        "and qdrant:URL"
    )


def advance(catalogue: Catalogue, vectors: Neighbours, known: Position) -> Position:
    """Do to the vectors what was done to the catalogue since; returns how far that got."""
    for gone in catalogue.removed_since(known.removed):
        vectors.drop(gone)
    for rows in catalogue.added_since(known.added):
        vectors.put(rows)
    return catalogue.position()


class InMemory:
    """FAISS: each process has its own copy, which follows when somebody searches.

    Now and then a copy is saved to a file, and the catalogue then notes which: `saved`. Without
    that file, or with a damaged one, everything is read from the catalogue.
    """

    def __init__(self, catalogue: Catalogue, folder: Path, dimensions: int) -> None:
        self._catalogue = catalogue
        self._folder = folder
        self._flat = Flat(dimensions)
        self._known = Position()

    def after_write(self) -> None:
        """Wait until somebody searches."""

    def catch_up(self) -> None:
        """Follow the catalogue to where it is now."""
        with self._catalogue.reading():
            self._follow()

    def nearest(self, vector: Vectors, k: int, among: Numbers | None) -> list[tuple[int, float]]:
        """Ask FAISS."""
        return self._flat.nearest(vector, k, among)

    def close(self) -> None:
        """Save the vectors if that is worth it, and let go of them.

        Who has only written has none in memory, and loads none for that.
        """
        try:
            if self._known != Position() and self._unsaved() >= WORTH_SAVING:
                self.save()
        except (OSError, RuntimeError) as error:  # FAISS raises the latter; nothing is lost
            log.warning("vectors in %s were not saved: %s", self._folder, error)
        finally:
            self._flat.close()

    def save(self) -> None:
        """Save the vectors; others write neither to the catalogue nor to such a file meanwhile."""
        with self._catalogue.writing():
            self._follow()
            self._tidy()
            name = f"vectors-{self._known.added}-{self._known.removed}.faiss"
            checksum = self._flat.save(self._folder / name)
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
        known, self._known = self._known, Position()  # if this fails, it begins anew
        if known == Position() or known.removed < self._catalogue.fact("floor", 0):
            known = self._restored()
        self._known = advance(self._catalogue, self._flat, known)

    def _restored(self) -> Position:
        """What the file has, or nothing."""
        self._flat.clear()
        if saved := self._catalogue.fact("saved"):
            name, checksum, *known = saved
            reached = Position(*known)
            floor = self._catalogue.fact("floor", 0)
            if reached.removed >= floor and self._flat.load(self._folder / name, checksum):
                return reached
        return Position()

    def _tidy(self) -> None:
        """Remove what earlier processes left, but for the file that others may be reading."""
        current = (self._catalogue.fact("saved") or [""])[0]
        for file in self._folder.glob("vectors-*"):
            if file.name != current:
                file.unlink(missing_ok=True)


class Kept:
    """Vectors that outlive the process: the catalogue notes how far they have followed it.

    They follow while the catalogue is held against other writers, so that no two processes do it
    at once. What was under way at a crash is done once more.
    """

    def __init__(self, catalogue: Catalogue, vectors: Neighbours) -> None:
        self._catalogue = catalogue
        self._vectors = vectors

    def after_write(self) -> None:
        """Follow at once, so that other programs see it too."""
        self.catch_up()

    def catch_up(self) -> None:
        """Follow the catalogue to where it is now."""
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
        """Ask them."""
        return self._vectors.nearest(vector, k, among)

    def close(self) -> None:
        """Let go of files and connections."""
        self._vectors.close()

    def _followed(self) -> Position:
        return Position(*self._catalogue.fact("followed", [0, 0]))
