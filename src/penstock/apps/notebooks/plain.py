"""Files of the server's own in a folder that others can write to: never through a link.

Whoever can write to a notebook's folder, or has somebody clone one, can put links where the server
keeps its state. Followed, they would have the server read and write any file of its user.
"""

import errno
import os
import stat
from contextlib import suppress

_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITES = os.O_WRONLY | os.O_RDWR
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_HALF = ".half"


def open_plain(file: str, flags: int = os.O_RDONLY) -> int:
    """A regular file; raises `OSError` for a link, and for whatever else is no file.

    For writing, also for a file that has another name as well.
    """
    handle = os.open(file, flags | _SAFE, 0o600)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or (flags & _WRITES and found.st_nlink > 1):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file of its own", file)
    return handle


def open_new(file: str) -> int:
    """A new file for writing; what stands at its name goes, links as themselves."""
    with suppress(FileNotFoundError):
        os.unlink(file)
    return open_plain(file, _NEW)


def replace_file(file: str, content: bytes) -> None:
    """Write a file wholly or not at all."""
    half = file + _HALF
    with os.fdopen(open_new(half), "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    os.rename(half, file)


def is_plain(file: str) -> bool:
    """Whether a regular file stands at a name."""
    try:
        return stat.S_ISREG(os.lstat(file).st_mode)
    except FileNotFoundError:
        return False
