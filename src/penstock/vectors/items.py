"""Items of an index, filters over them, and search results."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from penstock.vectors.embedders import Vectors

Scalar: TypeAlias = str | int | float | bool | None
_JSON_TYPES = {str: ("text",), int: ("integer", "real"), float: ("integer", "real")}


class Mode(StrEnum):
    """How to search: by meaning, by words, or by both."""

    VECTOR = "vector"
    BM25 = "bm25"
    HYBRID = "hybrid"


class Item(msgspec.Struct, frozen=True):
    """An item to index; its vector has length one, and its metadata is a JSON object.

    Searches by words cover `title` as well as `text`; it is meant for names and headings.
    """

    id: str
    vector: Vectors
    text: str
    path: str = ""
    type: str = ""
    title: str = ""
    metadata: Mapping[str, Any] = {}


class Where(msgspec.Struct, frozen=True):
    """A filter: matches items that meet every condition that is set, by default all items.

    `paths` are exact; `under` is a folder and matches everything below it; in a `glob`, `*` also
    matches slashes. `types` are alternatives. `metadata` maps top-level keys to values.
    """

    paths: tuple[str, ...] = ()
    under: str = ""
    glob: str = ""
    types: tuple[str, ...] = ()
    metadata: Mapping[str, Scalar] = {}

    def __bool__(self) -> bool:
        return any((self.paths, self.under, self.glob, self.types, self.metadata))


ALL = Where()


class Hit(msgspec.Struct, frozen=True):
    """An item found by a search.

    Hits are ordered by `score`: the cosine, the BM25 weight, or the fused rank. `vector_score` and
    `bm25_score` are None if that search did not find the item.
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


def condition(where: Where) -> tuple[str, list[Any]]:
    """Return a WHERE clause over the table `item`, with a leading space, and its parameters.

    The clause is empty if the filter matches all items.
    """
    parts = list(_parts(where))
    text = " AND ".join(part for part, _ in parts)
    return (f" WHERE {text}" if text else ""), [value for _, values in parts for value in values]


def _parts(where: Where) -> Iterator[tuple[str, list[Any]]]:
    if where.paths:
        yield f"path IN ({_marks(where.paths)})", list(where.paths)
    if where.under:
        folder = where.under.rstrip("/") + "/"
        # Two comparisons use the index on the path, which LIKE does not.
        yield "(path >= ? AND path < ?)", [folder, folder[:-1] + "0"]  # "0" follows "/"
    if where.glob:
        yield "path GLOB ?", [where.glob]
    if where.types:
        yield f"type IN ({_marks(where.types)})", list(where.types)
    for key, value in where.metadata.items():
        yield _equal(key, value)


def _equal(key: str, value: Scalar) -> tuple[str, list[Any]]:
    """Compare a top-level key of the metadata as JSON does: true is not 1."""
    if value is None or isinstance(value, bool):
        kinds: tuple[str, ...] = ({None: "null", True: "true", False: "false"}[value],)
        same, values = "", []
    else:
        kinds = _JSON_TYPES[type(value)]
        same, values = " AND value = ?", [value]
    text = f"key = ? AND json_each.type IN ({_marks(kinds)}){same}"
    return f"EXISTS (SELECT 1 FROM json_each(metadata) WHERE {text})", [key, *kinds, *values]


def _marks(values: tuple[Any, ...]) -> str:
    return ", ".join("?" * len(values))
