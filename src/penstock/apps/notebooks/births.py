"""When a file was made: Python has no call for it on Linux."""

import ctypes
import os
import struct
from contextlib import suppress

_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_BTIME = 0x800
_SIZE = 256
_MASK = struct.Struct("=I")
_TIME = struct.Struct("=qI")
_BTIME_AT = 80
"""Where `stx_btime` begins in `struct statx`."""

_statx = None
with suppress(AttributeError, OSError):
    _statx = ctypes.CDLL(None, use_errno=True).statx


def birth_of(file: str) -> float | None:
    """When a file was made, in seconds since 1970; None where the system does not know it."""
    try:
        found = os.lstat(file)
    except OSError:
        return None
    born: float | None = getattr(found, "st_birthtime", None)
    if born is not None or _statx is None:
        return born
    buffer = ctypes.create_string_buffer(_SIZE)
    if _statx(_AT_FDCWD, os.fsencode(file), _AT_SYMLINK_NOFOLLOW, _BTIME, buffer) != 0:
        return None
    (known,) = _MASK.unpack_from(buffer.raw, 0)
    seconds, nanoseconds = _TIME.unpack_from(buffer.raw, _BTIME_AT)
    return seconds + nanoseconds / 1e9 if known & _BTIME else None
