"""The folder of a journal: its files, and who may write them."""

import contextlib
import os
import sys
from pathlib import Path

from penstock.core.errors import ConfigurationError, StoreError, StoreMissing

if sys.platform != "win32":
    import fcntl

_NEW = ".new"


class Folder:
    """A folder that belongs to this process until it is closed."""

    def __init__(self, path: Path, *, create: bool) -> None:
        if sys.platform == "win32":
            raise ConfigurationError("a journal needs file locks that Windows does not have")
        self.path = path
        if not path.is_dir():
            if not create:
                raise StoreMissing(f"there is no store at {path}")
            _make(path)
        self._lock = _locked(path)
        with contextlib.suppress(FileNotFoundError):
            for leftover in path.glob(f"*{_NEW}"):  # of a process that died
                leftover.unlink()
        if not create and not self.journals():
            self.close()
            raise StoreMissing(f"{path} is a folder without a store in it")

    def journal(self, number: int) -> Path:
        """The journal with that number."""
        return self.path / f"journal-{number}.jsonl"

    def snapshot(self, number: int) -> Path:
        """The snapshot that the journal with that number goes on from."""
        return self.path / f"snapshot-{number}.jsonl"

    def journals(self) -> list[int]:
        """The numbers of the journals that are there, in order."""
        return _numbers(self.path, "journal")

    def snapshots(self) -> list[int]:
        """The numbers of the snapshots that are there, in order."""
        return _numbers(self.path, "snapshot")

    def remove_before(self, number: int) -> None:
        """Remove the files that a snapshot has replaced."""
        for old in self.journals():
            if old < number:
                self.journal(old).unlink()
        for old in self.snapshots():
            if old < number:
                self.snapshot(old).unlink()

    def close(self) -> None:
        """Let others have it; also in a forked child, where that takes it from nobody."""
        os.close(self._lock)


def draft_of(path: Path) -> Path:
    """Where a file is written until it is whole."""
    return path.with_name(path.name + _NEW)


def publish(draft: Path, path: Path) -> None:
    """Give a file that is durable its name, durably."""
    draft.rename(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make durable which files a folder has."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _make(path: Path) -> None:
    try:
        path.mkdir()
        sync_folder(path.parent)
    except OSError as error:
        raise StoreError(f"{path} cannot be made a journal's folder: {error.strerror}") from error


def _locked(path: Path) -> int:
    """An open file that keeps other processes out, whatever becomes of this one."""
    file = path / "lock"
    try:
        fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise StoreError(f"{file} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except BlockingIOError as error:
        holder = os.pread(fd, 20, 0).decode(errors="replace").strip() or "another"
        os.close(fd)
        raise StoreError(
            f"the journal in {path} is in use by process {holder}: it belongs to one process at "
            "a time; reach its jobs through that one, by 'penstock serve' over HTTP"
        ) from error
    except OSError:
        os.close(fd)
        raise
    return fd


def _numbers(path: Path, kind: str) -> list[int]:
    found = (file.stem.partition("-")[2] for file in path.glob(f"{kind}-*.jsonl"))
    return sorted(int(number) for number in found if number.isdecimal())
