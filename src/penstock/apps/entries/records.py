"""The records of a file, and their columns where the file is a table.

A table has a column for each field of the data. A cell holds a list or an object as JSON, and a
flag as true or false; an empty cell means no value.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time
from typing import Any, NamedTuple

import msgspec

from penstock.apps.entries.types import EntryType, EntryTypes, Field, InvalidEntry
from penstock.apps.kit import read_json
from penstock.errors import Unreadable

OWN = ("id", "entity_type", "category_code")
"""What a record has besides its data; in a table, these columns come first."""
REPORTED = ("embedding_status", "version", "created_at", "updated_at")
"""What an export adds and an import ignores: every imported entry is pending."""
ALSO_CALLED = {"entry_id": "id", "type": "entity_type", "category": "category_code"}
"""Other names of what a record has besides its data."""
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_decode = msgspec.json.decode
_encode = msgspec.json.encode


class UnreadableFile(Exception):
    """A file cannot be read as a whole; the message names the line."""

    def __init__(self, why: str, line: int | None = None) -> None:
        super().__init__(why if line is None else f"line {line}: {why}")


class Unwritable(Exception):
    """An entry cannot be written in this format."""


class Record(NamedTuple):
    """An entry as read from a file, and its line."""

    line: int
    id: str | None
    entity_type: str | None
    category_code: str | None
    data: Mapping[str, Any]


class BadRecord(NamedTuple):
    """A record that cannot be stored, and why."""

    line: int
    error: str


class Exported(NamedTuple):
    """An entry as written to a file; instants are text."""

    id: str
    entity_type: str
    category_code: str
    data: Mapping[str, Any]
    embedding_status: str
    version: int
    created_at: str
    updated_at: str


# Tables


class Columns:
    """Converts the rows of a table to records."""

    def __init__(
        self, header: Sequence[Any], types: EntryTypes, entity_type: str | None, line: int = 1
    ) -> None:
        """Raises `UnreadableFile` for a column that is unknown, unnamed or repeated."""
        self._types = types
        self._default = entity_type
        chosen = list(types) if entity_type is None else [types.get(entity_type)]
        fields = dict.fromkeys(name for one in chosen for name in one.fields)
        names = [_name(cell, fields) for cell in header]
        while names and not names[-1]:
            names.pop()
        self.names: Sequence[str] = names
        if not names:
            raise UnreadableFile("the table has no columns", line)
        self._check(fields, line)

    def _check(self, fields: Mapping[str, Any], line: int) -> None:
        known = (*OWN, *fields)
        for place, name in enumerate(self.names, 1):
            if not name:
                raise UnreadableFile(f"column {place} has no name", line)
            if name in self.names[: place - 1]:
                raise UnreadableFile(f"column {name!r:.80} appears twice", line)
            if name not in known and name not in REPORTED:
                raise UnreadableFile(
                    f"unknown column {name!r:.80}; known columns are {', '.join(known)}", line
                )

    def record(self, line: int, cells: Sequence[Any]) -> Record | BadRecord | None:
        """Return the record of a row; None for an empty row."""
        if not any(_is_given(cell) for cell in cells):
            return None
        if any(map(_is_given, cells[len(self.names) :])):
            return BadRecord(line, f"has more than {len(self.names)} cells")
        given = {
            name: cell for name, cell in zip(self.names, cells, strict=False) if _is_given(cell)
        }
        own = {name: _text(given.pop(name)) for name in OWN if name in given}
        kind = own.get("entity_type") or self._default
        if kind is None:
            return BadRecord(line, "entity_type: is required")
        try:
            fields = self._types.get(kind).fields
            data = {
                name: _value(fields.get(name), f"data.{name}", cell)
                for name, cell in given.items()
                if name not in REPORTED
            }
        except InvalidEntry as error:
            return BadRecord(line, str(error))
        return Record(line, own.get("id"), own.get("entity_type"), own.get("category_code"), data)


def header_of(types: Iterable[EntryType]) -> list[str]:
    """Return the columns of a table for entries of these types."""
    return [*OWN, *dict.fromkeys(name for one in types for name in one.fields), *REPORTED]


def row_of(entry: Exported, header: Sequence[str], fields: Mapping[str, Field]) -> list[Any]:
    """Return the cells of an entry: text, numbers, flags, and None for no value."""
    own = {name: getattr(entry, name) for name in (*OWN, *REPORTED)}
    cells = {name: _cell(fields.get(name), value) for name, value in entry.data.items()}
    return [{**cells, **own}.get(name) for name in header]


def _name(cell: Any, fields: Mapping[str, Any]) -> str:
    """Return the column that a heading names, ignoring case."""
    name = "" if cell is None else str(cell).strip()
    if name in fields:
        return name
    alike = [one for one in fields if one.casefold() == name.casefold()]
    if len(alike) == 1:
        return alike[0]
    own = ALSO_CALLED.get(name.casefold(), name.casefold())
    return own if own in OWN or own in REPORTED else name


def _is_given(cell: Any) -> bool:
    return cell is not None and cell != ""


def _cell(field: Field | None, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        # Text that looks like JSON is written as a JSON string, to be read as text again.
        is_ambiguous = field is not None and field.kind == "any" and _is_json(value)
        return _encode(value).decode() if is_ambiguous else value
    return _encode(value).decode()


def _value(field: Field | None, name: str, cell: Any) -> Any:
    """Return the value of a cell for a field of this kind."""
    match "text" if field is None else field.kind:
        case "number":
            return _number(name, cell)
        case "flag":
            return _flag(name, cell)
        case "list" | "object":
            return _json(name, cell)
        case "any":
            return _decode(cell) if isinstance(cell, str) and _is_json(cell) else _plain(cell)
        case _:
            return _text(cell)


def _number(name: str, cell: Any) -> Any:
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return cell
    text = str(cell).strip()
    for kind in (int, float):
        try:
            found = kind(text)
        except ValueError:
            continue
        if isinstance(found, int) or math.isfinite(found):
            return found
    raise InvalidEntry(name, f"expected number, got {text!r:.80}")


def _flag(name: str, cell: Any) -> bool:
    if isinstance(cell, bool):
        return cell
    text = str(cell).strip().lower()
    if text not in _FLAGS:
        raise InvalidEntry(name, f"expected true or false, got {text!r:.80}")
    return _FLAGS[text]


def _json(name: str, cell: Any) -> Any:
    try:
        return read_json(str(cell), "the cell")
    except Unreadable as error:
        raise InvalidEntry(name, f"expected JSON: {error}") from error


def _is_json(text: str) -> bool:
    try:
        read_json(text, "")
    except Unreadable:
        return False
    return True


def _plain(cell: Any) -> Any:
    return cell if isinstance(cell, str | bool | int | float) else _text(cell)


def _text(cell: Any) -> str:
    if isinstance(cell, datetime | date | time):
        return cell.isoformat()
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
        return str(int(cell))  # a sheet stores every number as a float
    return str(cell)
