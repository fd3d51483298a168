"""A log of all transitions for people, one line of JSON each; never read back."""

import logging
import os
from collections.abc import Iterable

import msgspec

from penstock.core.job import LogEntry
from penstock.stores.journal.folder import Folder
from penstock.stores.journal.records import compact_entries

LONGEST = 16 * 1024 * 1024
"""At this size the file becomes the earlier one, and another begins."""

_log = logging.getLogger(__name__)
_encode_lines = msgspec.json.Encoder().encode_lines


class Audit:
    """The files `audit.jsonl` and, before it, `audit-earlier.jsonl`.

    Lines are written after the commit and are not made durable: after a crash the last ones may be
    missing. If the file cannot be written, jobs are processed nevertheless.
    """

    def __init__(self, folder: Folder) -> None:
        self._files = folder.files
        self._path = folder.path / "audit.jsonl"
        self._earlier = folder.path / "audit-earlier.jsonl"
        self._fd: int | None = None
        self._size = 0
        self._failed = False

    def write(self, entries: Iterable[LogEntry]) -> None:
        """Append these entries."""
        try:
            fd = self._open() if self._fd is None else self._fd
            self._size += self._files.write(fd, _encode_lines(list(compact_entries(entries))))
            if self._size > LONGEST:
                self.close()
                self._files.replace(self._path, self._earlier)
        except OSError as error:
            if not self._failed:
                _log.warning("%s lacks entries: %s", self._path, error.strerror)
            self._failed = True

    def _open(self) -> int:
        self._fd = self._files.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._size = self._files.seek(self._fd, 0, os.SEEK_END)
        return self._fd

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            self._files.close(self._fd)
            self._fd = None
