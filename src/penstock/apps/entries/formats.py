"""The file formats of entries: JSON Lines and CSV; `workbooks` has XLSX.

Files are read record by record and written entry by entry, never held in memory as a whole. An
invalid record is reported with its line, and reading continues with the next one.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import IO, Any, Protocol

import msgspec

from penstock.apps.entries.records import (
    ALSO_CALLED,
    OWN,
    REPORTED,
    BadRecord,
    Columns,
    Exported,
    Record,
    UnreadableFile,
    header_of,
    row_of,
)
from penstock.apps.entries.types import DATA_LIMIT, EntryType, EntryTypes
from penstock.apps.entries.workbooks import SheetWriter, read_sheet
from penstock.apps.kit import DEPTH_LIMIT, check_depth
from penstock.errors import Unreadable

FORMATS = ("csv", "jsonl", "xlsx")
_SUFFIXES = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".tsv": "csv",
    ".txt": "csv",
    ".xlsx": "xlsx",
}
LONGEST_LINE = 8_000_000
"""Maximum size of a record in bytes: a line of JSON, or the lines of a CSV record."""


class Writer(Protocol):
    """Writes entries to a file."""

    def write(self, entry: Exported) -> None:
        """Add an entry; raises `Unwritable`."""
        ...

    def close(self) -> None:
        """Finish the file, but leave it open."""
        ...

    def discard(self) -> None:
        """Stop without finishing the file."""
        ...


def format_of(name: str) -> str:
    """Return the format of a file by its name; raise `UnreadableFile` for an unknown suffix."""
    suffix = PurePath(name).suffix.lower()
    if suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise UnreadableFile(f"{PurePath(name).name!r:.200} does not end with one of {known}")
    return _SUFFIXES[suffix]


def check_format(kind: str) -> None:
    """Raise `UnreadableFile` for an unknown format."""
    if kind not in FORMATS:
        raise UnreadableFile(f"unknown format {kind!r:.80}; known formats are {', '.join(FORMATS)}")


def read(
    file: IO[bytes], kind: str, types: EntryTypes, *, entity_type: str | None = None
) -> Iterator[Record | BadRecord]:
    """Return the records of a file; `entity_type` applies to those that name none.

    Raises `UnreadableFile` for a file in another format, or with unknown columns.
    """
    check_format(kind)
    if kind == "jsonl":
        return _read_json(file)
    if kind == "csv":
        return _read_csv(file, types, entity_type)
    return read_sheet(file, types, entity_type)


@contextmanager
def writer_to(file: IO[bytes], kind: str, types: Sequence[EntryType]) -> Iterator[Writer]:
    """Provide a writer of entries of these types; a table has a column for each of their fields."""
    check_format(kind)
    writer: Writer
    if kind == "jsonl":
        writer = _JsonWriter(file)
    elif kind == "csv":
        writer = _CsvWriter(file, types)
    else:
        writer = SheetWriter(file, types)
    try:
        yield writer
    except BaseException:
        writer.discard()
        raise
    writer.close()


def _numbered_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Yield the lines with their numbers, without a byte order mark; None for an overlong line."""
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


# JSON Lines
#
# Each line is an object with `id`, `entity_type`, `category_code` and `data`. In an object without
# `data`, all other members are the data.

_KNOWN = frozenset((*OWN, *REPORTED, "data"))
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def _read_json(file: IO[bytes]) -> Iterator[Record | BadRecord]:
    """Yield the records of a file, skipping empty lines."""
    for number, line in _numbered_lines(file):
        if line is None:
            yield BadRecord(number, f"has more than {LONGEST_LINE:,} bytes")
        elif line.strip():
            yield _json_record(number, line)


def _json_record(number: int, line: bytes) -> Record | BadRecord:
    try:
        check_depth(line.decode(), "the object", DEPTH_LIMIT + 2)
        found = _decode(line)
    except UnicodeDecodeError as error:
        return BadRecord(number, f"is not UTF-8: {error.reason} at byte {error.start + 1}")
    except (msgspec.DecodeError, Unreadable) as error:
        return BadRecord(number, f"is not a JSON object: {error}")
    for other, name in ALSO_CALLED.items():
        if other in found and name not in found and "data" in found:
            found[name] = found.pop(other)
    if "data" not in found:
        kept = {name: value for name, value in found.items() if name not in _KNOWN}
        found = {**{name: found.get(name) for name in OWN}, "data": kept}
    return _checked(number, found)


def _checked(number: int, found: dict[str, Any]) -> Record | BadRecord:
    if unknown := found.keys() - _KNOWN:
        return BadRecord(number, f"has {min(unknown)!r:.80} besides its data")
    if not isinstance(found["data"], dict):
        return BadRecord(number, "data: expected object")
    for name in OWN:
        if not isinstance(found.get(name), str | None):
            return BadRecord(number, f"{name}: expected text")
    own = [found.get(name) or None for name in OWN]
    return Record(number, own[0], own[1], own[2], found["data"])


class _JsonWriter:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, entry: Exported) -> None:
        self._file.write(_encode(entry._asdict()) + b"\n")

    def close(self) -> None:
        """Do nothing: every line is already written."""

    def discard(self) -> None:
        """Do nothing: there is no other file."""


# CSV, also with semicolons or tabs as delimiters

# How spreadsheets recognise a formula. We escape one with an apostrophe, as other programs do, so
# a text that begins with apostrophes gets one more.
_FORMULA = re.compile("'*[=+\\-@\\t\\r\\n\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+\-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def _read_csv(
    file: IO[bytes], types: EntryTypes, entity_type: str | None
) -> Iterator[Record | BadRecord]:
    """Yield the records, numbered by the line on which each begins, skipping empty ones."""
    lines = _TextLines(file)
    first = next(lines, "")
    delimiter = max(",;\t", key=first.count)
    csv.field_size_limit(max(DATA_LIMIT, csv.field_size_limit()))  # of the whole process
    (header,) = csv.reader([first], delimiter=delimiter)
    columns = Columns([_unescaped(cell) for cell in header], types, entity_type)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        start = lines.number + 1
        lines.begin_record()
        try:
            cells = [_unescaped(cell) for cell in next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            at_the_end = "unexpected end" in str(error)
            why = "a quotation mark is not closed" if at_the_end else error
            yield BadRecord(start, f"is not a valid CSV row: {why}")
            reader = csv.reader(lines, delimiter=delimiter, strict=True)
            continue
        except _BadLine as error:
            yield BadRecord(lines.number, str(error))
            reader = csv.reader(lines, delimiter=delimiter, strict=True)
            continue
        if (found := columns.record(start, cells)) is not None:
            yield found


class _BadLine(Exception):
    """A line is not text, or is too long."""


class _TextLines:
    """The lines of a file as text."""

    def __init__(self, file: IO[bytes]) -> None:
        self.number = 0
        self._lines = _numbered_lines(file)
        self._size = 0

    def __iter__(self) -> "_TextLines":
        return self

    def begin_record(self) -> None:
        """Reset the size: a record may span several lines, but not the whole file."""
        self._size = 0

    def __next__(self) -> str:
        self.number, line = next(self._lines)
        self._size += LONGEST_LINE if line is None else len(line)
        if line is None or self._size > LONGEST_LINE:
            raise _BadLine(f"has more than {LONGEST_LINE:,} bytes")
        if self.number == 1 and line.startswith(_UTF_16):
            raise UnreadableFile("is UTF-16; save the file as UTF-8", 1)
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            where = f"{error.reason} at byte {error.start + 1}"
            wrong = f"is not UTF-8: {where}; save the file as UTF-8"
            if self.number == 1:
                raise UnreadableFile(wrong, 1) from error
            raise _BadLine(wrong) from error


class _CsvWriter:
    def __init__(self, file: IO[bytes], types: Sequence[EntryType]) -> None:
        self._file = file
        self._header = header_of(types)
        self._fields = {one.name: one.fields for one in types}
        self._put(self._header)

    def write(self, entry: Exported) -> None:
        cells = row_of(entry, self._header, self._fields[entry.entity_type])
        self._put([str(cell).lower() if isinstance(cell, bool) else cell for cell in cells])

    def close(self) -> None:
        """Do nothing: every row is already written."""

    def discard(self) -> None:
        """Do nothing: there is no other file."""

    def _put(self, cells: Sequence[Any]) -> None:
        text = io.StringIO(newline="")
        csv.writer(text).writerow([_escaped(cell) for cell in cells])
        self._file.write(text.getvalue().encode())


def _escaped(cell: Any) -> Any:
    """Return a cell that no spreadsheet evaluates as a formula, with an apostrophe before it.

    Numbers stay numbers, also as text: `-5` computes nothing.
    """
    if isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def _unescaped(cell: str) -> str:
    """Return the cell that `_escaped` was given."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
