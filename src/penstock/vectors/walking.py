"""Walks through a folder: which files are there, in a fixed order, and what is left out.

What `.gitignore` files ignore is not looked at, as git would not; nor are folders of tools, and
symbolic links: what they lead to inside the folder is met at its own place.
"""

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

TOOLS = frozenset(
    {
        *(".agent-brain", ".git", ".hg", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".svn"),
        *(".tox", ".venv", "__pycache__", "node_modules"),
    }
)
"""Folders that are never walked into."""

NOT_UTF_8 = "name is not UTF-8"
"""The reason why a file is skipped whose name no store could keep."""
_IGNORE = ".gitignore"
_IGNORE_LIMIT = 1_000_000


class Met(NamedTuple):
    """A file that was met: its path as text, and why it is left out if it is."""

    path: str
    why_not: str | None = None


class Chooser(Protocol):
    """Says which files of a folder are wanted, by their paths below it."""

    def wants(self, path: str) -> bool:
        """Whether a file is wanted."""
        ...

    def leaves_out(self, folder: str) -> bool:
        """Whether nothing below a folder is wanted."""
        ...


class Rules(NamedTuple):
    """What one `.gitignore` says about all that is below its folder."""

    folder: str
    spec: "GitIgnoreSpec"

    def say(self, path: str) -> bool | None:
        """Whether a path is ignored; None if nothing is said about it."""
        return self.spec.check_file(path[len(self.folder) + 1 :]).include


class Walk:
    """A walk through one folder."""

    def __init__(
        self,
        folder: str,
        chooser: Chooser,
        *,
        recursive: bool = True,
        depth: int | None = None,
        largest: int,
        besides: Collection[str] = (),
    ) -> None:
        """`besides` are folders that are left out, by their paths; `largest` is in bytes.

        `depth` is how many folders down it goes; 0 stays in the folder itself.
        """
        self._folder = folder
        self._chooser = chooser
        self._depth = depth if recursive else 0
        self._largest = largest
        self._besides = frozenset(besides)

    def __iter__(self) -> Iterator[Met]:
        """All files that are wanted, and those that would be if they were not unfit."""
        return self._below(self._folder, _rules_above(self._folder), self._depth)

    def wants(self, path: str) -> bool:
        """Whether a file at this path would be met; `.gitignore` is not asked."""
        inside = self._inside(path)
        return inside is not None and self._chooser.wants(inside)

    def may_lead_to(self, path: str) -> bool:
        """Whether a change at this path may concern files at others: a folder, or rules."""
        if self._inside(path) is None:
            return False
        there = Path(path)
        return there.name == _IGNORE or there.is_dir() or (not there.suffix and not there.exists())

    def _inside(self, path: str) -> str | None:
        """A path below the folder; None where nothing is met anyway."""
        inside = path[len(self._folder) + 1 :]
        parts = inside.split("/")
        if not path.startswith(f"{self._folder}/") or self._is_too_deep(parts):
            return None
        if TOOLS.intersection(parts) or any(path.startswith(one) for one in self._besides):
            return None
        return inside

    def _is_too_deep(self, parts: Sequence[str]) -> bool:
        return self._depth is not None and len(parts) > self._depth + 1

    def _below(self, folder: str, rules: list[Rules], depth: int | None) -> Iterator[Met]:
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            return  # it has gone, or may not be read: then neither may what is in it
        rules = [*_rules_in(folder), *rules]  # the nearest first: it has the last word
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if depth != 0 and self._enters(entry, rules):
                    further = None if depth is None else depth - 1
                    yield from self._below(entry.path, rules, further)
            elif self._is_wanted(entry, rules):
                yield Met(_shown(entry.path), self._why_not(entry))

    def _enters(self, entry: "os.DirEntry[str]", rules: list[Rules]) -> bool:
        return (
            entry.name not in TOOLS
            and entry.path not in self._besides
            and not self._chooser.leaves_out(self._relative(entry.path))
            and not _is_ignored(entry.path + "/", rules)
        )

    def _is_wanted(self, entry: "os.DirEntry[str]", rules: list[Rules]) -> bool:
        return self._chooser.wants(self._relative(entry.path)) and not _is_ignored(
            entry.path, rules
        )

    def _why_not(self, entry: "os.DirEntry[str]") -> str | None:
        if not _is_text(entry.path):
            return NOT_UTF_8
        try:
            about = entry.stat(follow_symlinks=False)
        except OSError as error:
            return unreadable(error)
        if stat.S_ISLNK(about.st_mode):
            return "symbolic link"
        if not stat.S_ISREG(about.st_mode):
            return "not a regular file"
        if about.st_size > self._largest:
            return too_large(self._largest)
        return None

    def _relative(self, path: str) -> str:
        return path[len(self._folder) + 1 :]


def spec(patterns: Sequence[str]) -> "GitIgnoreSpec":
    """Patterns as `.gitignore` has them."""
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(patterns)


def unreadable(error: OSError) -> str:
    """The reason why a file is skipped that cannot be read."""
    return f"cannot be read ({error.strerror or error})"


def too_large(largest: int) -> str:
    """The reason why a file is skipped that is too large."""
    return f"larger than {largest:,} bytes"


def _is_text(path: str) -> bool:
    """Whether a name can be stored: there are file systems on which it is any bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(path: str) -> str:
    """Return a path as text; bytes that are no text are escaped."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _is_ignored(path: str, rules: list[Rules]) -> bool:
    for one in rules:
        said = one.say(path)
        if said is not None:
            return said
    return False


def _rules_in(folder: str) -> Iterator[Rules]:
    path = Path(folder, _IGNORE)
    try:
        if path.is_symlink() or path.stat().st_size > _IGNORE_LIMIT:
            return
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    yield Rules(folder, spec(lines))


def _rules_above(folder: str) -> list[Rules]:
    """The rules of the repository that a folder stands in, the nearest first."""
    path = Path(folder)
    if (path / ".git").exists():
        return []
    above: list[Rules] = []
    for parent in path.parents:
        above += _rules_in(str(parent))
        if (parent / ".git").exists():
            return above
    return []  # it stands in none
