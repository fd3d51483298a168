"""What has happened, one line of JSON for each transition: for people, never read back."""

import logging
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from penstock.core.job import LogEntry
from penstock.stores.journal.records import compact_entries

LONGEST = 16 * 1024 * 1024
"""When the file is so long, it becomes the earlier one and another begins."""

_log = logging.getLogger(__name__)
_encode_lines = msgspec.json.Encoder().encode_lines


class Audit:
    """The files `audit.jsonl` and, before it, `audit-earlier.jsonl`.

    Lines come behind the commit and are not made durable: after a crash the last may be missing.
    A file that cannot be written keeps no job from being done.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "audit.jsonl"
        self._earlier = folder / "audit-earlier.jsonl"
        self._fd: int | None = None
        self._size = 0
        self._failed = False

    def write(self, entries: Iterable[LogEntry]) -> None:
        """Add these entries."""
        try:
            fd = self._open() if self._fd is None else self._fd
            self._size += os.write(fd, _encode_lines(list(compact_entries(entries))))
            if self._size > LONGEST:
                self.close()
                self._path.replace(self._earlier)
        except OSError as error:
            if not self._failed:
                _log.warning("%s lacks entries: %s", self._path, error.strerror)
            self._failed = True

    def _open(self) -> int:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._size = os.lseek(self._fd, 0, os.SEEK_END)
        return self._fd

    def close(self) -> None:
        """Let go of the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
