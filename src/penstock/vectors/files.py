"""Walk a folder and read its files as text.

The walk honours `.gitignore` files as git does. It skips the folders of tools and does not follow
symbolic links: a target inside the folder is found at its own path.
"""

import codecs
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
"""Folders that are always skipped."""

NOT_UTF_8 = "name is not UTF-8"
"""Why a file is skipped whose name cannot be stored."""
_IGNORE = ".gitignore"
_IGNORE_LIMIT = 1_000_000
_SNIFFED = 8_192
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class UnreadableFile(Exception):
    """A file that cannot be read as text; the message says why."""


class FoundFile(NamedTuple):
    """A file found by a walk: its path, and why it is skipped, if it is."""

    path: str
    why_not: str | None = None


class FileFilter(Protocol):
    """Selects the files of a folder by their relative paths."""

    def wants(self, path: str) -> bool:
        """Return whether a file is selected."""
        ...

    def leaves_out(self, folder: str) -> bool:
        """Return whether nothing below a folder is selected."""
        ...


class IgnoreRules(NamedTuple):
    """The rules of one `.gitignore` file, which apply to everything below its folder."""

    folder: str
    patterns: "GitIgnoreSpec"

    def ignores(self, path: str) -> bool | None:
        """Return whether a path is ignored; None if no rule matches it."""
        return self.patterns.check_file(path[len(self.folder) + 1 :]).include


class Walk:
    """The files of one folder, in a fixed order."""

    def __init__(
        self,
        folder: str,
        chooser: FileFilter,
        *,
        recursive: bool = True,
        depth: int | None = None,
        largest: int,
        except_folders: Collection[str] = (),
    ) -> None:
        """Leave out these folders, given by path, and files of more than `largest` bytes.

        `depth` is the number of levels to descend; 0 stays in the folder itself.
        """
        self._folder = folder
        self._chooser = chooser
        self._depth = depth if recursive else 0
        self._largest = largest
        self._except_folders = frozenset(except_folders)

    def __iter__(self) -> Iterator[FoundFile]:
        """Yield all selected files, including those that are skipped because they are unfit."""
        return self._below(self._folder, _rules_above(self._folder), self._depth)

    def wants(self, path: str) -> bool:
        """Return whether the walk would yield a file at this path, disregarding `.gitignore`."""
        inside = self._inside(path)
        return inside is not None and self._chooser.wants(inside)

    def may_lead_to(self, path: str) -> bool:
        """Return whether a change at this path may affect others: a folder, or ignore rules."""
        if self._inside(path) is None:
            return False
        there = Path(path)
        return there.name == _IGNORE or there.is_dir() or (not there.suffix and not there.exists())

    def _inside(self, path: str) -> str | None:
        """Return the relative path; None for a path that the walk never reaches."""
        inside = path[len(self._folder) + 1 :]
        parts = inside.split("/")
        if not path.startswith(f"{self._folder}/") or self._is_too_deep(parts):
            return None
        if TOOLS.intersection(parts) or any(path.startswith(one) for one in self._except_folders):
            return None
        return inside

    def _is_too_deep(self, parts: Sequence[str]) -> bool:
        return self._depth is not None and len(parts) > self._depth + 1

    def _below(
        self, folder: str, rules: list[IgnoreRules], depth: int | None
    ) -> Iterator[FoundFile]:
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            return  # the folder is gone or may not be read, and neither may its contents
        rules = [*_rules_in(folder), *rules]  # nearest first: its rules take precedence
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if depth != 0 and self._enters(entry, rules):
                    further = None if depth is None else depth - 1
                    yield from self._below(entry.path, rules, further)
            elif self._is_wanted(entry, rules):
                yield FoundFile(_printable(entry.path), self._why_not(entry))

    def _enters(self, entry: "os.DirEntry[str]", rules: list[IgnoreRules]) -> bool:
        return (
            entry.name not in TOOLS
            and entry.path not in self._except_folders
            and not self._chooser.leaves_out(self._relative(entry.path))
            and not _is_ignored(entry.path + "/", rules)
        )

    def _is_wanted(self, entry: "os.DirEntry[str]", rules: list[IgnoreRules]) -> bool:
        return self._chooser.wants(self._relative(entry.path)) and not _is_ignored(
            entry.path, rules
        )

    def _why_not(self, entry: "os.DirEntry[str]") -> str | None:
        if not _is_utf_8(entry.path):
            return NOT_UTF_8
        try:
            about = entry.stat(follow_symlinks=False)
        except OSError as error:
            return _unreadable(error)
        if stat.S_ISLNK(about.st_mode):
            return "symbolic link"
        if not stat.S_ISREG(about.st_mode):
            return "not a regular file"
        if about.st_size > self._largest:
            return _too_large(self._largest)
        return None

    def _relative(self, path: str) -> str:
        return path[len(self._folder) + 1 :]


def parse_patterns(patterns: Sequence[str]) -> "GitIgnoreSpec":
    """Parse patterns in the syntax of `.gitignore`; raise `ValueError` for an invalid one."""
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(patterns)


def read_file(path: str, largest: int) -> bytes:
    """Return the content of a regular file of up to `largest` bytes; raise `UnreadableFile`.

    The file may have been replaced since it was found, so this neither follows a symbolic link
    nor blocks on a pipe.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise UnreadableFile("not a regular file")
            content = file.read(largest + 1)
    except OSError as error:
        raise UnreadableFile(_unreadable(error)) from error
    if len(content) > largest:
        raise UnreadableFile(_too_large(largest))
    return content


def decode_text(content: bytes) -> str:
    """Decode the content of a file as UTF-8, UTF-16 or CP1252; raise `UnreadableFile` if binary."""
    if content.startswith(_UTF_16):
        return content.decode("utf-16", "replace")
    if b"\0" in content[:_SNIFFED]:
        raise UnreadableFile("binary")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")  # the default of older Windows editors


def _unreadable(error: OSError) -> str:
    return f"cannot be read ({error.strerror or error})"


def _too_large(largest: int) -> str:
    return f"larger than {largest:,} bytes"


def _is_utf_8(path: str) -> bool:
    """Return whether a path can be stored: on some file systems it is arbitrary bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(path: str) -> str:
    """Return a path with the bytes escaped that are not UTF-8."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _is_ignored(path: str, rules: list[IgnoreRules]) -> bool:
    for one in rules:
        ignored = one.ignores(path)
        if ignored is not None:
            return ignored
    return False


def _rules_in(folder: str) -> Iterator[IgnoreRules]:
    path = Path(folder, _IGNORE)
    try:
        if path.is_symlink() or path.stat().st_size > _IGNORE_LIMIT:
            return
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    yield IgnoreRules(folder, parse_patterns(lines))


def _rules_above(folder: str) -> list[IgnoreRules]:
    """Return the rules of the repository that contains a folder, nearest first."""
    path = Path(folder)
    if (path / ".git").exists():
        return []
    above: list[IgnoreRules] = []
    for parent in path.parents:
        above += _rules_in(str(parent))
        if (parent / ".git").exists():
            return above
    return []  # the folder is not in a repository
