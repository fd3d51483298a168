"""Rows on their way into the store, in a file: never all in memory, and read as often as needed."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

import msgspec

from penstock.apps.entries.rows import Content

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Content).decode


class Spool:
    """Contents of rows in a file that is gone when it is closed; their ids are kept at hand."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by `close`
        self.ids: dict[str, int] = {}
        """The line that each came from."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, content: Content, line: int) -> None:
        """Keep a row."""
        self.ids[content.id] = line
        self._file.write(_encode(content) + b"\n")

    def batches(self, size: int) -> Iterator[list[Content]]:
        """All rows in their order, so many at a time."""
        self._file.seek(0)
        batch: list[Content] = []
        for line in self._file:
            batch.append(_decode(line))
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch
