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
from contextlib import suppress
from typing import NamedTuple

_PATH = ".path"
_OWN = ".own"
_UNREAD = "unread"
_HALF = "half"


class Kept(NamedTuple):
    """One content that was at a path."""

    number: int
    hash: str
    file: str

    @property
    def is_own(self) -> bool:
        """Whether it may be at its path still: a copy, or a file that is just being removed."""
        return self.file.endswith((_OWN, _UNREAD))


class Keeper:
    """The contents put aside for one notebook. Survives the process, not a loss of power.

    All are in one folder, which is read once: whoever has the notebook has it alone. A content is
    called by its path's mark, its number and its hash. The path itself is noted only where a
    commit has to find it without being told of it.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._read: dict[str, list[Kept]] | None = None
        self.busy = threading.RLock()
        """Held while something is put aside or let go."""

    def of(self, path: str) -> list[Kept]:
        """What is put aside for a path, the oldest first."""
        with self.busy:
            return sorted(self._shelves().get(_mark(path), ()))

    def displaced(self) -> dict[str, list[Kept]]:
        """What is put aside for all paths at which something was overwritten or removed."""
        with self.busy:
            return {
                _read(self._note(mark)): sorted(kept)
                for mark, kept in self._shelves().items()
                if not all(one.is_own for one in kept)
            }

    def next_number(self, path: str) -> int:
        """The number of what comes after all that is put aside for a path."""
        return max((one.number + 1 for one in self.of(path)), default=0)

    def copy(
        self, content: str, path: str, digest: str, number: int, *, is_own: bool = False
    ) -> None:
        """Put a copy aside: the file may be written to by others. `is_own` if it stays."""
        with self.busy:
            half = f"{self._folder}/{_HALF}"
            shutil.copyfile(content, half)
            if is_own:
                self._put(half, path, f"{number}-{digest}{_OWN}")
            else:
                self.take(half, path, digest, number)

    def take(self, content: str, path: str, digest: str, number: int) -> None:
        """Put a file aside that is not needed where it is."""
        with self.busy:
            with open(self._note(_mark(path)), "wb") as note:
                note.write(os.fsencode(path))
            self._put(content, path, f"{number}-{digest}")

    def spot(self, path: str, number: int) -> str:
        """Where to rename a file to that is about to go, while `busy` is held."""
        return f"{self._folder}/{_mark(path)}-{number}-{_UNREAD}"

    def drop(self, kept: list[Kept]) -> None:
        """Let contents go: they are in history, or need not be."""
        with self.busy:
            for one in kept:
                _unlink(one.file)
                self._forget(one.file)

    def _put(self, content: str, path: str, name: str) -> None:
        shelves = self._shelves()
        place = f"{self._folder}/{_mark(path)}-{name}"
        os.rename(content, place)
        _shelve(shelves, place)

    def _shelves(self) -> dict[str, list[Kept]]:
        if self._read is None:
            self._read = {}
            for name in os.listdir(self._folder):
                _shelve(self._read, f"{self._folder}/{name}")
        return self._read

    def _forget(self, file: str) -> None:
        mark = os.path.basename(file).partition("-")[0]
        shelf = self._shelves().get(mark)
        if shelf is None:
            return
        shelf[:] = [one for one in shelf if one.file != file]
        if not shelf:
            del self._shelves()[mark]
            _unlink(self._note(mark))

    def _note(self, mark: str) -> str:
        return f"{self._folder}/{mark}{_PATH}"


def _shelve(shelves: dict[str, list[Kept]], file: str) -> None:
    mark, _, about = os.path.basename(file).removesuffix(_OWN).partition("-")
    number, _, digest = about.partition("-")
    if number.isdigit():
        shelves.setdefault(mark, []).append(Kept(int(number), digest, file))


def _mark(path: str) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:32]


def _read(note: str) -> str:
    with open(note, "rb") as file:
        return os.fsdecode(file.read())


def _unlink(file: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(file)
