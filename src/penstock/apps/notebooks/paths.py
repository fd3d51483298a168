"""Paths of a notebook: relative texts with `/` between names, and what may not be one.

A name is kept as it was given, letter for letter: the disk tells apart what looks alike, and a file
that came from elsewhere must keep its name. What other systems would take for the same path has the
same `fold`, so that two such names can be kept out of one notebook.
"""

import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from penstock.apps.notebooks.errors import PathRefused

STATE = ".penstock"
"""The folder of a notebook with what the server keeps for itself; neither watched nor in git."""

LONGEST_NAME = 255
"""Bytes: what file systems can hold."""

LONGEST_PATH = 2_048
"""Bytes; a file system takes 4,096 with all that stands before a notebook."""

MOST_NAMES = 100
"""Of one path: whoever goes down a tree may not get deeper than a certain number of folders."""

_GIT = frozenset({".git", "git~1"})
_STATES = frozenset({STATE, "pensto~1"})


def parse(text: str) -> str:
    """The path that a request means: relative and normalised; refuses all that is none.

    A leading `/` is the notebook's root, so that nothing is outside of it. Raises `PathRefused`.
    """
    if text.startswith("//"):
        raise _refused(text, "begins with two slashes")
    names = [name for name in text.split("/") if name not in {"", "."}]
    if not names:
        raise _refused(text, "names no file")
    if ".." in names:
        raise _refused(text, "leaves its folder with '..'")
    path = "/".join(names)
    if why := why_not(path):
        raise _refused(text, why)
    return path


@lru_cache(4_096)
def check(path: str) -> None:
    """Raise `PathRefused` for a text that is not a path as `parse` returns it."""
    if parse(path) != path:
        raise _refused(path, "is not normalised")


def is_path(text: str) -> bool:
    """Whether a text is a path as `parse` returns it."""
    try:
        check(text)
    except PathRefused:
        return False
    return True


def why_not(path: str) -> str | None:
    """Why a normalised path is not one of a notebook; None if it is one. For paths met on disk."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    names = path.split("/")
    if why := _too_large(encoded, names):
        return why
    if any(unicodedata.category(letter) == "Cc" for letter in path):
        return "has control characters"
    if any(_plain(name) in _GIT for name in names):
        return "is git's own"
    return "is the server's own" if _plain(names[0]) in _STATES else None


def _too_large(encoded: bytes, names: list[str]) -> str | None:
    if len(encoded) > LONGEST_PATH:
        return f"is longer than {LONGEST_PATH:,} bytes"
    if len(names) > MOST_NAMES:
        return f"has more than {MOST_NAMES} names"
    if any(len(name.encode()) > LONGEST_NAME for name in names):
        return f"has a name of more than {LONGEST_NAME} bytes"
    return None


def fold(path: str) -> str:
    """What is the same for paths that some file system takes for the same one."""
    folded = unicodedata.normalize("NFD", path).casefold()
    return unicodedata.normalize("NFC", folded)


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder or stands below it."""
    return path == folder or path.startswith(f"{folder}/")


def parents(path: str) -> Iterator[str]:
    """The folders that a path stands in, the nearest first, without the root."""
    while (cut := path.rfind("/")) > 0:
        path = path[:cut]
        yield path


class Abreast:
    """Paths that can be written side by side: none is another, above it, or alike elsewhere."""

    def __init__(self) -> None:
        self._spelled: dict[str, str] = {}
        self._files: set[str] = set()

    def admits(self, path: str) -> bool:
        """Whether this one can be with the others; if so, it is."""
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


def _plain(name: str) -> str:
    """A name as other systems read it: some see no invisible letters, dots or spaces at its end."""
    visible = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    return fold(visible.split(":", 1)[0].rstrip(". "))


def _refused(text: str, why: str) -> PathRefused:
    return PathRefused(f"{text[:200]!r} is no path of a notebook: it {why}")
