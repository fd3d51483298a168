"""Renames that Python has no call for: one that replaces nothing, one that swaps two names."""

import ctypes
import errno
import os
from contextlib import suppress

_NOREPLACE = 1
_EXCHANGE = 2
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}

_renameat2 = None
with suppress(AttributeError, OSError):
    _renameat2 = ctypes.CDLL(None, use_errno=True).renameat2


def rename_new(source: str, source_folder: int, target: str, target_folder: int) -> None:
    """Rename, and fail with `FileExistsError` where there is something already."""
    if _flagged(source, source_folder, target, target_folder, _NOREPLACE):
        return
    with suppress(FileNotFoundError):
        os.stat(target, dir_fd=target_folder, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    os.rename(source, target, src_dir_fd=source_folder, dst_dir_fd=target_folder)


def swap(source: str, source_folder: int, target: str, target_folder: int) -> None:
    """Put a file in another's place and have that one at its own, in one step.

    Where the system has no such step there are two, between which an edit of the other one by
    somebody else is not seen.
    """
    if _flagged(source, source_folder, target, target_folder, _EXCHANGE):
        return
    spare = f"{source}.old"
    os.link(
        target, spare, src_dir_fd=target_folder, dst_dir_fd=source_folder, follow_symlinks=False
    )
    os.rename(source, target, src_dir_fd=source_folder, dst_dir_fd=target_folder)
    os.rename(spare, source, src_dir_fd=source_folder, dst_dir_fd=source_folder)


def _flagged(source: str, source_folder: int, target: str, target_folder: int, flags: int) -> bool:
    """Whether the system knows this rename; if so, it is done."""
    if _renameat2 is None:
        return False
    names = os.fsencode(source), os.fsencode(target)
    if _renameat2(source_folder, names[0], target_folder, names[1], flags) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), target)
