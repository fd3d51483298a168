"""Where the repository of a notebook is, and whether it is still the same one.

Symbolic links in a git directory would make git read and write in another repository. They are
looked for at every use of a repository, which may have many thousands of refs and objects, so what
is known of a folder is valid until the system reports a change of it.
"""

import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from penstock.apps.notebooks.errors import Permanent
from penstock.apps.notebooks.repository.git import Git

_LONGEST = 8_192


_POINTER = re.compile(r"gitdir: (.+)", re.DOTALL)


_SHARED = "commondir"


GIT = ".git"


_READ = ("info/exclude", "info/attributes")


_ALTERNATES = "objects/info/alternates"


class Location(NamedTuple):
    """The location of a repository."""

    top: Path
    """The work tree: the folder of the notebook or one above it."""
    directory: Path
    """The git directory of this work tree: HEAD, the index, and operations in progress."""
    is_joined: bool

    @classmethod
    def own(cls, folder: Path) -> Self:
        """Return the location of a notebook's own repository."""
        return cls(folder, folder / GIT, is_joined=False)

    @classmethod
    def enclosing(cls, folder: Path) -> Self | None:
        """Return the repository that git would find from a folder; None if there is none.

        As git does, the search ends where another file system begins. Unlike git, it does not treat
        the folder itself as a bare repository: files that look like one are just files.
        """
        system = folder.stat().st_dev
        for top in (folder, *folder.parents):
            if top.stat().st_dev != system:
                return None
            if (directory := _directory(top)) is not None:
                return cls(top, directory, is_joined=True)
        return None

    @property
    def problem(self) -> str | None:
        """Why the repository cannot be used; None if it can."""
        found = self.top / GIT
        if not os.path.lexists(found):
            return f"{str(self.top)!r} no longer has a repository"
        if not self.is_joined and not stat.S_ISDIR(found.lstat().st_mode):
            return f"{str(found)!r} is not a folder, so it is another repository"
        if not self.is_joined and os.path.lexists(found / _SHARED):
            return f"{str(found)!r} leads to another repository"
        if _directory(self.top) != self.directory:
            return f"{str(found)!r} is no longer the repository {str(self.directory)!r}"
        if not self.is_joined and os.path.lexists(found / _ALTERNATES):
            return f"{str(found)!r} takes objects from another repository"
        return self._link()

    def _link(self) -> str | None:
        """Why a link prevents the repository from being used; None if there is none."""
        for name in _READ:
            read = self.common / name
            if read.exists() and not read.is_file():
                return f"{str(read)!r} is not a regular file, and git would wait for it forever"
        for one in sorted({str(self.directory), str(self.common)}):
            if link := link_within(one):
                return f"{link!r} is a link or a special file and may lead to another repository"
        return None

    @property
    def common(self) -> Path:
        """The directory that all work trees share: objects, refs, configuration."""
        return _common(self.directory)

    def refuse_if_foreign(self) -> None:
        """Raise `Permanent` if the repository does not know this work tree.

        A file or a link that leads to a repository elsewhere may have been planted so that the
        server reads and writes that one.
        """
        found = self.top / GIT
        if problem := self._link():
            raise Permanent(f"{problem}: it cannot be joined")
        if stat.S_ISDIR(found.lstat().st_mode):
            return
        if found.is_symlink() or self.top not in self._known_trees():
            raise Permanent(
                f"{str(found)!r} leads to {str(self.directory)!r}, which does not name "
                f"{str(self.top)!r} as its work tree: it cannot be joined"
            )

    def _known_trees(self) -> Iterator[Path]:
        """Yield the work trees that the repository names: of `git worktree`, and of a submodule."""
        if pointer := read_small(self.directory / "gitdir"):
            yield (self.directory / pointer).parent.resolve()
        config = ("config", "--no-includes", "--file", str(self.directory / "config"))
        tree = os.fsdecode(Git(None).ask(*config, "--get", "core.worktree").stdout).rstrip("\n")
        if tree:
            yield (self.directory / tree).resolve()


def _directory(top: Path) -> Path | None:
    """Return the git directory of a folder, following a `.git` file; None if there is none."""
    found = top / GIT
    try:
        directory = found
        if stat.S_ISREG(found.stat().st_mode):
            pointer = _POINTER.fullmatch(read_small(found) or "")
            if pointer is None:
                return None
            directory = top / pointer[1]
        directory = directory.resolve()
        common = _common(directory)
        is_one = os.path.lexists(directory / "HEAD") and (common / "objects").is_dir()
        return directory if is_one and (common / "refs").is_dir() else None
    except (OSError, RuntimeError, ValueError):
        return None


def _common(directory: Path) -> Path:
    """Return the shared directory of a work tree of `git worktree`; raises `ValueError`."""
    if not os.path.lexists(directory / _SHARED):
        return directory
    common = (directory / (read_small(directory / _SHARED) or "")).resolve()
    if directory.parent != common / "worktrees":
        raise ValueError(f"{str(directory)!r} is not a work tree of {str(common)!r}")
    return common


def read_small(file: Path) -> str | None:
    """Return the text of a small file; None if it is not a regular file."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return None
        with file.open("rb") as opened:
            return os.fsdecode(opened.read(_LONGEST)).strip("\r\n")
    except OSError:
        return None


_BELOW = frozenset({"objects", "refs", "logs"})
"""Folders that git writes to at any depth."""
_HARMLESS = frozenset({"hooks", "description", "lfs", "annex"})
"""Names that no command of the server reads."""
_SETTLED = 2.0
"""Seconds after which two changes of a folder have different times."""
_MOST = 100_000


class _Listing(NamedTuple):
    inode: int
    changed: int
    link: str | None
    folders: tuple[str, ...]


_known: dict[str, _Listing] = {}
_busy = threading.Lock()


def link_within(directory: str) -> str | None:
    """Return a link or special file in a git directory; None if there is none.

    `HEAD` may be a link to a branch: old versions of git created it so.
    """
    top = _list(directory)
    if top.link is not None:
        return top.link
    folders_left = [one for one in top.folders if os.path.basename(one) in _BELOW]
    while folders_left:
        listing = _list(folders_left.pop())
        if listing.link is not None:
            return listing.link
        folders_left += listing.folders
    return None


def _list(folder: str) -> _Listing:
    """List a folder; empty if it vanished meanwhile."""
    try:
        about = os.lstat(folder)
        known = _known.get(folder)
        if known is not None and known[:2] == (about.st_ino, about.st_ctime_ns):
            return known
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError:
        return _Listing(0, 0, None, ())
    is_settled = time.time() - about.st_ctime > _SETTLED
    links = (one.path for one in entries if _is_foreign(one))
    folders = tuple(one.path for one in entries if one.is_dir(follow_symlinks=False))
    listing = _Listing(about.st_ino, about.st_ctime_ns, min(links, default=None), folders)
    with _busy:
        if not is_settled:
            _known.pop(folder, None)
        else:
            if len(_known) >= _MOST:
                _known.clear()
            _known[folder] = listing
    return listing


def _is_foreign(entry: "os.DirEntry[str]") -> bool:
    if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False):
        return False
    if entry.name in _HARMLESS:
        return False
    try:
        if not stat.S_ISLNK(os.lstat(entry.path).st_mode):
            return True
        target = os.readlink(entry.path)
    except FileNotFoundError:
        return False
    names = target.split("/")
    return entry.name != "HEAD" or names[:2] != ["refs", "heads"] or ".." in names
