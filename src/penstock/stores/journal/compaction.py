"""Keeps journals short: a thread writes down what they have come to, and then removes them."""

import logging
import threading
from collections.abc import Iterable

from penstock.stores.journal.folder import Folder
from penstock.stores.journal.lines import Head
from penstock.stores.journal.snapshot import write_snapshot
from penstock.stores.memory.batch import Batch

SMALLEST = 16 * 1024 * 1024
"""Journals may have so many bytes, or as many as the last snapshot, before there is another."""

_log = logging.getLogger(__name__)


class Compaction:
    """How long the journals are, and the snapshot that is under way."""

    def __init__(self, folder: Folder, size: int, snapshot_size: int) -> None:
        self._folder = folder
        self._size = size
        self._snapshot_size = snapshot_size
        self._patience = 1
        self._thread: threading.Thread | None = None
        self._covered = 0
        self._written: int | None = None

    def grow(self, size: int) -> None:
        """So many bytes were added."""
        self._size += size

    def is_due(self) -> bool:
        """Whether there should be another snapshot now."""
        if self._size < max(SMALLEST, self._snapshot_size) * self._patience:
            return False
        if self._thread is not None:
            if self._thread.is_alive():
                return False
            self._end()
            return self.is_due()
        return True

    def postpone(self) -> None:
        """It cannot be done now: wait until the journals are twice as long."""
        self._patience *= 2

    def start(self, number: int, head: Head, batches: Iterable[Batch]) -> None:
        """Write a snapshot, beside all that goes on."""
        self._covered, self._written = self._size, None
        self._thread = threading.Thread(
            target=self._write,
            args=(number, head, batches),
            name="penstock-snapshot",
            daemon=True,
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until no snapshot is under way."""
        if self._thread is not None:
            self._thread.join()
            self._end()

    def _write(self, number: int, head: Head, batches: Iterable[Batch]) -> None:
        path = self._folder.snapshot(number)
        try:
            size = write_snapshot(path, head, batches)
            self._folder.remove_before(number)
        except OSError as error:
            _log.warning("%s was not written, the journals before it stay: %s", path, error)
        else:
            self._written = size

    def _end(self) -> None:
        self._thread = None
        if self._written is None:
            self.postpone()
        else:
            self._size -= self._covered
            self._snapshot_size, self._patience = self._written, 1
