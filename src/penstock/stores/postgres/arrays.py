"""Lists as PostgreSQL's binary arrays, packed at once: the driver takes far longer."""

import struct
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryDumper

_INT8, _INT8_ARRAY = 20, 1016
_TEXT, _TEXT_ARRAY = 25, 1009
_NULL = b"\xff\xff\xff\xff"


class Packed:
    """An array on its way to the server."""

    __slots__ = ("data",)
    oid = 0

    def __init__(self, element: int, n: int, body: bytes) -> None:
        self.data = struct.pack("!iiiii", 1, 1, element, n, 1) + body


class Int8s(Packed):
    """A list of integers; None is NULL."""

    __slots__ = ()
    oid = _INT8_ARRAY

    def __init__(self, values: Sequence[int | None]) -> None:
        n = len(values)
        if None in values:
            body = b"".join(_NULL if v is None else struct.pack("!iq", 8, v) for v in values)
        else:
            flat: list[Any] = [8] * (2 * n)
            flat[1::2] = values
            body = struct.pack("!" + "iq" * n, *flat)
        super().__init__(_INT8, n, body)


class Texts(Packed):
    """A list of texts; None is NULL."""

    __slots__ = ()
    oid = _TEXT_ARRAY

    def __init__(self, values: Sequence[str | None]) -> None:
        n = len(values)
        if values.count(None) == n:
            body = _NULL * n
        else:
            parts: list[bytes] = []
            for value in values:
                if value is None:
                    parts.append(_NULL)
                else:
                    encoded = storable(value).encode()
                    parts += (len(encoded).to_bytes(4, "big"), encoded)
            body = b"".join(parts)
        super().__init__(_TEXT, n, body)


def storable(text: str) -> str:
    """Return the text without NUL, the one character that PostgreSQL cannot store."""
    return text.replace("\0", "\ufffd") if "\0" in text else text


class _Int8sDumper(Dumper):
    format = Format.BINARY
    oid = _INT8_ARRAY

    def dump(self, obj: Packed) -> bytes:
        return obj.data


class _TextsDumper(_Int8sDumper):
    oid = _TEXT_ARRAY


class _TextDumper(Dumper):
    """Sends text without a type, so that the query decides."""

    def dump(self, obj: str) -> bytes:
        return storable(str(obj)).encode()


def register(connection: "psycopg.Connection[Any]") -> None:
    """Register these types on a connection; numbers are always `bigint`, to have few plans."""
    connection.adapters.register_dumper(Int8s, _Int8sDumper)
    connection.adapters.register_dumper(Texts, _TextsDumper)
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    connection.adapters.register_dumper(str, _TextDumper)
