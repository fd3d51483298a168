"""Opens folders and files of a notebook name by name, so that no link leads out on the way.

A path is checked and opened in the same step: whoever puts a link into it in between changes
nothing, because what is open stays what it is.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.apps.notebooks.errors import Passing, PathRefused, Permanent

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def split(path: str) -> tuple[str, str]:
    """The folder that a path stands in, and its name there."""
    folder, _, name = path.rpartition("/")
    _refuse_dots(name, path)
    return folder, name


@contextmanager
def folder_at(root: Path, path: str, *, make: bool = False) -> Iterator[int]:
    """A folder of a notebook, open inside the block; an empty path is the notebook's own."""
    handle = _root(root)
    try:
        for name in filter(None, path.split("/")):
            _refuse_dots(name, path)
            below = _below(handle, name, path, make=make)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def open_file(name: str, folder: int, path: str) -> int:
    """A file for reading; refuses links, and whatever is no file (a pipe would never end)."""
    try:
        handle = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PathRefused(f"{path!r} is a symbolic link") from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise Permanent(f"{path!r} is not a regular file")
    return handle


def status(name: str, folder: int) -> os.stat_result | None:
    """What stands at a name, links as themselves; None if nothing does."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _refuse_dots(name: str, path: str) -> None:
    if name in {".", ".."}:
        raise PathRefused(f"{path!r} leads out of its folder with {name!r}")


def _root(root: Path) -> int:
    try:
        return os.open(root, _FOLDER)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Passing(f"the notebook's folder {str(root)!r} is gone") from error


def _below(handle: int, name: str, path: str, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=handle)
    except FileNotFoundError:
        if not make:
            raise
    except OSError as error:
        found = status(name, handle)
        if found is not None and stat.S_ISLNK(found.st_mode):
            raise PathRefused(f"{path!r} leads through the symbolic link {name!r}") from error
        raise
    try:
        os.mkdir(name, dir_fd=handle)
        os.fsync(handle)
    except FileExistsError:
        pass  # another operation made it
    return _below(handle, name, path, make=False)
