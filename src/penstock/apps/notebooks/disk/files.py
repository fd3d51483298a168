"""File operations below the level of Python's own: safe to use in folders that others write to.

A person who can write to the folder of a notebook, or who gets somebody to clone one, can put
symbolic links there. If the server followed them, it would read and write any file of its user.
Paths are therefore opened one name at a time, and files only if they are regular files.

Python has no calls for some of what is needed on Linux: a rename that never replaces a file, one
that exchanges two files, the creation time of a file, and flushing a whole file system.
"""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.apps.notebooks.errors import PathRefused, Permanent, Transient

FEW = 8
"""Up to this number, files are flushed one by one."""
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | _SAFE
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_WRITES = os.O_WRONLY | os.O_RDWR
_HALF = ".half"


def _system_call(name: str) -> Callable[..., int] | None:
    """Return a function of the C library, or None where it does not exist."""
    with suppress(AttributeError, OSError):
        call: Callable[..., int] = getattr(ctypes.CDLL(None, use_errno=True), name)
        return call
    return None


# Paths of a notebook


def split(path: str) -> tuple[str, str]:
    """Split a path into its folder and its name."""
    folder, _, name = path.rpartition("/")
    _refuse_dots(name, path)
    return folder, name


@contextmanager
def folder_at(root: Path, path: str, *, make: bool = False) -> Iterator[int]:
    """Open a folder of a notebook for the block; an empty path is the root.

    Every name of the path is opened relative to the one before it and never through a link. A link
    that somebody puts into the path meanwhile has no effect on what is already open.
    """
    handle = _open_root(root)
    try:
        for name in filter(None, path.split("/")):
            _refuse_dots(name, path)
            child = _open_child(handle, name, path, make=make)
            os.close(handle)
            handle = child
        yield handle
    finally:
        os.close(handle)


def open_file(name: str, folder: int, path: str) -> int:
    """Open a file for reading; refuse links and anything else that is not a regular file."""
    try:
        handle = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PathRefused(f"{path!r} is a symbolic link") from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):  # reading a pipe would never end
        os.close(handle)
        raise Permanent(f"{path!r} is not a regular file")
    return handle


def status(name: str, folder: int) -> os.stat_result | None:
    """Return the status of a name without following links; None if it does not exist."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _refuse_dots(name: str, path: str) -> None:
    if name in {".", ".."}:
        raise PathRefused(f"{path!r} leaves its folder with {name!r}")


def _open_root(root: Path) -> int:
    try:
        return os.open(root, _FOLDER)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Transient(f"the folder of the notebook, {str(root)!r}, is gone") from error


def _open_child(handle: int, name: str, path: str, *, make: bool) -> int:
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
        pass  # another operation created it
    return _open_child(handle, name, path, make=False)


# Files of the server's own


def open_regular(file: str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file; raise `OSError` for a link or any other kind of file.

    For writing, a file with a second hard link is refused as well.
    """
    handle = os.open(file, flags | _SAFE, 0o600)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or (flags & _WRITES and found.st_nlink > 1):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file of its own", file)
    return handle


def open_new(file: str) -> int:
    """Create a file for writing in place of whatever has its name; a link itself is removed."""
    with suppress(FileNotFoundError):
        os.unlink(file)
    return open_regular(file, _NEW)


def replace_file(file: str, content: bytes) -> None:
    """Replace the content of a file atomically and durably."""
    half = file + _HALF
    with os.fdopen(open_new(half), "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    os.rename(half, file)


def is_regular(file: str) -> bool:
    """Whether a name is a regular file."""
    try:
        return stat.S_ISREG(os.lstat(file).st_mode)
    except FileNotFoundError:
        return False


def write_whole(handle: int, content: bytes) -> None:
    """Write all of a content; one call of the system may write only a part of it."""
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


# Flushing
#
# Each flush of a file is a commit of the file system's journal: 100 small files take 32 ms one by
# one and 18 ms in 16 threads. Flushing the whole file system in one call takes 4 ms, but it also
# writes whatever other programs have written, so a few files are still flushed one by one.

_syncfs = _system_call("syncfs")


def flush_folder(folder: str) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, _FOLDER)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_files(folder: str, names: Collection[str]) -> None:
    """Make files of a folder and their names durable."""
    handle = os.open(folder, _FOLDER)
    try:
        if len(names) <= FEW or not flush_file_system(handle):
            for name in names:
                flush_file(name, handle)
            os.fsync(handle)
    finally:
        os.close(handle)


def flush_file(name: str, folder: int) -> None:
    """Make the content of a file durable."""
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_file_system(handle: int) -> bool:
    """Flush the file system of an open folder; return False where the system cannot."""
    if _syncfs is None:
        return False
    if _syncfs(handle) == 0:
        return True
    number = ctypes.get_errno()
    if number == errno.ENOSYS:
        return False
    raise OSError(number, os.strerror(number))


# Renaming

_NOREPLACE = 1
_EXCHANGE = 2
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}

_renameat2 = _system_call("renameat2")


def rename_new(source: str, source_folder: int, target: str, target_folder: int) -> None:
    """Rename a file; raise `FileExistsError` if the target exists."""
    if _rename_with(_NOREPLACE, source, source_folder, target, target_folder):
        return
    with suppress(FileNotFoundError):
        os.stat(target, dir_fd=target_folder, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    os.rename(source, target, src_dir_fd=source_folder, dst_dir_fd=target_folder)


def swap(source: str, source_folder: int, target: str, target_folder: int) -> None:
    """Exchange two files atomically.

    Where the system cannot do this there are two steps. An edit of the target between them is lost.
    """
    if _rename_with(_EXCHANGE, source, source_folder, target, target_folder):
        return
    spare = f"{source}.old"
    os.link(
        target, spare, src_dir_fd=target_folder, dst_dir_fd=source_folder, follow_symlinks=False
    )
    os.rename(source, target, src_dir_fd=source_folder, dst_dir_fd=target_folder)
    os.rename(spare, source, src_dir_fd=source_folder, dst_dir_fd=source_folder)


def _rename_with(
    flags: int, source: str, source_folder: int, target: str, target_folder: int
) -> bool:
    """Rename with flags; return False where the system does not support them."""
    if _renameat2 is None:
        return False
    names = os.fsencode(source), os.fsencode(target)
    if _renameat2(source_folder, names[0], target_folder, names[1], flags) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), target)


# Creation times

_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_BTIME = 0x800
_STATX_SIZE = 256
_STATX_MASK = struct.Struct("=I")
_STATX_TIME = struct.Struct("=qI")
_BTIME_AT = 80
"""The offset of `stx_btime` in `struct statx`."""

_statx = _system_call("statx")


def creation_time(file: str) -> float | None:
    """Return when a file was created, in seconds since 1970; None where it is not known."""
    try:
        found = os.lstat(file)
    except OSError:
        return None
    created: float | None = getattr(found, "st_birthtime", None)
    if created is not None or _statx is None:
        return created
    buffer = ctypes.create_string_buffer(_STATX_SIZE)
    if _statx(_AT_FDCWD, os.fsencode(file), _AT_SYMLINK_NOFOLLOW, _BTIME, buffer) != 0:
        return None
    (known,) = _STATX_MASK.unpack_from(buffer.raw, 0)
    seconds, nanoseconds = _STATX_TIME.unpack_from(buffer.raw, _BTIME_AT)
    return seconds + nanoseconds / 1e9 if known & _BTIME else None
