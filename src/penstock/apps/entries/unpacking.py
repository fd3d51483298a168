"""Unpacks a workbook within bounds: a small file can be the seed of an endless one.

What a part of the archive says about its own size is no bound: the bytes are counted as they come.
A sheet is read row by row, so that each of its rows is bounded and not all of them together. What
is not in a row is kept in memory as a tree, like all other parts, and takes some fifty times as
much as its shortest XML. So tags are counted, too: by a parser, because only a parser knows what is
a tag, and a row, in every encoding, namespace and comment.
"""

import io
import zipfile
from typing import IO, Any
from xml.parsers import expat

SHEET_LIMIT = 1_000_000_000
"""Bytes that a sheet may unpack to."""
PARTS_LIMIT = 64_000_000
"""Bytes that all other parts may unpack to, together: mostly the texts of the cells."""
TAGS_LIMIT = 2_000_000
"""Tags and attributes that all other parts may have."""
ROW_LIMIT = 4_000_000
"""Bytes that a row may have."""
ROW_TAGS_LIMIT = 100_000
"""Tags that a row may have: the format has 16,384 columns."""
ROWS_LIMIT = 1_048_576
"""Rows that a sheet may have, by the format."""
OUTSIDE_LIMIT = 16_000_000
"""Bytes that a sheet may have outside of its rows."""
OUTSIDE_TAGS_LIMIT = 300_000
"""Tags and attributes that a sheet may have outside of its rows."""
ROW_ATTRIBUTES_LIMIT = 64_000_000
"""Characters that the attributes of all rows may have, together: they are kept as well."""

_CHUNK = 65_536
_ROW = "http://schemas.openxmlformats.org/spreadsheetml/2006/main row"
_ROW_END = len("</row>")
_UNKNOWN_ENCODINGS = {
    expat.errors.codes[expat.errors.XML_ERROR_UNKNOWN_ENCODING],
    expat.errors.codes[expat.errors.XML_ERROR_INCORRECT_ENCODING],
}


class TooLarge(Exception):
    """A file unpacks to more than is allowed."""


class BoundedArchive(zipfile.ZipFile):
    """An archive whose parts cannot be read beyond the limits."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.left = PARTS_LIMIT
        self.tags = TAGS_LIMIT

    def open(self, name: Any, mode: Any = "r", pwd: Any = None, **options: Any) -> IO[bytes]:
        """Open a part for reading that may become a tree in memory, whatever it is called."""
        part = super().open(name, mode, pwd, **options)
        return io.BufferedReader(_Part(part, self), _CHUNK)

    def open_sheet(self, name: str) -> IO[bytes]:
        """Open a sheet for reading by row."""
        return io.BufferedReader(_Sheet(super().open(name)), _CHUNK)


class SheetArchive:
    """Opens the parts of an archive as sheets: for a reader that keeps one row at a time."""

    def __init__(self, archive: BoundedArchive) -> None:
        self._archive = archive

    def open(self, name: str) -> IO[bytes]:
        """Open a sheet."""
        return self._archive.open_sheet(name)

    def close(self) -> None:
        """Close the archive."""
        self._archive.close()


class _Bounded(io.RawIOBase):
    """A part that is parsed while it is read, only to count what is in it."""

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
                    raise TooLarge("has a part in an encoding that is not known") from error
                self._parser = None  # a picture, or something else of which nothing can be made
        self._check()
        buffer[: len(data)] = data
        return len(data)

    def _refuse(self, *_: object) -> None:
        # Neither has a place in a workbook; both can make much of little.
        raise TooLarge("has a document type or entities of its own, as no workbook has")

    def _count(self, data: bytes) -> None:
        raise NotImplementedError

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        raise NotImplementedError

    def _end(self, name: str) -> None:
        """Do nothing: most parts are counted by the beginnings of their elements."""

    def _check(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._parser = None  # it refers to this object, and this object to it
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
        self._archive.tags -= 2 + len(attributes)  # it has an end, too

    def _check(self) -> None:
        if self._archive.left < 0 or self._archive.tags < 0:
            raise TooLarge(
                f"unpacks to more than {PARTS_LIMIT:,} bytes or {TAGS_LIMIT:,} tags beside its "
                "sheets; save it as csv"
            )


class _Sheet(_Bounded):
    """A sheet, of which one row at a time is in memory, and all that is not in a row."""

    def __init__(self, part: IO[bytes]) -> None:
        super().__init__(part)
        self._size = self._rows = self._row_attributes = 0
        self._depth = 0
        """Of rows in rows."""
        self._since = self._row_tags = 0
        """Where the row begins, or what is outside of rows, and the tags of the row."""
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
        assert self._parser is not None  # noqa: S101 - it is what calls
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
                "tags outside of its rows"
            )

    def _check_row(self, end: int) -> None:
        if end - self._since > ROW_LIMIT or self._row_tags > ROW_TAGS_LIMIT:
            raise TooLarge(f"has a row of more than {ROW_LIMIT:,} bytes or {ROW_TAGS_LIMIT:,} tags")
