"""The files of a collection: which content of each is in the index.

They are recorded in a database next to the index. The two cannot be written in one transaction, so
a file is recorded as unknown (with an empty digest) before its chunks change, and as known when
they are written. The next job repeats whatever a crash leaves in between.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from penstock.apps.indexing.job import Parameters

FILE = "files.db"
LOCK = "lock"
"""The file in the folder of a collection that whoever writes to it locks."""
_PATIENCE = 60.0
_VERSION = 1
_SCHEMA = """
CREATE TABLE file (
    path TEXT PRIMARY KEY,
    folder TEXT NOT NULL,
    digest TEXT NOT NULL, -- of the content and of how it was split; empty while unknown
    chunks INTEGER NOT NULL,
    job INTEGER NOT NULL -- the one that wrote it
) STRICT, WITHOUT ROWID;
CREATE INDEX file_folder ON file (folder);
CREATE TABLE folder (
    path TEXT PRIMARY KEY,
    parameters TEXT NOT NULL, -- of the last job on it, JSON
    watched INTEGER NOT NULL DEFAULT 0,
    debounce REAL,
    indexed_at TEXT, -- null until a job is done
    files INTEGER NOT NULL DEFAULT 0, -- totals, updated by the triggers below
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


class Files:
    """The files of one collection; for use in one thread."""

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
        """Close the database."""
        self._db.close()

    # Reading

    def get(self, path: str) -> Known | None:
        """Return a file as it was indexed; None if it was not."""
        row = self._db.execute("SELECT * FROM file WHERE path = ?", (path,)).fetchone()
        return None if row is None else Known(*row)

    def chunks_under(self, folder: str) -> int:
        """Return the number of chunks of the files below a folder, whichever job wrote them."""
        low, high = _range(folder)
        query = "SELECT sum(chunks) FROM file WHERE path >= ? AND path < ?"
        return self._db.execute(query, (low, high)).fetchone()[0] or 0

    def folders(self) -> list[Folder]:
        """Return every folder that was requested, by path."""
        return [_folder(row) for row in self._db.execute("SELECT * FROM folder ORDER BY path")]

    def owner(self, path: str) -> str | None:
        """Return the innermost requested folder that contains a path, or is it."""
        rows = self._db.execute("SELECT path FROM folder").fetchall()
        around = [folder for (folder,) in rows if f"{path}/".startswith(f"{folder}/")]
        return max(around, key=len, default=None)

    def missing(self, folder: str) -> Iterator[list[str]]:
        """Yield the files to remove after a walk through a folder: its own that were not found.

        Also files below it that belong to other folders, if they no longer exist.
        """
        low, high = _range(folder)
        own = "SELECT path FROM file WHERE folder = ? AND path NOT IN (SELECT path FROM met)"
        yield from _portions(self._db.execute(own, (folder,)).fetchall())
        others = "SELECT path FROM file WHERE folder <> ? AND path >= ? AND path < ?"
        gone = [row for row in self._db.execute(others, (folder, low, high)) if not _exists(row[0])]
        yield from _portions(gone)

    # Files found on a walk

    def begin_walk(self) -> None:
        """Discard the files found before."""
        self._db.execute("CREATE TEMP TABLE IF NOT EXISTS met (path TEXT PRIMARY KEY) STRICT")
        self._db.execute("DELETE FROM met")

    def meet(self, paths: Iterable[str]) -> None:
        """Record files that exist; on disk, so that their number is not limited by memory."""
        with self._writing():
            rows = ((path,) for path in paths)
            self._db.executemany("INSERT OR IGNORE INTO met VALUES (?)", rows)

    def count_met(self) -> int:
        """Return how many files were found."""
        return int(self._db.execute("SELECT count(*) FROM met").fetchone()[0])

    def count_met_up_to(self, path: str) -> int:
        """Return how many of them are not after a path."""
        query = "SELECT count(*) FROM met WHERE path <= ?"
        return int(self._db.execute(query, (path,)).fetchone()[0])

    def met(self, after: str) -> Iterator[str]:
        """Yield the files that were found after a path, in order."""
        while True:
            query = "SELECT path FROM met WHERE path > ? ORDER BY path LIMIT 500"
            page = [path for (path,) in self._db.execute(query, (after,))]
            yield from page
            if not page:
                return
            after = page[-1]

    # Changes

    def doubt(self, paths: Sequence[str]) -> None:
        """Record that the indexed content of these files is unknown from now on."""
        with self._writing():
            rows = [(path,) for path in paths]
            self._db.executemany("UPDATE file SET digest = '' WHERE path = ?", rows)

    def doubt_under(self, folder: str) -> None:
        """Record the same for all files below a folder; an empty folder means all files."""
        low, high = _range(folder) if folder else ("", "\U0010ffff")
        with self._writing():
            query = "UPDATE file SET digest = '' WHERE path >= ? AND path < ?"
            self._db.execute(query, (low, high))

    def keep(self, files: Iterable[Known]) -> None:
        """Record files as they are in the index now."""
        with self._writing():
            query = (
                "INSERT INTO file VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (path) DO UPDATE SET "
                "folder = ?2, digest = ?3, chunks = ?4, job = ?5"
            )
            self._db.executemany(query, files)

    def forget(self, paths: Iterable[str]) -> None:
        """Remove files that are no longer in the index."""
        with self._writing():
            self._db.executemany("DELETE FROM file WHERE path = ?", ((path,) for path in paths))

    def paths_of(self, folder: str) -> Iterator[list[str]]:
        """Yield the files of a folder, some hundred at a time."""
        query = "SELECT path FROM file WHERE folder = ?"
        yield from _portions(self._db.execute(query, (folder,)).fetchall())

    def forget_folder(self, folder: str) -> None:
        """Remove a folder from the collection."""
        self._db.execute("DELETE FROM folder WHERE path = ?", (folder,))

    def forget_all(self) -> None:
        """Remove all files and folders; none is watched any longer."""
        with self._writing():
            self._db.execute("DELETE FROM file")
            self._db.execute("DELETE FROM folder")

    def ask(self, parameters: Parameters) -> None:
        """Record that a folder was requested, and whether to watch it."""
        text = msgspec.json.encode(parameters).decode()
        watching = parameters.watching
        self._db.execute(
            "INSERT INTO folder (path, parameters, watched, debounce) VALUES (?1, ?2, ?3, ?4) "
            "ON CONFLICT (path) DO UPDATE SET parameters = ?2, "
            "watched = coalesce(?5, watched), debounce = coalesce(?4, debounce)",
            (parameters.folder, text, bool(watching.on), watching.debounce, watching.on),
        )

    def note_done(self, folder: str, at: datetime) -> None:
        """Record that a folder was indexed completely."""
        query = "UPDATE folder SET indexed_at = ? WHERE path = ?"
        self._db.execute(query, (at.astimezone(UTC).isoformat(), folder))

    def _migrate(self) -> None:
        if self._version() == _VERSION:  # reading takes no lock: a job may be writing
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
    """Return the folders of a collection, which may not exist yet."""
    if not (collection / FILE).exists():
        return []
    with closing(Files(collection)) as files:
        return files.folders()


def _folder(row: tuple[Any, ...]) -> Folder:
    path, text, watched, debounce, indexed_at, files, chunks = row
    try:
        parameters = msgspec.json.decode(text, type=Parameters)
    except msgspec.ValidationError:  # stored by an earlier version, which did not check jobs
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
    """Split a script into its statements; `executescript` would commit."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _range(folder: str) -> tuple[str, str]:
    """Return the bounds of all paths below a folder; "0" follows "/"."""
    return f"{folder}/", f"{folder}0"


def _portions(rows: list[tuple[str]], size: int = 500) -> Iterator[list[str]]:
    for start in range(0, len(rows), size):
        yield [path for (path,) in rows[start : start + size]]


def _exists(path: str) -> bool:
    return os.path.lexists(path)
