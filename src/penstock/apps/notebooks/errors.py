"""Errors of notebooks: transient ones, which are retried, and permanent ones, which are not.

```
NotebookError
├── Unavailable        the store of the server cannot hold notebooks
├── Transient          may succeed on a retry: a full disk, a lock, a merge in progress
└── Permanent          fails on every attempt
    ├── PathRefused    not a valid path of a notebook
    ├── Missing        no such file, folder, commit or notebook
    ├── Exists         the path or the name is already in use
    └── Locked         another process has the notebook open
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
    """An operation on a notebook failed."""


class Unavailable(NotebookError):
    """The store of the server cannot hold notebooks."""


class Transient(NotebookError):
    """The operation failed now and may succeed later."""


class Permanent(NotebookError):
    """The operation fails however often it is tried."""


class PathRefused(Permanent):
    """A text is not a path of a notebook, or the path leads out of it."""


class Missing(Permanent):
    """The file, folder, commit or notebook does not exist."""


class Exists(Permanent):
    """The path or the name is already in use."""


class Locked(Permanent):
    """Another process has the notebook open."""


def from_os_error(error: OSError, path: str) -> NotebookError:
    """Return the notebook error for an error of the operating system at a path.

    An error that is not known to be permanent is transient: the number of attempts is limited.
    """
    text = f"{path!r}: {error.strerror or error}"
    match error.errno:
        case errno.ENOENT:
            return Missing(text)
        case errno.EEXIST:
            return Exists(text)
        case number if number in _PERMANENT:
            return Permanent(text)
        case _:
            return Transient(text)


class os_errors:  # noqa: N801 - used like `suppress`
    """Raise an `OSError` of the block as the notebook error for a path."""

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
            raise from_os_error(error, self._path) from error
