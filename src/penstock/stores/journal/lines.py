"""Lines of JSON that know whether they are whole, and the heads of files."""

from datetime import datetime
from pathlib import Path
from typing import Literal
from zlib import crc32

import msgspec

from penstock.core.errors import StoreError

FORMAT = 1
"""The version of the format that is written; a file with a higher one is refused."""

Kind = Literal["journal", "snapshot"]

_BEFORE, _AFTER = b'{"crc":"', b'",'
_START = len(_BEFORE) + 8 + len(_AFTER)


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of every file: what it is, of which store, and the first record behind it.

    A snapshot has all that the records before that one came to; a journal goes on with it. What
    an earlier journal has from there on never happened: it could not be made durable.
    """

    penstock: Kind
    version: int
    store: int
    first: int
    at: datetime


class _Version(msgspec.Struct):
    """What of a head can be read whatever its version."""

    penstock: str
    version: int


_encode = msgspec.json.Encoder().encode


def line_of(value: object) -> bytes:
    """A line of JSON that begins with a checksum of all behind it."""
    rest = _encode(value)[1:]
    return b"%b%08x%b%b\n" % (_BEFORE, crc32(rest), _AFTER, rest)


def opened(line: bytes) -> bytes | None:
    """The JSON of a line without its end; None if it is not as it was written."""
    rest = line[_START:]
    if line[:_START] != b"%b%08x%b" % (_BEFORE, crc32(rest), _AFTER):
        return None
    return b"{" + rest


def read_head(line: bytes, kind: Kind, path: Path) -> Head:
    """What the first line of a file of that kind says; raises `StoreError` for anything else."""
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
        raise damaged(path, 1, f"it is no head of a {kind}") from error
    if head.penstock != kind:
        raise damaged(path, 1, f"it is the head of a {head.penstock}, not of a {kind}")
    return head


def damaged(path: Path, line: int, what: str) -> StoreError:
    """The error for a file that cannot be believed."""
    return StoreError(
        f"{path}, line {line}: {what}; the file is damaged and nothing of it was changed: "
        "restore it from a copy"
    )
