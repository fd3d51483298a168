"""Where things are: the collections of a server, and which folders may be indexed."""

import errno
import importlib.util
import os
from pathlib import Path

from penstock.apps.indexing.settings import Settings

NEEDED = ("faiss", "numpy", "pathspec", "tokenizers", "tree_sitter", "watchfiles", "wordllama")
_LONGEST_NAME = 255
"""Bytes that the name of a file may have."""
INSTALL = "pip install 'penstock[indexing]'"


class OutOfBounds(Exception):
    """A path that may not be indexed; the message says why, and what would help."""


def missing_packages() -> list[str]:
    """What has to be installed before anything can be indexed or searched."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


class Places:
    """The folders of one server: what it keeps, and what it may look at."""

    def __init__(self, settings: Settings, data: Path) -> None:
        self.data = data.resolve()
        self.root = Path(settings.project_root or Path.cwd()).resolve()
        self._external = settings.allow_external_paths
        self._collections = self.data / "indexing"

    def collection(self, name: str) -> Path:
        """The folder of a collection."""
        return self._collections / name

    def collections(self) -> list[str]:
        """The names of all that there are."""
        try:
            return sorted(one.name for one in self._collections.iterdir() if one.is_dir())
        except OSError:
            return []

    @property
    def watch_lock(self) -> Path:
        """Held by the one process that watches folders."""
        return self.data / "watching"

    def admit(self, path: str) -> str:
        """A path as it is stored: absolute and without links; raises `OutOfBounds`."""
        if "\0" in path:
            raise OutOfBounds("a path has no NUL in it")
        try:
            found = Path(os.path.expanduser(path) if path.startswith("~") else self.root / path)  # noqa: PTH111 - raises nothing
            resolved = found.resolve()
            there = resolved.exists()
            str(resolved).encode()
        except (OSError, RuntimeError, UnicodeEncodeError) as error:
            raise OutOfBounds(f"{path!r} is no path that could be indexed: {error}") from error
        self._check_inside(path, resolved)
        if not there:
            raise OutOfBounds(f"there is no {path}")
        if resolved == self.data or self.data in resolved.parents or resolved == Path("/"):
            raise OutOfBounds(f"{path} is not indexed: it is the server's own")
        return str(resolved)

    def check(self, path: str) -> None:
        """Raise `OutOfBounds` for a stored path that a job may not read, now that it runs.

        It may not have been stored by a route, and what it names may have become a link since.
        """
        try:
            resolved = Path(path).resolve()
            _check_names(resolved)
        except (OSError, RuntimeError, ValueError) as error:
            raise OutOfBounds(f"{path!r:.200} is no path that could be indexed: {error}") from error
        if str(resolved) != path:
            raise OutOfBounds(f"{path!r:.200} is not an absolute path without links")
        self._check_inside(path, resolved)
        if resolved == self.data or self.data in resolved.parents or resolved == Path("/"):
            raise OutOfBounds(f"{path} is not indexed: it is the server's own")

    def _check_inside(self, path: str, resolved: Path) -> None:
        if self._external or resolved == self.root or self.root in resolved.parents:
            return
        raise OutOfBounds(
            f"{path} is outside of the project {self.root}; to index such folders, set the "
            "server's setting PENSTOCK_ALLOW_EXTERNAL_PATHS=true"
        )


def _check_names(path: Path) -> None:
    """Raise `OSError` for names that no file can have, instead of wherever they are used."""
    if max(len(os.fsencode(part)) for part in path.parts) > _LONGEST_NAME:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
