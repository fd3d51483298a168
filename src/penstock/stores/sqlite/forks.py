"""Keeps a forked child away from a file that its parent had open.

SQLite remembers, per process and file, which locks it holds. A child inherits that memory but
not the locks: a connection that it opens would believe to be protected while the parent, closing
its last one, removes the write-ahead log. No error would show it.
"""

import os
from collections import Counter
from pathlib import Path

from penstock.core.errors import StoreError

File = tuple[int, int, int]
"""The process that opened a file, and the file's device and number."""

_open: Counter[File] = Counter()


def refuse_inherited(path: Path) -> None:
    """Raise if this process was forked while its parent had the file open."""
    if path.exists():
        own, *file = _identify(path)
        if any(_open[opened] and opened[0] != own and [*opened[1:]] == file for opened in _open):
            raise StoreError(
                f"{path} was open when this process was forked; start processes before it is "
                "opened, or start them by 'spawn'"
            )


def note_opened(path: Path) -> File:
    """Remember that this process has the file open."""
    file = _identify(path)
    _open[file] += 1
    return file


def note_closed(file: File) -> None:
    """Forget one opening of the file."""
    _open[file] -= 1


def _identify(path: Path) -> File:
    found = path.stat()
    return os.getpid(), found.st_dev, found.st_ino
