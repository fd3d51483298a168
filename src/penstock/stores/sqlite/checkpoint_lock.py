"""A lock by which a checkpoint keeps the writers of all processes out for a moment.

SQLite restarts its write-ahead log only while nobody writes. With several busy writers such a
moment never comes by itself, and the log would grow without bound.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from penstock.runtime import Runtime

# A process that was stopped while it held the lock must not stop the others for long.
_PATIENCE = 3.0
_POLL = 0.001


class CheckpointLock:
    """A lock on the write-ahead log, which SQLite itself does not lock.

    The log is the same file for all processes as long as any of them has the database open.
    """

    def __init__(self, path: Path, runtime: Runtime) -> None:
        log = path.with_name(path.name + "-wal")
        self._runtime = runtime
        self._files = runtime.files
        self._descriptor = self._files.open(log, os.O_RDONLY)
        # A lock belongs to the opened file: a writer must not release the lock of a checkpoint in
        # its own process.
        self._exclusive = self._files.open(log, os.O_RDONLY)

    def wait(self) -> None:
        """Wait while a checkpoint holds the lock."""
        deadline = None
        while not self._files.try_lock(self._descriptor, exclusive=False):
            deadline = deadline or self._runtime.monotonic() + _PATIENCE
            if self._runtime.monotonic() > deadline:
                return
            self._runtime.sleep(_POLL)
        self._files.unlock(self._descriptor)

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Keep writers out inside the block; yield False if another process does so already."""
        # Waiting writers hold the lock for a microsecond each: taking it takes short.
        deadline = self._runtime.monotonic() + _POLL * 10
        while not self._files.try_lock(self._exclusive, exclusive=True):
            if self._runtime.monotonic() > deadline:
                yield False
                return
        try:
            yield True
        finally:
            self._files.unlock(self._exclusive)

    def log_size(self) -> int:
        """Return the length of the log's file; see `connect` for when it gets shorter.

        Not by `fstat`: reading a file's times makes the next write change them, on disk, and every
        commit wait for that.
        """
        return self._files.seek(self._descriptor, 0, os.SEEK_END)

    def close(self) -> None:
        """Close the file."""
        self._files.close(self._descriptor)
        self._files.close(self._exclusive)
