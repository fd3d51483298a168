"""Which index entries a set of changed paths amounts to, by what is on the disk now.

A path that git cannot commit is held: it is left out with a reason, and the others go on.
"""

import os
import stat
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.apps.notebooks.errors import Transient
from penstock.apps.notebooks.paths import STATE, parents
from penstock.apps.notebooks.repository.git import TooSlow, failed
from penstock.apps.notebooks.repository.repository import Repository

IGNORED = "git ignores it (.gitignore and the like)"
_GITLINK = b"160000 "
_READ_BY_GIT = (".gitignore", ".gitattributes")


class IndexEntries(NamedTuple):
    """Paths in the repository, as bytes: those to add and those to remove."""

    there: dict[bytes, str]
    """Each with the path of the notebook that it belongs to: itself, or a folder above."""
    gone: set[bytes]
    held: "HeldPaths"


class HeldPaths:
    """Paths of the notebook that git cannot commit at the moment, with the reason."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[str, str]] = {}
        self._count: dict[str, set[str]] = {}

    def add(self, path: str, why: str, at: str = "") -> None:
        """Hold a path; `at` is the file in the folder `path` that causes it."""
        self._count.setdefault(path, set()).add(at)
        given = (at or path, why)
        self._first[path] = min(self._first.get(path, given), given)

    def reasons(self) -> dict[str, str]:
        """Return the reason for each path; for a folder, that of its first file and a count."""
        return {path: self._reason(path, *first) for path, first in self._first.items()}

    def lasting(self) -> set[str]:
        """Return the paths whose backups have to stay: all that are not ignored."""
        return {path for path, (_, why) in self._first.items() if why != IGNORED}

    def _reason(self, path: str, at: str, why: str) -> str:
        more = len(self._count[path]) - 1
        named = why if at == path else f"{at!r}: {why}"
        return f"{named}; and {more:,} more" if more else named


def entries(
    repository: Repository, root: Path, paths: Iterable[str], index: Path, held: HeldPaths
) -> IndexEntries:
    """Return what to stage for changed paths; a folder covers all that is or was below it."""
    found = IndexEntries({}, set(), held)
    disk = _Disk(repository, root, _submodules(repository, index))
    tracked: list[bytes] | None = None
    prefix = os.fsencode(repository.prefix)
    unread: list[bytes] = []
    for path in paths:
        mode = disk.mode(path)
        if why := disk.why_not(path, mode):
            found.held.add(path, why)
            continue
        there = prefix + os.fsencode(path)
        kind = _kind(mode)
        if kind == "file":
            found.there[there] = path
            continue
        if tracked is None:
            tracked = _tracked(repository, index)
        if kind == "folder":
            unread += _all_below(disk, path, prefix, found)
        found.gone.update(_at_or_below(tracked, there))
    found.gone.difference_update(found.there)
    left_out = refused(repository, found.there, index)
    for full, why in left_out.items():
        leave_out(found, prefix, full, why)
    if tracked is not None:  # what is on the disk but cannot be committed is not gone
        found.gone.difference_update(left_out)
        for full in unread:
            found.gone.difference_update(_at_or_below(tracked, full))
    return found


def _all_below(disk: "_Disk", folder: str, prefix: bytes, found: IndexEntries) -> Iterator[bytes]:
    """Add all files below a folder; yield what exists but cannot be committed."""
    for path, why in disk.below(folder):
        full = prefix + os.fsencode(path)
        if why is None:
            found.there.setdefault(full, folder)
        else:
            found.held.add(folder, why, path)
            yield full


def leave_out(found: IndexEntries, prefix: bytes, full: bytes, why: str) -> None:
    """Hold a path that was to be staged."""
    path = os.fsdecode(full.removeprefix(prefix))
    found.held.add(found.there.pop(full), why, path)


def committable(
    repository: Repository, root: Path, paths: Iterable[str], index: Path, held: HeldPaths
) -> set[str]:
    """Return those of the paths at which something was that git may commit; hold the others."""
    disk = _Disk(repository, root, _submodules(repository, index))
    prefix = os.fsencode(repository.prefix)
    mine: dict[bytes, str] = {}
    for path in paths:
        if why := disk.link_above(path) or disk.why_not(path, disk.mode(path)):
            held.add(path, why)
        else:
            mine[prefix + os.fsencode(path)] = path
    for full, why in refused(repository, mine, index).items():
        held.add(mine.pop(full), why)
    return set(mine.values())


def refused(repository: Repository, there: Collection[bytes], index: Path) -> dict[bytes, str]:
    """Return paths that git ignores or whose filter may not run, with the reason."""
    found = dict.fromkeys(there, "")
    ignored = _ignored(repository, found, index)
    wanted = [path for path in found if path not in ignored]
    return {**repository.held_by_filters(wanted, index), **ignored}


def split_failures(
    run: Callable[[Collection[bytes]], None],
    paths: Collection[bytes],
    check_sound: Callable[[], None],
) -> dict[bytes, str]:
    """Run a step on all paths; where it fails, retry with halves to find the paths that fail.

    Returns those paths with their reasons. `check_sound` raises if the step fails for any path.
    """
    try:
        run(paths)
    except TooSlow:
        raise
    except Transient as error:
        check_sound()
        if len(paths) == 1:
            return dict.fromkeys(paths, str(error))
    else:
        return {}
    half = len(paths) // 2
    listed = sorted(paths)
    return split_failures(run, listed[:half], check_sound) | split_failures(
        run, listed[half:], check_sound
    )


class _Disk:
    """What is on the disk; findings about a folder are valid for one commit.

    Requests wait while Python computes: 10,000 paths take a fifth of the time as texts that they
    take as `Path` objects.
    """

    def __init__(self, repository: Repository, root: Path, submodules: set[str]) -> None:
        self._root = str(root)
        self._submodules = submodules
        self._folders: dict[str, str] = {}
        self._blocked: dict[str, str | None] = {}
        above = [str(one) for one in root.parents if one.is_relative_to(repository.top)]
        self._above = next(filter(None, map(_blocking, above)), None)

    def why_not(self, path: str, mode: int) -> str | None:
        """Return why git cannot commit a path: it is in another repository, or not readable."""
        for folder in parents(path):
            if self._folder(folder) == "repository":
                return f"{folder!r} is another repository"
        if stat.S_ISDIR(mode) and self._folder(path) == "repository":
            return f"{path!r} is another repository"
        for folder in (*parents(path), ""):
            if why := self._blocks(folder):
                return why
        if stat.S_ISREG(mode) and not os.access(f"{self._root}/{path}", os.R_OK):
            return "it is not readable"
        return None

    def _blocks(self, folder: str) -> str | None:
        """Return why git would wait forever for a file in a folder; None if it would not."""
        if folder not in self._blocked:
            self._blocked[folder] = _blocking(f"{self._root}/{folder}")
        return self._blocked[folder] or (None if folder else self._above)

    def link_above(self, path: str) -> str | None:
        """Return why git cannot be asked about a path: one of its folders is now a link."""
        for folder in parents(path):
            if Path(self._root, folder).is_symlink():
                return f"{folder!r} is now a symbolic link"
        return None

    def below(self, folder: str) -> Iterator[tuple[str, str | None]]:
        """Yield all files below a folder, each with why git cannot commit it, or None."""
        waiting = [folder]
        while waiting:
            folder = waiting.pop()
            try:
                with os.scandir(f"{self._root}/{folder}") as found:
                    entries = list(found)
            except FileNotFoundError:
                continue
            except OSError as error:
                yield folder, f"the folder is not readable: {error.strerror}"
                continue
            for entry in entries:
                path = f"{folder}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    if entry.name in {".git", STATE}:
                        continue
                    if self._folder(path) == "repository":
                        yield path, f"{path!r} is another repository"
                    else:
                        waiting.append(path)
                elif entry.is_symlink() or entry.is_file():
                    yield path, self.why_not(path, entry.stat(follow_symlinks=False).st_mode)

    def mode(self, path: str) -> int:
        """Return the mode of a path; 0 if it, or one of its folders as such, does not exist."""
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


def _blocking(folder: str) -> str | None:
    """Return which file in a folder git would read although it is a pipe or a device."""
    for name in _READ_BY_GIT:
        file = Path(folder, name)
        try:
            mode = file.stat().st_mode
        except OSError:
            continue
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            return f"{str(file)!r} is not a regular file, and git would wait for it forever"
    return None


def _kind(mode: int) -> str:
    """Return what a mode means for git: a file (or a link), a folder, or nothing."""
    if stat.S_ISDIR(mode):
        return "folder"
    return "file" if stat.S_ISREG(mode) or stat.S_ISLNK(mode) else "nothing"


def _submodules(repository: Repository, index: Path) -> set[str]:
    """Return the folders of the notebook that are submodules, checked out or not."""
    if not (repository.top / ".gitmodules").exists():
        return set()
    staged = repository.git("ls-files", "-z", "--stage", index=index)
    links = [line for line in staged.split(b"\0") if line.startswith(_GITLINK)]
    paths = [os.fsdecode(line.split(b"\t", 1)[1]) for line in links]
    return {path.removeprefix(repository.prefix) for path in paths}


def _tracked(repository: Repository, index: Path) -> list[bytes]:
    return repository.git("ls-files", "-z", index=index).split(b"\0")[:-1]


def _at_or_below(tracked: list[bytes], path: bytes) -> Iterator[bytes]:
    """Yield the entry of a path and those below it; git keeps them sorted."""
    at = bisect_left(tracked, path)
    if at < len(tracked) and tracked[at] == path:
        yield path
    below = path + b"/"
    at = bisect_left(tracked, below)
    while at < len(tracked) and tracked[at].startswith(below):
        yield tracked[at]
        at += 1


def _ignored(repository: Repository, there: Collection[bytes], index: Path) -> dict[bytes, str]:
    """Return the paths that `.gitignore` and similar files exclude and that are not tracked."""
    if not there:
        return {}
    ignored: set[bytes] = set()

    def look(paths: Collection[bytes]) -> None:
        # This command has no literal paths; a leading dot prevents patterns. It must not look up
        # each path in the index: for 10,000 paths among 10,000, that takes two seconds.
        answer = repository.git.ask(
            *("check-ignore", "--no-index", "-z", "--stdin"),
            stdin=b"".join(b"./" + path + b"\0" for path in sorted(paths)),
            env={"GIT_LITERAL_PATHSPECS": "0"},
        )
        if answer.code > 1:
            raise failed("check-ignore", answer.stderr)
        ignored.update(path.removeprefix(b"./") for path in answer.stdout.split(b"\0")[:-1])

    unknown = split_failures(look, there, lambda: look([b"x"]))
    if ignored:
        ignored.difference_update(_tracked(repository, index))
    return dict.fromkeys(ignored, IGNORED) | unknown
