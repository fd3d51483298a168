"""Contents that history is to have, although they may be overwritten before the next commit.

When the server writes a file, a copy is put aside; when a person overwrites the file before it was
committed, the copy is what becomes of it in history. When the server overwrites an edit that it has
not heard of, that edit is put aside. Each path has its contents in the order in which they were at
it; the next commit takes them and lets them go.
"""

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Kept(NamedTuple):
    """One content that was at a path."""

    number: int
    hash: str
    file: Path


class Keeper:
    """The contents put aside for one notebook. Survives the process, not a loss of power."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, path: str) -> list[Kept]:
        """What is put aside for a path, the oldest first."""
        try:
            found = list(self._place(path).iterdir())
        except FileNotFoundError:
            return []
        kept = []
        for file in found:
            number, _, digest = file.name.partition("-")
            if number.isdigit() and digest:
                kept.append(Kept(int(number), digest, file))
        return sorted(kept)

    def next_number(self, path: str) -> int:
        """The number of what comes after all that is put aside for a path."""
        return max((one.number + 1 for one in self.of(path)), default=0)

    def copy(self, content: Path, path: str, digest: str, number: int) -> None:
        """Put a copy aside: the file may be written to by others."""
        place = self._made(path)
        half = place / "half"
        shutil.copyfile(content, half)
        half.rename(place / f"{number}-{digest}")

    def take(self, content: Path, path: str, digest: str, number: int) -> None:
        """Put a file aside that is not needed where it is."""
        content.rename(self._made(path) / f"{number}-{digest}")

    def spot(self, path: str, number: int) -> Path:
        """Where to rename a file to at once that is about to go, until it is known what it was."""
        return self._made(path) / f"{number}-unread"

    def drop(self, kept: list[Kept]) -> None:
        """Let contents go: they are in history, or need not be."""
        for one in kept:
            one.file.unlink(missing_ok=True)
        for place in {one.file.parent for one in kept}:
            with suppress(OSError):  # others have come meanwhile
                place.rmdir()

    def _place(self, path: str) -> Path:
        return self._folder / hashlib.sha256(os.fsencode(path)).hexdigest()[:32]

    def _made(self, path: str) -> Path:
        place = self._place(path)
        place.mkdir(exist_ok=True)
        return place
