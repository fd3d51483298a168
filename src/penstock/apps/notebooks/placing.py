"""Puts staged contents in place, many at once.

Each folder is opened and flushed once, however many contents go into it, and the copies that are
put aside for history share a file: what takes longest is to make files, and to ask the system. What
a rename displaces is looked at afterwards, so that an edit which nobody has heard of is put aside
for history instead of being lost.
"""

import hashlib
import os
import stat
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import NamedTuple, Self

from penstock.apps.notebooks.descent import folder_at, open_file, split, status
from penstock.apps.notebooks.errors import (
    Exists,
    Missing,
    Passing,
    PathRefused,
    Permanent,
    sorting,
)
from penstock.apps.notebooks.files import STAGED, Facts, Staged, Tree, facts_of, hash_of
from penstock.apps.notebooks.keeping import Sharing
from penstock.apps.notebooks.renaming import rename_new, swap

_SMALL = 64 * 1024
"""Bytes up to which a copy shares a file with others."""
_TRIES = 20
"""Between a look and a rename others may add or remove the file; so often is unheard of."""


class _Spot(NamedTuple):
    """Where a content is to be put."""

    folder: int
    name: str
    path: str


class Placer:
    """Puts contents in place inside a block. Every method raises `NotebookError` only."""

    def __init__(self, tree: Tree, *, keep: bool = True) -> None:
        """`keep` puts aside for history what is overwritten and what is written."""
        self._tree = tree
        self._keeper = tree.keeper
        self._keep = keep
        self._opened = ExitStack()
        self._folders: dict[str, int] = {}
        self._filled: set[str] = set()
        self._sharing: Sharing | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._opened.close()

    def look(self, path: str) -> os.stat_result | None:
        """What stands at a path, links as themselves; None if nothing does."""
        above, name = split(path)
        try:
            with sorting(path):
                return status(name, self._folder(above))
        except Missing:
            return None

    def place(self, staged: Staged, path: str, *, known: str | None = None) -> Facts:
        """Put a staged content at a path, whether there is a file or not; durable after `flush`.

        `known` is the hash of the file as the caller knows it: what else is found is put aside for
        history. Once it is done, doing it again changes nothing.
        """
        above, name = split(path)
        with sorting(path):
            spot = _Spot(self._folder(above, make=True), name, path)
            self._filled.add(above)
            found = status(name, spot.folder)
            if found is not None and self._has(spot, staged, found):
                self._settle(staged, path, known, self._keeper.next_number(path))
                with os.fdopen(open_file(name, spot.folder, path), "rb") as file:
                    return facts_of(file, path)
            return self._put(staged, spot, known, found)

    def flush(self) -> None:
        """Make durable what was put in place."""
        for folder in self._filled:
            with sorting(folder):
                os.fsync(self._folders[folder])

    # How

    def _folder(self, path: str, *, make: bool = False) -> int:
        if path not in self._folders:
            opening = folder_at(self._tree.root, path, make=make)
            self._folders[path] = self._opened.enter_context(opening)
        return self._folders[path]

    def _has(self, spot: _Spot, staged: Staged, found: os.stat_result) -> bool:
        """Whether a file has the staged content already; refuses what cannot be replaced."""
        _refuse_unless_file(found, spot.path)
        if found.st_size != staged.size:
            return False
        with os.fdopen(open_file(spot.name, spot.folder, spot.path), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == staged.hash

    def _put(
        self, staged: Staged, spot: _Spot, known: str | None, found: os.stat_result | None
    ) -> Facts:
        number = self._keeper.next_number(spot.path)
        try:
            handle = open_file(staged.name, self._folder(STAGED), staged.name)
        except FileNotFoundError:
            return self._placed_before(staged, spot.path)
        with os.fdopen(handle, "rb", 0) as file:
            ours = os.fstat(handle)
            if self._keep:
                content = file.read() if ours.st_size <= _SMALL else None
                self._copy(content, staged, spot.path, number + 1)
        if self._exchange(staged.name, spot, found):
            self._settle(staged, spot.path, known, number)
        return Facts(ours.st_size, ours.st_mtime_ns, ours.st_ino, staged.hash)

    def _copy(self, content: bytes | None, staged: Staged, path: str, number: int) -> None:
        """Put a copy aside of what is about to be written."""
        if content is None:
            source = self._tree.place_of(staged.name)
            self._keeper.copy(source, path, staged.hash, number, is_own=True)
            return
        if self._sharing is None:
            self._sharing = self._opened.enter_context(self._keeper.sharing())
        self._sharing.copy(content, path, staged.hash, number)

    def _exchange(self, source: str, spot: _Spot, found: os.stat_result | None) -> bool:
        """Put a staged file in place; whether what was there is now where it was staged."""
        staging = self._folder(STAGED)
        for _ in range(_TRIES):
            try:
                if found is None:
                    rename_new(source, staging, spot.name, spot.folder)
                    return False
                _refuse_unless_file(found, spot.path)
                os.chmod(source, stat.S_IMODE(found.st_mode), dir_fd=staging)
                swap(source, staging, spot.name, spot.folder)
            except (FileExistsError, FileNotFoundError):  # it came or went after the look
                found = status(spot.name, spot.folder)
                continue
            displaced = status(source, staging)
            if displaced is not None and not stat.S_ISREG(displaced.st_mode):
                swap(source, staging, spot.name, spot.folder)
                _refuse_unless_file(displaced, spot.path)
            return True
        raise Passing(f"{spot.path!r} comes and goes too quickly")

    def _placed_before(self, staged: Staged, path: str) -> Facts:
        """An earlier attempt put it in place, and since then somebody else has edited it."""
        for one in self._keeper.of(path):
            if one.hash == staged.hash:
                return Facts(staged.size, 0, 0, staged.hash)
        raise Missing(f"the content for {path!r} is gone")

    def _settle(self, staged: Staged, path: str, known: str | None, number: int) -> None:
        """Deal with what lies where the content was staged: nothing, itself, or the displaced."""
        place = self._tree.place_of(staged.name)
        with suppress(FileNotFoundError):
            digest = hash_of(place)
            if digest in {staged.hash, known} or not self._keep:
                os.unlink(place)
                if digest != staged.hash:
                    self._keeper.forget(path, digest)
            else:
                self._keeper.take(place, path, digest, number)


def _refuse_unless_file(found: os.stat_result, path: str) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise PathRefused(f"{path!r} is a symbolic link")
    if stat.S_ISDIR(found.st_mode):
        raise Exists(f"{path!r} is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise Permanent(f"{path!r} is not a regular file")
