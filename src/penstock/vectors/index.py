"""A search index: a catalogue, which is the source of truth, and a replica of its vectors.

A write changes the catalogue in one transaction, after which it is durable. The replica catches up
before every search, in the process that wrote and in any other, so that the next search repairs
whatever a crash left behind. FAISS also saves its replica to a file now and then, which only saves
the next process the time to read all vectors one by one.
"""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar
from uuid import uuid4

import numpy as np
from msgspec import structs

from penstock.core.errors import ConfigurationError, IndexUnavailable
from penstock.vectors.catalogue import Catalogue
from penstock.vectors.embedders import Vectors
from penstock.vectors.items import ALL, Hit, Item, Mode, Where
from penstock.vectors.replicas import open_replica

Answer = TypeVar("Answer")
BATCH = 1024
"""Items per transaction."""
DEPTH = 5
"""A hybrid search considers this many times more hits of each kind than requested."""
LEAST_DEPTH = 50
SMOOTHING = 60
"""The constant of reciprocal rank fusion; 60 is the usual value."""
DIGITS = 6
"""Scores that differ by less are equal: the precision of 32-bit floats."""


class Index:
    """Items in a folder, searchable by vector and by words; thread-safe.

    Created by `open_index`. A thread of its own does all work, one call at a time. Several
    processes may open the same folder if the vectors are in FAISS or on a server; each sees what
    the others write. Every method may raise `IndexUnavailable`.
    """

    def __init__(self, folder: Path, dimensions: int, fingerprint: str, vectors: str) -> None:
        self._folder = folder
        self._dimensions = dimensions
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"index {folder.name}")
        self._closed = False
        try:
            self._run(self._open, fingerprint, vectors)
        except BaseException:
            self._thread.shutdown()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def dimensions(self) -> int:
        """The number of dimensions of a vector."""
        return self._dimensions

    def upsert(self, items: Iterable[Item]) -> None:
        """Add items; each replaces the item with the same ID.

        Writes about a thousand items per transaction, each durable before the next begins.
        """
        rest = iter(items)
        while batch := self._checked(islice(rest, BATCH)):
            self._run(self._replace, ALL, batch)

    def replace(self, paths: Sequence[str], items: Iterable[Item]) -> None:
        """Replace all items with one of these paths by the given ones, in one transaction."""
        self._run(self._replace, Where(paths=tuple(paths)), self._checked(items))

    def delete(self, ids: Iterable[str] = (), where: Where = ALL) -> int:
        """Remove items by ID, or all that match; return how many, 0 if neither is given."""
        wanted = list(ids)
        return self._run(self._delete, wanted, where)

    def move(self, old: str, new: str, *, below: bool = False) -> int:
        """Change the path of all items with a path, in one transaction; return how many.

        With `below`, this includes the items with paths below it. Items keep their vectors.
        Existing items with one of the new paths are removed.
        """
        return self._run(self._move, old, new, below)

    def paths(self, where: Where = ALL) -> list[str]:
        """Return the distinct paths of the matching items, in order."""
        return self._run(lambda: self._catalogue.paths(where))

    def metadata_at(self, paths: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the metadata of one item of each of these paths that has items."""
        return self._run(lambda: self._catalogue.metadata_at(paths))

    def search(
        self,
        vector: Vectors | None = None,
        text: str = "",
        *,
        k: int = 10,
        where: Where = ALL,
        mode: Mode | str = Mode.HYBRID,
    ) -> list[Hit]:
        """Return the best k of the matching items, by vector, by words, or by both.

        A hybrid search uses whichever of vector and text is given.
        """
        if vector is not None:
            vector = self._vector("the query", vector)
        return self._run(self._search, vector, text, max(1, k), where, Mode(mode))

    def count(self, where: Where = ALL) -> int:
        """Return the number of matching items."""
        return self._run(lambda: self._catalogue.count(where))

    def metadata(
        self, ids: Sequence[str] | None = None, *, after: str = "", limit: int = BATCH
    ) -> dict[str, Mapping[str, Any]]:
        """Return the metadata by ID of those of these items that exist.

        Without `ids`, return that of the next `limit` items after the ID `after`, in order of ID.
        """
        return self._run(self._metadata, ids, after, limit)

    def clear(self) -> None:
        """Remove all items, in one transaction."""
        self._run(self._clear)

    def close(self) -> None:
        """End the thread; calling this again has no effect."""
        if not self._closed:
            self._closed = True
            try:
                self._submit(self._close)
            finally:
                self._thread.shutdown()

    def _checked(self, items: Iterable[Item]) -> list[Item]:
        """Return the last item with each ID, with its vector as 32-bit floats."""
        checked: dict[str, Item] = {}
        for item in items:
            checked.pop(item.id, None)
            for value in (item.id, item.path, item.type):
                value.encode()  # neither SQLite nor a server can store a lone surrogate
            fitting = self._vector(f"item {item.id}", item.vector)
            checked[item.id] = Item(
                item.id, fitting, item.text, item.path, item.type, item.title, item.metadata
            )
        return list(checked.values())

    def _vector(self, whose: str, vector: Vectors) -> Vectors:
        row = np.ascontiguousarray(vector, dtype=np.float32)
        if row.shape != (self._dimensions,) or not np.isfinite(row).all():
            raise ValueError(
                f"the vector of {whose} is not {self._dimensions} finite numbers: "
                f"its shape is {row.shape}"
            )
        return row

    def _run(self, work: Callable[..., Answer], *arguments: Any) -> Answer:
        if self._closed:
            raise IndexUnavailable(f"the index in {self._folder} is closed")
        return self._submit(work, *arguments)

    def _submit(self, work: Callable[..., Answer], *arguments: Any) -> Answer:
        """Run a call in the thread of the index."""
        try:
            return self._thread.submit(work, *arguments).result()
        except (sqlite3.Error, OSError) as error:
            raise IndexUnavailable(f"the index in {self._folder} failed: {error}") from error

    # The methods below run in the thread of the index.

    def _open(self, fingerprint: str, vectors: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._catalogue = Catalogue(self._folder / "catalogue.db")
        try:
            name = self._identify({"dimensions": self._dimensions, "fingerprint": fingerprint})
            self._vectors = open_replica(
                vectors, self._catalogue, self._folder, name, self._dimensions
            )
        except BaseException:
            self._catalogue.close()
            raise

    def _identify(self, wanted: dict[str, Any]) -> str:
        """Check that the folder was created for these vectors; return the name of the index."""
        with self._catalogue.writing():
            made = self._catalogue.fact("made_for")
            if made is None:
                self._catalogue.keep("made_for", wanted)
                self._catalogue.keep("name", f"penstock-{uuid4().hex}")
            elif made != wanted:
                raise ConfigurationError(
                    f"the index in {self._folder} was created for vectors of {made}, not {wanted}; "
                    "remove the folder and index again, or use another folder"
                )
            return str(self._catalogue.fact("name"))

    def _replace(self, gone: Where, items: list[Item]) -> None:
        with self._catalogue.writing():
            numbers = set(self._catalogue.numbers_of([item.id for item in items]))
            if gone:
                numbers.update(self._catalogue.numbers(gone))
            self._catalogue.remove(sorted(numbers))
            self._catalogue.add(items)
        self._vectors.after_write()

    def _delete(self, ids: list[str], where: Where) -> int:
        with self._catalogue.writing():
            numbers = set(self._catalogue.numbers_of(ids))
            if where:
                numbers.update(self._catalogue.numbers(where))
            self._catalogue.remove(sorted(numbers))
        self._vectors.after_write()
        return len(numbers)

    def _metadata(
        self, ids: Sequence[str] | None, after: str, limit: int
    ) -> dict[str, Mapping[str, Any]]:
        with self._catalogue.reading():
            if ids is None:
                return self._catalogue.metadata_after(after, limit)
            return self._catalogue.metadata_of(ids)

    def _move(self, old: str, new: str, below: bool) -> int:  # noqa: FBT001 - by place
        wheres = [Where(paths=(old,)), *([Where(under=old)] if below else [])]
        with self._catalogue.writing():
            moving = sorted(n for where in wheres for n in self._catalogue.numbers(where))
            paths = [path for where in wheres for path in self._catalogue.paths(where)]
            taken = [new + path[len(old) :] for path in paths]
            if old == new or not moving:
                return 0
            gone = set(self._catalogue.numbers_at(taken)) - set(moving)
            self._catalogue.remove(sorted(gone))
            self._catalogue.move(moving, old, new)
        self._vectors.after_write()
        return len(moving)

    def _clear(self) -> None:
        with self._catalogue.writing():
            self._catalogue.clear()
        self._vectors.after_write()

    def _search(
        self, vector: Vectors | None, text: str, k: int, where: Where, mode: Mode
    ) -> list[Hit]:
        depth = max(DEPTH * k, LEAST_DEPTH) if mode is Mode.HYBRID else k
        if vector is not None and mode is not Mode.BM25:
            self._vectors.catch_up()
        else:
            vector = None
        with self._catalogue.reading():
            near = dict(self._nearest(vector, depth, where)) if vector is not None else {}
            words = {}
            if mode is not Mode.VECTOR:
                words = dict(self._catalogue.with_words(text, depth, where))
            scores = fused(near, words) if mode is Mode.HYBRID else near or words
            hits = self._catalogue.hits(scores)
        scored = [
            structs.replace(hit, vector_score=near.get(number), bm25_score=words.get(number))
            for number, hit in hits.items()
        ]
        return sorted(scored, key=lambda hit: (-hit.score, hit.id))[:k]

    def _nearest(self, vector: Vectors, k: int, where: Where) -> list[tuple[int, float]]:
        among = np.array(self._catalogue.numbers(where), np.int64) if where else None
        return self._vectors.nearest(vector, k, among)

    def _close(self) -> None:
        try:
            self._vectors.close()
        finally:
            self._catalogue.close()


def open_index(
    folder: str | Path, dimensions: int, *, fingerprint: str = "", vectors: str = "faiss"
) -> Index:
    """Open the index in a folder, and create it if it does not exist.

    `fingerprint` is the name of the embedder; an index that was created with another one, or with
    other dimensions, is refused with `ConfigurationError`. `vectors` selects the vector store:
    `faiss`, `chroma` or `qdrant` in the folder, or `chroma:URL` or `qdrant:URL` on a server.
    """
    return Index(Path(folder), dimensions, fingerprint, vectors)


def fused(*rankings: Mapping[int, float]) -> dict[int, float]:
    """Return a score per number: the sum of its reciprocal ranks over the rankings.

    A ranking maps numbers to scores, best first. Equal scores share a rank, so that the order in
    which items were written has no influence.
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        rank, last = 0, None
        for place, (number, score) in enumerate(ranking.items(), 1):
            rounded = round(score, DIGITS)
            if rounded != last:
                rank, last = place, rounded
            scores[number] = scores.get(number, 0.0) + 1 / (SMOOTHING + rank)
    return scores
