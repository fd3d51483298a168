"""The files of one notebook: written whole or not at all, and never outside of it.

Contents are staged in the state folder, on the same file system, so that one rename puts them in
place.
"""

import hashlib
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple, Self

from msgspec import Meta

from penstock.apps.notebooks.descent import folder_at, open_file, split, status
from penstock.apps.notebooks.errors import Missing, NotebookError, Passing, Permanent, sorting
from penstock.apps.notebooks.flushing import flush_files, flush_folder, write_whole
from penstock.apps.notebooks.keeping import Keeper
from penstock.apps.notebooks.paths import STATE
from penstock.apps.notebooks.plain import open_plain, replace_file
from penstock.apps.notebooks.renaming import rename_new

STAGED = f"{STATE}/staged"
SMALL = 16 * 1024
"""Bytes up to which a content needs no file of its own while it waits: to make one, and to have it
on the disk, takes longer than to store it."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KEPT = f"{STATE}/kept"
_TRASH = f"{STATE}/trash"


class Facts(NamedTuple):
    """What tells whether a file is still the same."""

    size: int
    mtime_ns: int
    inode: int
    hash: str


class Staged(NamedTuple):
    """A content that waits to be put in place. Files are called by its name and hash."""

    name: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    size: Annotated[int, Meta(ge=0)]
    hash: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    is_stored: bool = False
    """Whether it is stored with its operation, and not in the state folder."""


class TooLarge(Permanent):
    """A content has more bytes than are allowed."""


def mark_of(job: int) -> str:
    """The name in the state folder that tells that a job has begun."""
    return f"begun-{job}"


def stored(content: bytes) -> Staged:
    """A small content that is stored with its operation."""
    digest = hashlib.sha256(content).hexdigest()
    return Staged(uuid.uuid4().hex, len(content), digest, is_stored=True)


class Staging:
    """A content on its way into the state folder, piece by piece."""

    def __init__(self, file: BinaryIO, name: str, limit: int | None) -> None:
        self._file = file
        self._name = name
        self._limit = limit
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, piece: bytes) -> None:
        """Add a piece; raises `TooLarge` once there are more bytes than allowed."""
        self._size += len(piece)
        if self._limit is not None and self._size > self._limit:
            raise TooLarge(f"the content has more than {self._limit:,} bytes")
        self._digest.update(piece)
        with sorting("the content"):
            self._file.write(piece)

    def finish(self) -> Staged:
        """The whole content, on disk."""
        with sorting("the content"):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            flush_folder(str(Path(self._file.name).parent))
        return Staged(self._name, self._size, self._digest.hexdigest())


class Tree:
    """The folder of one notebook. Every method raises `NotebookError` only."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._staged = f"{root}/{STAGED}"
        self.keeper = Keeper(f"{root}/{_KEPT}")

    def prepare(self) -> Self:
        """Make the state folder, and clear what a crash has left in it; once, at the start.

        What is staged stays: jobs wait for it. git does not see the folder.
        """
        for folder in (STAGED, _KEPT, _TRASH):
            with sorting(folder), folder_at(self.root, folder, make=True):
                pass
        with sorting(STATE), folder_at(self.root, STATE) as state:
            os.fchmod(state, 0o700)
            for name in os.listdir(state):
                if _kind(name, state) not in (stat.S_IFREG, stat.S_IFDIR):
                    os.unlink(name, dir_fd=state)
            replace_file(f"{self.root}/{STATE}/.gitignore", b"*\n")
        with sorting(_TRASH), folder_at(self.root, _TRASH) as trash:
            clear(trash)
        return self

    # Looking

    def look(self, path: str) -> os.stat_result | None:
        """What stands at a path, links as themselves; None if nothing does."""
        try:
            with sorting(path), self._parent(path) as (folder, name):
                return status(name, folder)
        except Missing:
            return None

    def open(self, path: str) -> BufferedReader:
        """A file for reading; links and what is no regular file are refused."""
        with sorting(path), self._parent(path) as (folder, name):
            return os.fdopen(open_file(name, folder, path), "rb")

    def facts(self, path: str) -> Facts:
        """Size, time and hash that belong together; `Passing` while the file is written to."""
        with self.open(path) as file, sorting(path):
            return facts_of(file, path)

    # Writing

    @contextmanager
    def staging(self, limit: int | None = None) -> Iterator[Staging]:
        """Stage a content inside the block; what is not finished leaves nothing behind."""
        name = uuid.uuid4().hex
        place = Path(self.place_of(name))
        try:
            with sorting("the content"):
                file = place.open("xb")
            with sorting("the content"), file:  # closing writes what is left
                yield Staging(file, name, limit)
                is_finished = file.closed
        except BaseException:
            place.unlink(missing_ok=True)
            raise
        if not is_finished:
            place.unlink(missing_ok=True)

    def stage(self, content: bytes) -> Staged:
        """Stage a content that is in memory."""
        with self.staging() as staging:
            staging.write(content)
            return staging.finish()

    def stage_all(self, contents: Sequence[bytes | None]) -> list[Staged | None]:
        """The same for many, which are flushed to the disk together."""
        done: list[Staged | None] = []
        try:
            for content in contents:
                staged = None if content is None else self._stage_unflushed(content)
                done.append(staged)
            with sorting(STAGED):
                flush_files(self._staged, [one.name for one in done if one])
        except BaseException:
            for one in filter(None, done):
                self.discard(one.name)
            raise
        return done

    def _stage_unflushed(self, content: bytes) -> Staged:
        name = uuid.uuid4().hex
        try:
            with sorting("the content"), open(self.place_of(name), "xb", 0) as file:
                write_whole(file.fileno(), content)
        except BaseException:
            self.discard(name)
            raise
        return Staged(name, len(content), hashlib.sha256(content).hexdigest())

    def staged(self) -> list[str]:
        """The names of all staged contents, to find those that no job waits for."""
        with sorting(STAGED):
            return sorted(os.listdir(self._staged))

    def place_of(self, name: str) -> str:
        """Where a staged content waits."""
        return f"{self._staged}/{name}"

    def discard(self, name: str) -> None:
        """Let a staged content go."""
        with sorting(STAGED):
            Path(self.place_of(name)).unlink(missing_ok=True)

    @contextmanager
    def beginning(self, job: int) -> Iterator[None]:
        """Note that a job is about to do inside the block what it can do once; unless it fails.

        After a crash in it, `has_begun` tells what is done already from what never could be.
        """
        mark = self.place_of(mark_of(job))
        with sorting(STAGED):
            os.close(open_plain(mark, os.O_WRONLY | os.O_CREAT))
            flush_folder(self._staged)
        try:
            yield
        except NotebookError:
            self.end(job)
            raise

    def has_begun(self, job: int) -> bool:
        """Whether a run of a job has noted that it begins."""
        return os.path.lexists(self.place_of(mark_of(job)))

    def end(self, job: int) -> None:
        """What a job has begun is noted elsewhere, or did not happen."""
        self.discard(mark_of(job))

    def move(self, source: str, target: str) -> None:
        """Move a file or a folder with all that is in it, by one rename; made durable.

        Raises `Missing` if there is no source, `Exists` if there is something at the target.
        """
        moved = f"{source} -> {target}"
        with (
            sorting(moved),
            self._parent(source) as (from_folder, old),
            self._parent(target, make=True) as (to_folder, new),
        ):
            rename_new(old, from_folder, new, to_folder)
            os.fsync(to_folder)
            os.fsync(from_folder)

    def remove(self, path: str, *, known: str | None = None, keep: bool = True) -> bool:
        """Remove a file or a link, durably; whether there was one.

        Content that is not the known one is put aside for history, if `keep`.
        """
        number = self.keeper.next_number(path)
        try:
            with sorting(path), self._parent(path) as (folder, name):
                found = status(name, folder)
                if found is None:
                    return False
                if stat.S_ISDIR(found.st_mode):
                    raise Permanent(f"{path!r} is a folder")
                with self.keeper.busy:
                    place = self.keeper.spot(path, number)
                    os.rename(name, place, src_dir_fd=folder)
                os.fsync(folder)
        except Missing:
            return False
        with sorting(path):
            self._sift(place, path, known, number, keep=keep)
        return True

    def make_folder(self, path: str) -> None:
        """Make a folder, and those above it; nothing happens if it is there."""
        with sorting(path), folder_at(self.root, path, make=True):
            pass

    def remove_folder(
        self,
        path: str,
        *,
        known: Callable[[str], str | None] = lambda _: None,
        keep: bool = True,
    ) -> bool:
        """Remove a folder with all that is in it, by one rename; whether there was one.

        Contents that are not known by their paths are put aside for history first, if `keep`.
        """
        trash = self.root / _TRASH / uuid.uuid4().hex
        try:
            with sorting(path), self._parent(path) as (folder, name):
                found = status(name, folder)
                if found is None:
                    return False
                if not stat.S_ISDIR(found.st_mode):
                    raise Permanent(f"{path!r} is no folder")
                if keep:
                    self._keep_below(path, known)
                os.rename(name, trash, src_dir_fd=folder)
                os.fsync(folder)
        except Missing:
            return False
        with sorting(path):
            with folder_at(self.root, f"{_TRASH}/{trash.name}") as removed:
                clear(removed)
            trash.rmdir()
        return True

    # How

    @contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        above, name = split(path)
        with folder_at(self.root, above, make=make) as folder:
            yield folder, name

    def _sift(self, place: str, path: str, known: str | None, number: int, *, keep: bool) -> None:
        """Of a file that was removed, keep what is not known."""
        if not keep or os.path.islink(place) or not os.path.isfile(place):
            os.unlink(place)
        elif (digest := hash_of(place)) == known:
            os.unlink(place)
            self.keeper.forget(path, digest)
        else:
            self.keeper.take(place, path, digest, number)

    def _keep_below(self, path: str, known: Callable[[str], str | None]) -> None:
        for file in _files_below(f"{self.root}/{path}"):
            inside = file.removeprefix(f"{self.root}/")
            digest = hash_of(file)
            if digest != known(inside):
                number = self.keeper.next_number(inside)
                self.keeper.copy(file, inside, digest, number, is_own=False)


def clear(folder: int) -> None:
    """Remove all that is in a folder, however deep: folders in its folders are moved up first."""
    while names := os.listdir(folder):
        for name in names:
            if _kind(name, folder) == stat.S_IFDIR:
                _clear_into(name, folder)
            else:
                os.unlink(name, dir_fd=folder)


def _clear_into(name: str, folder: int) -> None:
    """Remove a folder; those in it are moved to the one that it stands in."""
    below = os.open(name, _FOLDER, dir_fd=folder)
    try:
        for inside in os.listdir(below):
            if _kind(inside, below) == stat.S_IFDIR:
                os.rename(inside, uuid.uuid4().hex, src_dir_fd=below, dst_dir_fd=folder)
            else:
                os.unlink(inside, dir_fd=below)
    finally:
        os.close(below)
    os.rmdir(name, dir_fd=folder)


def _files_below(folder: str) -> Iterator[str]:
    """All regular files below a folder, as far as it can be read; links are not followed."""
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                entries = list(found)
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                yield entry.path


def _kind(name: str, folder: int) -> int | None:
    found = status(name, folder)
    return None if found is None else stat.S_IFMT(found.st_mode)


def hash_of(file: str) -> str:
    """The hash of what a file contains."""
    with os.fdopen(open_plain(file), "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def facts_of(file: BufferedReader, path: str) -> Facts:
    """Size, time and hash that belong together; `Passing` while the file is written to."""
    for _ in range(3):
        before = os.fstat(file.fileno())
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
            return Facts(after.st_size, after.st_mtime_ns, after.st_ino, digest)
    raise Passing(f"{path!r} is being written to")
