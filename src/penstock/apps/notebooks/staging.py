"""Which entries of a repository a set of changed paths comes to: by what is on the disk now."""

import os
import stat
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.apps.notebooks.git import failed
from penstock.apps.notebooks.paths import STATE, parents
from penstock.apps.notebooks.repository import Repository

_GITLINK = b"160000 "


class Entries(NamedTuple):
    """Paths in the repository, as bytes: those to be taken as they are, and those that are gone."""

    there: set[bytes]
    gone: set[bytes]
    skipped: dict[str, str]
    """Paths of the notebook that git cannot have, and why."""


def entries(repository: Repository, root: Path, paths: Iterable[str], index: Path) -> Entries:
    """What has to be staged for changed paths; a folder stands for all that is or was below it."""
    found = Entries(set(), set(), {})
    disk = _Disk(root, _submodules(repository, index))
    tracked: list[bytes] | None = None
    prefix = repository.prefix.encode()
    for path in paths:
        mode = disk.mode(path)
        if why := disk.why_not(path, mode):
            found.skipped[path] = why
            continue
        there = prefix + os.fsencode(path)
        kind = _kind(mode)
        if kind == "file":
            found.there.add(there)
            continue
        if tracked is None:
            tracked = _tracked(repository, index)
        if kind == "folder":
            found.there.update(prefix + os.fsencode(one) for one in disk.below(path))
        found.gone.update(_at_or_below(tracked, there))
    found.gone.difference_update(found.there)
    found.there.difference_update(_ignored(repository, found.there, index))
    return found


def acceptable(repository: Repository, root: Path, paths: Iterable[str], index: Path) -> set[str]:
    """Of paths at which something was, those that git may have."""
    disk = _Disk(root, _submodules(repository, index))
    known = {repository.prefix.encode() + os.fsencode(path): path for path in paths}
    mine = {full for full, path in known.items() if not disk.why_not(path, disk.mode(path))}
    return {known[full] for full in mine - _ignored(repository, mine, index)}


class _Disk:
    """What is on the disk; what it has found out about a folder holds for one commit.

    Requests wait while Python computes: 10,000 paths as texts take a fifth of the time that they
    take as objects.
    """

    def __init__(self, root: Path, submodules: set[str]) -> None:
        self._root = str(root)
        self._submodules = submodules
        self._folders: dict[str, str] = {}

    def why_not(self, path: str, mode: int) -> str | None:
        """Why git cannot have a path: it belongs to another repository, or cannot be read."""
        for folder in parents(path):
            if self._folder(folder) == "repository":
                return f"{folder!r} is another repository"
        if stat.S_ISDIR(mode) and self._folder(path) == "repository":
            return f"{path!r} is another repository"
        if stat.S_ISREG(mode) and not os.access(f"{self._root}/{path}", os.R_OK):
            return "it may not be read"
        return None

    def below(self, folder: str) -> Iterator[str]:
        """All files below a folder that may be git's."""
        try:
            with os.scandir(f"{self._root}/{folder}") as found:
                entries = list(found)
        except OSError:
            return  # it has gone, or may not be read
        for entry in entries:
            path = f"{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in {".git", STATE} and self._folder(path) == "folder":
                    yield from self.below(path)
            elif entry.is_symlink() or (entry.is_file() and os.access(entry.path, os.R_OK)):
                yield path

    def mode(self, path: str) -> int:
        """What stands at a path; 0 for nothing, or a link or a file where its folder was."""
        if any(self._folder(above) != "folder" for above in parents(path)):
            return 0
        try:
            return os.lstat(f"{self._root}/{path}").st_mode
        except OSError:
            return 0

    def _folder(self, path: str) -> str:
        if path not in self._folders:
            self._folders[path] = self._look(path)
        return self._folders[path]

    def _look(self, path: str) -> str:
        folder = f"{self._root}/{path}"
        try:
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                return "no folder"
        except OSError:
            return "no folder"
        is_foreign = path in self._submodules or os.path.lexists(f"{folder}/.git")
        return "repository" if is_foreign else "folder"


def _kind(mode: int) -> str:
    """What is at a path: a file (or a link), a folder, or nothing that git has."""
    if stat.S_ISDIR(mode):
        return "folder"
    return "file" if stat.S_ISREG(mode) or stat.S_ISLNK(mode) else "nothing"


def _submodules(repository: Repository, index: Path) -> set[str]:
    """Folders of the notebook whose content is another repository's, also if it is not there."""
    if not (repository.top / ".gitmodules").exists():
        return set()
    staged = repository.git("ls-files", "-z", "--stage", index=index)
    links = [line for line in staged.split(b"\0") if line.startswith(_GITLINK)]
    paths = [os.fsdecode(line.split(b"\t", 1)[1]) for line in links]
    return {path.removeprefix(repository.prefix) for path in paths}


def _tracked(repository: Repository, index: Path) -> list[bytes]:
    return repository.git("ls-files", "-z", index=index).split(b"\0")[:-1]


def _at_or_below(tracked: list[bytes], path: bytes) -> Iterator[bytes]:
    """The entry of a path, and those of all that was below it; git keeps them sorted."""
    at = bisect_left(tracked, path)
    if at < len(tracked) and tracked[at] == path:
        yield path
    below = path + b"/"
    at = bisect_left(tracked, below)
    while at < len(tracked) and tracked[at].startswith(below):
        yield tracked[at]
        at += 1


def _ignored(repository: Repository, there: set[bytes], index: Path) -> set[bytes]:
    """Those that `.gitignore` and its kind leave out, and that are not tracked all the same."""
    if not there:
        return set()
    # This command knows no literal paths; with a dot before it none is taken for a pattern. And it
    # must not look for each path in the index: of 10,000 among 10,000, that takes two seconds.
    answer = repository.git.ask(
        *("check-ignore", "--no-index", "-z", "--stdin"),
        stdin=b"".join(b"./" + path + b"\0" for path in sorted(there)),
        env={"GIT_LITERAL_PATHSPECS": "0"},
    )
    if answer.code > 1:
        raise failed("check-ignore", answer.told)
    ignored = {path.removeprefix(b"./") for path in answer.out.split(b"\0")[:-1]}
    return ignored.difference(_tracked(repository, index)) if ignored else ignored
