"""Contents that history is to have, although they may be overwritten before the next commit.

When the server writes a file, a copy is put aside; when a person overwrites the file before it was
committed, the copy is what becomes of it in history. When the server overwrites an edit that it has
not heard of, that edit is put aside. Each path has its contents in the order in which they were at
it; the next commit takes them and lets them go.
"""

import hashlib
import os
import shutil
import threading
from pathlib import Path
from typing import NamedTuple

_PATH = "path"
_OWN = ".own"
_UNREAD = "unread"


class Kept(NamedTuple):
    """One content that was at a path."""

    number: int
    hash: str
    file: Path

    @property
    def is_own(self) -> bool:
        """Whether it may be at its path still: a copy, or a file that is just being removed."""
        return self.file.name.endswith((_OWN, _UNREAD))


class Keeper:
    """The contents put aside for one notebook. Survives the process, not a loss of power."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.busy = threading.RLock()
        """Held while something is put aside: folders that are empty go away otherwise."""

    def of(self, path: str) -> list[Kept]:
        """What is put aside for a path, the oldest first."""
        return _kept_in(self._place(path))

    def displaced(self) -> dict[str, list[Kept]]:
        """What is put aside for all paths at which something was overwritten or removed."""
        found = {}
        for place in self._folder.iterdir():
            kept = _kept_in(place)
            if not all(one.is_own for one in kept):
                found[os.fsdecode((place / _PATH).read_bytes())] = kept
        return found

    def next_number(self, path: str) -> int:
        """The number of what comes after all that is put aside for a path."""
        return max((one.number + 1 for one in self.of(path)), default=0)

    def copy(
        self, content: Path, path: str, digest: str, number: int, *, is_own: bool = False
    ) -> None:
        """Put a copy aside: the file may be written to by others. `is_own` if it stays."""
        with self.busy:
            place = self._made(path)
            half = place / "half"
            shutil.copyfile(content, half)
            half.rename(place / f"{number}-{digest}{_OWN if is_own else ''}")

    def take(self, content: Path, path: str, digest: str, number: int) -> None:
        """Put a file aside that is not needed where it is."""
        with self.busy:
            content.rename(self._made(path) / f"{number}-{digest}")

    def spot(self, path: str, number: int) -> Path:
        """Where to rename a file to that is about to go, while `busy` is held."""
        return self._made(path) / f"{number}-{_UNREAD}"

    def drop(self, kept: list[Kept]) -> None:
        """Let contents go: they are in history, or need not be."""
        for one in kept:
            one.file.unlink(missing_ok=True)
        for place in {one.file.parent for one in kept}:
            with self.busy:
                if place.exists() and [file.name for file in place.iterdir()] == [_PATH]:
                    shutil.rmtree(place)

    def _place(self, path: str) -> Path:
        return self._folder / hashlib.sha256(os.fsencode(path)).hexdigest()[:32]

    def _made(self, path: str) -> Path:
        place = self._place(path)
        if not place.exists():
            place.mkdir(exist_ok=True)
            (place / _PATH).write_bytes(os.fsencode(path))
        return place


def _kept_in(place: Path) -> list[Kept]:
    try:
        found = list(place.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    kept = []
    for file in found:
        number, _, digest = file.name.removesuffix(_OWN).partition("-")
        if number.isdigit() and digest:
            kept.append(Kept(int(number), digest, file))
    return sorted(kept)
