"""What a collection holds, file by file: which content of each is in the index, and as what.

Beside the index, in a file of its own. Both cannot be written in one transaction, so that a file
is noted as unknown (an empty digest) before its chunks are touched, and as known when they are
there: whatever a crash leaves in between is done again by the next job.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from penstock.apps.indexing.parameters import Parameters

FILE = "files.db"
_LOCK = "lock"
_PATIENCE = 60.0
_VERSION = 1
_SCHEMA = """
CREATE TABLE file (
    path TEXT PRIMARY KEY,
    folder TEXT NOT NULL,
    digest TEXT NOT NULL, -- of the content and of how it was cut; empty while that is in doubt
    chunks INTEGER NOT NULL,
    job INTEGER NOT NULL -- that wrote it
) STRICT, WITHOUT ROWID;
CREATE INDEX file_folder ON file (folder);
CREATE TABLE folder (
    path TEXT PRIMARY KEY,
    parameters TEXT NOT NULL, -- of the last job on it, JSON
    watched INTEGER NOT NULL DEFAULT 0,
    debounce REAL,
    indexed_at TEXT, -- null until a job was done
    files INTEGER NOT NULL DEFAULT 0, -- totals, kept by the triggers below
    chunks INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE TRIGGER file_added AFTER INSERT ON file BEGIN
    UPDATE folder SET files = files + 1, chunks = chunks + new.chunks WHERE path = new.folder;
END;
CREATE TRIGGER file_changed AFTER UPDATE OF folder, chunks ON file BEGIN
    UPDATE folder SET files = files - 1, chunks = chunks - old.chunks WHERE path = old.folder;
    UPDATE folder SET files = files + 1, chunks = chunks + new.chunks WHERE path = new.folder;
END;
CREATE TRIGGER file_removed AFTER DELETE ON file BEGIN
    UPDATE folder SET files = files - 1, chunks = chunks - old.chunks WHERE path = old.folder;
END;
"""


class Known(NamedTuple):
    """A file as it was indexed."""

    path: str
    folder: str
    digest: str
    chunks: int
    job: int


class Folder(NamedTuple):
    """A folder as it was indexed."""

    path: str
    parameters: Parameters
    watched: bool
    debounce: float | None
    indexed_at: datetime | None
    files: int
    chunks: int


class Busy(Exception):
    """A job writes to the collection."""


@contextmanager
def held(collection: Path, *, wait: bool) -> Iterator[None]:
    """Be the only one who writes to a collection, inside the block; else raises `Busy`.

    The lock ends with the process that holds it, however that ends.
    """
    collection.mkdir(parents=True, exist_ok=True)
    handle = os.open(collection / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise Busy from None
        yield
    finally:
        os.close(handle)


class Files:
    """The files of one collection; belongs to one thread."""

    def __init__(self, collection: Path) -> None:
        collection.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(collection / FILE, timeout=_PATIENCE, isolation_level=None)
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._migrate()
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # What is there

    def get(self, path: str) -> Known | None:
        """What is known of a file."""
        row = self._db.execute("SELECT * FROM file WHERE path = ?", (path,)).fetchone()
        return None if row is None else Known(*row)

    def chunks_under(self, folder: str) -> int:
        """How many chunks the files below a folder have, whichever job wrote them."""
        low, high = _range(folder)
        query = "SELECT sum(chunks) FROM file WHERE path >= ? AND path < ?"
        return self._db.execute(query, (low, high)).fetchone()[0] or 0

    def folders(self) -> list[Folder]:
        """Every folder that was ever asked for, by path."""
        return [_folder(row) for row in self._db.execute("SELECT * FROM folder ORDER BY path")]

    def owner(self, path: str) -> str | None:
        """The nearest folder that was asked for and has a path in it, or is it."""
        rows = self._db.execute("SELECT path FROM folder").fetchall()
        around = [folder for (folder,) in rows if f"{path}/".startswith(f"{folder}/")]
        return max(around, key=len, default=None)

    def missing(self, folder: str) -> Iterator[list[str]]:
        """Files to be forgotten after a walk through a folder: its own that were not met.

        Also files below it that other folders own, if they are not there any more.
        """
        low, high = _range(folder)
        own = "SELECT path FROM file WHERE folder = ? AND path NOT IN (SELECT path FROM met)"
        yield from _portions(self._db.execute(own, (folder,)).fetchall())
        others = "SELECT path FROM file WHERE folder <> ? AND path >= ? AND path < ?"
        gone = [row for row in self._db.execute(others, (folder, low, high)) if not _exists(row[0])]
        yield from _portions(gone)

    # What was met on a walk

    def begin_walk(self) -> None:
        """Forget what was met before."""
        self._db.execute("CREATE TEMP TABLE IF NOT EXISTS met (path TEXT PRIMARY KEY) STRICT")
        self._db.execute("DELETE FROM met")

    def meet(self, paths: Iterable[str]) -> None:
        """Note files that are there; on disk, so that any number has room."""
        with self._writing():
            rows = ((path,) for path in paths)
            self._db.executemany("INSERT OR IGNORE INTO met VALUES (?)", rows)

    def count_met(self) -> int:
        """How many were met."""
        return int(self._db.execute("SELECT count(*) FROM met").fetchone()[0])

    def count_met_up_to(self, path: str) -> int:
        """How many of them are not behind a path."""
        query = "SELECT count(*) FROM met WHERE path <= ?"
        return int(self._db.execute(query, (path,)).fetchone()[0])

    def met(self, after: str) -> Iterator[str]:
        """The files that were met, in order, behind a path."""
        while True:
            query = "SELECT path FROM met WHERE path > ? ORDER BY path LIMIT 500"
            page = [path for (path,) in self._db.execute(query, (after,))]
            yield from page
            if not page:
                return
            after = page[-1]

    # Changes

    def doubt(self, paths: Sequence[str]) -> None:
        """Note that what is in the index of these files is not sure from now on."""
        with self._writing():
            rows = [(path,) for path in paths]
            self._db.executemany("UPDATE file SET digest = '' WHERE path = ?", rows)

    def doubt_under(self, folder: str) -> None:
        """The same for all files below a folder; below the empty one, all files."""
        low, high = _range(folder) if folder else ("", "\U0010ffff")
        with self._writing():
            query = "UPDATE file SET digest = '' WHERE path >= ? AND path < ?"
            self._db.execute(query, (low, high))

    def keep(self, files: Iterable[Known]) -> None:
        """Note what is in the index now."""
        with self._writing():
            query = (
                "INSERT INTO file VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (path) DO UPDATE SET "
                "folder = ?2, digest = ?3, chunks = ?4, job = ?5"
            )
            self._db.executemany(query, files)

    def forget(self, paths: Iterable[str]) -> None:
        """Nothing of these is in the index any more."""
        with self._writing():
            self._db.executemany("DELETE FROM file WHERE path = ?", ((path,) for path in paths))

    def paths_of(self, folder: str) -> Iterator[list[str]]:
        """The files of a folder, some hundred at a time."""
        query = "SELECT path FROM file WHERE folder = ?"
        yield from _portions(self._db.execute(query, (folder,)).fetchall())

    def forget_folder(self, folder: str) -> None:
        """A folder is none of the collection's any more."""
        self._db.execute("DELETE FROM folder WHERE path = ?", (folder,))

    def forget_all(self) -> None:
        """Nothing is in the index any more, and nothing is watched."""
        with self._writing():
            self._db.execute("DELETE FROM file")
            self._db.execute("DELETE FROM folder")

    def ask(self, parameters: Parameters) -> None:
        """Note that a folder was asked for, and whether it is to be watched."""
        text = msgspec.json.encode(parameters).decode()
        watching = parameters.watching
        self._db.execute(
            "INSERT INTO folder (path, parameters, watched, debounce) VALUES (?1, ?2, ?3, ?4) "
            "ON CONFLICT (path) DO UPDATE SET parameters = ?2, "
            "watched = coalesce(?5, watched), debounce = coalesce(?4, debounce)",
            (parameters.folder, text, bool(watching.on), watching.debounce, watching.on),
        )

    def note_done(self, folder: str, at: datetime) -> None:
        """A folder was indexed as a whole."""
        query = "UPDATE folder SET indexed_at = ? WHERE path = ?"
        self._db.execute(query, (at.astimezone(UTC).isoformat(), folder))

    def _migrate(self) -> None:
        if self._version() == _VERSION:  # looking takes no lock: a job may be writing
            return
        with self._writing():
            version = self._version()
            if version not in (0, _VERSION):
                raise sqlite3.DatabaseError(f"its schema has version {version}, not {_VERSION}")
            if version == 0:
                for statement in _statements(_SCHEMA):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {_VERSION}")

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


def known_folders(collection: Path) -> list[Folder]:
    """The folders of a collection that may not be there yet."""
    if not (collection / FILE).exists():
        return []
    with closing(Files(collection)) as files:
        return files.folders()


def _folder(row: tuple[Any, ...]) -> Folder:
    path, text, watched, debounce, indexed_at, files, chunks = row
    try:
        parameters = msgspec.json.decode(text, type=Parameters)
    except msgspec.ValidationError:  # of a job that no route stored, when jobs were not checked
        parameters, watched = Parameters(folder=path), False
    return Folder(
        path,
        parameters,
        bool(watched),
        debounce,
        None if indexed_at is None else datetime.fromisoformat(indexed_at),
        files,
        chunks,
    )


def _statements(text: str) -> Iterator[str]:
    """The statements of a script: `executescript` would commit."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _range(folder: str) -> tuple[str, str]:
    """All paths below a folder, as two ends; "0" comes after "/"."""
    return f"{folder}/", f"{folder}0"


def _portions(rows: list[tuple[str]], size: int = 500) -> Iterator[list[str]]:
    for start in range(0, len(rows), size):
        yield [path for (path,) in rows[start : start + size]]


def _exists(path: str) -> bool:
    return os.path.lexists(path)
