"""Entries in text with columns: CSV, also with semicolons or tabs between the cells."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import IO, Any

from penstock.apps.entries.cells import Columns, header_of, row_of
from penstock.apps.entries.entrytypes import DATA_LIMIT, EntryType
from penstock.apps.entries.formats import BadRecord, Exported, Record, Types, UnreadableFile
from penstock.apps.entries.lines import LONGEST_LINE, lines_of

# How a spreadsheet recognises a formula. An apostrophe before it is one of our own, or of others;
# so there is one more for each that the text begins with.
_FORMULA = re.compile("'*[=+\\-@\\t\\r\\n\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+\-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?")
_WIDE = (b"\xff\xfe", b"\xfe\xff")


def read_delimited(
    file: IO[bytes], types: Types, entity_type: str | None
) -> Iterator[Record | BadRecord]:
    """The records of a file, numbered by the line on which each begins; empty ones left out."""
    lines = _Lines(file)
    first = next(lines, "")
    delimiter = max(",;\t", key=first.count)
    csv.field_size_limit(max(DATA_LIMIT, csv.field_size_limit()))  # of the whole process
    (header,) = csv.reader([first], delimiter=delimiter)
    columns = Columns([_restored(cell) for cell in header], types, entity_type)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        start = lines.number + 1
        lines.begin_record()
        try:
            cells = [_restored(cell) for cell in next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            at_the_end = "unexpected end" in str(error)
            why = "a quotation mark is not closed" if at_the_end else error
            yield BadRecord(start, f"is no row of cells: {why}")
            reader = csv.reader(lines, delimiter=delimiter, strict=True)
            continue
        except _BadLine as error:
            yield BadRecord(lines.number, str(error))
            reader = csv.reader(lines, delimiter=delimiter, strict=True)
            continue
        if (found := columns.record(start, cells)) is not None:
            yield found


class _BadLine(Exception):
    """A line that is no text."""


class _Lines:
    """The lines of a file as text."""

    def __init__(self, file: IO[bytes]) -> None:
        self.number = 0
        self._lines = lines_of(file)
        self._taken = 0

    def __iter__(self) -> "_Lines":
        return self

    def begin_record(self) -> None:
        """Count anew: a record may go over several lines, but not over all of them."""
        self._taken = 0

    def __next__(self) -> str:
        self.number, line = next(self._lines)
        self._taken += LONGEST_LINE if line is None else len(line)
        if line is None or self._taken > LONGEST_LINE:
            raise _BadLine(f"has more than {LONGEST_LINE:,} bytes")
        if self.number == 1 and line.startswith(_WIDE):
            raise UnreadableFile("is text in UTF-16; save it as UTF-8", 1)
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            wrong = f"is no UTF-8 text: {error.reason} at byte {error.start + 1}; save it as UTF-8"
            if self.number == 1:
                raise UnreadableFile(wrong, 1) from error
            raise _BadLine(wrong) from error


class DelimitedWriter:
    """Writes entries as CSV."""

    def __init__(self, file: IO[bytes], types: Sequence[EntryType]) -> None:
        self._file = file
        self._header = header_of(types)
        self._fields = {one.name: one.fields for one in types}
        self._put(self._header)

    def write(self, entry: Exported) -> None:
        """Add an entry."""
        cells = row_of(entry, self._header, self._fields[entry.entity_type])
        self._put([_written(cell) for cell in cells])

    def close(self) -> None:
        """Every line is written already."""

    def discard(self) -> None:
        """There is nothing else."""

    def _put(self, cells: Sequence[Any]) -> None:
        text = io.StringIO(newline="")
        csv.writer(text).writerow([_harmless(cell) for cell in cells])
        self._file.write(text.getvalue().encode())


def _harmless(cell: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula: behind an apostrophe, as they do it.

    Numbers stay numbers, also those that stand in a text: `-5` computes nothing.
    """
    if isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def _restored(cell: str) -> str:
    """Return the cell that `_harmless` was given."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def _written(cell: Any) -> Any:
    return str(cell).lower() if isinstance(cell, bool) else cell
