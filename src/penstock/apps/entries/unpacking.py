"""Unpacks a workbook within bounds: a small file can be the seed of an endless one.

What a part of the archive says about its own size is no bound: the bytes are counted as they come.
A sheet is read row by row, so that its rows are bounded and not the sheet. All other parts are
kept in memory as a tree, which takes some fifty times as much as its shortest XML: so their tags
are counted, too.
"""

import io
import re
import zipfile
from typing import IO, Any

SHEET_LIMIT = 1_000_000_000
"""Bytes that a sheet may unpack to."""
PARTS_LIMIT = 64_000_000
"""Bytes that all other parts may unpack to, together: mostly the texts of the cells."""
TAGS_LIMIT = 2_000_000
"""Tags that all other parts may have."""
ROW_LIMIT = 4_000_000
"""Bytes that a row may have, and what stands before the first one."""
ROW_TAGS_LIMIT = 100_000
"""Tags that a row may have: the format has 16,384 columns."""

_CHUNK = 65_536
_SHEET = re.compile(r"/?xl/worksheets/[^/]+\.xml", re.IGNORECASE)
# Neither has a place in a workbook; both can make much of little.
_DECLARATION = re.compile(rb"<!\s*(?:DOCTYPE|ENTITY)", re.IGNORECASE)
_LONGEST_DECLARATION = 32
_ROW = re.compile(rb"</(?:\w+:)?row\s*>|<sheetData")


class TooLarge(Exception):
    """A file unpacks to more than is allowed."""


class BoundedArchive(zipfile.ZipFile):
    """An archive whose parts cannot be read beyond the limits."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.left = PARTS_LIMIT
        self.tags = TAGS_LIMIT

    def open(self, name: Any, mode: Any = "r", pwd: Any = None, **options: Any) -> IO[bytes]:
        """Open a part for reading."""
        part = super().open(name, mode, pwd, **options)
        title = name.filename if isinstance(name, zipfile.ZipInfo) else str(name)
        bounded = _Sheet(part) if _SHEET.fullmatch(title) else _Part(part, self)
        return io.BufferedReader(bounded, _CHUNK)


class _Bounded(io.RawIOBase):
    """A part that is looked at while it is read."""

    def __init__(self, part: IO[bytes]) -> None:
        self._part = part
        self._tail = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._part.read(min(len(buffer), _CHUNK))
        plain = data.replace(b"\0", b"") if b"\0" in data else data  # as UTF-16 is
        if _DECLARATION.search(self._tail + plain):
            raise TooLarge("has a document type or entities of its own, as no workbook has")
        self._tail = (self._tail + plain)[-_LONGEST_DECLARATION:]
        self._count(plain)
        buffer[: len(data)] = data
        return len(data)

    def _count(self, data: bytes) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._part.close()
        super().close()


class _Part(_Bounded):
    """A part that becomes a tree in memory."""

    def __init__(self, part: IO[bytes], archive: BoundedArchive) -> None:
        super().__init__(part)
        self._archive = archive

    def _count(self, data: bytes) -> None:
        archive = self._archive
        archive.left -= len(data)
        archive.tags -= data.count(b"<")
        if archive.left < 0 or archive.tags < 0:
            raise TooLarge(
                f"unpacks to more than {PARTS_LIMIT:,} bytes or {TAGS_LIMIT:,} tags beside its "
                "sheets; save it as csv"
            )


class _Sheet(_Bounded):
    """A sheet, of which one row at a time is in memory."""

    def __init__(self, part: IO[bytes]) -> None:
        super().__init__(part)
        self._left = SHEET_LIMIT
        self._row_bytes = self._row_tags = 0

    def _count(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise TooLarge(f"has a sheet of more than {SHEET_LIMIT:,} bytes; save it as csv")
        ends = [found.end() for found in _ROW.finditer(data)]
        if ends:
            self._row_bytes = self._row_tags = 0
            data = data[ends[-1] :]
        self._row_bytes += len(data)
        self._row_tags += data.count(b"<")
        if self._row_bytes > ROW_LIMIT or self._row_tags > ROW_TAGS_LIMIT:
            raise TooLarge(f"has a row of more than {ROW_LIMIT:,} bytes or {ROW_TAGS_LIMIT:,} tags")
