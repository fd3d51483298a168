"""Turns a `Where` into SQL over the table `item`."""

from collections.abc import Iterator
from typing import Any

from penstock.vectors.values import Scalar, Where

KINDS = {str: ("text",), int: ("integer", "real"), float: ("integer", "real")}


def condition(where: Where) -> tuple[str, list[Any]]:
    """A WHERE clause with a space before it, empty for all items, and its values."""
    parts = list(_parts(where))
    text = " AND ".join(part for part, _ in parts)
    return (f" WHERE {text}" if text else ""), [value for _, values in parts for value in values]


def _parts(where: Where) -> Iterator[tuple[str, list[Any]]]:
    if where.paths:
        yield f"path IN ({_marks(where.paths)})", list(where.paths)
    if where.under:
        folder = where.under.rstrip("/") + "/"
        # Two comparisons instead of LIKE, so that the index on the path is used.
        yield "(path >= ? AND path < ?)", [folder, folder[:-1] + "0"]  # "0" comes after "/"
    if where.glob:
        yield "path GLOB ?", [where.glob]
    if where.types:
        yield f"type IN ({_marks(where.types)})", list(where.types)
    for key, value in where.metadata.items():
        yield _equal(key, value)


def _equal(key: str, value: Scalar) -> tuple[str, list[Any]]:
    """A key at the top of the metadata with this value, as JSON compares: true is not 1."""
    if value is None or isinstance(value, bool):
        kinds: tuple[str, ...] = ({None: "null", True: "true", False: "false"}[value],)
        same, values = "", []
    else:
        kinds = KINDS[type(value)]
        same, values = " AND value = ?", [value]
    text = f"key = ? AND json_each.type IN ({_marks(kinds)}){same}"
    return f"EXISTS (SELECT 1 FROM json_each(metadata) WHERE {text})", [key, *kinds, *values]


def _marks(values: tuple[Any, ...]) -> str:
    return ", ".join("?" * len(values))
