"""Rows on their way into the store, in a file: never all in memory, and read as often as needed."""

import struct
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

import msgspec

from penstock.apps.entries.rows import Content

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Content]).decode
_SIZE = struct.Struct("<I")


class Spool:
    """Contents of rows in a file that is gone when it is closed; their ids are kept at hand.

    They are written and read `size` at a time, each batch behind the number of its bytes.
    """

    def __init__(self, folder: Path, size: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by `close`
        self._size = size
        self._batch: list[Content] = []
        self.ids: dict[str, int] = {}
        """The line that each came from."""
        self.made: Counter[str] = Counter()
        """The last number given to each id that was made of a content, for the next one alike."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, content: Content, line: int) -> None:
        """Keep a row."""
        self.ids[content.id] = line
        self._batch.append(content)
        if len(self._batch) == self._size:
            self._write()

    def batches(self) -> Iterator[list[Content]]:
        """All rows in their order, so many at a time; no more are added then."""
        self._write()
        self._file.seek(0)
        while head := self._file.read(_SIZE.size):
            yield _decode(self._file.read(*_SIZE.unpack(head)))

    def _write(self) -> None:
        if self._batch:
            encoded = _encode(self._batch)
            self._file.write(_SIZE.pack(len(encoded)) + encoded)
            self._batch = []
