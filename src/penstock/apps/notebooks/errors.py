"""What can go wrong with files and their history, sorted by whether it may pass.

```
NotebookError
├── Passing            tried again later, it may work: a full disk, a lock, a merge in progress
└── Permanent          it will not work, however often it is tried
    ├── PathRefused    not a path of a notebook
    ├── Missing        there is no such file, folder or commit
    └── Exists         there is something at this path already
```
"""

import errno
from types import TracebackType

_PERMANENT = frozenset(
    {
        errno.EACCES,
        errno.EFBIG,
        errno.EINVAL,
        errno.EISDIR,
        errno.ELOOP,
        errno.EMLINK,
        errno.ENAMETOOLONG,
        errno.ENODEV,
        errno.ENOTDIR,
        errno.ENOTEMPTY,
        errno.ENXIO,
        errno.EPERM,
        errno.EROFS,
        errno.EXDEV,
    }
)


class NotebookError(Exception):
    """Something could not be done with a notebook."""


class Passing(NotebookError):
    """It did not work now; later it may."""


class Permanent(NotebookError):
    """It does not work, and trying again will not help."""


class PathRefused(Permanent):
    """A text is no path of a notebook, or the path leads to where a notebook does not reach."""


class Missing(Permanent):
    """There is nothing at this path."""


class Exists(Permanent):
    """There is something at this path already."""


def sorted_out(error: OSError, path: str) -> NotebookError:
    """What an error of the system means for an operation on a path.

    Whatever is not known to last may pass: it is tried again, and the attempts have an end.
    """
    told = f"{path!r}: {error.strerror or error}"
    match error.errno:
        case errno.ENOENT:
            return Missing(told)
        case errno.EEXIST:
            return Exists(told)
        case number if number in _PERMANENT:
            return Permanent(told)
        case _:
            return Passing(told)


class sorting:  # noqa: N801 - used as `suppress` is
    """Tells errors of the system, inside the block, as what they mean for a path."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            raise sorted_out(error, self._path) from error
