"""Lets a checkpoint keep the writers of all processes out for a moment.

SQLite starts its write-ahead log anew only while nobody writes. With several busy writers such a
moment never comes by itself, and the log would grow without end.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl

# A process that was stopped behind the closed gate must not stop the others for long.
_PATIENCE = 3.0
_LOOK = 0.001


class Gate:
    """A lock on the write-ahead log, which SQLite itself does not lock; open unless closed.

    The log is the same file for all as long as any of them has the database open.
    """

    def __init__(self, path: Path) -> None:
        log = path.with_name(path.name + "-wal")
        self._fd = os.open(log, os.O_RDONLY)
        # A lock belongs to the opened file: who passes must not open what its own process closed.
        self._closing_fd = os.open(log, os.O_RDONLY)

    def pass_through(self) -> None:
        """Wait while the gate is closed."""
        if sys.platform == "win32":  # without such locks, a checkpoint has to be lucky
            return
        deadline = None
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                deadline = deadline or time.monotonic() + _PATIENCE
                if time.monotonic() > deadline:
                    return
                time.sleep(_LOOK)
            else:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
                return

    @contextlib.contextmanager
    def closed(self) -> Iterator[bool]:
        """Keep writers out meanwhile, unless another process does so already; whether it does."""
        if sys.platform == "win32":
            yield True
            return
        # Those who pass hold the lock for a microsecond: waiting for it is short.
        deadline = time.monotonic() + _LOOK * 10
        while True:
            try:
                fcntl.flock(self._closing_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    yield False
                    return
            else:
                break
        try:
            yield True
        finally:
            fcntl.flock(self._closing_fd, fcntl.LOCK_UN)

    def log_size(self) -> int:
        """How long the log's file is; see `connect` for when it gets shorter.

        Not by `fstat`: who has looked at a file's times makes the next write change them, on
        disk, and every commit wait for it.
        """
        return os.lseek(self._fd, 0, os.SEEK_END)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)
        os.close(self._closing_fd)
