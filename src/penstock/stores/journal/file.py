"""The end of a journal, where records are added."""

import os
from pathlib import Path

from penstock.stores.journal.folder import draft_of, publish
from penstock.stores.journal.lines import Head, line_of

# Blanks are written ahead of small records: to write over them takes a third less time than to
# make the file longer (170 against 255 µs with fdatasync, ext4).
_AHEAD = 64 * 1024
_SMALL = 4 * 1024
_BLANK = b" "
BLANKS = b" \0"
"""What is there where no record was written; the second where room was only set aside."""


class JournalFile:
    """A journal that is open for more records: they end at `end`, blanks follow."""

    def __init__(self, path: Path, end: int, *, syncs: bool = True) -> None:
        self.path = path
        self.end = self._reserved = end
        self._syncs = syncs
        self._fd = os.open(path, os.O_RDWR)
        self._room = max(end, os.lseek(self._fd, 0, os.SEEK_END))

    @staticmethod
    def draft(path: Path, head: Head) -> None:
        """Write a journal without records, durably, but not under its name yet."""
        draft = draft_of(path)
        try:
            with draft.open("wb", buffering=0) as file:
                _write_all(file.fileno(), line_of(head) + _BLANK * _AHEAD, 0)
                os.fsync(file.fileno())
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    @classmethod
    def publish(cls, path: Path, *, syncs: bool) -> "JournalFile":
        """Give the draft its name. If this fails, it may or may not have it."""
        publish(draft_of(path), path)
        with path.open("rb") as file:
            return cls(path, len(file.readline()), syncs=syncs)

    def reserve(self, size: int) -> None:
        """Make sure that a full disk will not keep so many bytes more out; others may append."""
        needed = self._reserved + size
        if needed > self._room:
            if size > _SMALL and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._fd, self._room, needed - self._room)
                self._room = needed
            else:
                room = needed + _AHEAD
                _write_all(self._fd, _BLANK * (room - self._room), self._room)
                self._room = room
        self._reserved = needed

    def append(self, data: bytes) -> None:
        """Write records over the blanks that were reserved; durable on return."""
        _write_all(self._fd, data, self.end)
        self.sync()
        self.end += len(data)

    def repair(self, start: int) -> None:
        """Write blanks over all behind the end; all from `start` on is durable on return.

        What was not durable before is written again: the process that wrote it may have died
        before it was, or was told that it could not be.
        """
        os.lseek(self._fd, 0, os.SEEK_SET)
        kept = os.pread(self._fd, self.end - start, start)
        _write_all(self._fd, kept + _BLANK * (self._room - self.end), start)
        os.fsync(self._fd)

    def sync(self) -> None:
        """Make durable what was written, unless the store survives its process only."""
        if self._syncs:
            os.fdatasync(self._fd)

    def finish(self) -> None:
        """Cut off the blanks: no record follows."""
        os.ftruncate(self._fd, self.end)
        self._room = self.end
        os.fsync(self._fd)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
