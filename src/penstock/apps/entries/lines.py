"""Entries as lines of JSON, one object each.

An object has `id`, `entity_type`, `category_code` and `data`; without `data`, all else that it has
is the data.
"""

from collections.abc import Iterator
from typing import IO, Any

import msgspec

from penstock.apps.entries.formats import OWN, TOLD, BadRecord, Exported, Record
from penstock.core.errors import Unreadable
from penstock.core.jsontext import DEPTH_LIMIT, check_depth

LONGEST_LINE = 8_000_000
_ALSO_CALLED = {"entry_id": "id", "type": "entity_type", "category": "category_code"}
_KNOWN = frozenset((*OWN, *TOLD, "data"))
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def read_lines(file: IO[bytes]) -> Iterator[Record | BadRecord]:
    """The records of a file, empty lines left out."""
    for number, line in lines_of(file):
        if line is None:
            yield BadRecord(number, f"has more than {LONGEST_LINE:,} bytes")
        elif line.strip():
            yield _record(number, line)


def lines_of(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """The lines with their numbers; None for one that is too long. A mark at the start is gone."""
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if len(line) < LONGEST_LINE or line.endswith(b"\n"):
            yield number, line
            continue
        while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
            pass
        yield number, None


def _record(number: int, line: bytes) -> Record | BadRecord:
    try:
        check_depth(line.decode(), "the object", DEPTH_LIMIT + 2)
        found = _decode(line)
    except UnicodeDecodeError as error:
        return BadRecord(number, f"is no UTF-8 text: {error.reason} at byte {error.start + 1}")
    except (msgspec.DecodeError, Unreadable) as error:
        return BadRecord(number, f"is no JSON object: {error}")
    for other, name in _ALSO_CALLED.items():
        if other in found and name not in found and "data" in found:
            found[name] = found.pop(other)
    if "data" not in found:
        kept = {name: value for name, value in found.items() if name not in _KNOWN}
        found = {**{name: found.get(name) for name in OWN}, "data": kept}
    return _checked(number, found)


def _checked(number: int, found: dict[str, Any]) -> Record | BadRecord:
    if unknown := found.keys() - _KNOWN:
        return BadRecord(number, f"has {min(unknown)!r:.80} beside its data")
    if not isinstance(found["data"], dict):
        return BadRecord(number, "data: expected object")
    for name in OWN:
        if not isinstance(found.get(name), str | None):
            return BadRecord(number, f"{name}: expected text")
    own = [found.get(name) or None for name in OWN]
    return Record(number, own[0], own[1], own[2], found["data"])


class LinesWriter:
    """Writes entries as lines of JSON."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, entry: Exported) -> None:
        """Add an entry."""
        self._file.write(_encode(entry._asdict()) + b"\n")

    def close(self) -> None:
        """Every line is written already."""

    def discard(self) -> None:
        """There is nothing else."""
