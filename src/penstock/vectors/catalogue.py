"""The source of truth of an index: IDs, texts, metadata and vectors in one SQLite file.

A catalogue belongs to one thread. Several processes may open the same file; one writes at a time.
"""

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.vectors.embedders import Vectors, clean
from penstock.vectors.items import Hit, Item, Where, condition

SCHEMA = Path(__file__).with_name("schema.sql")
VERSION = 2
PATIENCE = 60.0
"""Seconds to wait for another process to finish writing."""
READ = 1024
"""Rows to read into memory at a time."""
WORD = re.compile(r"\w+")
MOST_WORDS = 64
"""Words of a query that are used; more of them take time and improve little."""
_encode = json.JSONEncoder(ensure_ascii=False).encode


class Position(NamedTuple):
    """A position in the history of a catalogue: the newest item and the newest removal."""

    added: int = 0
    removed: int = 0


class Row(NamedTuple):
    """An item as vector stores receive it."""

    number: int
    vector: Vectors
    id: str
    path: str
    type: str
    text: str


class Catalogue:
    """The tables of an index; call every method inside `reading()` or `writing()`."""

    def __init__(self, file: Path) -> None:
        self._db = sqlite3.connect(file, timeout=PATIENCE, isolation_level=None)
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            with self.writing():
                self._migrate()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read one consistent snapshot inside the block."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write in one transaction inside the block; other processes cannot write meanwhile."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def fact(self, name: str, default: Any = None) -> Any:
        """Return the value stored under a name."""
        row = self._db.execute("SELECT value FROM fact WHERE name = ?", (name,)).fetchone()
        return json.loads(row[0]) if row else default

    def keep(self, name: str, value: Any) -> None:
        """Store a value under a name."""
        self._db.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, json.dumps(value)))

    def add(self, items: Iterable[Item]) -> None:
        """Add items; none of their IDs may exist."""
        self._add(
            (
                (
                    item.id,
                    item.path,
                    item.type,
                    clean(_encode(dict(item.metadata))),
                ),
                (
                    clean(item.title),
                    clean(item.text),
                    np.asarray(item.vector, dtype="<f4").tobytes(),
                ),
            )
            for item in items
        )

    def _add(self, given: Iterable[tuple[Sequence[Any], Sequence[Any]]]) -> None:
        """Add items, given their columns in both tables."""
        first = self.position().added + 1
        rows = list(enumerate(given, first))
        self._db.executemany(
            "INSERT INTO item (number, id, path, type, metadata) VALUES (?, ?, ?, ?, ?)",
            [(number, *item) for number, (item, _) in rows],
        )
        self._db.executemany(
            "INSERT INTO body VALUES (?, ?, ?, ?)", [(number, *body) for number, (_, body) in rows]
        )
        # One statement for all: FTS5 writes a segment of its index per statement and merges them
        # later. For 100 texts of 1,000 characters this takes 75 microseconds each instead of 165.
        self._db.execute(
            "INSERT INTO words (rowid, title, text) SELECT number, title, text FROM body "
            "WHERE number >= ?",
            (first,),
        )

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove items by number, and record the removal."""
        if not numbers:
            return
        wanted = (json.dumps(numbers),)
        self._db.execute(
            "INSERT INTO words (words, rowid, title, text) SELECT 'delete', number, title, text "
            "FROM body WHERE number IN (SELECT value FROM json_each(?))",
            wanted,
        )
        for table in ("body", "item"):
            self._db.execute(
                f"DELETE FROM {table} WHERE number IN (SELECT value FROM json_each(?))", wanted
            )
        self._db.execute("INSERT INTO removed (number) SELECT value FROM json_each(?)", wanted)

    def move(self, numbers: Sequence[int], old: str, new: str) -> None:
        """Replace the prefix `old` of the items' paths by `new`.

        Rows never change, so each becomes a new row with the vector of the old one.
        """
        rows = self._db.execute(
            "SELECT id, path, type, metadata, title, text, vector FROM item JOIN body "
            "USING (number) WHERE number IN (SELECT value FROM json_each(?)) ORDER BY number",
            (json.dumps(list(numbers)),),
        ).fetchall()
        self.remove(numbers)
        self._add(
            ((_moved(each, old, new), _moved(path, old, new), kind, metadata), body)
            for each, path, kind, metadata, *body in rows
        )

    def numbers_at(self, paths: Sequence[str]) -> list[int]:
        """Return the numbers of the items with these paths."""
        rows = self._db.execute(
            "SELECT number FROM item WHERE path IN (SELECT value FROM json_each(?))",
            (json.dumps(list(paths)),),
        )
        return [number for (number,) in rows]

    def paths(self, where: Where) -> list[str]:
        """Return the distinct paths of the matching items, in order."""
        text, values = condition(where)
        rows = self._db.execute(f"SELECT DISTINCT path FROM item{text} ORDER BY path", values)
        return [path for (path,) in rows]

    def metadata_at(self, paths: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the metadata of the first item of each of these paths that exists."""
        rows = self._db.execute(
            "SELECT path, metadata FROM item WHERE number IN (SELECT min(number) FROM item "
            "WHERE path IN (SELECT value FROM json_each(?)) GROUP BY path)",
            (json.dumps(list(paths)),),
        )
        return {path: json.loads(metadata) for path, metadata in rows}

    def clear(self) -> None:
        """Remove all items; replicas must start over."""
        self._db.execute("DELETE FROM item")
        self._db.execute("DELETE FROM body")
        self._db.execute("INSERT INTO words (words) VALUES ('delete-all')")
        self._db.execute("INSERT INTO removed (number) VALUES (0)")
        self.forget_removals(self.position().removed)

    def forget_removals(self, upto: int) -> None:
        """Forget removals up to this one; replicas that have not read them must start over."""
        self._db.execute("DELETE FROM removed WHERE place <= ?", (upto,))
        self.keep("floor", upto)

    def position(self) -> Position:
        """Return the newest position in the history."""
        rows = dict(self._db.execute("SELECT name, seq FROM sqlite_sequence"))
        return Position(rows.get("item", 0), rows.get("removed", 0))

    def count(self, where: Where) -> int:
        """Return the number of matching items."""
        text, values = condition(where)
        return int(self._db.execute(f"SELECT count(*) FROM item{text}", values).fetchone()[0])

    def numbers(self, where: Where) -> list[int]:
        """Return the numbers of the matching items, in order."""
        text, values = condition(where)
        rows = self._db.execute(f"SELECT number FROM item{text} ORDER BY number", values)
        return [number for (number,) in rows]

    def numbers_of(self, ids: Sequence[str]) -> list[int]:
        """Return the numbers of those of these IDs that exist."""
        rows = self._db.execute(
            "SELECT number FROM item WHERE id IN (SELECT value FROM json_each(?))",
            (json.dumps(list(ids)),),
        )
        return [number for (number,) in rows]

    def metadata_of(self, ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """Return the metadata of those of these IDs that exist."""
        rows = self._db.execute(
            "SELECT id, metadata FROM item WHERE id IN (SELECT value FROM json_each(?))",
            (json.dumps(list(ids)),),
        )
        return {each: json.loads(metadata) for each, metadata in rows}

    def metadata_after(self, after: str, limit: int) -> dict[str, Mapping[str, Any]]:
        """Return the metadata of the next IDs."""
        rows = self._db.execute(
            "SELECT id, metadata FROM item WHERE id > ? ORDER BY id LIMIT ?", (after, limit)
        )
        return {each: json.loads(metadata) for each, metadata in rows}

    def removed_since(self, place: int) -> Iterator[list[int]]:
        """Yield batches of the numbers removed after this removal."""
        rows = self._db.execute(
            "SELECT number FROM removed WHERE place > ? ORDER BY place", (place,)
        )
        while part := rows.fetchmany(READ):
            yield [number for (number,) in part]

    def added_since(self, number: int) -> Iterator[list[Row]]:
        """Yield batches of the items with higher numbers."""
        rows = self._db.execute(
            "SELECT number, vector, id, path, type, text FROM item JOIN body USING (number) "
            "WHERE number > ? ORDER BY number",
            (number,),
        )
        while part := rows.fetchmany(READ):
            yield [Row(n, np.frombuffer(vector, "<f4"), *rest) for n, vector, *rest in part]

    def with_words(self, text: str, k: int, where: Where) -> list[tuple[int, float]]:
        """Return the numbers and BM25 weights of items with words of a text, best first."""
        words = list(dict.fromkeys(WORD.findall(clean(text).lower())))[:MOST_WORDS]
        if not words:
            return []
        wanted = " OR ".join(f'"{word}"' for word in words)
        also, values = condition(where)
        # Without the plus, SQLite searches for the words once per matching item: 5 s for 1,000.
        among = f" AND +rowid IN (SELECT number FROM item{also})" if also else ""
        rows = self._db.execute(
            f"SELECT rowid, -rank FROM words WHERE words MATCH ?{among} "
            "ORDER BY rank, rowid LIMIT ?",
            (wanted, *values, k),
        )
        return rows.fetchall()

    def hits(self, scores: Mapping[int, float]) -> dict[int, Hit]:
        """Return the items of those of these numbers that exist, with their scores."""
        rows = self._db.execute(
            "SELECT number, id, text, path, type, title, metadata FROM item "
            "JOIN body USING (number) WHERE number IN (SELECT value FROM json_each(?))",
            (json.dumps(list(scores)),),
        )
        return {
            number: Hit(each, scores[number], text, path, kind, title, json.loads(metadata))
            for number, each, text, path, kind, title, metadata in rows
        }

    def _migrate(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version == VERSION:
            return
        if version == 0:
            statements = _statements(SCHEMA.read_text("utf-8"))
        elif version == 1:  # it had triggers for what `add` and `remove` do now
            statements = iter(("DROP TRIGGER body_added", "DROP TRIGGER body_removed"))
        else:
            raise sqlite3.DatabaseError(
                f"its schema version is {version}; this release supports {VERSION}"
            )
        for statement in statements:
            self._db.execute(statement)
        self._db.execute(f"PRAGMA user_version = {VERSION}")


def _moved(name: str, old: str, new: str) -> str:
    """Replace the prefix `old` of a name by `new`, if it has it."""
    return new + name[len(old) :] if name.startswith(old) else name


def _statements(text: str) -> Iterator[str]:
    """Yield the statements of a script; `executescript` would commit first."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
