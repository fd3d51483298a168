"""Entries in the first sheet of a workbook (XLSX), read and written row by row."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import IO, Any

from penstock.apps.entries.cells import Columns, header_of, row_of
from penstock.apps.entries.entrytypes import DATA_LIMIT, EntryType
from penstock.apps.entries.formats import (
    BadRecord,
    Exported,
    Record,
    Types,
    UnreadableFile,
    Unwritable,
)
from penstock.apps.entries.unpacking import BoundedArchive, SheetArchive, TooLarge

ROWS_LIMIT = 1_048_576
"""Rows that a sheet may have, by the format; one alone can claim to be the billionth."""
CELL_LIMIT = 32_767
"""Characters that a cell may have, by the format."""
# What XML has no place for is written in the format's own way, as _x000D_ is; and so is what looks
# like that.
_ODD = re.compile("[\\x00-\\x08\\x0b-\\x1f\\ufffe\\uffff]|_(?=x[0-9A-Fa-f]{4}_)")
_ESCAPED = re.compile("_x([0-9A-Fa-f]{4})_")
_MISSING = "workbooks need the package openpyxl: pip install 'penstock[entries]'"


def read_sheet(
    file: IO[bytes], types: Types, entity_type: str | None
) -> Iterator[Record | BadRecord]:
    """The records of the first sheet, numbered by their rows; empty ones left out."""
    try:
        from openpyxl.reader.excel import ExcelReader
    except ImportError as error:
        raise UnreadableFile(_MISSING) from error

    class Reader(ExcelReader):  # type: ignore[misc] # the library has no types
        def read_workbook(self) -> None:
            super().read_workbook()
            # Sheets are opened by the workbook, all other parts by this reader. What a part is
            # called says nothing: a file may name any part to be anything.
            self.wb._archive = SheetArchive(self.archive)  # noqa: SLF001 - there is no other way

    try:
        reader = Reader(file, read_only=True, data_only=True, keep_links=False)
        reader.archive = BoundedArchive(file)
        reader.read()
        book = reader.wb
        sheet = book.worksheets[0]
        rows = sheet.iter_rows(values_only=True)
        header = next(rows, ())
    except TooLarge as error:
        raise UnreadableFile(str(error)) from error
    except Exception as error:  # whatever a broken workbook makes of the library
        raise UnreadableFile(f"is no workbook that can be read: {error}") from error
    with contextlib.closing(book):
        columns = Columns(header, types, entity_type)
        for line, cells in _numbered(rows):
            if (found := columns.record(line, cells)) is not None:
                yield found


def _numbered(rows: Iterator[Sequence[Any]]) -> Iterator[tuple[int, Sequence[Any]]]:
    line = 2
    while True:
        try:
            cells = next(rows)
        except StopIteration:
            return
        except TooLarge as error:
            raise UnreadableFile(str(error), line) from error
        except Exception as error:  # as above
            raise UnreadableFile(f"cannot be read any further: {error}", line) from error
        if line > ROWS_LIMIT:
            raise UnreadableFile(f"has more than {ROWS_LIMIT:,} rows", line)
        if any(isinstance(cell, str) and len(cell) > DATA_LIMIT for cell in cells):
            raise UnreadableFile(f"has a cell of more than {DATA_LIMIT:,} characters", line)
        yield line, [_unescaped(cell) for cell in cells]
        line += 1


class SheetWriter:
    """Writes entries as a workbook with one sheet."""

    def __init__(self, file: IO[bytes], types: Sequence[EntryType]) -> None:
        try:
            from openpyxl import Workbook
            from openpyxl.cell import WriteOnlyCell
        except ImportError as error:
            raise Unwritable(_MISSING) from error
        self._file = file
        self._cell = WriteOnlyCell
        self._book = Workbook(write_only=True)
        self._sheet = self._book.create_sheet("entries")
        self._header = header_of(types)
        self._fields = {one.name: one.fields for one in types}
        self._sheet.append(self._header)

    def write(self, entry: Exported) -> None:
        """Add an entry; raises `Unwritable` for what a cell has no place for."""
        cells = row_of(entry, self._header, self._fields[entry.entity_type])
        self._sheet.append([self._filled(entry.id, value) for value in cells])

    def close(self) -> None:
        """Write the file."""
        self._book.save(self._file)

    def discard(self) -> None:
        """Leave no file behind in which rows were collected."""
        self._sheet.close()
        self._sheet._writer.cleanup()  # noqa: SLF001 - it has no other way

    def _filled(self, entry_id: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if len(value) + 6 * len(_ODD.findall(value)) > CELL_LIMIT:
            raise Unwritable(
                f"entry {entry_id}: a cell of a workbook holds {CELL_LIMIT:,} characters, not "
                f"{len(value):,}; export as csv or jsonl"
            )
        cell = self._cell(self._sheet, _ODD.sub(_escaped, value))
        cell.data_type = "s"  # text, also where it begins like a formula
        return cell


def _escaped(found: re.Match[str]) -> str:
    return f"_x{ord(found[0]):04X}_"


def _unescaped(cell: Any) -> Any:
    if not isinstance(cell, str) or "_x" not in cell:
        return cell
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), cell)
