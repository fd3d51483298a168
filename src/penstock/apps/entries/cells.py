"""Entries as rows of a table: one column for each field of their data.

A list or an object stands in its cell as JSON, a flag as true or false. An empty cell is no value.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time
from typing import Any

import msgspec

from penstock.apps.entries.entrytypes import EntryType, Field, InvalidEntry
from penstock.apps.entries.formats import (
    OWN,
    TOLD,
    BadRecord,
    Exported,
    Record,
    Types,
    UnreadableFile,
)
from penstock.core.errors import Unreadable
from penstock.core.jsontext import read

_ALSO_CALLED = {"entry_id": "id", "type": "entity_type", "category": "category_code"}
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_decode = msgspec.json.decode
_encode = msgspec.json.encode


class Columns:
    """What the columns of a file mean."""

    def __init__(
        self, header: Sequence[Any], types: Types, entity_type: str | None, line: int = 1
    ) -> None:
        """Raises `UnreadableFile` for a column that is no field of a type, or that comes twice."""
        self._types = types
        self._default = entity_type
        chosen = list(types) if entity_type is None else [types.get(entity_type)]
        fields = dict.fromkeys(name for one in chosen for name in one.fields)
        names = [_name(cell, fields) for cell in header]
        while names and not names[-1]:
            names.pop()
        self.names: Sequence[str] = names
        if not names:
            raise UnreadableFile("there are no columns", line)
        self._check(fields, line)

    def _check(self, fields: Mapping[str, Any], line: int) -> None:
        known = (*OWN, *fields)
        for place, name in enumerate(self.names, 1):
            if not name:
                raise UnreadableFile(f"column {place} has no name", line)
            if name in self.names[: place - 1]:
                raise UnreadableFile(f"there are two columns {name!r:.80}", line)
            if name not in known and name not in TOLD:
                raise UnreadableFile(
                    f"there is no column {name!r:.80}; known are {', '.join(known)}", line
                )

    def record(self, line: int, cells: Sequence[Any]) -> Record | BadRecord | None:
        """What a row says; None for a row without anything in it."""
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
                if name not in TOLD
            }
        except InvalidEntry as error:
            return BadRecord(line, str(error))
        return Record(line, own.get("id"), own.get("entity_type"), own.get("category_code"), data)


def header_of(types: Iterable[EntryType]) -> list[str]:
    """The columns of a table for entries of these types."""
    return [*OWN, *dict.fromkeys(name for one in types for name in one.fields), *TOLD]


def row_of(entry: Exported, header: Sequence[str], fields: Mapping[str, Field]) -> list[Any]:
    """The cells of an entry: text, numbers and flags; None where there is nothing."""
    own = {name: getattr(entry, name) for name in (*OWN, *TOLD)}
    cells = {name: _cell(fields.get(name), value) for name, value in entry.data.items()}
    return [{**cells, **own}.get(name) for name in header]


def _name(cell: Any, fields: Mapping[str, Any]) -> str:
    """The column that a heading means, in whatever case it is written."""
    name = "" if cell is None else str(cell).strip()
    if name in fields:
        return name
    alike = [one for one in fields if one.casefold() == name.casefold()]
    if len(alike) == 1:
        return alike[0]
    own = _ALSO_CALLED.get(name.casefold(), name.casefold())
    return own if own in OWN or own in TOLD else name


def _is_given(cell: Any) -> bool:
    return cell is not None and cell != ""


def _cell(field: Field | None, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        # Else it would be read as what it only looks like.
        looks_like_more = field is not None and field.kind == "any" and _is_json(value)
        return _encode(value).decode() if looks_like_more else value
    return _encode(value).decode()


def _value(field: Field | None, name: str, cell: Any) -> Any:
    """What a cell says in a field of this kind."""
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
        if found == found and abs(found) != float("inf"):  # noqa: PLR0124 - not a number is unlike itself
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
        return read(str(cell), "the cell")
    except Unreadable as error:
        raise InvalidEntry(name, f"expected JSON: {error}") from error


def _is_json(text: str) -> bool:
    try:
        read(text, "")
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
        return str(int(cell))  # how a sheet keeps every number
    return str(cell)
