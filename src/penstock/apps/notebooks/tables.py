"""The SQL on notebooks, their files, and what is not in git yet.

That on operations which have not ended is in `touches`, the tables themselves in `schema`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from penstock.apps.notebooks.files import Facts
from penstock.apps.notebooks.paths import fold, parents
from penstock.apps.notebooks.repository import Location

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
"""Parameters of one statement."""


class Statements(Protocol):
    """Runs SQL: a transaction of the store, or what only reads."""

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """Run a statement."""
        ...


class Writing(Statements, Protocol):
    """A transaction."""

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """Run a statement with each of these."""
        ...


class Notebook(NamedTuple):
    """A folder that is registered."""

    id: int
    name: str
    path: str
    git: bool
    settings: dict[str, Any]
    created: datetime
    location: Location | None = None
    """Where its repository is; None without git, or if an earlier version has added it."""
    problem: str | None = None
    """Why commits fail for the moment."""


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
    """The first of `n` numbers that were never given before.

    On PostgreSQL before anything else: whoever waits for numbers holds nothing others wait for.
    """
    sql = "UPDATE notebooks_number SET last = last + ? WHERE name = ? RETURNING last"
    last: int = tx.execute(sql, (n, name)).fetchone()[0]
    return last - n + 1


# Notebooks


def add_notebook(
    tx: Statements, name: str, path: str, location: Location | None, now: datetime
) -> Notebook:
    """Register a folder, with the repository that has its history, or without one.

    None of the names and folders are there twice.
    """
    git = location is not None
    made = Notebook(number(tx, "notebook"), name, path, git, {}, now, location)
    tx.execute(
        "INSERT INTO notebooks_notebook (id, name, path, git, settings, created) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        (made.id, name, path, int(git), "{}", micros(now)),
    )
    if location is not None:
        record_location(tx, made.id, location)
    return made


def record_location(tx: Statements, notebook_id: int, location: Location) -> bool:
    """Store where the repository of a notebook is, unless that is known; whether it was not."""
    sql = (
        "UPDATE notebooks_notebook SET work_tree = ?, git_directory = ?, joined = ? "
        "WHERE id = ? AND work_tree IS NULL"
    )
    place = (str(location.top), str(location.directory), int(location.is_joined))
    rows: int = tx.execute(sql, (*place, notebook_id)).rowcount
    return rows > 0


def note_problem(tx: Statements, notebook_id: int, problem: str | None) -> None:
    """Store why commits of a notebook fail, or that they no longer do."""
    sql = "UPDATE notebooks_notebook SET problem = ? WHERE id = ?"
    tx.execute(sql, (problem, notebook_id))


def notebooks(tx: Statements) -> list[Notebook]:
    """All of them, by name."""
    return [_notebook(row) for row in tx.execute(f"{_NOTEBOOK} ORDER BY name").fetchall()]


def notebook(tx: Statements, name: str | int) -> Notebook | None:
    """The one with this id or name."""
    sql = f"{_NOTEBOOK} WHERE "
    by_name = isinstance(name, str)
    row = tx.execute(sql + ("name = ?" if by_name else "id = ?"), (name,)).fetchone()
    if row is None and isinstance(name, str) and name.isdecimal() and len(name) <= 18:  # noqa: PLR2004 - digits of a number
        return notebook(tx, int(name))
    return None if row is None else _notebook(row)


def change_notebook(tx: Statements, changed: Notebook) -> None:
    """Store another name and other settings."""
    tx.execute(
        "UPDATE notebooks_notebook SET name = ?, settings = ? WHERE id = ?",
        (changed.name, json.dumps(changed.settings), changed.id),
    )


def remove_notebook(tx: Statements, notebook_id: int) -> None:
    """Forget a notebook and all that is known of its files."""
    tx.execute("DELETE FROM notebooks_notebook WHERE id = ?", (notebook_id,))
    for table in ("file", "touch", "uncommitted"):
        tx.execute(f"DELETE FROM notebooks_{table} WHERE notebook = ?", (notebook_id,))  # noqa: S608 - fixed text


def _notebook(row: Any) -> Notebook:
    tree, directory, joined, problem = row[6:]
    location = None
    if tree is not None:
        location = Location(Path(tree), Path(directory), is_joined=bool(joined))
    settings, created = json.loads(row[4]), instant(row[5])
    return Notebook(row[0], row[1], row[2], bool(row[3]), settings, created, location, problem)


# Files


def file_at(tx: Statements, notebook_id: int, path: str) -> File | None:
    """The file at a path."""
    sql = f"SELECT {_FILE} FROM notebooks_file WHERE notebook = ? AND path = ?"  # noqa: S608 - fixed text
    return _file(tx.execute(sql, (notebook_id, path)).fetchone())


def file_by_id(tx: Statements, notebook_id: int, file_id: int) -> File | None:
    """The file with this id."""
    sql = f"SELECT {_FILE} FROM notebooks_file WHERE notebook = ? AND id = ?"  # noqa: S608 - fixed text
    return _file(tx.execute(sql, (notebook_id, file_id)).fetchone())


def files(
    tx: Statements, notebook_id: int, prefix: str = "", after: str = "", limit: int = 1_000_000
) -> list[File]:
    """The files whose paths begin so, in the order of their paths, behind one of them."""
    sql = (
        f"SELECT {_FILE} FROM notebooks_file "  # noqa: S608 - fixed text
        "WHERE notebook = ? AND path >= ? AND path > ? AND path < ? ORDER BY path LIMIT ?"
    )
    found = tx.execute(sql, (notebook_id, prefix, after, prefix + LAST, limit)).fetchall()
    return [one for row in found if (one := _file(row)) is not None]


def files_at(tx: Statements, notebook_id: int, paths: Iterable[str]) -> dict[str, File]:
    """The files at these paths."""
    found: dict[str, File] = {}
    for some in portions(sorted(set(paths))):
        sql = f"SELECT {_FILE} FROM notebooks_file WHERE notebook = ? AND path IN ({marks(some)})"  # noqa: S608 - marks
        for row in tx.execute(sql, (notebook_id, *some)).fetchall():
            if (one := _file(row)) is not None:
                found[one.path] = one
    return found


def known_below(tx: Statements, notebook_id: int, paths: Iterable[str]) -> list[Row]:
    """What is compared with the disk, of the files at these paths and below them.

    An empty path is the whole notebook.
    """
    wanted = sorted(set(paths))
    found: dict[int, Row] = {}
    for some in portions(wanted):
        sql = f"SELECT {_KNOWN} FROM notebooks_file WHERE notebook = ? AND path IN ({marks(some)})"  # noqa: S608 - marks
        found.update((row[0], row) for row in tx.execute(sql, (notebook_id, *some)).fetchall())
    for path in set(wanted).difference(row[1] for row in found.values()):
        sql = f"SELECT {_KNOWN} FROM notebooks_file WHERE notebook = ? AND path > ? AND path < ?"  # noqa: S608 - fixed text
        rows = tx.execute(sql, (notebook_id, *span(path))).fetchall()
        found.update((row[0], row) for row in rows)
    return list(found.values())


def known_with_hashes(tx: Statements, notebook_id: int, hashes: Iterable[str]) -> list[Row]:
    """The same, of the files that have one of these contents."""
    found: list[Row] = []
    for some in portions(sorted(set(hashes))):
        sql = f"SELECT {_KNOWN} FROM notebooks_file WHERE notebook = ? AND hash IN ({marks(some)})"  # noqa: S608 - marks
        found += tx.execute(sql, (notebook_id, *some)).fetchall()
    return found


def count_files(tx: Statements, notebook_id: int, folder: str = "") -> int:
    """How many files are known in a folder."""
    low, high = span(folder)
    sql = "SELECT COUNT(*) FROM notebooks_file WHERE notebook = ? AND path > ? AND path < ?"
    count: int = tx.execute(sql, (notebook_id, low, high)).fetchone()[0]
    return count


def collision(tx: Statements, notebook_id: int, path: str) -> str | None:
    """A file or folder that other systems take for this path, or for one above it."""
    for one in (path, *parents(path)):
        folded = fold(one)
        sql = (
            "SELECT path FROM notebooks_file WHERE notebook = ? AND folded = ? UNION ALL SELECT "
            "path FROM (SELECT path FROM notebooks_file WHERE notebook = ? AND folded > ? "
            "AND folded < ? LIMIT 1) AS below"
        )
        low, high = span(folded)
        for (found,) in tx.execute(sql, (notebook_id, folded, notebook_id, low, high)).fetchall():
            depth = one.count("/") + 1
            same: str = "/".join(found.split("/")[:depth])
            if same != one:
                return same
    return None


def put_file(tx: Statements, file: File) -> None:
    """Store all of a file, whether it is new or not."""
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
            *(micros(file.created), micros(file.updated), file.version),
        ),
    )


def with_facts(file: File, facts: Facts) -> File:
    """The file with the content that was found on disk."""
    return file._replace(
        size=facts.size, hash=facts.hash, mtime_ns=facts.mtime_ns, inode=facts.inode
    )


def new_file(notebook_id: int, path: str, file_id: int, now: datetime) -> File:
    """A file of which nothing is known but its path."""
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
    """Let everything below a folder stand below another; how many files that were."""
    low, high = span(source)
    moved = tx.execute(
        "UPDATE notebooks_file SET path = CAST(? AS TEXT) || substr(path, CAST(? AS INTEGER)), "
        "folded = CAST(? AS TEXT) || substr(folded, CAST(? AS INTEGER)), "
        "updated = ?, version = version + 1 WHERE notebook = ? AND path > ? AND path < ?",
        (
            *(target, len(source) + 1, fold(target), len(fold(source)) + 1, micros(now)),
            *(notebook_id, low, high),
        ),
    )
    rows: int = moved.rowcount
    return rows


def remove_files(tx: Statements, notebook_id: int, folder: str) -> int:
    """Forget everything below a folder; how many files that were."""
    sql = "DELETE FROM notebooks_file WHERE notebook = ? AND path > ? AND path < ?"
    rows: int = tx.execute(sql, (notebook_id, *span(folder))).rowcount
    return rows


def _file(row: Any) -> File | None:
    if row is None:
        return None
    properties, created, updated = json.loads(row[10]), instant(row[11]), instant(row[12])
    return File._make((*row[:10], properties, created, updated, row[13]))


# What is not in git yet


def add_uncommitted(tx: Writing, notebook_id: int, paths: Sequence[str]) -> None:
    """Note that these paths have changed since they were committed."""
    change = number(tx, "change")
    tx.executemany(
        "INSERT INTO notebooks_uncommitted (notebook, path, change) VALUES (?, ?, ?) "
        "ON CONFLICT (notebook, path) DO UPDATE SET change = excluded.change, held = NULL",
        [(notebook_id, path, change) for path in paths],
    )


def uncommitted(tx: Statements, notebook_id: int) -> tuple[dict[str, str | None], int]:
    """The paths that have changed since they were committed, and the number of the last change.

    Each has the reason for which it was held at the last commit, if it was.
    """
    sql = "SELECT path, change, held FROM notebooks_uncommitted WHERE notebook = ? ORDER BY path"
    rows = tx.execute(sql, (notebook_id,)).fetchall()
    return {row[0]: row[2] for row in rows}, max((row[1] for row in rows), default=0)


def has_uncommitted(tx: Statements, notebook_id: int, at_least: int = 1, *, after: int = 0) -> bool:
    """Whether so many paths wait to be committed that have changed after a change."""
    sql = (
        "SELECT 1 FROM notebooks_uncommitted WHERE notebook = ? AND change > ? AND held IS NULL "
        "LIMIT 1 OFFSET ?"
    )
    return tx.execute(sql, (notebook_id, after, at_least - 1)).fetchone() is not None


def count_uncommitted(tx: Statements, *, held: bool = False) -> dict[int, int]:
    """How many paths wait to be committed, by notebook; or how many of them are held."""
    sql = (
        f"SELECT notebook, COUNT(*) FROM notebooks_uncommitted "  # noqa: S608 - fixed text
        f"WHERE held IS {'NOT ' if held else ''}NULL GROUP BY notebook"
    )
    return dict(tx.execute(sql).fetchall())


def held_paths(tx: Statements, notebook_id: int, limit: int) -> list[tuple[str, str]]:
    """The first paths that are held, each with the reason."""
    sql = (
        "SELECT path, held FROM notebooks_uncommitted WHERE notebook = ? AND held IS NOT NULL "
        "ORDER BY path LIMIT ?"
    )
    return [(row[0], row[1]) for row in tx.execute(sql, (notebook_id, limit)).fetchall()]


def forget_uncommitted(
    tx: Writing, notebook_id: int, change: int, held: Mapping[str, str], *, retried: bool
) -> None:
    """All up to this change is committed, but for paths that are held.

    `retried` says whether those that were held before were tried again.
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
"""No character comes after it."""


def span(folder: str) -> tuple[str, str]:
    """Between which paths all below a folder stand; all there are, for the root."""
    return (f"{folder}/", f"{folder}0") if folder else ("", LAST)


def micros(at: datetime) -> int:
    """An instant as a number."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def instant(number: int) -> datetime:
    """The instant that a number stands for."""
    return _EPOCH + timedelta(microseconds=number)


def marks(values: Sequence[object]) -> str:
    """A mark for each parameter."""
    return ", ".join("?" * len(values))


def portions(values: Sequence[str]) -> Iterable[Sequence[str]]:
    """So many values at a time as one statement takes."""
    return (values[n : n + _MANY] for n in range(0, len(values), _MANY))


def changed_fields(file: File, fields: Mapping[str, Any]) -> File:
    """The file with other metadata."""
    known = {
        name: fields[name] for name in ("title", "description", "properties") if name in fields
    }
    return file._replace(**known)
