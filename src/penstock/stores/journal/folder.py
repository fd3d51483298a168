"""The folder of a journal: its files, and the lock that one process holds on them."""

import contextlib
import os
import stat
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

from penstock.core.errors import ConfigurationError, StoreError, StoreMissing
from penstock.runtime import Files, Runtime

if sys.platform != "win32":
    import fcntl

_NEW = ".new"
_CHUNK = 256 * 1024


class Folder:
    """A folder that belongs to this process until it is closed."""

    def __init__(self, path: Path, runtime: Runtime, *, create: bool) -> None:
        if sys.platform == "win32":
            raise ConfigurationError("a journal needs file locks that Windows does not have")
        self.path = path
        self.files = runtime.files
        self._process_id = runtime.process_id
        if not _is_folder(self.files, path):
            if not create:
                raise StoreMissing(f"there is no store at {path}")
            self._make()
        self._lock = self._locked()
        try:
            for name in self.files.list(path):
                if name.endswith(_NEW):  # of a process that died
                    self.discard(path / name)
        except BaseException:
            self.close()
            raise
        if not create and not self.journals():
            self.close()
            raise StoreMissing(f"{path} is a folder without a store in it")

    def journal(self, number: int) -> Path:
        """Return the path of the journal with that number."""
        return self.path / f"journal-{number}.jsonl"

    def snapshot(self, number: int) -> Path:
        """Return the path of the snapshot that the journal with that number continues."""
        return self.path / f"snapshot-{number}.jsonl"

    def journals(self) -> list[int]:
        """Return the numbers of the existing journals, in order."""
        return self._numbers("journal-")

    def snapshots(self) -> list[int]:
        """Return the numbers of the existing snapshots, in order."""
        return self._numbers("snapshot-")

    def remove_before(self, number: int) -> None:
        """Remove the files that the snapshot with that number has replaced."""
        for old in self.journals():
            if old < number:
                self.files.unlink(self.journal(old))
        for old in self.snapshots():
            if old < number:
                self.files.unlink(self.snapshot(old))

    def size(self) -> int:
        """Return the total size of the files."""
        found = (self.files.stat(self.path / name) for name in self.files.list(self.path))
        return sum(one.st_size for one in found if stat.S_ISREG(one.st_mode))

    def close(self) -> None:
        """Release the lock; in a forked child, this takes it from nobody."""
        self.files.close(self._lock)

    # Files

    def read(self, path: Path) -> bytes:
        """Return the content of a file."""
        return b"".join(self._chunks(path))

    def lines(self, path: Path) -> Generator[bytes, None, None]:
        """Yield the lines of a file, with their ends; the last one may lack it."""
        rest = b""
        for chunk in self._chunks(path):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line + b"\n" for line in lines)
        if rest:
            yield rest

    def first_line(self, path: Path) -> bytes:
        """Return the first line of a file, with its end."""
        with contextlib.closing(self.lines(path)) as lines:
            return next(lines, b"")

    def _chunks(self, path: Path) -> Iterator[bytes]:
        fd = self.files.open(path, os.O_RDONLY)
        try:
            while chunk := self.files.read(fd, _CHUNK):
                yield chunk
        finally:
            self.files.close(fd)

    @contextlib.contextmanager
    def writing(self, path: Path) -> Iterator[int]:
        """Create a file, or empty it, and close it at the end."""
        fd = self.files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            yield fd
        finally:
            self.files.close(fd)

    def publish(self, draft: Path, path: Path) -> None:
        """Give a file that is durable its name, durably."""
        self.files.replace(draft, path)
        _sync_folder(self.files, self.path)

    def discard(self, path: Path) -> None:
        """Remove a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.files.unlink(path)

    def _make(self) -> None:
        try:
            self.files.mkdir(self.path)
            _sync_folder(self.files, self.path.parent)
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be used as the folder of a journal: {error.strerror}"
            ) from error

    def _locked(self) -> int:
        """Return an open file that keeps other processes out, even if this one dies."""
        path, files = self.path / "lock", self.files
        try:
            fd = files.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error.strerror}") from error
        try:
            files.lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            files.truncate(fd, 0)
            files.write_at(fd, b"%d\n" % self._process_id(), 0)
        except BlockingIOError as error:
            holder = files.read_at(fd, 20, 0).decode(errors="replace").strip() or "another"
            files.close(fd)
            raise StoreError(
                f"the journal in {self.path} is in use by process {holder}: it belongs to one "
                "process at a time; to share its jobs, use 'penstock serve' and HTTP"
            ) from error
        except OSError:
            files.close(fd)
            raise
        return fd

    def _numbers(self, prefix: str) -> list[int]:
        found = (
            name.removeprefix(prefix).removesuffix(".jsonl")
            for name in self.files.list(self.path)
            if name.startswith(prefix) and name.endswith(".jsonl")
        )
        return sorted(int(number) for number in found if number.isdecimal())


def draft_of(path: Path) -> Path:
    """Return the path under which a file is written until it is complete."""
    return path.with_name(path.name + _NEW)


def _is_folder(files: Files, path: Path) -> bool:
    try:
        return stat.S_ISDIR(files.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _sync_folder(files: Files, path: Path) -> None:
    """Make durable which files a folder has."""
    fd = files.open(path, os.O_RDONLY)
    try:
        files.sync(fd)
    finally:
        files.close(fd)
