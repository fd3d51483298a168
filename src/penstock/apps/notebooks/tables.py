"""The tables of notebooks: their schema, and the SQL on notebooks, files and uncommitted paths.

The SQL on pending operations is in `operations.pending`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from penstock.apps.notebooks.disk.tree import Facts
from penstock.apps.notebooks.paths import fold, parents
from penstock.apps.notebooks.repository.location import Location
from penstock.tables import Statements, Tables, Transaction

_SQLITE = """
CREATE TABLE notebooks_notebook (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, path TEXT NOT NULL UNIQUE,
    git INTEGER NOT NULL, settings TEXT NOT NULL, created INTEGER NOT NULL
);
CREATE TABLE notebooks_file (
    id INTEGER PRIMARY KEY, notebook INTEGER NOT NULL, path TEXT NOT NULL, folded TEXT NOT NULL,
    size INTEGER NOT NULL, hash TEXT NOT NULL, mtime_ns INTEGER NOT NULL, inode INTEGER NOT NULL,
    mime TEXT NOT NULL, title TEXT, description TEXT, properties TEXT NOT NULL,
    created INTEGER NOT NULL, updated INTEGER NOT NULL, version INTEGER NOT NULL,
    UNIQUE (notebook, path)
);
CREATE INDEX notebooks_file_folded ON notebooks_file (notebook, folded);
CREATE INDEX notebooks_file_hash ON notebooks_file (notebook, hash);
CREATE TABLE notebooks_touch (
    job INTEGER NOT NULL, notebook INTEGER NOT NULL, folded TEXT NOT NULL, path TEXT NOT NULL,
    file INTEGER, moves_to TEXT, staged TEXT, operation TEXT,
    PRIMARY KEY (notebook, folded, job, path)
);
CREATE INDEX notebooks_touch_job ON notebooks_touch (job);
CREATE INDEX notebooks_touch_file ON notebooks_touch (file) WHERE file IS NOT NULL;
CREATE TABLE notebooks_uncommitted (
    notebook INTEGER NOT NULL, path TEXT NOT NULL, change INTEGER NOT NULL,
    PRIMARY KEY (notebook, path)
);
CREATE TABLE notebooks_number (name TEXT PRIMARY KEY, last INTEGER NOT NULL);
INSERT INTO notebooks_number VALUES ('notebook', 0), ('file', 0), ('change', 0);
"""

_CONTENT = """
CREATE TABLE notebooks_content (
    name TEXT PRIMARY KEY, content BLOB NOT NULL, stored INTEGER NOT NULL
);
"""

# Where the repository of a notebook is (not recorded by earlier versions), why commits fail, and
# why a path is held.
_REPOSITORY = """
ALTER TABLE notebooks_notebook ADD COLUMN work_tree TEXT;
ALTER TABLE notebooks_notebook ADD COLUMN git_directory TEXT;
ALTER TABLE notebooks_notebook ADD COLUMN joined INTEGER NOT NULL DEFAULT 0;
ALTER TABLE notebooks_notebook ADD COLUMN problem TEXT;
ALTER TABLE notebooks_uncommitted ADD COLUMN held TEXT;
"""

# Text is compared by its bytes, as paths are, so the files of a folder are one range.
_POSTGRES = (
    _SQLITE.replace("INTEGER PRIMARY KEY", "BIGINT PRIMARY KEY")
    .replace("INTEGER", "BIGINT")
    .replace("path TEXT NOT NULL", 'path TEXT COLLATE "C" NOT NULL')
    .replace("folded TEXT NOT NULL", 'folded TEXT COLLATE "C" NOT NULL')
)

TABLES = Tables(
    sqlite=(_SQLITE, _CONTENT, _REPOSITORY),
    postgres=(
        _POSTGRES,
        _CONTENT.replace("BLOB", "BYTEA").replace("INTEGER", "BIGINT"),
        _REPOSITORY.replace("INTEGER", "BIGINT"),
    ),
)


_FILE = (
    "id, notebook, path, size, hash, mtime_ns, inode, mime, title, description, properties, "
    "created, updated, version"
)
_NOTEBOOK = (
    "SELECT id, name, path, git, settings, created, work_tree, git_directory, joined, problem "
    "FROM notebooks_notebook"
)
_KNOWN = "id, path, size, mtime_ns, inode, hash, updated"
Row = tuple[Any, ...]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MANY = 500
"""Parameters in one statement."""


class Notebook(NamedTuple):
    """A registered notebook."""

    id: int
    name: str
    path: str
    git: bool
    settings: dict[str, Any]
    created: datetime
    location: Location | None = None
    """Where its repository is; None without git, or if an earlier version added it."""
    problem: str | None = None
    """Why commits fail at the moment."""

    @property
    def repository_problem(self) -> str | None:
        """Why the repository cannot be used; None if it can, or without git. Blocks."""
        if not self.git:
            return None
        return "its repository is not known yet" if self.location is None else self.location.problem


class File(NamedTuple):
    """What is known of a file."""

    id: int
    notebook: int
    path: str
    size: int
    hash: str
    mtime_ns: int
    inode: int
    mime: str
    title: str | None
    description: str | None
    properties: dict[str, Any]
    created: datetime
    updated: datetime
    version: int


def number(tx: Statements, name: str, n: int = 1) -> int:
    """Return the first of `n` new numbers.

    On PostgreSQL call this before anything else: a transaction that waits for numbers must not hold
    what others wait for.
    """
    sql = "UPDATE notebooks_number SET last = last + ? WHERE name = ? RETURNING last"
    last: int = tx.execute(sql, (n, name)).fetchone()[0]
    return last - n + 1


# Notebooks


def add_notebook(
    tx: Statements, name: str, path: str, location: Location | None, now: datetime
) -> Notebook:
    """Register a folder with its repository, or without one; names and folders are unique."""
    git = location is not None
    made = Notebook(number(tx, "notebook"), name, path, git, {}, now, location)
    tx.execute(
        "INSERT INTO notebooks_notebook (id, name, path, git, settings, created) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        (made.id, name, path, int(git), "{}", to_micros(now)),
    )
    if location is not None:
        record_location(tx, made.id, location)
    return made


def record_location(tx: Statements, notebook_id: int, location: Location) -> bool:
    """Store where the repository of a notebook is, unless it is known; return whether it was."""
    sql = (
        "UPDATE notebooks_notebook SET work_tree = ?, git_directory = ?, joined = ? "
        "WHERE id = ? AND work_tree IS NULL"
    )
    place = (str(location.top), str(location.directory), int(location.is_joined))
    rows: int = tx.execute(sql, (*place, notebook_id)).rowcount
    return rows > 0


def record_problem(tx: Statements, notebook_id: int, problem: str | None) -> None:
    """Store why commits of a notebook fail, or that they succeed again."""
    sql = "UPDATE notebooks_notebook SET problem = ? WHERE id = ?"
    tx.execute(sql, (problem, notebook_id))


def notebooks(tx: Statements) -> list[Notebook]:
    """Return all notebooks, by name."""
    return [_notebook(row) for row in tx.execute(f"{_NOTEBOOK} ORDER BY name").fetchall()]


def notebook(tx: Statements, name: str | int) -> Notebook | None:
    """Return the notebook with this id or name."""
    sql = f"{_NOTEBOOK} WHERE "
    by_name = isinstance(name, str)
    row = tx.execute(sql + ("name = ?" if by_name else "id = ?"), (name,)).fetchone()
    if row is None and isinstance(name, str) and name.isdecimal() and len(name) <= 18:  # noqa: PLR2004 - digits of an id
        return notebook(tx, int(name))
    return None if row is None else _notebook(row)


def change_notebook(tx: Statements, changed: Notebook) -> None:
    """Store the name and the settings of a notebook."""
    tx.execute(
        "UPDATE notebooks_notebook SET name = ?, settings = ? WHERE id = ?",
        (changed.name, json.dumps(changed.settings), changed.id),
    )


def remove_notebook(tx: Statements, notebook_id: int) -> None:
    """Forget a notebook and everything that is known of its files."""
    tx.execute("DELETE FROM notebooks_notebook WHERE id = ?", (notebook_id,))
    for table in ("file", "touch", "uncommitted"):
        tx.execute(f"DELETE FROM notebooks_{table} WHERE notebook = ?", (notebook_id,))  # noqa: S608 - fixed text


def _notebook(row: Any) -> Notebook:
    tree, directory, joined, problem = row[6:]
    location = None
    if tree is not None:
        location = Location(Path(tree), Path(directory), is_joined=bool(joined))
    settings, created = json.loads(row[4]), from_micros(row[5])
    return Notebook(row[0], row[1], row[2], bool(row[3]), settings, created, location, problem)


# Files


def file_at(tx: Statements, notebook_id: int, path: str) -> File | None:
    """Return the file at a path."""
    sql = f"SELECT {_FILE} FROM notebooks_file WHERE notebook = ? AND path = ?"  # noqa: S608 - fixed text
    return _file(tx.execute(sql, (notebook_id, path)).fetchone())


def file_by_id(tx: Statements, notebook_id: int, file_id: int) -> File | None:
    """Return the file with this id."""
    sql = f"SELECT {_FILE} FROM notebooks_file WHERE notebook = ? AND id = ?"  # noqa: S608 - fixed text
    return _file(tx.execute(sql, (notebook_id, file_id)).fetchone())


def files(
    tx: Statements, notebook_id: int, prefix: str = "", after: str = "", limit: int = 1_000_000
) -> list[File]:
    """Return the files whose paths start with `prefix`, ordered by path, after `after`."""
    sql = (
        f"SELECT {_FILE} FROM notebooks_file "  # noqa: S608 - fixed text
        "WHERE notebook = ? AND path >= ? AND path > ? AND path < ? ORDER BY path LIMIT ?"
    )
    found = tx.execute(sql, (notebook_id, prefix, after, prefix + LAST, limit)).fetchall()
    return [one for row in found if (one := _file(row)) is not None]


def files_at(tx: Statements, notebook_id: int, paths: Iterable[str]) -> dict[str, File]:
    """Return the files at these paths."""
    found: dict[str, File] = {}
    for some in chunks(sorted(set(paths))):
        sql = (
            f"SELECT {_FILE} FROM notebooks_file "  # noqa: S608 - placeholders
            f"WHERE notebook = ? AND path IN ({placeholders(some)})"
        )
        for row in tx.execute(sql, (notebook_id, *some)).fetchall():
            if (one := _file(row)) is not None:
                found[one.path] = one
    return found


def known_below(tx: Statements, notebook_id: int, paths: Iterable[str]) -> list[Row]:
    """Return what a scan compares, for the files at and below these paths.

    An empty path is the whole notebook.
    """
    wanted = sorted(set(paths))
    found: dict[int, Row] = {}
    for some in chunks(wanted):
        sql = (
            f"SELECT {_KNOWN} FROM notebooks_file "  # noqa: S608 - placeholders
            f"WHERE notebook = ? AND path IN ({placeholders(some)})"
        )
        found.update((row[0], row) for row in tx.execute(sql, (notebook_id, *some)).fetchall())
    for path in set(wanted).difference(row[1] for row in found.values()):
        sql = f"SELECT {_KNOWN} FROM notebooks_file WHERE notebook = ? AND path > ? AND path < ?"  # noqa: S608 - fixed text
        rows = tx.execute(sql, (notebook_id, *path_range(path))).fetchall()
        found.update((row[0], row) for row in rows)
    return list(found.values())


def known_with_hashes(tx: Statements, notebook_id: int, hashes: Iterable[str]) -> list[Row]:
    """Return what a scan compares, for the files with one of these hashes."""
    found: list[Row] = []
    for some in chunks(sorted(set(hashes))):
        sql = (
            f"SELECT {_KNOWN} FROM notebooks_file "  # noqa: S608 - placeholders
            f"WHERE notebook = ? AND hash IN ({placeholders(some)})"
        )
        found += tx.execute(sql, (notebook_id, *some)).fetchall()
    return found


def count_files(tx: Statements, notebook_id: int, folder: str = "") -> int:
    """Return how many files are known in a folder."""
    low, high = path_range(folder)
    sql = "SELECT COUNT(*) FROM notebooks_file WHERE notebook = ? AND path > ? AND path < ?"
    count: int = tx.execute(sql, (notebook_id, low, high)).fetchone()[0]
    return count


def collision(tx: Statements, notebook_id: int, path: str) -> str | None:
    """Return a file or folder that other systems treat as the same as this path or one above it."""
    for one in (path, *parents(path)):
        folded = fold(one)
        sql = (
            "SELECT path FROM notebooks_file WHERE notebook = ? AND folded = ? UNION ALL SELECT "
            "path FROM (SELECT path FROM notebooks_file WHERE notebook = ? AND folded > ? "
            "AND folded < ? LIMIT 1) AS below"
        )
        low, high = path_range(folded)
        for (found,) in tx.execute(sql, (notebook_id, folded, notebook_id, low, high)).fetchall():
            depth = one.count("/") + 1
            same: str = "/".join(found.split("/")[:depth])
            if same != one:
                return same
    return None


def put_file(tx: Statements, file: File) -> None:
    """Store a file, whether it is new or not."""
    tx.execute(
        "INSERT INTO notebooks_file (id, notebook, path, folded, size, hash, mtime_ns, inode, "
        "mime, title, description, properties, created, updated, version) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET path = excluded.path, folded = excluded.folded, "
        "size = excluded.size, hash = excluded.hash, mtime_ns = excluded.mtime_ns, "
        "inode = excluded.inode, mime = excluded.mime, title = excluded.title, "
        "description = excluded.description, properties = excluded.properties, "
        "updated = excluded.updated, version = excluded.version",
        (
            file.id,
            file.notebook,
            file.path,
            fold(file.path),
            *(file.size, file.hash, file.mtime_ns, file.inode, file.mime),
            *(file.title, file.description, json.dumps(file.properties)),
            *(to_micros(file.created), to_micros(file.updated), file.version),
        ),
    )


def with_facts(file: File, facts: Facts) -> File:
    """Return the file with the content that was found on disk."""
    return file._replace(
        size=facts.size, hash=facts.hash, mtime_ns=facts.mtime_ns, inode=facts.inode
    )


def new_file(notebook_id: int, path: str, file_id: int, now: datetime) -> File:
    """Return a file of which only the path is known."""
    return File(
        id=file_id,
        notebook=notebook_id,
        path=path,
        size=0,
        hash="",
        mtime_ns=0,
        inode=0,
        mime="",
        title=None,
        description=None,
        properties={},
        created=now,
        updated=now,
        version=1,
    )


def remove_file(tx: Statements, file_id: int) -> None:
    """Forget a file."""
    tx.execute("DELETE FROM notebooks_file WHERE id = ?", (file_id,))


def move_files(tx: Statements, notebook_id: int, source: str, target: str, now: datetime) -> int:
    """Move everything below a folder to another; return the number of files."""
    low, high = path_range(source)
    moved = tx.execute(
        "UPDATE notebooks_file SET path = CAST(? AS TEXT) || substr(path, CAST(? AS INTEGER)), "
        "folded = CAST(? AS TEXT) || substr(folded, CAST(? AS INTEGER)), "
        "updated = ?, version = version + 1 WHERE notebook = ? AND path > ? AND path < ?",
        (
            *(target, len(source) + 1, fold(target), len(fold(source)) + 1, to_micros(now)),
            *(notebook_id, low, high),
        ),
    )
    rows: int = moved.rowcount
    return rows


def remove_files(tx: Statements, notebook_id: int, folder: str) -> int:
    """Forget everything below a folder; return the number of files."""
    sql = "DELETE FROM notebooks_file WHERE notebook = ? AND path > ? AND path < ?"
    rows: int = tx.execute(sql, (notebook_id, *path_range(folder))).rowcount
    return rows


def _file(row: Any) -> File | None:
    if row is None:
        return None
    properties, created, updated = json.loads(row[10]), from_micros(row[11]), from_micros(row[12])
    return File._make((*row[:10], properties, created, updated, row[13]))


# Uncommitted paths


def add_uncommitted(tx: Transaction, notebook_id: int, paths: Sequence[str]) -> None:
    """Record that these paths have changed since their last commit."""
    change = number(tx, "change")
    tx.executemany(
        "INSERT INTO notebooks_uncommitted (notebook, path, change) VALUES (?, ?, ?) "
        "ON CONFLICT (notebook, path) DO UPDATE SET change = excluded.change, held = NULL",
        [(notebook_id, path, change) for path in paths],
    )


def uncommitted(tx: Statements, notebook_id: int) -> tuple[dict[str, str | None], int]:
    """Return the paths changed since their last commit, and the number of the last change.

    Each has the reason why the last commit held it, if it did.
    """
    sql = "SELECT path, change, held FROM notebooks_uncommitted WHERE notebook = ? ORDER BY path"
    rows = tx.execute(sql, (notebook_id,)).fetchall()
    return {row[0]: row[2] for row in rows}, max((row[1] for row in rows), default=0)


def uncommitted_among(tx: Statements, notebook_id: int, paths: Sequence[str]) -> set[str]:
    """Return those of these paths that have changed since their last commit."""
    found: set[str] = set()
    for some in chunks(paths):
        sql = (
            "SELECT path FROM notebooks_uncommitted WHERE notebook = ? "  # noqa: S608 - question marks
            f"AND path IN ({placeholders(some)})"
        )
        found.update(row[0] for row in tx.execute(sql, (notebook_id, *some)).fetchall())
    return found


def has_uncommitted(tx: Statements, notebook_id: int, at_least: int = 1, *, after: int = 0) -> bool:
    """Whether at least this many paths, changed after a change, wait for a commit."""
    sql = (
        "SELECT 1 FROM notebooks_uncommitted WHERE notebook = ? AND change > ? AND held IS NULL "
        "LIMIT 1 OFFSET ?"
    )
    return tx.execute(sql, (notebook_id, after, at_least - 1)).fetchone() is not None


def count_uncommitted(tx: Statements, *, held: bool = False) -> dict[int, int]:
    """Count the paths that wait for a commit by notebook; or those of them that are held."""
    sql = (
        f"SELECT notebook, COUNT(*) FROM notebooks_uncommitted "  # noqa: S608 - fixed text
        f"WHERE held IS {'NOT ' if held else ''}NULL GROUP BY notebook"
    )
    return dict(tx.execute(sql).fetchall())


def held_paths(tx: Statements, notebook_id: int, limit: int) -> list[tuple[str, str]]:
    """Return the first held paths, each with the reason."""
    sql = (
        "SELECT path, held FROM notebooks_uncommitted WHERE notebook = ? AND held IS NOT NULL "
        "ORDER BY path LIMIT ?"
    )
    return [(row[0], row[1]) for row in tx.execute(sql, (notebook_id, limit)).fetchall()]


def forget_uncommitted(
    tx: Transaction, notebook_id: int, change: int, held: Mapping[str, str], *, retried: bool
) -> None:
    """Record that everything up to a change is committed, except for held paths.

    `retried` says whether paths that were held before were tried again.
    """
    sql = "DELETE FROM notebooks_uncommitted WHERE notebook = ? AND change <= ?"
    tx.execute(sql if retried else f"{sql} AND held IS NULL", (notebook_id, change))
    tx.executemany(
        "INSERT INTO notebooks_uncommitted (notebook, path, change, held) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (notebook, path) DO NOTHING",
        [(notebook_id, path, change, why) for path, why in held.items()],
    )


# Values

LAST = "\U0010ffff"
"""No character sorts after it."""


def path_range(folder: str) -> tuple[str, str]:
    """Return the bounds of all paths below a folder; for the root, of all paths."""
    return (f"{folder}/", f"{folder}0") if folder else ("", LAST)


def to_micros(at: datetime) -> int:
    """Return an instant as microseconds since 1970."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def from_micros(number: int) -> datetime:
    """Return the instant for microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=number)


def placeholders(values: Sequence[object]) -> str:
    """Return a placeholder for each parameter."""
    return ", ".join("?" * len(values))


def chunks(values: Sequence[str]) -> Iterable[Sequence[str]]:
    """Split values into as many as one statement takes."""
    return (values[n : n + _MANY] for n in range(0, len(values), _MANY))


def changed_fields(file: File, fields: Mapping[str, Any]) -> File:
    """Return the file with changed metadata."""
    known = {
        name: fields[name] for name in ("title", "description", "properties") if name in fields
    }
    return file._replace(**known)
