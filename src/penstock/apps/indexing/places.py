"""Folders of a server: where its collections are, and which folders may be indexed."""

import os
from pathlib import Path

from penstock.apps.indexing.settings import Settings
from penstock.apps.kit import Packages, has_long_name

PACKAGES = Packages(
    "indexing",
    ("faiss", "numpy", "pathspec", "tokenizers", "tree_sitter", "watchfiles", "wordllama"),
)


class OutOfBounds(Exception):
    """A path may not be indexed; the message says why, and what would help."""


class Places:
    """The folder of the collections, and the bounds of what may be indexed."""

    def __init__(self, settings: Settings, data: Path) -> None:
        self.data = data.resolve()
        self.root = Path(settings.project_root or Path.cwd()).resolve()
        self._external = settings.allow_external_paths
        self._collections = self.data / "indexing"

    def collection(self, name: str) -> Path:
        """Return the folder of a collection."""
        return self._collections / name

    def collections(self) -> list[str]:
        """Return the names of all collections."""
        try:
            return sorted(one.name for one in self._collections.iterdir() if one.is_dir())
        except OSError:
            return []

    @property
    def watch_lock(self) -> Path:
        """The lock of the one process that watches folders."""
        return self.data / "watching" / "lock"

    def admit(self, path: str) -> str:
        """Return a path as it is stored, absolute and without links; raises `OutOfBounds`."""
        if "\0" in path:
            raise OutOfBounds("a path must not contain NUL")
        try:
            found = Path(os.path.expanduser(path) if path.startswith("~") else self.root / path)  # noqa: PTH111 - raises nothing
            resolved = found.resolve()
            exists = resolved.exists()
            str(resolved).encode()
        except (OSError, RuntimeError, UnicodeEncodeError) as error:
            raise OutOfBounds(f"{path!r} cannot be indexed: {error}") from error
        self._check_inside(path, resolved)
        if not exists:
            raise OutOfBounds(f"{path} does not exist")
        self._check_not_own(path, resolved)
        return str(resolved)

    def check(self, path: str) -> None:
        """Raise `OutOfBounds` for a stored path that a job may not read at this moment.

        The job may not have been stored by a route, and a link may have taken the place of a file.
        """
        if has_long_name(path):
            raise OutOfBounds(f"{path!r:.200} cannot be indexed: a name in it is too long")
        try:
            resolved = Path(path).resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise OutOfBounds(f"{path!r:.200} cannot be indexed: {error}") from error
        if str(resolved) != path:
            raise OutOfBounds(f"{path!r:.200} is not an absolute path without links")
        self._check_inside(path, resolved)
        self._check_not_own(path, resolved)

    def _check_inside(self, path: str, resolved: Path) -> None:
        if self._external or resolved == self.root or self.root in resolved.parents:
            return
        raise OutOfBounds(
            f"{path} is outside of the project {self.root}; to index such folders, set "
            "PENSTOCK_ALLOW_EXTERNAL_PATHS=true on the server"
        )

    def _check_not_own(self, path: str, resolved: Path) -> None:
        if resolved == self.data or self.data in resolved.parents or resolved == Path("/"):
            raise OutOfBounds(f"{path} is not indexed: it belongs to the server")
