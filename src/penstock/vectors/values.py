"""What goes into an index, what is asked of it, and what comes out."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from penstock.vectors.embedding import Vectors

Scalar: TypeAlias = str | int | float | bool | None


class Mode(StrEnum):
    """How to search: by meaning, by words, or by both."""

    VECTOR = "vector"
    BM25 = "bm25"
    HYBRID = "hybrid"


class Item(msgspec.Struct, frozen=True):
    """One thing to be found: its vector has length one, its metadata are JSON.

    `title` is searched for words as `text` is, and is meant for names and headings.
    """

    id: str
    vector: Vectors
    text: str
    path: str = ""
    type: str = ""
    title: str = ""
    metadata: Mapping[str, Any] = {}


class Where(msgspec.Struct, frozen=True):
    """Which items count: those that fit all that is set; with nothing set, all of them.

    `paths` are exact, `under` is a folder, with all that is below it; in a `glob`, `*` also
    matches slashes. `types` are alternatives. `metadata` are keys at the top with their values.
    """

    paths: tuple[str, ...] = ()
    under: str = ""
    glob: str = ""
    types: tuple[str, ...] = ()
    metadata: Mapping[str, Scalar] = {}

    def __bool__(self) -> bool:
        return any((self.paths, self.under, self.glob, self.types, self.metadata))


class Hit(msgspec.Struct, frozen=True):
    """An item that was found.

    `score` is what hits are ordered by: the cosine, the bm25 weight, or the fused rank.
    `vector_score` and `bm25_score` are None where that search did not find the item.
    """

    id: str
    score: float
    text: str
    path: str
    type: str
    title: str
    metadata: Mapping[str, Any]
    vector_score: float | None = None
    bm25_score: float | None = None


class Position(msgspec.Struct, frozen=True, order=True):
    """How much of a catalogue's history is known: the newest item and the newest removal."""

    added: int = 0
    removed: int = 0
