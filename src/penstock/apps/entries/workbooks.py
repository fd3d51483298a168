"""Workbooks (XLSX): entries in the first sheet, read and written row by row, within limits.

A small file can unpack to an endless one, and the size that an archive states for its parts limits
nothing: bytes are counted as they are read. A sheet is read row by row, so each row is limited
rather than the sum of rows. Everything else becomes a tree in memory, about fifty times the size of
its shortest XML, so its tags are counted too. A parser counts them: only a parser knows a tag, and
a row, in every encoding, namespace and comment.
"""

import contextlib
import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from typing import IO, Any
from xml.parsers import expat

from penstock.apps.entries.records import (
    BadRecord,
    Columns,
    Exported,
    Record,
    UnreadableFile,
    Unwritable,
    header_of,
    row_of,
)
from penstock.apps.entries.types import DATA_LIMIT, EntryType, EntryTypes

CELL_LIMIT = 32_767
"""Characters of a cell, by the format."""
# XML cannot hold these characters; the format escapes them as _x000D_, and text that looks so too.
_ODD = re.compile("[\\x00-\\x08\\x0b-\\x1f\\ufffe\\uffff]|_(?=x[0-9A-Fa-f]{4}_)")
_ESCAPED = re.compile("_x([0-9A-Fa-f]{4})_")
_MISSING = "workbooks need the package openpyxl: pip install 'penstock[entries]'"


def read_sheet(
    file: IO[bytes], types: EntryTypes, entity_type: str | None
) -> Iterator[Record | BadRecord]:
    """Yield the records of the first sheet, numbered by row, skipping empty ones."""
    try:
        from openpyxl.reader.excel import ExcelReader
    except ImportError as error:
        raise UnreadableFile(_MISSING) from error

    class Reader(ExcelReader):  # type: ignore[misc] # the library has no types
        def read_workbook(self) -> None:
            super().read_workbook()
            # The workbook opens sheets, this reader all other parts. The name of a part proves
            # nothing: a file may declare any part to be anything.
            self.wb._archive = SheetArchive(self.archive)  # noqa: SLF001 - there is no public way

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
    except Exception as error:  # a broken workbook can raise anything in the library
        raise UnreadableFile(f"is not a readable workbook: {error}") from error
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
            raise UnreadableFile(f"cannot be read: {error}", line) from error
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
        """Add an entry; raises `Unwritable` for a text that is too long for a cell."""
        cells = row_of(entry, self._header, self._fields[entry.entity_type])
        self._sheet.append([self._filled(entry.id, value) for value in cells])

    def close(self) -> None:
        """Write the file."""
        self._book.save(self._file)

    def discard(self) -> None:
        """Remove the temporary file of the rows."""
        self._sheet.close()
        self._sheet._writer.cleanup()  # noqa: SLF001 - there is no public way

    def _filled(self, entry_id: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if len(value) + 6 * len(_ODD.findall(value)) > CELL_LIMIT:
            raise Unwritable(
                f"entry {entry_id}: a text of {len(value):,} characters exceeds the "
                f"{CELL_LIMIT:,} of a workbook's cell; export as csv or jsonl"
            )
        cell = self._cell(self._sheet, _ODD.sub(_escaped, value))
        cell.data_type = "s"  # text, even if it begins like a formula
        return cell


def _escaped(found: re.Match[str]) -> str:
    return f"_x{ord(found[0]):04X}_"


def _unescaped(cell: Any) -> Any:
    if not isinstance(cell, str) or "_x" not in cell:
        return cell
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), cell)


# Limits

SHEET_LIMIT = 1_000_000_000
"""Bytes of a sheet when unpacked."""
PARTS_LIMIT = 64_000_000
"""Bytes of all other parts when unpacked, together: mostly the texts of cells."""
TAGS_LIMIT = 2_000_000
"""Tags and attributes of all other parts."""
ROW_LIMIT = 4_000_000
"""Bytes of a row."""
ROW_TAGS_LIMIT = 100_000
"""Tags of a row: the format has 16,384 columns."""
ROWS_LIMIT = 1_048_576
"""Rows of a sheet, by the format; a single row can claim to be the billionth."""
OUTSIDE_LIMIT = 16_000_000
"""Bytes of a sheet outside its rows."""
OUTSIDE_TAGS_LIMIT = 300_000
"""Tags and attributes of a sheet outside its rows."""
ROW_ATTRIBUTES_LIMIT = 64_000_000
"""Characters of the attributes of all rows, together: the library keeps them."""

_CHUNK = 65_536
_ROW = "http://schemas.openxmlformats.org/spreadsheetml/2006/main row"
_ROW_END = len("</row>")
_UNKNOWN_ENCODINGS = {
    expat.errors.codes[expat.errors.XML_ERROR_UNKNOWN_ENCODING],
    expat.errors.codes[expat.errors.XML_ERROR_INCORRECT_ENCODING],
}


class TooLarge(Exception):
    """A file unpacks to more than a limit allows."""


class BoundedArchive(zipfile.ZipFile):
    """An archive whose parts can only be read within the limits."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.left = PARTS_LIMIT
        self.tags = TAGS_LIMIT

    def open(self, name: Any, mode: Any = "r", pwd: Any = None, **options: Any) -> IO[bytes]:
        """Open a part as one that becomes a tree in memory, whatever its name."""
        part = super().open(name, mode, pwd, **options)
        return io.BufferedReader(_Part(part, self), _CHUNK)

    def open_sheet(self, name: str) -> IO[bytes]:
        """Open a sheet, to be read row by row."""
        return io.BufferedReader(_Sheet(super().open(name)), _CHUNK)


class SheetArchive:
    """Opens the parts of an archive as sheets, for a reader that keeps one row at a time."""

    def __init__(self, archive: BoundedArchive) -> None:
        self._archive = archive

    def open(self, name: str) -> IO[bytes]:
        """Open a sheet."""
        return self._archive.open_sheet(name)

    def close(self) -> None:
        """Close the archive."""
        self._archive.close()


class _Bounded(io.RawIOBase):
    """A part that is parsed while it is read, to count what is in it."""

    def __init__(self, part: IO[bytes]) -> None:
        self._part = part
        self._parser: expat.XMLParserType | None = expat.ParserCreate(namespace_separator=" ")
        self._parser.StartDoctypeDeclHandler = self._refuse
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._part.read(min(len(buffer), _CHUNK))
        self._count(data)
        if self._parser is not None:
            try:
                self._parser.Parse(data, not data)
            except expat.ExpatError as error:
                if error.code in _UNKNOWN_ENCODINGS:
                    raise TooLarge("has a part in an unknown encoding") from error
                self._parser = None  # a picture, or something else that is not XML
        self._check()
        buffer[: len(data)] = data
        return len(data)

    def _refuse(self, *_: object) -> None:
        # No workbook needs them, and entities expand to any size.
        raise TooLarge("declares a document type or entities, which workbooks do not have")

    def _count(self, data: bytes) -> None:
        raise NotImplementedError

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        raise NotImplementedError

    def _end(self, name: str) -> None:
        """Do nothing: most parts only count the start of elements."""

    def _check(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._parser = None  # breaks the reference cycle with its handlers
        self._part.close()
        super().close()


class _Part(_Bounded):
    """A part that becomes a tree in memory."""

    def __init__(self, part: IO[bytes], archive: BoundedArchive) -> None:
        super().__init__(part)
        self._archive = archive

    def _count(self, data: bytes) -> None:
        self._archive.left -= len(data)

    def _start(self, _: str, attributes: dict[str, str]) -> None:
        self._archive.tags -= 2 + len(attributes)  # start and end

    def _check(self) -> None:
        if self._archive.left < 0 or self._archive.tags < 0:
            raise TooLarge(
                f"unpacks to more than {PARTS_LIMIT:,} bytes or {TAGS_LIMIT:,} tags besides its "
                "sheets; save it as csv"
            )


class _Sheet(_Bounded):
    """A sheet, of which one row at a time and everything outside rows is in memory."""

    def __init__(self, part: IO[bytes]) -> None:
        super().__init__(part)
        self._size = self._rows = self._row_attributes = 0
        self._depth = 0
        """How deeply rows are nested."""
        self._since = self._row_tags = 0
        """Where the row, or the part outside rows, begins; and the tags of the row."""
        self._outside = self._outside_tags = 0

    def _count(self, data: bytes) -> None:
        self._size += len(data)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == _ROW:
            self._rows += 1
            self._row_attributes += sum(map(len, attributes)) + sum(map(len, attributes.values()))
            if not self._depth:
                self._outside += max(self._position - self._since, 0)
                self._since, self._row_tags = self._position, 0
            self._depth += 1
        if self._depth:
            self._row_tags += 1
        else:
            self._outside_tags += 1 + len(attributes)

    def _end(self, name: str) -> None:
        if name == _ROW:
            self._depth -= 1
            if not self._depth:
                self._check_row(self._position)
                self._since = self._position + _ROW_END

    @property
    def _position(self) -> int:
        assert self._parser is not None  # noqa: S101 - only its handlers call this
        return self._parser.CurrentByteIndex

    def _check(self) -> None:
        if self._size > SHEET_LIMIT:
            raise TooLarge(f"has a sheet of more than {SHEET_LIMIT:,} bytes; save it as csv")
        if self._rows > ROWS_LIMIT:
            raise TooLarge(f"has more than {ROWS_LIMIT:,} rows")
        if self._row_attributes > ROW_ATTRIBUTES_LIMIT:
            raise TooLarge(f"has rows with more than {ROW_ATTRIBUTES_LIMIT:,} bytes of attributes")
        outside = self._outside
        if self._depth:
            self._check_row(self._size)
        else:
            outside += max(self._size - self._since, 0)
        if outside > OUTSIDE_LIMIT or self._outside_tags > OUTSIDE_TAGS_LIMIT:
            raise TooLarge(
                f"has a sheet with more than {OUTSIDE_LIMIT:,} bytes or {OUTSIDE_TAGS_LIMIT:,} "
                "tags outside its rows"
            )

    def _check_row(self, end: int) -> None:
        if end - self._since > ROW_LIMIT or self._row_tags > ROW_TAGS_LIMIT:
            raise TooLarge(f"has a row of more than {ROW_LIMIT:,} bytes or {ROW_TAGS_LIMIT:,} tags")
