"""A search index: a catalogue that is the truth, vectors that follow it, one thread that has both.

A write changes the catalogue in one transaction and is durable then. The vectors are a copy that
catches up with it before every search, in the process that wrote as in any other; so whatever a
crash leaves behind, the next search puts right. FAISS also saves its copy to a file now and then,
which only spares the next process the time to read all vectors one by one.
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
from penstock.vectors.embedding import Vectors
from penstock.vectors.following import follower
from penstock.vectors.ranking import fused
from penstock.vectors.values import Hit, Item, Mode, Where

Answer = TypeVar("Answer")
ALL = Where()
BATCH = 1024
"""Items that are written in one transaction."""
DEPTH = 5
"""A hybrid search looks at so many times more hits of each kind than are asked for."""
LEAST_DEPTH = 50


class Index:
    """Items with vectors and texts in a folder, to be found by either; for any number of threads.

    Made by `open_index`. All work is done by one thread of its own, call after call. Several
    processes may have a folder open where the vectors are FAISS's or a server's; each sees what
    the others wrote. Every method may raise `IndexUnavailable`.
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
        """How many numbers a vector has."""
        return self._dimensions

    def upsert(self, items: Iterable[Item]) -> None:
        """Add items, each in place of the one that has its id.

        Each thousand of them is one transaction, and durable when the next is begun.
        """
        rest = iter(items)
        while batch := self._checked(islice(rest, BATCH)):
            self._run(self._replace, ALL, batch)

    def replace(self, paths: Sequence[str], items: Iterable[Item]) -> None:
        """Put items in place of all that have one of these paths, in one transaction."""
        self._run(self._replace, Where(paths=tuple(paths)), self._checked(items))

    def delete(self, ids: Iterable[str] = (), where: Where = ALL) -> int:
        """Remove items by id, or all that fit; returns how many, 0 if neither is given."""
        wanted = list(ids)
        return self._run(self._delete, wanted, where)

    def move(self, old: str, new: str, *, below: bool = False) -> int:
        """Give all items of a path another, in one transaction; returns how many.

        With `below`, those of all paths below it as well. Their vectors stay what they are; what
        had one of the new paths is removed.
        """
        return self._run(self._move, old, new, below)

    def paths(self, where: Where = ALL) -> list[str]:
        """The paths of all items that fit, in order, each once."""
        return self._run(lambda: self._catalogue.paths(where))

    def metadata_at(self, paths: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The metadata of one item of each of these paths; those without items are left out."""
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
        """The best k of the items that fit, by vector, by words, or by both.

        Hybrid is what there is to search by, if one of vector and text is missing.
        """
        if vector is not None:
            vector = self._vector("the question", vector)
        return self._run(self._search, vector, text, max(1, k), where, Mode(mode))

    def count(self, where: Where = ALL) -> int:
        """How many items fit."""
        return self._run(lambda: self._catalogue.count(where))

    def metadata(
        self, ids: Sequence[str] | None = None, *, after: str = "", limit: int = BATCH
    ) -> dict[str, Mapping[str, Any]]:
        """The metadata of these items by their ids, as far as they are there.

        Without ids, those of the next `limit` items behind one, in the order of their ids.
        """
        return self._run(self._metadata, ids, after, limit)

    def clear(self) -> None:
        """Remove all items, in one transaction."""
        self._run(self._clear)

    def close(self) -> None:
        """End the thread; closing twice does no harm."""
        if not self._closed:
            self._closed = True
            try:
                self._ask(self._close)
            finally:
                self._thread.shutdown()

    def _checked(self, items: Iterable[Item]) -> list[Item]:
        """The last of the items with each id, their vectors with the right type."""
        checked: dict[str, Item] = {}
        for item in items:
            checked.pop(item.id, None)
            for value in (item.id, item.path, item.type):
                value.encode()  # a lone surrogate is no text that SQLite or a server could keep
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
        return self._ask(work, *arguments)

    def _ask(self, work: Callable[..., Answer], *arguments: Any) -> Answer:
        """Let the thread of the index do it."""
        try:
            return self._thread.submit(work, *arguments).result()
        except (sqlite3.Error, OSError) as error:
            raise IndexUnavailable(f"the index in {self._folder} failed: {error}") from error

    # From here on all runs in the thread of the index.

    def _open(self, fingerprint: str, vectors: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._catalogue = Catalogue(self._folder / "catalogue.db")
        try:
            name = self._identify({"dimensions": self._dimensions, "fingerprint": fingerprint})
            self._vectors = follower(vectors, self._catalogue, self._folder, name, self._dimensions)
        except BaseException:
            self._catalogue.close()
            raise

    def _identify(self, wanted: dict[str, Any]) -> str:
        """Hold the folder to the vectors it was made for; returns its name."""
        with self._catalogue.writing():
            made = self._catalogue.fact("made_for")
            if made is None:
                self._catalogue.keep("made_for", wanted)
                self._catalogue.keep("name", f"penstock-{uuid4().hex}")
            elif made != wanted:
                raise ConfigurationError(
                    f"the index in {self._folder} was made for vectors of {made}, not {wanted}; "
                    "remove the folder and index again, or use another"
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
    """The index in a folder, which is made if it is not there.

    `fingerprint` is the name of the embedder; an index that was made with another, or with other
    dimensions, is refused with `ConfigurationError`. `vectors` says what finds the nearest:
    `faiss`, `chroma` or `qdrant`, both in the folder, or on a server: `chroma:URL`, `qdrant:URL`.
    """
    return Index(Path(folder), dimensions, fingerprint, vectors)
