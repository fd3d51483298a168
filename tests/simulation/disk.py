"""A disk that loses what was not synced, tears writes, fails and fills up.

The files are real, in a folder of their own; what was written since the last sync is remembered
with what it replaced, so that a loss of power can take any of it back.
"""

import contextlib
import errno
import os
import random
import shutil
import stat
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple

from penstock.runtime import Files, StrPath
from penstock.testing.simulation.world import Process, World

_SECTOR = 512


class Killed(BaseException):
    """A process died in the middle of a call to its disk."""


class Fate(Enum):
    """What becomes of a change when the power goes: anything, as long as it is not synced."""

    OPEN = auto()
    KEPT = auto()
    DROPPED = auto()
    """A sync failed: the system takes the pages for clean, and never writes them again."""


class Write(NamedTuple):
    """A change of a file's content: `new` replaced `old` at `offset`; a truncation has no `new`."""

    size: int
    offset: int
    old: bytes
    new: bytes | None
    fate: Fate = Fate.OPEN


class Entry(NamedTuple):
    """A change of a folder's entries, and how it is taken back."""

    folder: str
    undo: Callable[[], object]


class Disk:
    """The files of one machine.

    `cut` is called when the power goes in the middle of a call, and `die` when one process dies.
    """

    def __init__(self, world: World) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-disk-", dir=_memory()))
        self.is_full = False
        self.cut: Callable[[], None] = lambda: None
        self.die: Callable[[Process], None] = lambda _: None
        self.later: Callable[[float, Callable[[], None]], None] = lambda *_: None
        self._world = world
        self._random = random.Random(f"disk {world.seed}")
        self._writes: dict[str, list[Write]] = defaultdict(list)
        self._entries: list[Entry] = []
        self._changed: dict[str, int] = {}
        self._countdowns: list[tuple[str, Process | None, int]] = []

    # Faults

    def strike(self, kind: str, process: Process | None, after: int) -> None:
        """Let a call fail: the one `after` so many of its kind, of a process or of any."""
        self._countdowns.append((kind, process, after))

    def heal(self) -> None:
        """From now on, nothing fails."""
        self.is_full = False
        self._countdowns.clear()

    def check(
        self, process: Process, call: str, path: StrPath | None = None, *, grows: bool = False
    ) -> None:
        """Raise if this call of a process fails; a dead process reaches nothing."""
        if not process.alive:
            raise Killed(process.name)
        if self.is_full and grows:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        due: list[str] = []
        left: list[tuple[str, Process | None, int]] = []
        for kind, whose, after in self._countdowns:
            counts = (whose is None or whose is process) and (
                kind.endswith("-at-disk") or kind.split("-")[1] == call
            )
            if counts and after <= 1:
                due.append(kind)
            else:
                left.append((kind, whose, after - counts))
        self._countdowns = left
        for kind in due:
            self._fail(process, kind, call, path)

    def _fail(self, process: Process, kind: str, call: str, path: StrPath | None) -> None:
        self._world.tell(f"-- {process.name}: {kind} in {call}")
        if kind == "crash-at-disk":
            self.cut()
            raise Killed(process.name)
        if kind == "die-at-disk":
            self.die(process)
            raise Killed(process.name)
        if kind == "fail-sync-then-crash":
            self.later(self._random.choice([0.0, 0.001, 0.01, 0.1]), self.cut)
        if kind == "fail-sync-drops":
            self._mark(str(path), Fate.DROPPED)
            self.later(self._random.choice([0.1, 1.0, 5.0]), self.cut)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    # Changes

    def touch(self, path: StrPath) -> None:
        self._changed[str(path)] = self._world.clock() * 1000

    def changed_at(self, path: StrPath) -> int:
        return self._changed.get(str(path), 0)

    def write(self, path: StrPath, offset: int, data: bytes, size: int, old: bytes) -> None:
        """Remember a write that is about to happen."""
        self._writes[str(path)].append(Write(size, offset, old, data))
        self.touch(path)

    def truncate(self, path: StrPath, to: int, size: int, tail: bytes) -> None:
        """Remember a change of a file's length."""
        self._writes[str(path)].append(Write(size, to, tail, None))
        self.touch(path)

    def sync(self, path: StrPath) -> None:
        """Make durable what a file or a folder holds."""
        if any(write.fate is Fate.DROPPED for write in self._writes.get(str(path), ())):
            self._mark(str(path), Fate.KEPT)
        else:
            self._writes.pop(str(path), None)
        self._entries = [entry for entry in self._entries if entry.folder != str(path)]

    def _mark(self, path: str, fate: Fate) -> None:
        """Decide what becomes of the changes of a file up to now."""
        if path in self._writes:
            self._writes[path] = [
                write._replace(fate=fate) if write.fate is Fate.OPEN else write
                for write in self._writes[path]
            ]

    def enter(self, path: StrPath, undo: Callable[[], object]) -> None:
        """Remember a change of a folder's entries."""
        folder = str(Path(path).parent)
        self._entries.append(Entry(folder, undo))
        self.touch(folder)

    def move(self, source: StrPath, target: StrPath) -> None:
        """Give what is not durable its new name."""
        self._writes.pop(str(target), None)
        if str(source) in self._writes:
            self._writes[str(target)] = self._writes.pop(str(source))
        self.touch(target)

    def forget(self, path: StrPath) -> None:
        """A file was removed."""
        self._writes.pop(str(path), None)

    def lose_power(self) -> None:
        """Take back what was not synced, or some of it."""
        lost = self._random.randint(0, len(self._entries)) if self._entries else 0
        writes, self._writes = self._writes, defaultdict(list)
        for path, changes in writes.items():
            if os.path.exists(path):
                self._lose(path, changes)
        for entry in reversed(self._entries[len(self._entries) - lost :]):
            entry.undo()
        self._entries.clear()

    def _lose(self, path: str, changes: Sequence[Write]) -> None:
        content = bytearray(Path(path).read_bytes())
        for change in reversed(changes):
            _undo(content, change)
        way = self._random.choice(["none", "prefix", "some", "torn", "all"])
        unsynced = [change for change in changes if change.fate is Fate.OPEN]
        if way == "prefix":
            unsynced = unsynced[: self._random.randint(0, len(unsynced))]
        elif way in {"some", "torn"}:
            unsynced = [change for change in unsynced if self._random.random() < 0.5]
        elif way == "none":
            unsynced = []
        for change in [change for change in changes if change.fate is Fate.KEPT] + unsynced:
            _redo(content, change)
        if way == "torn" and unsynced and unsynced[-1].new is not None:
            last = unsynced[-1]
            kept = self._random.randrange(len(last.new or b"")) // _SECTOR * _SECTOR
            end = last.offset + len(last.new or b"")
            for at in range(last.offset + kept, end):
                old = at - last.offset
                content[at] = last.old[old] if old < len(last.old) else 0
        Path(path).write_bytes(content)
        self._world.tell(f"-- of {len(unsynced)} writes to {Path(path).name}: {way}")

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _undo(content: bytearray, change: Write) -> None:
    if change.new is None:
        del content[change.size :]
        content[min(change.offset, change.size) :] = change.old
    else:
        content[change.offset : change.offset + len(change.old)] = change.old
    del content[change.size :]


def _redo(content: bytearray, change: Write) -> None:
    end = change.offset + len(change.new or b"")
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if change.new is None:
        del content[end:]
    else:
        content[change.offset : end] = change.new


def _memory() -> str | None:
    """Where files cost the least."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - a folder of its own is made in it


class Status(NamedTuple):
    """What a simulated disk says about a file."""

    st_mode: int
    st_ino: int
    st_dev: int
    st_size: int
    st_mtime_ns: int


class ProcessFiles(Files):
    """The files of a machine, as one process sees them. Its end closes them."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._paths: dict[int, str] = {}
        self._process: Process | None = None
        for name in ("write_at", "write", "truncate", "allocate", "sync", "sync_data", "replace"):
            setattr(self, name, getattr(self, f"_{name}"))
        for name in ("open", "close", "unlink", "mkdir", "rmdir", "stat", "size", "list"):
            setattr(self, name, getattr(self, f"_{name}"))
        for name in ("make_pipe", "wait_readable", "exists"):
            setattr(self, name, getattr(self, f"_{name}"))

    def belong_to(self, process: Process) -> None:
        self._process = process
        process.at_end.append(self._close_all)

    def _check(self, call: str, path: StrPath | None = None, *, grows: bool = False) -> None:
        assert self._process is not None
        self._disk.check(self._process, call, path, grows=grows)

    def _close_all(self) -> None:
        for fd in list(self._paths):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._paths.clear()

    def _open(self, path: StrPath, flags: int, mode: int = 0o777) -> int:
        creates = flags & os.O_CREAT and not os.path.exists(path)
        self._check("open", grows=bool(creates))
        if flags & os.O_TRUNC and not creates:
            content = Path(path).read_bytes()
            self._disk.truncate(path, 0, len(content), content)
        fd = os.open(path, flags, mode)
        self._paths[fd] = str(path)
        if creates:
            self._disk.enter(path, lambda: Path(path).unlink(missing_ok=True))
        return fd

    def _close(self, fd: int) -> None:
        if self._paths.pop(fd, None) is not None:
            os.close(fd)

    def _write_at(self, fd: int, data: Any, offset: int) -> int:
        data = bytes(data)
        size = os.fstat(fd).st_size
        self._check("write", grows=offset + len(data) > size)
        self._disk.write(
            self._paths[fd], offset, data, size, _read(self._paths[fd], offset, len(data))
        )
        return os.pwrite(fd, data, offset)

    def _write(self, fd: int, data: bytes) -> int:
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            return os.write(fd, data)
        if os.lseek(fd, 0, os.SEEK_CUR) == 0 and _is_appending(fd):
            os.lseek(fd, 0, os.SEEK_END)
        offset = os.lseek(fd, 0, os.SEEK_CUR)
        written = self._write_at(fd, data, offset)
        os.lseek(fd, offset + written, os.SEEK_SET)
        return written

    def _truncate(self, fd: int, length: int) -> None:
        self._check("truncate")
        size = os.fstat(fd).st_size
        self._disk.truncate(self._paths[fd], length, size, _read(self._paths[fd], length, size))
        os.ftruncate(fd, length)

    def _allocate(self, fd: int, offset: int, length: int) -> None:
        self._write_at(fd, bytes(length), offset)

    def _sync(self, fd: int) -> None:
        self._check("sync", self._paths[fd])
        self._disk.sync(self._paths[fd])

    _sync_data = _sync

    def _replace(self, source: StrPath, target: StrPath) -> None:
        self._check("replace")
        before = Path(target).read_bytes() if os.path.exists(target) else None

        def undo() -> None:
            os.replace(target, source)
            if before is not None:
                Path(target).write_bytes(before)

        self._disk.enter(target, undo)
        self._disk.move(source, target)
        os.replace(source, target)

    def _unlink(self, path: StrPath) -> None:
        self._check("unlink")
        about = os.stat(path)
        if stat.S_ISREG(about.st_mode):
            content = Path(path).read_bytes()
            self._disk.enter(path, lambda: Path(path).write_bytes(content))
        else:
            self._disk.touch(Path(path).parent)
        os.unlink(path)
        self._disk.forget(path)

    def _mkdir(self, path: StrPath, mode: int = 0o777) -> None:
        self._check("mkdir")
        os.mkdir(path, mode)
        self._disk.touch(path)

    def _rmdir(self, path: StrPath) -> None:
        self._check("rmdir")
        os.rmdir(path)

    def _list(self, path: StrPath) -> list[str]:
        return sorted(os.listdir(path))

    def _stat(self, path: StrPath) -> Any:
        return self._status(os.stat(path), str(path))

    def _size(self, fd: int) -> Any:
        return self._status(os.fstat(fd), self._paths[fd])

    def _status(self, found: os.stat_result, path: str) -> Status:
        changed = self._disk.changed_at(path)
        return Status(found.st_mode, found.st_ino, found.st_dev, found.st_size, changed)

    def _exists(self, path: StrPath) -> bool:
        return os.access(path, os.F_OK)

    def _make_pipe(self, path: StrPath) -> None:
        self._check("mkfifo")
        os.mkfifo(path, 0o600)
        self._disk.touch(Path(path).parent)

    def _wait_readable(self, descriptors: Sequence[int], timeout: float) -> Sequence[int]:
        """Say what can be read now; else the present step takes as long as the wait would."""
        found = Files.wait_readable(descriptors, 0)
        if not found and self._process is not None:
            self._process.runtime.blocked_for += timeout
        return found


def _read(path: str, offset: int, length: int) -> bytes:
    with Path(path).open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _is_appending(fd: int) -> bool:
    import fcntl

    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND)
