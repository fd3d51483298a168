"""Compaction: a thread writes a snapshot and then removes the journals that it replaces."""

import logging
from collections.abc import Iterable
from concurrent.futures import Future

from penstock.runtime import Runtime
from penstock.stores.journal.folder import Folder
from penstock.stores.journal.lines import Head
from penstock.stores.journal.snapshot import write_snapshot
from penstock.stores.memory.batch import WriteBatch

SMALLEST = 16 * 1024 * 1024
"""Journals may have this many bytes, or as many as the last snapshot, before the next one."""

_log = logging.getLogger(__name__)


class Compaction:
    """Decides when to write a snapshot, and writes it in the background."""

    def __init__(self, runtime: Runtime, folder: Folder, size: int, snapshot_size: int) -> None:
        self._runtime = runtime
        self._folder = folder
        self._size = size
        self._snapshot_size = snapshot_size
        self._patience = 1
        self._covered = 0
        self._writing: Future[int | None] | None = None

    def grow(self, size: int) -> None:
        """Count bytes that were added to the journals."""
        self._size += size

    def is_due(self) -> bool:
        """Return whether a snapshot should be written now."""
        if self._size < max(SMALLEST, self._snapshot_size) * self._patience:
            return False
        if self._writing is not None:
            if not self._writing.done():
                return False
            self._end(self._writing)
            return self.is_due()
        return True

    def postpone(self) -> None:
        """Wait until the journals are twice as long, because no snapshot is possible now."""
        self._patience *= 2

    def start(self, number: int, head: Head, batches: Iterable[WriteBatch]) -> None:
        """Start writing a snapshot in the background."""
        self._covered = self._size
        executor = self._runtime.executor(1, "penstock-snapshot")
        self._writing = executor.submit(self._write, number, head, batches)
        executor.shutdown(wait=False)  # the thread ends with the snapshot

    def wait(self) -> None:
        """Wait until no snapshot is being written."""
        if self._writing is not None:
            self._end(self._writing)

    def _write(self, number: int, head: Head, batches: Iterable[WriteBatch]) -> int | None:
        """Write a snapshot; returns its size, or None if it could not be written."""
        path = self._folder.snapshot(number)
        try:
            size = write_snapshot(self._folder, path, head, batches)
            self._folder.remove_before(number)
        except OSError as error:
            _log.warning("%s was not written, the journals before it stay: %s", path, error)
            return None
        return size

    def _end(self, writing: "Future[int | None]") -> None:
        written, self._writing = writing.result(), None
        if written is None:
            self.postpone()
        else:
            self._size -= self._covered
            self._snapshot_size, self._patience = written, 1
