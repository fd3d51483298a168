"""The files of one notebook: written atomically, and never outside of its folder.

Contents are staged in the state folder, on the same file system, so that a single rename puts them
in place.
"""

import hashlib
import mimetypes
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple, Self

from msgspec import Meta

from penstock.apps.notebooks.disk.backups import Backups
from penstock.apps.notebooks.disk.files import (
    flush_files,
    flush_folder,
    folder_at,
    open_file,
    open_regular,
    rename_new,
    replace_file,
    split,
    status,
    write_whole,
)
from penstock.apps.notebooks.errors import Missing, NotebookError, Permanent, Transient, os_errors
from penstock.apps.notebooks.paths import STATE

STAGED = f"{STATE}/staged"
SMALL = 16 * 1024
"""Contents of up to this many bytes are stored with their operations: creating a file and flushing
it takes longer."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KEPT = f"{STATE}/kept"
_TRASH = f"{STATE}/trash"


class Facts(NamedTuple):
    """What identifies the content of a file: if these are equal, the file has not changed."""

    size: int
    mtime_ns: int
    inode: int
    hash: str


class Staged(NamedTuple):
    """A content that waits to be put in place."""

    name: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    size: Annotated[int, Meta(ge=0)]
    hash: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    is_stored: bool = False
    """Whether it is stored with its operation instead of in the state folder."""


class TooLarge(Permanent):
    """A content exceeds the size limit."""


def marker_name(job: int) -> str:
    """Return the name of the file in the state folder that marks a job as started."""
    return f"begun-{job}"  # the name is part of the stored format


def stored(content: bytes) -> Staged:
    """Describe a small content that is stored with its operation."""
    digest = hashlib.sha256(content).hexdigest()
    return Staged(uuid.uuid4().hex, len(content), digest, is_stored=True)


class Upload:
    """A content that is written into the state folder piece by piece."""

    def __init__(self, file: BinaryIO, name: str, limit: int | None) -> None:
        self._file = file
        self._name = name
        self._limit = limit
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, piece: bytes) -> None:
        """Append a piece; raises `TooLarge` when the content exceeds the limit."""
        self._size += len(piece)
        if self._limit is not None and self._size > self._limit:
            raise TooLarge(f"the content is larger than {self._limit:,} bytes")
        self._digest.update(piece)
        with os_errors("the content"):
            self._file.write(piece)

    def finish(self) -> Staged:
        """Make the content durable and return it."""
        with os_errors("the content"):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            flush_folder(str(Path(self._file.name).parent))
        return Staged(self._name, self._size, self._digest.hexdigest())


class Tree:
    """The folder of one notebook. Methods raise only `NotebookError`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._staged = f"{root}/{STAGED}"
        self.backups = Backups(f"{root}/{_KEPT}")

    def prepare(self) -> Self:
        """Create the state folder and remove what a crash left in it; call this once, at the start.

        Staged contents stay, because jobs need them. Git ignores the folder.
        """
        for folder in (STAGED, _KEPT, _TRASH):
            with os_errors(folder), folder_at(self.root, folder, make=True):
                pass
        with os_errors(STATE), folder_at(self.root, STATE) as state:
            os.fchmod(state, 0o700)
            for name in os.listdir(state):
                if _kind(name, state) not in (stat.S_IFREG, stat.S_IFDIR):
                    os.unlink(name, dir_fd=state)
            replace_file(f"{self.root}/{STATE}/.gitignore", b"*\n")
        with os_errors(_TRASH), folder_at(self.root, _TRASH) as trash:
            clear(trash)
        return self

    # Reading

    def look(self, path: str) -> os.stat_result | None:
        """Return the status of a path without following links; None if it does not exist."""
        try:
            with os_errors(path), self._parent(path) as (folder, name):
                return status(name, folder)
        except Missing:
            return None

    def open(self, path: str) -> BufferedReader:
        """Open a file for reading; refuses links and anything else that is not a regular file."""
        with os_errors(path), self._parent(path) as (folder, name):
            return os.fdopen(open_file(name, folder, path), "rb")

    def facts(self, path: str) -> Facts:
        """Return consistent facts of a file; raises `Transient` while it is being written to."""
        with self.open(path) as file, os_errors(path):
            return facts_of(file, path)

    def mime_type(self, path: str) -> str:
        """Return the MIME type of a file by its name or, failing that, its first bytes."""
        named = mime_type(path)
        if named != _UNKNOWN:
            return named
        with self.open(path) as file:
            return mime_type(path, file.read(HEAD))

    # Writing

    @contextmanager
    def upload(self, limit: int | None = None) -> Iterator[Upload]:
        """Stage a content inside the block; it is removed unless `finish` was called."""
        name = uuid.uuid4().hex
        place = Path(self.place_of(name))
        try:
            with os_errors("the content"):
                file = place.open("xb")
            with os_errors("the content"), file:  # closing it writes the rest
                yield Upload(file, name, limit)
                is_finished = file.closed
        except BaseException:
            place.unlink(missing_ok=True)
            raise
        if not is_finished:
            place.unlink(missing_ok=True)

    def stage(self, content: bytes) -> Staged:
        """Stage a content that is in memory."""
        with self.upload() as upload:
            upload.write(content)
            return upload.finish()

    def stage_all(self, contents: Sequence[bytes | None]) -> list[Staged | None]:
        """Stage several contents and flush them together."""
        done: list[Staged | None] = []
        try:
            for content in contents:
                staged = None if content is None else self._stage_unflushed(content)
                done.append(staged)
            with os_errors(STAGED):
                flush_files(self._staged, [one.name for one in done if one])
        except BaseException:
            for one in filter(None, done):
                self.discard(one.name)
            raise
        return done

    def _stage_unflushed(self, content: bytes) -> Staged:
        name = uuid.uuid4().hex
        try:
            with os_errors("the content"), open(self.place_of(name), "xb", 0) as file:
                write_whole(file.fileno(), content)
        except BaseException:
            self.discard(name)
            raise
        return Staged(name, len(content), hashlib.sha256(content).hexdigest())

    def staged(self) -> list[str]:
        """List the names of all staged contents."""
        with os_errors(STAGED):
            return sorted(os.listdir(self._staged))

    def place_of(self, name: str) -> str:
        """Return the file of a staged content."""
        return f"{self._staged}/{name}"

    def discard(self, name: str) -> None:
        """Remove a staged content."""
        with os_errors(STAGED):
            Path(self.place_of(name)).unlink(missing_ok=True)

    @contextmanager
    def started(self, job: int) -> Iterator[None]:
        """Mark a job as started around a step that it can do only once.

        If the step raises a `NotebookError`, it did not happen and the mark is removed. After a
        crash, `has_started` distinguishes a step that was done from one that was never possible.
        """
        mark = self.place_of(marker_name(job))
        with os_errors(STAGED):
            os.close(open_regular(mark, os.O_WRONLY | os.O_CREAT))
            flush_folder(self._staged)
        try:
            yield
        except NotebookError:
            self.clear_mark(job)
            raise

    def has_started(self, job: int) -> bool:
        """Whether an earlier run of a job has started its step."""
        return os.path.lexists(self.place_of(marker_name(job)))

    def clear_mark(self, job: int) -> None:
        """Remove the mark of a job: its step is recorded elsewhere, or did not happen."""
        self.discard(marker_name(job))

    def move(self, source: str, target: str) -> None:
        """Move a file, or a folder with everything in it, by one rename; durable on return.

        Raises `Missing` if the source does not exist and `Exists` if the target does.
        """
        moved = f"{source} -> {target}"
        with (
            os_errors(moved),
            self._parent(source) as (from_folder, old),
            self._parent(target, make=True) as (to_folder, new),
        ):
            rename_new(old, from_folder, new, to_folder)
            os.fsync(to_folder)
            os.fsync(from_folder)

    def remove(self, path: str, *, committed: str | None = None, keep: bool = True) -> bool:
        """Remove a file or a link, durably; return whether it existed.

        With `keep`, a content is backed up for history, unless it is the `committed` one or the
        last own write.
        """
        number = self.backups.next_number(path)
        try:
            with os_errors(path), self._parent(path) as (folder, name):
                found = status(name, folder)
                if found is None:
                    return False
                if stat.S_ISDIR(found.st_mode):
                    raise Permanent(f"{path!r} is a folder")
                with self.backups.busy:
                    place = self.backups.spot(path, number)
                    os.rename(name, place, src_dir_fd=folder)
                os.fsync(folder)
        except Missing:
            return False
        with os_errors(path):
            self._back_up(place, path, committed, number, keep=keep)
        return True

    def make_folder(self, path: str) -> None:
        """Create a folder and those above it, unless they exist."""
        with os_errors(path), folder_at(self.root, path, make=True):
            pass

    def remove_folder(
        self,
        path: str,
        *,
        committed: Callable[[str], str | None] = lambda _: None,
        keep: bool = True,
    ) -> bool:
        """Remove a folder with everything in it by one rename; return whether it existed.

        With `keep`, contents other than the `committed` ones are backed up for history first.
        """
        trash = self.root / _TRASH / uuid.uuid4().hex
        try:
            with os_errors(path), self._parent(path) as (folder, name):
                found = status(name, folder)
                if found is None:
                    return False
                if not stat.S_ISDIR(found.st_mode):
                    raise Permanent(f"{path!r} is not a folder")
                if keep:
                    self._back_up_below(path, committed)
                os.rename(name, trash, src_dir_fd=folder)
                os.fsync(folder)
        except Missing:
            return False
        with os_errors(path):
            with folder_at(self.root, f"{_TRASH}/{trash.name}") as removed:
                clear(removed)
            trash.rmdir()
        return True

    # Steps

    @contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        above, name = split(path)
        with folder_at(self.root, above, make=make) as folder:
            yield folder, name

    def _back_up(
        self, place: str, path: str, committed: str | None, number: int, *, keep: bool
    ) -> None:
        """Back up a removed file unless history has its content or does not need it."""
        if not keep or os.path.islink(place) or not os.path.isfile(place):
            os.unlink(place)
        elif (digest := hash_of(place)) == committed or self.backups.has_own(path, digest):
            os.unlink(place)
            self.backups.forget(path, digest)
        else:
            self.backups.take(place, path, digest, number)

    def _back_up_below(self, path: str, committed: Callable[[str], str | None]) -> None:
        for file in _files_below(f"{self.root}/{path}"):
            inside = file.removeprefix(f"{self.root}/")
            digest = hash_of(file)
            if digest != committed(inside) and not self.backups.has_own(inside, digest):
                number = self.backups.next_number(inside)
                self.backups.copy(file, inside, digest, number, is_own=False)


def clear(folder: int) -> None:
    """Remove everything in a folder, to any depth; nested folders are moved up first."""
    while names := os.listdir(folder):
        for name in names:
            if _kind(name, folder) == stat.S_IFDIR:
                _clear_into(name, folder)
            else:
                os.unlink(name, dir_fd=folder)


def _clear_into(name: str, folder: int) -> None:
    """Remove a folder after moving its subfolders into the folder above it."""
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
    """Yield all readable regular files below a folder without following links."""
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
    """Return the hash of the content of a file."""
    with os.fdopen(open_regular(file), "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def facts_of(file: BufferedReader, path: str) -> Facts:
    """Return consistent facts of an open file; raises `Transient` while it is being written to."""
    for _ in range(3):
        before = os.fstat(file.fileno())
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
            return Facts(after.st_size, after.st_mtime_ns, after.st_ino, digest)
    raise Transient(f"{path!r} is being written to")


HEAD = 4_096
"""The number of bytes that are read to determine a type that the name does not reveal."""

_UNKNOWN = "application/octet-stream"
_MORE = {
    ".adoc": "text/asciidoc",
    ".csv": "text/csv",
    ".ipynb": "application/x-ipynb+json",
    ".markdown": "text/markdown",
    ".md": "text/markdown",
    ".org": "text/org",
    ".rst": "text/x-rst",
    ".toml": "application/toml",
    ".ts": "text/typescript",
    ".webp": "image/webp",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}

_KNOWN = mimetypes.MimeTypes(filenames=())
for _suffix, _type in _MORE.items():
    _KNOWN.add_type(_type, _suffix)


def mime_type(path: str, head: bytes = b"") -> str:
    """Return the MIME type for a name and first bytes of a content, the same on every machine."""
    named, encoding = _KNOWN.guess_type(path.rpartition("/")[2].replace(":", "_"))
    if encoding:
        return f"application/{encoding}"
    if named:
        return named
    return "text/plain" if _is_text(head[:HEAD]) else _UNKNOWN


def _is_text(head: bytes) -> bool:
    if b"\0" in head:
        return False
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return len(head) == HEAD and error.start > HEAD - 4  # cut within a character
    return True
