"""Puts contents in place, many at once.

Each folder is opened and flushed once, however many contents go into it, and the copies that are
put aside for history share a file: what takes longest is to make files, and to ask the system. What
a rename displaces is looked at afterwards, so that an edit which nobody has heard of is put aside
for history instead of being lost.

A content waits in the state folder under a name of its own. Nothing is at that name once it is in
place; what it has displaced is beside it then, until that is looked at.
"""

import hashlib
import os
import stat
from collections.abc import Mapping
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
from penstock.apps.notebooks.files import SMALL, STAGED, Facts, Staged, Tree, facts_of, hash_of
from penstock.apps.notebooks.flushing import FEW, flush, flush_all, write_whole
from penstock.apps.notebooks.keeping import Sharing
from penstock.apps.notebooks.renaming import rename_new, swap

_TRIES = 20
"""Between a look and a rename others may add or remove the file; so often is unheard of."""
_SPARE = ".displaced"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class _Spot(NamedTuple):
    """Where a content is to be put."""

    folder: int
    name: str
    path: str


class _Source(NamedTuple):
    """A content that is ready to be put in place; `data` if it is in memory."""

    about: os.stat_result
    data: bytes | None


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
        self._ready: dict[str, _Source] = {}
        self._unready: dict[str, OSError] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._opened:
            for name in self._ready:
                self._tree.discard(name)

    def prepare(self, contents: Mapping[str, bytes]) -> None:
        """Have contents that were stored with their operations in the state folder, durably.

        Those that are not put in place go with the end of the block. What an earlier run has put
        in place does not come back.
        """
        with sorting(STAGED):
            staging = self._folder(STAGED)
            is_few = len(contents) <= FEW
            copied = self._keeper.staged()
            for name, content in contents.items():
                if name in copied and self._is_placed(name):
                    continue
                try:
                    self._ready[name] = self._written(name, content, staging, is_flushed=is_few)
                except OSError as error:
                    self._unready[name] = error
                    self._tree.discard(name)
            if not is_few and not flush_all(staging):
                for name in self._ready:
                    flush(name, staging)

    def look(self, path: str) -> os.stat_result | None:
        """What stands at a path, links as themselves; None if nothing does."""
        above, name = split(path)
        try:
            with sorting(path):
                return status(name, self._folder(above))
        except Missing:
            return None

    def was_placed(self, staged: Staged, path: str) -> bool:
        """Whether an earlier run has put a content in place, whatever is there now."""
        if staged.is_stored:
            return any(one.staged == staged.name for one in self._keeper.of(path))
        with sorting(path):
            self._take_up(staged.name, staged.hash)
        return not os.path.lexists(self._tree.place_of(staged.name))

    def place(self, staged: Staged, path: str, *, known: str | None = None) -> Facts:
        """Put a content at a path, whether there is a file or not; durable after `flush`.

        `known` is the hash of the file as the caller knows it: what else is found is put aside for
        history. Once it is done, doing it again changes nothing.
        """
        above, name = split(path)
        with sorting(path):
            spot = _Spot(self._folder(above, make=True), name, path)
            self._filled.add(above)
            found = status(name, spot.folder)
            if found is not None and self._has(spot, staged, found):
                self._settle(staged, path, known, self._number(staged, path))
                self._ready.pop(staged.name, None)
                self._tree.discard(staged.name)
                with os.fdopen(open_file(name, spot.folder, path), "rb") as file:
                    return facts_of(file, path)
            if self.was_placed(staged, path):  # and since then somebody else has edited it
                return self._placed_before(staged, path, known)
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

    def _written(self, name: str, content: bytes, staging: int, *, is_flushed: bool) -> _Source:
        handle = self._open(name, staging)
        try:
            write_whole(handle, content)
            if is_flushed:
                os.fsync(handle)
            return _Source(os.fstat(handle), content)
        finally:
            os.close(handle)

    def _open(self, name: str, staging: int) -> int:
        """A file for a content; what an earlier run has left there may be half of it."""
        try:
            return os.open(name, _NEW, 0o666, dir_fd=staging)
        except FileExistsError:
            os.unlink(name, dir_fd=staging)
            return os.open(name, _NEW, 0o666, dir_fd=staging)

    def _is_placed(self, name: str) -> bool:
        """Whether a content with a copy is in place: it is neither where it waits nor beside it."""
        copies = self._keeper.copies_of(name)
        self._take_up(name, copies[0].hash)
        if not os.path.lexists(self._tree.place_of(name)):
            return True
        self._keeper.drop(copies)
        return False

    def _take_up(self, name: str, digest: str) -> None:
        """Have a content where it waits that an earlier run was just about to put in place."""
        spare = self._tree.place_of(name + _SPARE)
        with suppress(FileNotFoundError):
            if self._digest(spare) == digest:
                os.replace(spare, self._tree.place_of(name))
                self._keeper.drop(self._keeper.copies_of(name))

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
        if staged.name in self._unready:
            raise self._unready[staged.name]
        number = self._keeper.next_number(spot.path)
        source = self._ready.get(staged.name) or self._source(staged)
        if self._keep:
            self._copy(source.data, staged, spot.path, number + 1)
        try:
            has_displaced = self._exchange(staged.name, spot, found)
        except BaseException:
            self._keeper.withdraw(spot.path, number + 1)
            raise
        self._ready.pop(staged.name, None)
        if has_displaced:
            self._settle(staged, spot.path, known, number)
        about = source.about
        return Facts(about.st_size, about.st_mtime_ns, about.st_ino, staged.hash)

    def _source(self, staged: Staged) -> _Source:
        try:
            handle = open_file(staged.name, self._folder(STAGED), staged.name)
        except FileNotFoundError:
            raise Missing("the content is gone") from None
        with os.fdopen(handle, "rb", 0) as file:
            about = os.fstat(handle)
            return _Source(about, file.read() if about.st_size <= SMALL else None)

    def _copy(self, content: bytes | None, staged: Staged, path: str, number: int) -> None:
        """Put a copy aside of what is about to be written."""
        if content is None:
            source = self._tree.place_of(staged.name)
            self._keeper.copy(source, path, staged.hash, number, is_own=True)
            return
        if self._sharing is None:
            self._sharing = self._opened.enter_context(self._keeper.sharing())
        self._sharing.copy(content, path, staged.hash, number, staged.name)

    def _exchange(self, name: str, spot: _Spot, found: os.stat_result | None) -> bool:
        """Put a content in place; whether it has displaced something."""
        staging = self._folder(STAGED)
        spare = name + _SPARE
        for _ in range(_TRIES):
            try:
                if found is None:
                    rename_new(name, staging, spot.name, spot.folder)
                    return False
                _refuse_unless_file(found, spot.path)
                os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=staging)
                os.rename(name, spare, src_dir_fd=staging, dst_dir_fd=staging)
                try:
                    swap(spare, staging, spot.name, spot.folder)
                except BaseException:
                    os.rename(spare, name, src_dir_fd=staging, dst_dir_fd=staging)
                    raise
            except (FileExistsError, FileNotFoundError):  # it came or went after the look
                found = status(spot.name, spot.folder)
                continue
            displaced = status(spare, staging)
            if displaced is not None and not stat.S_ISREG(displaced.st_mode):
                swap(spare, staging, spot.name, spot.folder)
                os.rename(spare, name, src_dir_fd=staging, dst_dir_fd=staging)
                _refuse_unless_file(displaced, spot.path)
            return True
        raise Passing(f"{spot.path!r} comes and goes too quickly")

    def _placed_before(self, staged: Staged, path: str, known: str | None) -> Facts:
        if not any(one.hash == staged.hash for one in self._keeper.of(path)):
            raise Missing("the content is gone")
        self._settle(staged, path, known, self._number(staged, path))
        return Facts(staged.size, 0, 0, staged.hash)

    def _number(self, staged: Staged, path: str) -> int:
        """The place of what a content has displaced: before the copy of the content."""
        for one in reversed(self._keeper.of(path)):
            if one.is_own and one.hash == staged.hash:
                return one.number - 1
        return self._keeper.next_number(path)

    def _settle(self, staged: Staged, path: str, known: str | None, number: int) -> None:
        """Deal with what a content has displaced, if anything."""
        spare = self._tree.place_of(staged.name + _SPARE)
        with suppress(FileNotFoundError):
            digest = self._digest(spare)
            if digest is None:
                return
            if digest in {staged.hash, known} or not self._keep:
                os.unlink(spare)
                if digest != staged.hash:
                    self._keeper.forget(path, digest)
            else:
                self._keeper.take(spare, path, digest, number)

    def _digest(self, spare: str) -> str | None:
        """The hash of what was displaced; links and the like have no content to be kept."""
        if not stat.S_ISREG(os.lstat(spare).st_mode):
            os.unlink(spare)
            return None
        return hash_of(spare)


def _refuse_unless_file(found: os.stat_result, path: str) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise PathRefused(f"{path!r} is a symbolic link")
    if stat.S_ISDIR(found.st_mode):
        raise Exists(f"{path!r} is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise Permanent(f"{path!r} is not a regular file")
