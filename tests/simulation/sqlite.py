"""SQLite on a simulated disk: apsw, which has a SQLite of its own, behind the store's connections.

`SimulatedConnection` does what the store needs of `sqlite3.Connection`. Every process has a VFS of
its own, which passes reads, writes and syncs through the simulated disk.
"""

import contextlib
import errno
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw

from penstock.testing.simulation.world import Process
from tests.simulation.disk import Disk, Killed

# So many instructions of SQLite's machine are more than any statement takes.
_LONGEST, _PORTION = 20_000_000, 1_000_000
# Files whose first sync is also one of their folder.
_LOGS = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL


class SimulatedVFS(apsw.VFS):
    """The files of one process."""

    def __init__(self, disk: Disk, process: Process, name: str) -> None:
        self.disk = disk
        self.process = process
        self.name = name
        super().__init__(name, "unix")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - apsw's name
        path = _path(name)
        may_create = bool(flags[0] & apsw.SQLITE_OPEN_CREATE)
        creates = may_create and not Path(path).exists()
        self.check("open", grows=creates)
        file = SimulatedFile(self, name, flags)
        file.syncs_folder = may_create and bool(flags[0] & _LOGS)
        if creates:
            self.disk.enter(path, lambda: Path(path).unlink(missing_ok=True))
        return file

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 - apsw's name
        self.check("unlink")
        content = Path(filename).read_bytes() if Path(filename).exists() else None
        super().xDelete(filename, syncdir)
        if content is not None:
            self.disk.enter(filename, lambda: Path(filename).write_bytes(content))
        self.disk.forget(filename)
        if syncdir:
            self.disk.sync(Path(filename).parent)

    def check(self, call: str, path: str | None = None, *, grows: bool = False) -> None:
        try:
            self.disk.check(self.process, call, path, grows=grows)
        except Killed as error:
            raise _failure(apsw.IOError, "the process is dead", sqlite3.SQLITE_IOERR) from error
        except OSError as error:
            if error.errno == errno.ENOSPC:
                full = _failure(apsw.FullError, "the disk is full", sqlite3.SQLITE_FULL)
                raise full from error
            code = sqlite3.SQLITE_IOERR_FSYNC if call == "sync" else sqlite3.SQLITE_IOERR_WRITE
            raise _failure(apsw.IOError, "disk I/O error", code) from error


def _path(name: Any) -> str:
    return name.filename() if isinstance(name, apsw.URIFilename) else str(name)


def _failure(kind: type[apsw.Error], text: str, code: int) -> Any:
    error: Any = kind(text)
    error.result, error.extendedresult = code & 0xFF, code
    return error


class SimulatedFile(apsw.VFSFile):
    """One open file of one process."""

    def __init__(self, vfs: SimulatedVFS, name: Any, flags: list[int]) -> None:
        self._vfs = vfs
        self._path = _path(name)
        self.syncs_folder = False
        """Whether the first sync makes the entry in the folder durable, too, as SQLite does."""
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - apsw's name
        size = self.xFileSize()
        self._vfs.check("write", grows=offset + len(data) > size)
        old = self._read(offset, len(data), size)
        self._vfs.disk.write(self._path, offset, bytes(data), size, old)
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - apsw's name
        self._vfs.check("truncate")
        size = self.xFileSize()
        self._vfs.disk.truncate(self._path, newsize, size, self._read(newsize, size, size))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802 - apsw's name
        self._vfs.check("sync", self._path)
        self._vfs.disk.sync(self._path)
        if self.syncs_folder:
            self._vfs.disk.sync(Path(self._path).parent)
            self.syncs_folder = False

    def _read(self, offset: int, length: int, size: int) -> bytes:
        length = min(length, size - offset)
        return super().xRead(length, offset) if length > 0 else b""


class SimulatedConnection:
    """What the store uses of `sqlite3.Connection`."""

    def __init__(self, path: Path, vfs: str | None = None, timeout: float = 0.0) -> None:
        try:
            self._connection = apsw.Connection(str(path), vfs=vfs, statementcachesize=256)
        except apsw.Error as error:
            raise _translation(error) from error
        self._connection.set_busy_timeout(int(timeout * 1000))
        self._left = _LONGEST
        self._connection.set_progress_handler(self._is_endless, _PORTION)

    def _is_endless(self) -> bool:
        """End a statement of a broken variant that follows a circle for ever."""
        self._left -= _PORTION
        return self._left < 0

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> "SimulatedCursor":
        self._left = _LONGEST
        return SimulatedCursor(self._connection).execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]]) -> "SimulatedCursor":
        cursor = SimulatedCursor(self._connection)
        for each in parameters:
            cursor.execute(sql, each)
        return cursor

    def close(self) -> None:
        try:
            self._connection.close()
        except apsw.Error as error:
            raise _translation(error) from error


class SimulatedCursor:
    """What the store uses of `sqlite3.Cursor`."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._next: Any = None
        self.rowcount = -1

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> "SimulatedCursor":
        before = self._connection.total_changes()
        try:
            self._cursor.execute(sql, tuple(parameters))
            self._next = self._cursor.fetchone()
        except apsw.Error as error:
            raise _translation(error) from error
        changed = self._connection.total_changes() != before
        self.rowcount = self._connection.changes() if changed else 0
        return self

    def fetchone(self) -> Any:
        """Return a row, and step to the next, as `sqlite3` does.

        So a statement ends with its last row, and raises if its commit fails.
        """
        row = self._next
        if row is not None:
            try:
                self._next = self._cursor.fetchone()
            except apsw.Error as error:
                raise _translation(error) from error
        return row

    def fetchall(self) -> list[Any]:
        return list(self)

    def __iter__(self) -> Iterator[Any]:
        while (row := self.fetchone()) is not None:
            yield row


def _translation(error: apsw.Error) -> sqlite3.Error:
    """Return what `sqlite3` raises in place of an error of apsw."""
    kind = (
        sqlite3.IntegrityError
        if isinstance(error, apsw.ConstraintError)
        else sqlite3.DatabaseError
        if isinstance(error, (apsw.CorruptError, apsw.NotADBError))
        else sqlite3.OperationalError
    )
    translation = kind(str(error))
    code = getattr(error, "extendedresult", 0) or getattr(error, "result", 0)
    translation.sqlite_errorcode = code
    return translation


class Driver:
    """Opens connections for one process, and closes them when it dies."""

    _number = 0

    def __init__(self, disk: Disk, process: Process) -> None:
        Driver._number += 1
        self._vfs = SimulatedVFS(disk, process, f"penstock-{Driver._number}")
        self._connections: list[SimulatedConnection] = []
        process.at_end.append(self._end)

    def connect(self, path: Path, **_: Any) -> SimulatedConnection:
        connection = SimulatedConnection(path, self._vfs.name)
        self._connections.append(connection)
        return connection

    def _end(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(sqlite3.Error, apsw.Error):
                connection.close()
        self._connections.clear()
        self._vfs.unregister()
