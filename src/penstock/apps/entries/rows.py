"""The tables of entries and all SQL on them.

Every function runs inside a transaction of the store. A row names the job that embeds it. The
mirror copies that job's state to the row's `embedding_status` in the transaction that changes the
job, so a `pending` row has a job that no worker holds, and which reads the row as it is once
claimed.
"""

import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec

from penstock.tables import Mirror, Statements, Tables, Transaction

QUEUE = "entries"
STATUSES = ("pending", "processing", "embedded", "failed")

_SHOWN = (
    "number, id, type, category, data, version, embedding_status, embedding_error, "
    "embedding_attempts, created_at, updated_at"
)
# SQLite reads the left table of a LEFT JOIN first.
_WHOLE = "entries_entry LEFT JOIN entries_content USING (number)"
# A list of texts, or of numbers, passed as one parameter.
_TEXTS = {
    "sqlite": "(SELECT value FROM json_each(?))",
    "postgres": "(SELECT json_array_elements_text(CAST(? AS json)))",
}
_NUMBERS = {
    "sqlite": _TEXTS["sqlite"],
    "postgres": "(SELECT CAST(json_array_elements_text(CAST(? AS json)) AS bigint))",
}


# Schema


def _script(name: str) -> str:
    return files("penstock.apps.entries").joinpath(name).read_text("utf-8")


TABLES = Tables(
    sqlite=tuple(map(_script, ("sqlite.sql", "sqlite_content.sql", "sqlite_failed.sql"))),
    postgres=tuple(map(_script, ("postgres.sql", "postgres_content.sql", "postgres_failed.sql"))),
)

# The last condition leaves rows alone when a lease is renewed.
_MIRRORED = """
UPDATE entries_entry SET
    embedding_status = CASE
        WHEN NEW.stage < 3 THEN 'pending' WHEN NEW.stage = 3 THEN 'processing'
        WHEN NEW.stage = 4 THEN 'embedded' ELSE 'failed' END,
    embedding_error = CASE
        WHEN NEW.stage = 4 THEN NULL WHEN NEW.stage > 5 THEN 'its job was cancelled'
        ELSE replace({headline}, 'penstock.apps.entries.embedding.EmbeddingFailed: ', '') END,
    embedding_attempts = NEW.attempt
WHERE job = NEW.id AND (
    NEW.stage <> 3 OR embedding_status <> 'processing' OR embedding_attempts <> NEW.attempt
)
"""
MIRROR = Mirror(
    name="entries_status",
    queue=QUEUE,
    sqlite=_MIRRORED.format(
        headline="substr(NEW.error, 1, instr(NEW.error || char(10), char(10)) - 1)"
    ),
    postgres=_MIRRORED.format(headline="split_part(NEW.error, chr(10), 1)"),
)


# Values


class Content(NamedTuple):
    """The content of an entry as a row stores it."""

    id: str
    type: str
    category: str
    digest: str
    data: str
    text: str


class Row(NamedTuple):
    """A row as read."""

    number: int
    id: str
    type: str
    category: str
    data: str
    version: int
    embedding_status: str
    embedding_error: str | None
    embedding_attempts: int
    created_at: int
    updated_at: int


class DueRow(NamedTuple):
    """A row to embed, and the job that embeds it."""

    id: str
    job: int
    version: int
    type: str
    category: str
    text: str
    digest: str


class EntryQuery(msgspec.Struct, frozen=True):
    """Selects the entries that match every field that is set."""

    type: str | None = None
    category: str | None = None
    embedding_status: str | None = None
    ids: tuple[str, ...] | None = None


# Writes


def insert(tx: Transaction, contents: Sequence[Content], job: int, now: int) -> None:
    """Add rows that this job embeds, replacing those with the same id."""
    if tx.dialect == "sqlite":
        tx.executemany(
            f"{_INSERT} {_VALUES} {_OR_REPLACE}", [(*one[:4], job, now, now) for one in contents]
        )
        tx.executemany(
            "INSERT INTO entries_content "
            "VALUES ((SELECT number FROM entries_entry WHERE id = ?), ?, ?) "
            f"ON CONFLICT (number) {_REPLACE_CONTENT}",
            [(one.id, one.data, one.text) for one in contents],
        )
        return
    # PostgreSQL: one statement for all rows, since each costs a round trip.
    tx.execute(
        "WITH given AS (SELECT * FROM json_to_recordset(CAST(? AS json)) AS given "
        "(id text, type text, category text, data text, text text, digest text)), "
        f"stored AS ({_INSERT} SELECT id, type, category, digest, 1, 'pending', 0, "
        "CAST(? AS bigint), CAST(? AS bigint), CAST(? AS bigint) FROM given "
        f"{_OR_REPLACE} RETURNING id, number) "
        "INSERT INTO entries_content SELECT number, data, text FROM stored JOIN given USING (id) "
        f"ON CONFLICT (number) {_REPLACE_CONTENT}",
        (msgspec.json.encode([one._asdict() for one in contents]).decode(), job, now, now),
    )


_INSERT = (
    "INSERT INTO entries_entry (id, type, category, digest, version, "
    "embedding_status, embedding_attempts, job, created_at, updated_at)"
)
_VALUES = "VALUES (?, ?, ?, ?, 1, 'pending', 0, ?, ?, ?)"
_OR_REPLACE = (
    "ON CONFLICT (id) DO UPDATE SET type = excluded.type, category = excluded.category, "
    "digest = excluded.digest, version = entries_entry.version + 1, "
    "embedding_status = 'pending', embedding_error = NULL, embedding_attempts = 0, "
    "job = excluded.job, updated_at = excluded.updated_at"
)
_REPLACE_CONTENT = "DO UPDATE SET data = excluded.data, text = excluded.text"


def add(tx: Transaction, content: Content, job: int, now: int) -> bool:
    """Add a row that this job embeds; return False if its id is taken."""
    added = tx.execute(
        f"{_INSERT} {_VALUES} ON CONFLICT (id) DO NOTHING RETURNING number",
        (*content[:4], job, now, now),
    ).fetchone()
    if added is not None:
        tx.execute("INSERT INTO entries_content VALUES (?, ?, ?)", (added[0], *content[4:]))
    return added is not None


def rewrite(tx: Transaction, content: Content, version: int, now: int) -> bool:
    """Change the content of a pending row, whose job was never started and is kept.

    Return False if the row is at another version or its job has been started.
    """
    changed = tx.execute(
        "UPDATE entries_entry SET type = ?, category = ?, digest = ?, "
        "version = version + 1, updated_at = ? WHERE id = ? AND version = ? "
        "AND embedding_status = 'pending' AND embedding_attempts = 0 RETURNING number",
        (*content[1:4], now, content.id, version),
    )
    return _write_content(tx, changed.fetchone(), content)


def replace(tx: Transaction, content: Content, version: int, job: int, now: int) -> bool:
    """Change the content of a row, which this job embeds; False if it is at another version."""
    changed = tx.execute(
        "UPDATE entries_entry SET type = ?, category = ?, digest = ?, "
        "version = version + 1, updated_at = ?, embedding_status = 'pending', "
        "embedding_error = NULL, embedding_attempts = 0, job = ? WHERE id = ? AND version = ? "
        "RETURNING number",
        (*content[1:4], now, job, content.id, version),
    )
    return _write_content(tx, changed.fetchone(), content)


def _write_content(tx: Transaction, changed: tuple[int] | None, content: Content) -> bool:
    """Write the content of the row that was changed; return False if none was."""
    if changed is not None:
        tx.execute(
            "UPDATE entries_content SET data = ?, text = ? WHERE number = ?",
            (*content[4:], *changed),
        )
    return changed is not None


def reassign(tx: Transaction, ids: Sequence[str], job: int, *, status: str) -> int:
    """Assign the rows that have this status to another job; return how many."""
    changed = tx.execute(
        "UPDATE entries_entry SET embedding_status = 'pending', embedding_error = NULL, "
        f"embedding_attempts = 0, job = ? WHERE id IN {_TEXTS[tx.dialect]} "
        "AND embedding_status = ?",
        (job, json.dumps(list(ids)), status),
    )
    return changed.rowcount


def reassign_one(tx: Transaction, row: str, old: int, new: int) -> None:
    """Assign a row to another job, if it still names the old one."""
    tx.execute(
        "UPDATE entries_entry SET embedding_status = 'pending', embedding_error = NULL, "
        "embedding_attempts = 0, job = ? WHERE id = ? AND job = ?",
        (new, row, old),
    )


def remove(tx: Transaction, ids: Sequence[str], name: str | None = None) -> list[str]:
    """Remove rows, only those of a type if one is given; return the ids removed."""
    also, values = (" AND type = ?", [name]) if name is not None else ("", [])
    removed = tx.execute(
        f"DELETE FROM entries_entry WHERE id IN {_TEXTS[tx.dialect]}{also} RETURNING id, number",
        (json.dumps(list(ids)), *values),
    ).fetchall()
    tx.execute(
        f"DELETE FROM entries_content WHERE number IN {_NUMBERS[tx.dialect]}",
        (json.dumps([number for _, number in removed]),),
    )
    return [one for one, _ in removed]


# Reads


def get(tx: Statements, ids: Sequence[str]) -> dict[str, Row]:
    """Return the rows that exist, by id."""
    found = tx.execute(
        f"SELECT {_SHOWN} FROM {_WHOLE} WHERE id IN {_TEXTS[tx.dialect]}",
        (json.dumps(list(ids)),),
    )
    return {row.id: row for row in (Row(*one) for one in found.fetchall())}


def page(
    tx: Statements, query: EntryQuery, after: int | None, limit: int, *, newest: bool
) -> list[Row]:
    """Return the next rows that match, oldest or newest first."""
    text, values = _condition(tx, query)
    if after is not None:
        text += f" AND number {'<' if newest else '>'} ?"
        values.append(after)
    found = tx.execute(
        f"SELECT {_SHOWN} FROM {_WHOLE} WHERE {text} "
        f"ORDER BY number {'DESC' if newest else 'ASC'} LIMIT ?",
        (*values, limit),
    )
    return [Row(*one) for one in found.fetchall()]


def ids_after(tx: Statements, query: EntryQuery, after: str, limit: int) -> list[tuple[str, str]]:
    """Return id and type of the next rows that match, ordered by id."""
    text, values = _condition(tx, query)
    found = tx.execute(
        f"SELECT id, type FROM entries_entry WHERE {text} AND id > ? ORDER BY id LIMIT ?",
        (*values, after, limit),
    )
    return [(one, name) for one, name in found.fetchall()]


def _condition(tx: Statements, query: EntryQuery) -> tuple[str, list[Any]]:
    parts, values = ["1 = 1"], []
    for name in ("type", "category", "embedding_status"):
        if (value := getattr(query, name)) is not None:
            parts.append(f"{name} = ?")
            values.append(value)
    if query.ids is not None:
        parts.append(f"id IN {_TEXTS[tx.dialect]}")
        values.append(json.dumps(query.ids))
    return " AND ".join(parts), values


def due(tx: Statements, jobs: Sequence[int]) -> list[DueRow]:
    """Return the rows that name these jobs, oldest job first."""
    found = tx.execute(
        f"SELECT id, job, version, type, category, text, digest FROM {_WHOLE} "
        f"WHERE job IN {_NUMBERS[tx.dialect]} ORDER BY job, number",
        (json.dumps(list(jobs)),),
    )
    return [DueRow(*one) for one in found.fetchall()]


def versions(tx: Statements, ids: Sequence[str]) -> dict[str, tuple[int, int, str]]:
    """Return job, version and status of the rows that exist, by id."""
    found = tx.execute(
        "SELECT id, job, version, embedding_status FROM entries_entry "
        f"WHERE id IN {_TEXTS[tx.dialect]}",
        (json.dumps(list(ids)),),
    )
    return {one: (job, version, status) for one, job, version, status in found.fetchall()}


def digests(tx: Statements, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return digest and status of the rows that exist, by id."""
    found = tx.execute(
        f"SELECT id, digest, embedding_status FROM entries_entry WHERE id IN {_TEXTS[tx.dialect]}",
        (json.dumps(list(ids)),),
    )
    return {one: (digest, status) for one, digest, status in found.fetchall()}


def embedded(tx: Statements, ids: Sequence[str]) -> list[DueRow]:
    """Return those of these rows that are embedded."""
    found = tx.execute(
        f"SELECT id, job, version, type, category, text, digest FROM {_WHOLE} "
        f"WHERE id IN {_TEXTS[tx.dialect]} AND embedding_status = 'embedded'",
        (json.dumps(list(ids)),),
    )
    return [DueRow(*one) for one in found.fetchall()]


def embedded_after(tx: Statements, after: str, limit: int) -> list[tuple[str, str]]:
    """Return id and digest of the next rows that are embedded, ordered by id."""
    found = tx.execute(
        "SELECT id, digest FROM entries_entry WHERE id > ? AND embedding_status = 'embedded' "
        "ORDER BY id LIMIT ?",
        (after, limit),
    )
    return [(one, digest) for one, digest in found.fetchall()]


def types_of(tx: Statements, jobs: Sequence[int]) -> dict[str, int]:
    """Count the rows that name these jobs, by type."""
    found = tx.execute(
        f"SELECT type, count(*) FROM entries_entry WHERE job IN {_NUMBERS[tx.dialect]} "
        "GROUP BY type",
        (json.dumps(list(jobs)),),
    )
    return {name: int(n) for name, n in found.fetchall()}


def newest_job(tx: Statements) -> int:
    """Return the newest job of a row that is not yet embedded; 0 if there is none."""
    found = tx.execute(
        "SELECT coalesce(max(job), 0) FROM entries_entry "
        "WHERE embedding_status IN ('pending', 'processing')"
    )
    return int(found.fetchone()[0])


def unfinished(tx: Statements, upto: int) -> int:
    """Count the rows that are not yet embedded and name a job up to this one."""
    found = tx.execute(
        "SELECT count(*) FROM entries_entry "
        "WHERE embedding_status IN ('pending', 'processing') AND job <= ?",
        (upto,),
    )
    return int(found.fetchone()[0])


def counts(tx: Statements) -> dict[tuple[str, str], int]:
    """Count the rows by type and status, in constant time."""
    found = tx.execute(
        "SELECT type, embedding_status, sum(n) FROM entries_count GROUP BY type, embedding_status"
    )
    return {(name, status): int(n) for name, status, n in found.fetchall()}


def merge_counts(tx: Transaction) -> None:
    """Merge the counters of closed connections: on PostgreSQL each connection has its own slot."""
    if tx.dialect == "postgres":
        tx.execute(
            "WITH gone AS (DELETE FROM entries_count WHERE slot <> 0 AND slot NOT IN "
            "(SELECT pid FROM pg_stat_activity) RETURNING type, embedding_status, n) "
            "INSERT INTO entries_count AS known SELECT 0, type, embedding_status, sum(n) "
            "FROM gone GROUP BY type, embedding_status "
            "ON CONFLICT (slot, type, embedding_status) DO UPDATE SET n = known.n + excluded.n"
        )


# Failed rows


def failed(tx: Statements, limit: int) -> list[str]:
    """Return the ids of failed rows whose vectors have not been removed since."""
    found = tx.execute("SELECT id FROM entries_failed LIMIT ?", (limit,))
    return [one for (one,) in found.fetchall()]


def forget_failed(tx: Transaction, ids: Sequence[str]) -> None:
    """Record that the vectors of these rows have been removed."""
    tx.execute(
        f"DELETE FROM entries_failed WHERE id IN {_TEXTS[tx.dialect]}", (json.dumps(list(ids)),)
    )


# Named values


def value(tx: Statements, name: str) -> str | None:
    """Return the value stored under a name; None if there is none."""
    found = tx.execute("SELECT value FROM entries_fact WHERE name = ?", (name,)).fetchone()
    return None if found is None else str(found[0])


def set_value(tx: Transaction, name: str, value: str) -> None:
    """Store a value under a name."""
    tx.execute(
        "INSERT INTO entries_fact VALUES (?, ?) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )


def add_value(tx: Transaction, name: str, value: str) -> None:
    """Store a value under a name that has none yet."""
    tx.execute(
        "INSERT INTO entries_fact VALUES (?, ?) ON CONFLICT (name) DO NOTHING", (name, value)
    )


# Jobs ended by each worker

_TALLY = "worker:"


class Tally(NamedTuple):
    """How many jobs a worker has ended since it started."""

    succeeded: int = 0
    failed: int = 0


def set_tally(tx: Transaction, worker: str, tally: Tally) -> None:
    """Store the tally of a worker."""
    set_value(tx, f"{_TALLY}{worker}", json.dumps(tally))


def tallies(tx: Statements) -> dict[str, Tally]:
    """Return the tally of each worker, by name."""
    found = tx.execute(
        "SELECT name, value FROM entries_fact WHERE name >= ? AND name < ?", (_TALLY, "worker;")
    )
    return {name.removeprefix(_TALLY): Tally(*json.loads(value)) for name, value in found}


def delete_tallies(tx: Transaction, workers: Iterable[str]) -> None:
    """Delete the tallies of these workers."""
    names = [f"{_TALLY}{name}" for name in workers]
    tx.execute(f"DELETE FROM entries_fact WHERE name IN {_TEXTS[tx.dialect]}", (json.dumps(names),))
