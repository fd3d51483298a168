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
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import BinaryIO, NamedTuple

from penstock.apps.notebooks.flushing import write_whole
from penstock.apps.notebooks.paths import STATE
from penstock.apps.notebooks.plain import is_plain, open_new, open_plain

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


class Kept(NamedTuple):
    """One content that was at a path."""

    number: int
    hash: str
    mark: str
    file: str
    at: int = 0
    """Where it begins in a file that it shares with others; 0 if it has one for itself."""
    size: int = 0
    staged: str = ""
    """The name under which it waited to be put in place, where it shares a file."""

    @property
    def is_own(self) -> bool:
        """Whether it may be at its path still: a copy, or a file that is just being removed."""
        return self.file.endswith((_OWN, _SHARED, _UNREAD))

    @property
    def is_shared(self) -> bool:
        """Whether its file has other contents too."""
        return self.file.endswith(_SHARED)

    def read(self) -> bytes:
        """The content."""
        with self.open() as file:
            file.seek(self.at)
            return file.read(self.size if self.is_shared else -1)

    def open(self) -> BinaryIO:
        """Its file for reading; raises `OSError` for a link."""
        return os.fdopen(open_plain(self.file), "rb")


class Keeper:
    """The contents put aside for one notebook. Survives the process, not a loss of power.

    All are in one folder, which is read once: whoever has the notebook has it alone. A content is
    called by its path's mark, its number and its hash. The path itself is noted only where a
    commit has to find it without being told of it.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._read: dict[str, list[Kept]] | None = None
        self._shared: dict[str, int] = {}
        """How many contents each shared file still has; one more while it is written to."""
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
                path: sorted(kept)
                for mark, kept in self._shelves().items()
                if not all(one.is_own for one in kept)
                and (path := _read(self._note(mark), mark)) is not None
            }

    def next_number(self, path: str) -> int:
        """The number of what comes after all that is put aside for a path."""
        return max((one.number + 1 for one in self.of(path)), default=0)

    @contextmanager
    def sharing(self) -> Iterator["Sharing"]:
        """A file for copies that are made inside the block."""
        file = f"{self._folder}/{uuid.uuid4().hex}{_SHARED}"
        with self.busy:
            self._shelves()
            self._shared[file] = 1
        try:
            with closing(Sharing(self, file)) as shared:
                yield shared
        finally:
            self._let_go(file)

    def copy(self, content: str, path: str, digest: str, number: int, *, is_own: bool) -> None:
        """Put a copy aside: the file may be written to by others. `is_own` if it stays."""
        with self.busy:
            half = f"{self._folder}/{_HALF}"
            with (
                os.fdopen(open_plain(content), "rb") as source,
                os.fdopen(open_new(half), "wb") as target,
            ):
                shutil.copyfileobj(source, target, _PIECE)
            if is_own:
                self._put(half, path, f"{number}-{digest}{_OWN}")
            else:
                self.take(half, path, digest, number)

    def take(self, content: str, path: str, digest: str, number: int) -> None:
        """Put a file aside that is not needed where it is."""
        with self.busy:
            note = open_plain(self._note(_mark(path)), os.O_WRONLY | os.O_CREAT)
            with os.fdopen(note, "wb") as opened:
                opened.truncate(0)
                opened.write(os.fsencode(path))
            self._put(content, path, f"{number}-{digest}")

    def spot(self, path: str, number: int) -> str:
        """Where to rename a file to that is about to go, while `busy` is held."""
        return f"{self._folder}/{_mark(path)}-{number}-{_UNREAD}"

    def shelve(self, kept: Kept) -> None:
        """Know of a content that is in the folder."""
        with self.busy:
            self._shelves().setdefault(kept.mark, []).append(kept)
            if kept.is_shared:
                self._shared[kept.file] = self._shared.get(kept.file, 0) + 1

    def drop(self, kept: list[Kept]) -> None:
        """Let contents go: they are in history, or need not be."""
        with self.busy:
            parts: dict[str, list[Kept]] = {}
            for one in kept:
                if one.is_shared:
                    parts.setdefault(one.file, []).append(one)
                else:
                    _unlink(one.file)
                    self._forget(one)
            for file, some in parts.items():
                if known := [one for one in some if self._forget(one)]:
                    self._let_go(file, known)

    def staged(self) -> set[str]:
        """The names under which contents waited that have a copy."""
        with self.busy:
            return {one.staged for shelf in self._shelves().values() for one in shelf}

    def copies_of(self, staged: str) -> list[Kept]:
        """The copies of a content that waited under this name."""
        with self.busy:
            kept = self._shelves().values()
            return [one for shelf in kept for one in shelf if one.staged == staged]

    def forget(self, path: str, digest: str) -> None:
        """Of writes of the server's own one after the other, history needs the last."""
        self.drop([one for one in self.of(path) if one.hash == digest])

    def withdraw(self, path: str, number: int) -> None:
        """Let a copy go of what was not written after all."""
        self.drop([one for one in self.of(path) if one.number == number and one.is_own])

    def _let_go(self, file: str, parts: Sequence[Kept] = ()) -> None:
        """Let parts of a shared file go, or that it is written to; it goes with the last."""
        with self.busy:
            self._shared[file] -= len(parts) or 1
            if self._shared[file]:
                _strike(file, parts)
            else:
                del self._shared[file]
                _unlink(file)

    def _put(self, content: str, path: str, name: str) -> None:
        self._shelves()
        place = f"{self._folder}/{_mark(path)}-{name}"
        os.rename(content, place)
        for one in _named(place):
            self.shelve(one)

    def _shelves(self) -> dict[str, list[Kept]]:
        if self._read is None:
            names = os.listdir(self._folder)
            self._read = {}
            for name in names:
                file = f"{self._folder}/{name}"
                if not is_plain(file):
                    _remove_link(file)
                    continue
                is_shared = name.endswith(_SHARED)
                found = list(_parts(file) if is_shared else _named(file))
                for one in found:
                    self.shelve(one)
                if is_shared and not found:
                    _unlink(file)
        return self._read

    def _forget(self, kept: Kept) -> bool:
        """Whether it was known until now."""
        shelf = self._shelves().get(kept.mark, [])
        if kept not in shelf:
            return False
        shelf.remove(kept)
        if not kept.is_own and all(one.is_own for one in shelf):
            _unlink(self._note(kept.mark))
        if not shelf:
            del self._shelves()[kept.mark]
        return True

    def _note(self, mark: str) -> str:
        return f"{self._folder}/{mark}{_PATH}"


class Sharing:
    """Copies of small contents in one file: to make many files takes longer than to fill one."""

    def __init__(self, keeper: Keeper, file: str) -> None:
        self._keeper = keeper
        self._file = file
        self._handle: int | None = None
        self._end = 0

    def copy(self, content: bytes, path: str, digest: str, number: int, staged: str) -> None:
        """Put a copy aside of what the server is about to write at a path."""
        if self._handle is None:
            self._handle = os.open(self._file, _NEW, 0o600)
        kept = Kept(number, digest, _mark(path), self._file, 0, len(content), staged)
        head = _head(kept)
        try:
            write_whole(self._handle, head + content)
        except OSError:
            os.ftruncate(self._handle, self._end)
            raise
        self._keeper.shelve(kept._replace(at=self._end + len(head)))
        self._end += len(head) + len(content)

    def close(self) -> None:
        """Add no more."""
        if self._handle is not None:
            os.close(self._handle)


def _head(kept: Kept) -> bytes:
    """What stands before a content in a shared file."""
    about = kept.mark, kept.number, kept.hash, kept.size, kept.staged
    return f"{_THERE}{' '.join(map(str, about))}\n".encode()


def _parts(file: str) -> Iterator[Kept]:
    """The contents of a shared file; the last one may be cut off, or damaged after a power loss."""
    with os.fdopen(open_plain(file), "rb") as opened, suppress(ValueError):
        end = os.fstat(opened.fileno()).st_size
        while (head := opened.readline().decode("ascii")).endswith("\n"):
            mark, number, digest, size, staged = head[1:].split()
            kept = Kept(int(number), digest, mark, file, opened.tell(), int(size), staged)
            if kept.at + kept.size > end:
                return
            if head.startswith(_THERE):
                yield kept
            opened.seek(kept.size, os.SEEK_CUR)


def _strike(file: str, parts: Sequence[Kept]) -> None:
    """Have parts of a shared file never found again."""
    if parts:
        handle = open_plain(file, os.O_RDWR)
        try:
            for one in parts:
                os.pwrite(handle, _GONE, one.at - len(_head(one)))
        finally:
            os.close(handle)


def _named(file: str) -> Iterator[Kept]:
    """The content of a file that is called after it; none if it is another file."""
    mark, _, about = os.path.basename(file).removesuffix(_OWN).partition("-")
    number, _, digest = about.partition("-")
    if number.isdigit():
        yield Kept(int(number), digest, mark, file)


def _mark(path: str) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:32]


def _read(note: str, mark: str) -> str | None:
    """The path that a note names; None if it cannot be one that the server has noted there."""
    try:
        with os.fdopen(open_plain(note), "rb") as file:
            path = os.fsdecode(file.read(_LONGEST))
    except OSError:
        return None
    names = path.split("/")
    is_foreign = names[0] == STATE or not _NO_NAMES.isdisjoint(names)
    return None if is_foreign or "\0" in path or _mark(path) != mark else path


def _remove_link(file: str) -> None:
    """Remove what has no content to be kept: a link that was being removed, or planted."""
    with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
        os.unlink(file)


def _unlink(file: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(file)
