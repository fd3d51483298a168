"""Puts staged contents in place, many at once.

Creating files and calling the system take most of the time. Each folder is therefore opened and
flushed once for any number of contents, and backups of small contents share a file. A file that a
rename displaces is examined afterwards, so that an edit the server has not seen is backed up for
history instead of being lost.

A content waits in the state folder under its own name. That name is free once the content is in
place. Until it has been examined, the displaced file is next to it with the suffix `.displaced`.
"""

import hashlib
import os
import stat
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import NamedTuple, Self

from penstock.apps.notebooks.disk.backups import SharedBackups
from penstock.apps.notebooks.disk.files import (
    FEW,
    flush_file,
    flush_file_system,
    folder_at,
    open_file,
    rename_new,
    split,
    status,
    swap,
    write_whole,
)
from penstock.apps.notebooks.disk.tree import SMALL, STAGED, Facts, Staged, Tree, facts_of, hash_of
from penstock.apps.notebooks.errors import (
    Exists,
    Missing,
    PathRefused,
    Permanent,
    Transient,
    os_errors,
)

_TRIES = 20
"""Other programs may create or remove the file between a look and the rename, but not this often.
"""
_SPARE = ".displaced"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class _Spot(NamedTuple):
    """Where to put a content."""

    folder: int
    name: str
    path: str


class _Source(NamedTuple):
    """A content that is ready to be put in place; `data` if it is in memory."""

    about: os.stat_result
    data: bytes | None


class Placer:
    """Puts contents in place inside a block. Methods raise only `NotebookError`."""

    def __init__(self, tree: Tree, *, keep: bool = True) -> None:
        """With `keep`, back up for history both what is overwritten and what is written."""
        self._tree = tree
        self._backups = tree.backups
        self._keep = keep
        self._opened = ExitStack()
        self._folders: dict[str, int] = {}
        self._filled: set[str] = set()
        self._sharing: SharedBackups | None = None
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
        """Write contents that were stored with their operations into the state folder, durably.

        Those that are not put in place are removed at the end of the block. Contents that an
        earlier run put in place are skipped.
        """
        with os_errors(STAGED):
            staging = self._folder(STAGED)
            is_few = len(contents) <= FEW
            copied = self._backups.staged()
            for name, content in contents.items():
                if name in copied and self._is_placed(name):
                    continue
                try:
                    self._ready[name] = self._written(name, content, staging, is_flushed=is_few)
                except OSError as error:
                    self._unready[name] = error
                    self._tree.discard(name)
            if not is_few and not flush_file_system(staging):
                for name in self._ready:
                    flush_file(name, staging)

    def look(self, path: str) -> os.stat_result | None:
        """Return the status of a path without following links; None if it does not exist."""
        above, name = split(path)
        try:
            with os_errors(path):
                return status(name, self._folder(above))
        except Missing:
            return None

    def was_placed(self, staged: Staged, path: str) -> bool:
        """Whether an earlier run put content in place, whatever is there now."""
        if staged.is_stored:
            return any(one.staged == staged.name for one in self._backups.of(path))
        with os_errors(path):
            self._resume(staged.name, staged.hash)
        return not os.path.lexists(self._tree.place_of(staged.name))

    def place(self, staged: Staged, path: str, *, committed: str | None = None) -> Facts:
        """Put a content at a path, replacing an existing file; durable after `flush`.

        `committed` is the hash of the file if history has it: any other content found there is
        backed up for history, except the last own write. Placing the same content again has no
        effect.
        """
        above, name = split(path)
        with os_errors(path):
            spot = _Spot(self._folder(above, make=True), name, path)
            self._filled.add(above)
            found = status(name, spot.folder)
            if found is not None and self._has(spot, staged, found):
                self._settle(staged, path, committed, self._number(staged, path))
                self._ready.pop(staged.name, None)
                self._tree.discard(staged.name)
                with os.fdopen(open_file(name, spot.folder, path), "rb") as file:
                    return facts_of(file, path)
            if self.was_placed(staged, path):  # somebody has edited it since
                return self._placed_before(staged, path, committed)
            return self._put(staged, spot, committed, found)

    def flush(self) -> None:
        """Make the placed contents durable."""
        for folder in self._filled:
            with os_errors(folder):
                os.fsync(self._folders[folder])

    # Steps

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
        """Create the file of a content; an earlier run may have left an incomplete one."""
        try:
            return os.open(name, _NEW, 0o666, dir_fd=staging)
        except FileExistsError:
            os.unlink(name, dir_fd=staging)
            return os.open(name, _NEW, 0o666, dir_fd=staging)

    def _is_placed(self, name: str) -> bool:
        """Whether a content with a backup is in place: no file is staged for it any more."""
        copies = self._backups.copies_of(name)
        self._resume(name, copies[0].hash)
        if not os.path.lexists(self._tree.place_of(name)):
            return True
        self._backups.drop(copies)
        return False

    def _resume(self, name: str, digest: str) -> None:
        """Restore a content that an earlier run was about to put in place."""
        spare = self._tree.place_of(name + _SPARE)
        with suppress(FileNotFoundError):
            if self._digest(spare) == digest:
                os.replace(spare, self._tree.place_of(name))
                self._backups.drop(self._backups.copies_of(name))

    def _has(self, spot: _Spot, staged: Staged, found: os.stat_result) -> bool:
        """Whether a file already has the staged content; raises if it cannot be replaced."""
        _refuse_unless_file(found, spot.path)
        if found.st_size != staged.size:
            return False
        with os.fdopen(open_file(spot.name, spot.folder, spot.path), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == staged.hash

    def _put(
        self, staged: Staged, spot: _Spot, committed: str | None, found: os.stat_result | None
    ) -> Facts:
        if staged.name in self._unready:
            raise self._unready[staged.name]
        number = self._backups.next_number(spot.path)
        source = self._ready.get(staged.name) or self._source(staged)
        if self._keep:
            self._copy(source.data, staged, spot.path, number + 1)
        try:
            has_displaced = self._exchange(staged.name, spot, found)
        except BaseException:
            self._backups.withdraw(spot.path, number + 1)
            raise
        self._ready.pop(staged.name, None)
        if has_displaced:
            self._settle(staged, spot.path, committed, number)
        about = source.about
        return Facts(about.st_size, about.st_mtime_ns, about.st_ino, staged.hash)

    def _source(self, staged: Staged) -> _Source:
        try:
            handle = open_file(staged.name, self._folder(STAGED), staged.name)
        except FileNotFoundError:
            raise Missing("the staged content is gone") from None
        with os.fdopen(handle, "rb", 0) as file:
            about = os.fstat(handle)
            return _Source(about, file.read() if about.st_size <= SMALL else None)

    def _copy(self, content: bytes | None, staged: Staged, path: str, number: int) -> None:
        """Back up what is about to be written."""
        if content is None:
            source = self._tree.place_of(staged.name)
            self._backups.copy(source, path, staged.hash, number, is_own=True)
            return
        if self._sharing is None:
            self._sharing = self._opened.enter_context(self._backups.sharing())
        self._sharing.copy(content, path, staged.hash, number, staged.name)

    def _exchange(self, name: str, spot: _Spot, found: os.stat_result | None) -> bool:
        """Put a content in place; return whether it displaced a file."""
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
            except (FileExistsError, FileNotFoundError):  # it appeared or vanished after the look
                found = status(spot.name, spot.folder)
                continue
            displaced = status(spare, staging)
            if displaced is not None and not stat.S_ISREG(displaced.st_mode):
                swap(spare, staging, spot.name, spot.folder)
                os.rename(spare, name, src_dir_fd=staging, dst_dir_fd=staging)
                _refuse_unless_file(displaced, spot.path)
            return True
        raise Transient(f"{spot.path!r} appears and vanishes too quickly")

    def _placed_before(self, staged: Staged, path: str, committed: str | None) -> Facts:
        if not any(one.hash == staged.hash for one in self._backups.of(path)):
            raise Missing("the staged content is gone")
        self._settle(staged, path, committed, self._number(staged, path))
        return Facts(staged.size, 0, 0, staged.hash)

    def _number(self, staged: Staged, path: str) -> int:
        """Return the number for a displaced content, before the backup of the new one."""
        for one in reversed(self._backups.of(path)):
            if one.is_own and one.hash == staged.hash:
                return one.number - 1
        return self._backups.next_number(path)

    def _settle(self, staged: Staged, path: str, committed: str | None, number: int) -> None:
        """Back up or remove the file that a content displaced, if any."""
        spare = self._tree.place_of(staged.name + _SPARE)
        with suppress(FileNotFoundError):
            digest = self._digest(spare)
            if digest is None:
                return
            is_needed = self._keep and not self._backups.has_own(path, digest)
            if digest in {staged.hash, committed} or not is_needed:
                os.unlink(spare)
                if digest != staged.hash:
                    self._backups.forget(path, digest)
            else:
                self._backups.take(spare, path, digest, number)

    def _digest(self, spare: str) -> str | None:
        """Return the hash of a displaced file; remove links and the like, which have no content."""
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
