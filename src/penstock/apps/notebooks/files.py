"""The files of one notebook: written whole or not at all, and never outside of it.

Contents are staged in the state folder, on the same file system, and put in place by one rename.
What a rename displaces is looked at afterwards, so that an edit which nobody has heard of is put
aside for history instead of being lost.
"""

import hashlib
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from penstock.apps.notebooks.descent import folder_at, open_file, split, status
from penstock.apps.notebooks.errors import (
    Exists,
    Missing,
    Passing,
    PathRefused,
    Permanent,
    sorted_out,
)
from penstock.apps.notebooks.flushing import flush_files, flush_folder
from penstock.apps.notebooks.keeping import Keeper, Kept
from penstock.apps.notebooks.paths import STATE
from penstock.apps.notebooks.renaming import rename_new, swap

_STAGED = f"{STATE}/staged"
_KEPT = f"{STATE}/kept"
_TRASH = f"{STATE}/trash"
_TRIES = 20
"""Between a look and a rename others may add or remove the file; so often is unheard of."""


class Facts(NamedTuple):
    """What tells whether a file is still the same."""

    size: int
    mtime_ns: int
    inode: int
    hash: str


class Staged(NamedTuple):
    """A content that waits in the state folder to be put in place."""

    name: str
    size: int
    hash: str


class TooLarge(Permanent):
    """A content has more bytes than are allowed."""


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
        with _sorting("the content"):
            self._file.write(piece)

    def finish(self) -> Staged:
        """The whole content, on disk."""
        with _sorting("the content"):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            flush_folder(str(Path(self._file.name).parent))
        return Staged(self._name, self._size, self._digest.hexdigest())


class Tree:
    """The folder of one notebook. Every method raises `NotebookError` only."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._staged = f"{root}/{_STAGED}"
        self.keeper = Keeper(f"{root}/{_KEPT}")

    def prepare(self) -> Self:
        """Make the state folder, and clear what a crash has left in it; once, at the start.

        What is staged stays: jobs wait for it. git does not see the folder.
        """
        for folder in (_STAGED, _KEPT, _TRASH):
            with _sorting(folder), folder_at(self.root, folder, make=True):
                pass
        state = self.root / STATE
        with _sorting(STATE):
            state.chmod(0o700)
            (state / ".gitignore").write_text("*\n")
            for left in (self.root / _TRASH).iterdir():
                shutil.rmtree(left)
        return self

    # Looking

    def look(self, path: str) -> os.stat_result | None:
        """What stands at a path, links as themselves; None if nothing does."""
        try:
            with _sorting(path), self._parent(path) as (folder, name):
                return status(name, folder)
        except Missing:
            return None

    def open(self, path: str) -> BufferedReader:
        """A file for reading; links and what is no regular file are refused."""
        with _sorting(path), self._parent(path) as (folder, name):
            return os.fdopen(open_file(name, folder, path), "rb")

    def facts(self, path: str) -> Facts:
        """Size, time and hash that belong together; `Passing` while the file is written to."""
        with self.open(path) as file, _sorting(path):
            return _facts(file, path)

    # Writing

    @contextmanager
    def staging(self, limit: int | None = None) -> Iterator[Staging]:
        """Stage a content inside the block; what is not finished leaves nothing behind."""
        name = uuid.uuid4().hex
        place = Path(self._staged, name)
        try:
            with _sorting("the content"):
                file = place.open("xb")
            with _sorting("the content"), file:  # closing writes what is left
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
            with _sorting(_STAGED):
                flush_files(self._staged, [one.name for one in done if one])
        except BaseException:
            for one in filter(None, done):
                self.discard(one.name)
            raise
        return done

    def _stage_unflushed(self, content: bytes) -> Staged:
        name = uuid.uuid4().hex
        try:
            with _sorting("the content"), open(f"{self._staged}/{name}", "xb", 0) as file:
                file.write(content)
        except BaseException:
            self.discard(name)
            raise
        return Staged(name, len(content), hashlib.sha256(content).hexdigest())

    def staged(self) -> list[str]:
        """The names of all staged contents, to find those that no job waits for."""
        with _sorting(_STAGED):
            return sorted(file.name for file in (self.root / _STAGED).iterdir())

    def discard(self, name: str) -> None:
        """Let a staged content go."""
        with _sorting(_STAGED):
            Path(self._staged, name).unlink(missing_ok=True)

    def place(
        self, staged: Staged, path: str, *, known: str | None = None, keep: bool = True
    ) -> Facts:
        """Put a staged content at a path, whether there is a file or not; durable after `flush`.

        `known` is the hash of the file as the caller knows it. Where something else is found, it is
        put aside for history, if `keep`. Once it is done, doing it again changes nothing.
        """
        with _sorting(path), self._parent(path, make=True) as (folder, name):
            if self._is_there(staged, name, folder, path):
                self._settle(staged, path, known, self.keeper.next_number(path), keep=keep)
                with os.fdopen(open_file(name, folder, path), "rb") as file:
                    return _facts(file, path)
            if not os.path.lexists(f"{self._staged}/{staged.name}"):
                return self._placed_before(staged, path)
            return self._put(staged, path, known, folder, name, keep=keep)

    def flush(self, paths: Collection[str]) -> None:
        """Make durable what was put at these paths: each folder once, however many are in it."""
        for above, path in {split(path)[0]: path for path in paths}.items():
            # What is gone already, somebody else has removed.
            with suppress(Permanent), _sorting(path), folder_at(self.root, above) as folder:
                os.fsync(folder)

    def move(self, source: str, target: str) -> None:
        """Move a file or a folder with all that is in it, by one rename; made durable.

        Raises `Missing` if there is no source, `Exists` if there is something at the target.
        """
        moved = f"{source} -> {target}"
        with (
            _sorting(moved),
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
            with _sorting(path), self._parent(path) as (folder, name):
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
        with _sorting(path):
            self._sift(place, path, known, number, keep=keep)
        return True

    def make_folder(self, path: str) -> None:
        """Make a folder, and those above it; nothing happens if it is there."""
        with _sorting(path), folder_at(self.root, path, make=True):
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
            with _sorting(path), self._parent(path) as (folder, name):
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
        with _sorting(path):
            shutil.rmtree(trash)
        return True

    # How

    @contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        above, name = split(path)
        with folder_at(self.root, above, make=make) as folder:
            yield folder, name

    def _is_there(self, staged: Staged, name: str, folder: int, path: str) -> bool:
        """Whether a file has the staged content already; refuses what cannot be replaced."""
        found = status(name, folder)
        if found is None:
            return False
        _refuse_unless_file(found, path)
        if found.st_size != staged.size:
            return False
        with os.fdopen(open_file(name, folder, path), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == staged.hash

    def _put(
        self, staged: Staged, path: str, known: str | None, folder: int, name: str, *, keep: bool
    ) -> Facts:
        number = self.keeper.next_number(path)
        source = f"{self._staged}/{staged.name}"
        if keep:
            self.keeper.copy(source, path, staged.hash, number + 1, is_own=True)
        ours = os.stat(source)
        with folder_at(self.root, _STAGED) as staging:
            self._exchange(staged.name, staging, name, folder, path)
        self._settle(staged, path, known, number, keep=keep)
        return Facts(ours.st_size, ours.st_mtime_ns, ours.st_ino, staged.hash)

    def _exchange(self, source: str, staging: int, name: str, folder: int, path: str) -> None:
        """Put a staged file in place; what was there, if anything, is where it was staged."""
        for _ in range(_TRIES):
            found = status(name, folder)
            try:
                if found is None:
                    rename_new(source, staging, name, folder)
                    return
                _refuse_unless_file(found, path)
                os.chmod(source, stat.S_IMODE(found.st_mode), dir_fd=staging)
                swap(source, staging, name, folder)
            except (FileExistsError, FileNotFoundError):
                continue  # it came or went after the look
            displaced = status(source, staging)
            if displaced is not None and not stat.S_ISREG(displaced.st_mode):
                swap(source, staging, name, folder)
                _refuse_unless_file(displaced, path)
            return
        raise Passing(f"{path!r} comes and goes too quickly")

    def _placed_before(self, staged: Staged, path: str) -> Facts:
        """An earlier attempt put it in place, and since then somebody else has edited it."""
        for one in self.keeper.of(path):
            if one.hash == staged.hash:
                return Facts(staged.size, 0, 0, staged.hash)
        raise Missing(f"the content for {path!r} is gone")

    def _settle(
        self, staged: Staged, path: str, known: str | None, number: int, *, keep: bool
    ) -> None:
        """Deal with what lies where the content was staged: nothing, itself, or the displaced."""
        place = f"{self._staged}/{staged.name}"
        with suppress(FileNotFoundError):
            digest = _hash_of(place)
            if digest in {staged.hash, known} or not keep:
                os.unlink(place)
                self._forget(path, digest, besides=staged.hash)
            else:
                self.keeper.take(place, path, digest, number)

    def _sift(self, place: str, path: str, known: str | None, number: int, *, keep: bool) -> None:
        """Of a file that was removed, keep what is not known."""
        if not keep or os.path.islink(place) or not os.path.isfile(place):
            self.keeper.drop([Kept(number, "", place)])
        elif (digest := _hash_of(place)) == known:
            self.keeper.drop([Kept(number, digest, place)])
            self._forget(path, digest)
        else:
            self.keeper.take(place, path, digest, number)

    def _forget(self, path: str, digest: str, besides: str = "") -> None:
        """Of two writes of the server's own one after the other, history needs the later."""
        if digest != besides:
            self.keeper.drop([one for one in self.keeper.of(path) if one.hash == digest])

    def _keep_below(self, path: str, known: Callable[[str], str | None]) -> None:
        above = self.root / path
        for folder, _, names in os.walk(above):
            for name in names:
                file = f"{folder}/{name}"
                inside = file.removeprefix(f"{self.root}/")
                if not stat.S_ISREG(os.lstat(file).st_mode):
                    continue
                digest = _hash_of(file)
                if digest != known(inside):
                    self.keeper.copy(file, inside, digest, self.keeper.next_number(inside))


def _hash_of(file: str) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _facts(file: BufferedReader, path: str) -> Facts:
    for _ in range(3):
        before = os.fstat(file.fileno())
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
            return Facts(after.st_size, after.st_mtime_ns, after.st_ino, digest)
    raise Passing(f"{path!r} is being written to")


def _refuse_unless_file(found: os.stat_result, path: str) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise PathRefused(f"{path!r} is a symbolic link")
    if stat.S_ISDIR(found.st_mode):
        raise Exists(f"{path!r} is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise Permanent(f"{path!r} is not a regular file")


@contextmanager
def _sorting(path: str) -> Iterator[None]:
    """Tell errors of the system as what they mean."""
    try:
        yield
    except OSError as error:
        raise sorted_out(error, path) from error
