"""Paths of a notebook: relative, with `/` between names.

A name is stored exactly as it was given: the disk distinguishes names that look alike, and a file
that comes from elsewhere must keep its name. `fold` maps names that some file systems treat as
equal to the same text, so that a notebook never contains two of them.
"""

import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from penstock.apps.notebooks.errors import PathRefused

STATE = ".penstock"
"""The folder in a notebook for the server's own files; neither watched nor committed."""

LONGEST_NAME = 255
"""In bytes; the limit of file systems."""

LONGEST_PATH = 2_048
"""In bytes; the system allows 4,096 including the path of the notebook itself."""

MOST_NAMES = 100
"""The most names in one path: programs that descend a tree are limited in depth."""

_GIT = frozenset({".git", "git~1"})
_STATES = frozenset({STATE, "pensto~1"})


def parse(text: str) -> str:
    """Return the path that a request names, relative and normalised; raises `PathRefused`.

    A leading `/` is the root of the notebook, so no path is outside of it.
    """
    if text.startswith("//"):
        raise _refused(text, "begins with two slashes")
    names = [name for name in text.split("/") if name not in {"", "."}]
    if not names:
        raise _refused(text, "does not name a file")
    if ".." in names:
        raise _refused(text, "leaves its folder with '..'")
    path = "/".join(names)
    if why := why_not(path):
        raise _refused(text, why)
    return path


@lru_cache(4_096)
def check(path: str) -> None:
    """Raise `PathRefused` unless a text is a path as `parse` returns it."""
    if parse(path) != path:
        raise _refused(path, "is not normalised")


def is_valid(text: str) -> bool:
    """Whether a text is a path as `parse` returns it."""
    try:
        check(text)
    except PathRefused:
        return False
    return True


def why_not(path: str) -> str | None:
    """Return why a normalised path found on disk is not allowed in a notebook; None if it is."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    names = path.split("/")
    if why := _too_large(encoded, names):
        return why
    if any(unicodedata.category(letter) == "Cc" for letter in path):
        return "contains control characters"
    if any(_as_others_read(name) in _GIT for name in names):
        return "belongs to git"
    return "belongs to the server" if _as_others_read(names[0]) in _STATES else None


def _too_large(encoded: bytes, names: list[str]) -> str | None:
    if len(encoded) > LONGEST_PATH:
        return f"is longer than {LONGEST_PATH:,} bytes"
    if len(names) > MOST_NAMES:
        return f"has more than {MOST_NAMES} names"
    if any(len(name.encode()) > LONGEST_NAME for name in names):
        return f"contains a name of more than {LONGEST_NAME} bytes"
    return None


def fold(path: str) -> str:
    """Map paths that some file system treats as the same to the same text."""
    folded = unicodedata.normalize("NFD", path).casefold()
    return unicodedata.normalize("NFC", folded)


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies below it."""
    return path == folder or path.startswith(f"{folder}/")


def parents(path: str) -> Iterator[str]:
    """Yield the folders above a path, nearest first, without the root."""
    while (cut := path.rfind("/")) > 0:
        path = path[:cut]
        yield path


class DisjointPaths:
    """Paths that can be written in any order: none equals, contains or resembles another."""

    def __init__(self) -> None:
        self._spelled: dict[str, str] = {}
        self._files: set[str] = set()

    def add(self, path: str) -> bool:
        """Add a path; return False and leave it out if it conflicts with one of the others."""
        above = {fold(one): one for one in parents(path)}
        folded = fold(path)
        if (
            folded in self._spelled
            or not self._files.isdisjoint(above)
            or any(self._spelled.get(one, spelled) != spelled for one, spelled in above.items())
        ):
            return False
        self._spelled |= above
        self._spelled[folded] = path
        self._files.add(folded)
        return True


def _as_others_read(name: str) -> str:
    """Return a name as other systems read it: without invisible characters or a final dot."""
    visible = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    return fold(visible.split(":", 1)[0].rstrip(". "))


def _refused(text: str, why: str) -> PathRefused:
    return PathRefused(f"{text[:200]!r} is not a path of a notebook: it {why}")
