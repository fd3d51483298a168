"""Forks: prevent a forked child from opening a file that its parent had open.

SQLite records, per process and file, which locks it holds. A child inherits the record but not the
locks: SQLite would treat a connection of the child as locked, and the parent would remove the
write-ahead log under it when it closes its last connection, without an error.

A store closes its file before a fork, so this is about connections that it cannot close: in the
middle of a transaction, and those of the program itself.
"""

import os
from pathlib import Path

from penstock.core.errors import StoreError
from penstock.forks import File
from penstock.runtime import Runtime


def refuse_inherited(path: Path, runtime: Runtime) -> None:
    """Raise `StoreError` if this process was forked while its parent had the file open."""
    if runtime.files.exists(path):
        own, *file = _identify(path, runtime)
        counts = runtime.forks.open_files
        if any(n and opener != own and of == file for (opener, *of), n in counts.items()):
            raise StoreError(
                f"{path} was in use when this process was forked, by a transaction or by a "
                "connection of the program itself; end or close it before, or start processes "
                "with the method 'spawn'"
            )


def note_opened(path: Path, runtime: Runtime) -> File:
    """Record that this process has the file open."""
    file = _identify(path, runtime)
    runtime.forks.open_files[file] += 1
    return file


def note_closed(file: File, runtime: Runtime) -> None:
    """Record that this process has closed the file once."""
    runtime.forks.open_files[file] -= 1


def note_inherited(file: File, runtime: Runtime) -> None:
    """Record, in a child, that the process that opened the file has not closed it."""
    runtime.forks.open_files[file] += 1


def is_open_here(file: File) -> bool:
    """Return whether any descriptor of this process is the file's."""
    try:
        descriptors = [int(name) for name in os.listdir("/dev/fd")]  # noqa: PTH208 - names only
    except OSError:  # it is not there on every system
        descriptors = list(range(1024))
    return any(_identity(descriptor) == file[1:] for descriptor in descriptors)


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:  # not open, or not any more
        return None
    return found.st_dev, found.st_ino


def _identify(path: Path, runtime: Runtime) -> File:
    found = runtime.files.stat(path)
    return runtime.process_id(), found.st_dev, found.st_ino
