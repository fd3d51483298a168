"""Backups of contents that belong into history but may be overwritten before the next commit.

When the server writes a file, it backs up what it writes: if a person overwrites the file before it
is committed, the backup still gets into history. When the server overwrites an edit it has not
seen, it backs up that edit. The backups of a path are ordered as the contents were at it. The next
commit includes them and deletes them.
"""

import hashlib
import os
import shutil
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import BinaryIO, NamedTuple

from penstock.apps.notebooks.disk.files import is_regular, open_new, open_regular, write_whole
from penstock.apps.notebooks.paths import STATE

_PATH = ".path"
_OWN = ".own"
_SHARED = ".shared"
_UNREAD = "unread"
_HALF = "half"
_NEW = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_THERE = "+"
_GONE = b"-"
_PIECE = 1024 * 1024
_LONGEST = 8_192
_NO_NAMES = frozenset({"", ".", "..", ".git"})


class Backup(NamedTuple):
    """One content that was at a path."""

    number: int
    hash: str
    key: str
    file: str
    at: int = 0
    """Its offset in a file that it shares with others; 0 if it has its own file."""
    size: int = 0
    staged: str = ""
    """In a shared file, the name under which the content was staged."""

    @property
    def is_own(self) -> bool:
        """Whether it may still be at its path: a copy, or a file that is just being removed."""
        return self.file.endswith((_OWN, _SHARED, _UNREAD))

    @property
    def is_shared(self) -> bool:
        """Whether its file contains other backups too."""
        return self.file.endswith(_SHARED)

    def read(self) -> bytes:
        """Return the content."""
        with self.open() as file:
            file.seek(self.at)
            return file.read(self.size if self.is_shared else -1)

    def open(self) -> BinaryIO:
        """Open its file for reading; raises `OSError` for a link."""
        return os.fdopen(open_regular(self.file), "rb")


class Backups:
    """The backups of one notebook. They survive a crash of the process, but not a power loss.

    All are in one folder, which is read once, because only one process has the notebook open. A
    file is named by the key of its path, a number and its hash. The path itself is recorded only
    where a commit has to find the backup without knowing the path.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._read: dict[str, list[Backup]] | None = None
        self._shared: dict[str, int] = {}
        """How many backups each shared file contains, plus one while it is being written."""
        self.busy = threading.RLock()
        """Held while backups are added or deleted."""

    def of(self, path: str) -> list[Backup]:
        """Return the backups of a path, oldest first."""
        with self.busy:
            return sorted(self._all().get(_key(path), ()))

    def displaced(self) -> dict[str, list[Backup]]:
        """Return the backups of all paths at which something was overwritten or removed."""
        with self.busy:
            return {
                path: sorted(backups)
                for key, backups in self._all().items()
                if not all(one.is_own for one in backups)
                and (path := _recorded_path(self._note(key), key)) is not None
            }

    def next_number(self, path: str) -> int:
        """Return the number after those of all backups of a path."""
        return max((one.number + 1 for one in self.of(path)), default=0)

    @contextmanager
    def sharing(self) -> Iterator["SharedBackups"]:
        """Open a file for the copies that are made inside the block."""
        file = f"{self._folder}/{uuid.uuid4().hex}{_SHARED}"
        with self.busy:
            self._all()
            self._shared[file] = 1
        try:
            with closing(SharedBackups(self, file)) as shared:
                yield shared
        finally:
            self._release(file)

    def copy(self, content: str, path: str, digest: str, number: int, *, is_own: bool) -> None:
        """Back up a copy of a file that others may write to; `is_own` if the file stays."""
        with self.busy:
            half = f"{self._folder}/{_HALF}"
            with (
                os.fdopen(open_regular(content), "rb") as source,
                os.fdopen(open_new(half), "wb") as target,
            ):
                shutil.copyfileobj(source, target, _PIECE)
            if is_own:
                self._put(half, path, f"{number}-{digest}{_OWN}")
            else:
                self.take(half, path, digest, number)

    def take(self, content: str, path: str, digest: str, number: int) -> None:
        """Back up a file by moving it."""
        with self.busy:
            note = open_regular(self._note(_key(path)), os.O_WRONLY | os.O_CREAT)
            with os.fdopen(note, "wb") as opened:
                opened.truncate(0)
                opened.write(os.fsencode(path))
            self._put(content, path, f"{number}-{digest}")

    def spot(self, path: str, number: int) -> str:
        """Return where to move a file that is about to be removed, while `busy` is held."""
        return f"{self._folder}/{_key(path)}-{number}-{_UNREAD}"

    def add(self, backup: Backup) -> None:
        """Register a backup that is in the folder."""
        with self.busy:
            self._all().setdefault(backup.key, []).append(backup)
            if backup.is_shared:
                self._shared[backup.file] = self._shared.get(backup.file, 0) + 1

    def drop(self, backups: list[Backup]) -> None:
        """Delete backups that are in history or not needed there."""
        with self.busy:
            parts: dict[str, list[Backup]] = {}
            for one in backups:
                if one.is_shared:
                    parts.setdefault(one.file, []).append(one)
                else:
                    _unlink(one.file)
                    self._forget(one)
            for file, some in parts.items():
                if known := [one for one in some if self._forget(one)]:
                    self._release(file, known)

    def staged(self) -> set[str]:
        """Return the staging names of all contents with a copy."""
        with self.busy:
            return {one.staged for backups in self._all().values() for one in backups}

    def copies_of(self, staged: str) -> list[Backup]:
        """Return the copies of a content by its staging name."""
        with self.busy:
            every = self._all().values()
            return [one for backups in every for one in backups if one.staged == staged]

    def has_own(self, path: str, digest: str) -> bool:
        """Whether there is a copy with this hash of what the server wrote at a path."""
        return any(one.is_own and one.hash == digest for one in self.of(path))

    def forget(self, path: str, digest: str) -> None:
        """Delete the backups with a hash: of its own successive writes, history needs the last."""
        self.drop([one for one in self.of(path) if one.hash == digest])

    def withdraw(self, path: str, number: int) -> None:
        """Delete the copy of a content that was not written after all."""
        self.drop([one for one in self.of(path) if one.number == number and one.is_own])

    def _release(self, file: str, parts: Sequence[Backup] = ()) -> None:
        """Remove parts of a shared file, or its writer; the last one deletes the file."""
        with self.busy:
            self._shared[file] -= len(parts) or 1
            if self._shared[file]:
                _strike(file, parts)
            else:
                del self._shared[file]
                _unlink(file)

    def _put(self, content: str, path: str, name: str) -> None:
        self._all()
        place = f"{self._folder}/{_key(path)}-{name}"
        os.rename(content, place)
        for one in _named(place):
            self.add(one)

    def _all(self) -> dict[str, list[Backup]]:
        if self._read is None:
            names = os.listdir(self._folder)
            self._read = {}
            for name in names:
                file = f"{self._folder}/{name}"
                if not is_regular(file):
                    _remove_link(file)
                    continue
                is_shared = name.endswith(_SHARED)
                found = list(_parts(file) if is_shared else _named(file))
                for one in found:
                    self.add(one)
                if is_shared and not found:
                    _unlink(file)
        return self._read

    def _forget(self, backup: Backup) -> bool:
        """Remove a backup from the registered ones; return whether it was one."""
        backups = self._all().get(backup.key, [])
        if backup not in backups:
            return False
        backups.remove(backup)
        if not backup.is_own and all(one.is_own for one in backups):
            _unlink(self._note(backup.key))
        if not backups:
            del self._all()[backup.key]
        return True

    def _note(self, key: str) -> str:
        return f"{self._folder}/{key}{_PATH}"


class SharedBackups:
    """Copies of small contents in one file: creating many files takes longer than filling one."""

    def __init__(self, backups: Backups, file: str) -> None:
        self._backups = backups
        self._file = file
        self._handle: int | None = None
        self._end = 0

    def copy(self, content: bytes, path: str, digest: str, number: int, staged: str) -> None:
        """Back up what the server is about to write at a path."""
        if self._handle is None:
            self._handle = os.open(self._file, _NEW, 0o600)
        backup = Backup(number, digest, _key(path), self._file, 0, len(content), staged)
        head = _head(backup)
        try:
            write_whole(self._handle, head + content)
        except OSError:
            os.ftruncate(self._handle, self._end)
            raise
        self._backups.add(backup._replace(at=self._end + len(head)))
        self._end += len(head) + len(content)

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)


def _head(backup: Backup) -> bytes:
    """Return the header of a content in a shared file."""
    about = backup.key, backup.number, backup.hash, backup.size, backup.staged
    return f"{_THERE}{' '.join(map(str, about))}\n".encode()


def _parts(file: str) -> Iterator[Backup]:
    """Yield the contents of a shared file; after a power loss the last may be incomplete."""
    with os.fdopen(open_regular(file), "rb") as opened, suppress(ValueError):
        end = os.fstat(opened.fileno()).st_size
        while (head := opened.readline().decode("ascii")).endswith("\n"):
            key, number, digest, size, staged = head[1:].split()
            backup = Backup(int(number), digest, key, file, opened.tell(), int(size), staged)
            if backup.at + backup.size > end:
                return
            if head.startswith(_THERE):
                yield backup
            opened.seek(backup.size, os.SEEK_CUR)


def _strike(file: str, parts: Sequence[Backup]) -> None:
    """Mark parts of a shared file as deleted."""
    if parts:
        handle = open_regular(file, os.O_RDWR)
        try:
            for one in parts:
                os.pwrite(handle, _GONE, one.at - len(_head(one)))
        finally:
            os.close(handle)


def _named(file: str) -> Iterator[Backup]:
    """Yield the backup that a file name describes; none if it describes no backup."""
    key, _, about = os.path.basename(file).removesuffix(_OWN).partition("-")
    number, _, digest = about.partition("-")
    if number.isdigit():
        yield Backup(int(number), digest, key, file)


def _key(path: str) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:32]


def _recorded_path(note: str, key: str) -> str | None:
    """Return the path that a note names; None unless the server can have written the note."""
    try:
        with os.fdopen(open_regular(note), "rb") as file:
            path = os.fsdecode(file.read(_LONGEST))
    except OSError:
        return None
    names = path.split("/")
    is_foreign = names[0] == STATE or not _NO_NAMES.isdisjoint(names)
    return None if is_foreign or "\0" in path or _key(path) != key else path


def _remove_link(file: str) -> None:
    """Remove a link: it has no content to keep, and may have been planted."""
    with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
        os.unlink(file)


def _unlink(file: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(file)
