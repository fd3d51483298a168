"""Lines of JSON with checksums, and the heads of files."""

from datetime import datetime
from pathlib import Path
from typing import Literal
from zlib import crc32

import msgspec

from penstock.core.errors import StoreError

FORMAT = 1
"""The version of the format that is written; files with a higher one are refused."""

Kind = Literal["journal", "snapshot"]

BEFORE = b'{"crc":"'
"""How every line starts."""
_AFTER = b'",'
_START = len(BEFORE) + 8 + len(_AFTER)


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of every file: its kind, its store, and the number of its first record.

    A snapshot has the result of all records before that one; a journal continues with it. Records
    that an earlier journal has from that number on never happened: they could not be made durable.
    """

    penstock: Kind
    version: int
    store: int
    first: int
    at: datetime


class _Version(msgspec.Struct):
    """The part of a head that every version has."""

    penstock: str
    version: int


_encode = msgspec.json.Encoder().encode


def line_of(value: object) -> bytes:
    """Return a value as a line of JSON that starts with a checksum of the rest."""
    rest = _encode(value)[1:]
    return b"%b%08x%b%b\n" % (BEFORE, crc32(rest), _AFTER, rest)


def opened(line: bytes) -> bytes | None:
    """Return the JSON of a line, given without its end; None if it was altered."""
    rest = line[_START:]
    if line[:_START] != b"%b%08x%b" % (BEFORE, crc32(rest), _AFTER):
        return None
    return b"{" + rest


def read_head(line: bytes, kind: Kind, path: Path) -> Head:
    """Decode the first line of a file of that kind; raises `StoreError` for anything else."""
    try:
        text = (line.endswith(b"\n") and opened(line[:-1])) or b""
        found = msgspec.json.decode(text, type=_Version)
        if found.penstock == kind and found.version > FORMAT:
            raise StoreError(
                f"{path} was written by a newer Penstock (format {found.version}, this one knows "
                f"{FORMAT}); upgrade Penstock"
            )
        head = msgspec.json.decode(text, type=Head)
    except msgspec.MsgspecError as error:
        raise damaged(path, 1, f"it is not the header of a {kind}") from error
    if head.penstock != kind:
        raise damaged(path, 1, f"it is the header of a {head.penstock}, not of a {kind}")
    return head


def damaged(path: Path, line: int, what: str) -> StoreError:
    """Return the error for a file that cannot be trusted."""
    return StoreError(
        f"{path}, line {line}: {what}; the file is damaged; nothing was changed, "
        "restore it from a backup"
    )
