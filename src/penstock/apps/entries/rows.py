"""The rows of entries: all SQL of this application, beside what makes its tables (`tables`).

Every function is a part of a transaction of the store. A row names the job that embeds it: that
job's state is the row's `embedding_status`, by the mirror, in the transaction that changes the
job. So a row that is `pending` has a job that nobody holds, and that will read the row as it is
when it is claimed.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock import Statements, Transaction

QUEUE = "entries"
STATUSES = ("pending", "processing", "embedded", "failed")

_SHOWN = (
    "number, id, type, category, data, version, embedding_status, embedding_error, "
    "embedding_attempts, created_at, updated_at"
)
# On SQLite, what stands on the left of LEFT is looked for first.
_WHOLE = "entries_entry LEFT JOIN entries_content USING (number)"
# A list of texts, or of numbers, as one parameter.
_TEXTS = {
    "sqlite": "(SELECT value FROM json_each(?))",
    "postgres": "(SELECT json_array_elements_text(CAST(? AS json)))",
}
_NUMBERS = {
    "sqlite": _TEXTS["sqlite"],
    "postgres": "(SELECT CAST(json_array_elements_text(CAST(? AS json)) AS bigint))",
}


class Content(NamedTuple):
    """What a row holds of an entry."""

    id: str
    type: str
    category: str
    digest: str
    data: str
    text: str


class Row(NamedTuple):
    """A row as it is shown."""

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


class Due(NamedTuple):
    """A row that is to be embedded: what of it, and by whom."""

    id: str
    job: int
    version: int
    type: str
    category: str
    text: str
    digest: str


class Chosen(msgspec.Struct, frozen=True):
    """Which rows are wanted: those that fit all that is set."""

    type: str | None = None
    category: str | None = None
    embedding_status: str | None = None
    ids: tuple[str, ...] | None = None


# Writing


def insert(tx: Transaction, contents: Sequence[Content], job: int, now: int) -> None:
    """Add rows that this job embeds, whatever there was; an id that is taken is replaced."""
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
    # One statement for all of them: each has its costs there.
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
    """Add a row that this job embeds; false if its id is taken."""
    added = tx.execute(
        f"{_INSERT} {_VALUES} ON CONFLICT (id) DO NOTHING RETURNING number",
        (*content[:4], job, now, now),
    ).fetchone()
    if added is not None:
        tx.execute("INSERT INTO entries_content VALUES (?, ?, ?)", (added[0], *content[4:]))
    return added is not None


def rewrite(tx: Transaction, content: Content, version: int, now: int) -> bool:
    """Give a row that waits other content: the job that it names was never begun.

    False if it is not at that version any more, or has been begun.
    """
    changed = tx.execute(
        "UPDATE entries_entry SET type = ?, category = ?, digest = ?, "
        "version = version + 1, updated_at = ? WHERE id = ? AND version = ? "
        "AND embedding_status = 'pending' AND embedding_attempts = 0 RETURNING number",
        (*content[1:4], now, content.id, version),
    )
    return _fill(tx, changed.fetchone(), content)


def replace(tx: Transaction, content: Content, version: int, job: int, now: int) -> bool:
    """Give a row other content, which this job embeds; false if it is at another version."""
    changed = tx.execute(
        "UPDATE entries_entry SET type = ?, category = ?, digest = ?, "
        "version = version + 1, updated_at = ?, embedding_status = 'pending', "
        "embedding_error = NULL, embedding_attempts = 0, job = ? WHERE id = ? AND version = ? "
        "RETURNING number",
        (*content[1:4], now, job, content.id, version),
    )
    return _fill(tx, changed.fetchone(), content)


def _fill(tx: Transaction, changed: tuple[int] | None, content: Content) -> bool:
    """Give the row that was changed its content; false if none was."""
    if changed is not None:
        tx.execute(
            "UPDATE entries_content SET data = ?, text = ? WHERE number = ?",
            (*content[4:], *changed),
        )
    return changed is not None


def hand_over(tx: Transaction, ids: Sequence[str], job: int, *, status: str) -> int:
    """Let another job embed those of these rows that have this status; how many."""
    changed = tx.execute(
        "UPDATE entries_entry SET embedding_status = 'pending', embedding_error = NULL, "
        f"embedding_attempts = 0, job = ? WHERE id IN {_TEXTS[tx.dialect]} "
        "AND embedding_status = ?",
        (job, json.dumps(list(ids)), status),
    )
    return changed.rowcount


def pass_on(tx: Transaction, row: str, old: int, new: int) -> None:
    """Let another job embed a row, if it still names the old one."""
    tx.execute(
        "UPDATE entries_entry SET embedding_status = 'pending', embedding_error = NULL, "
        "embedding_attempts = 0, job = ? WHERE id = ? AND job = ?",
        (new, row, old),
    )


def remove(tx: Transaction, ids: Sequence[str], name: str | None = None) -> list[str]:
    """Remove rows, of this type alone if it is given; which."""
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


# Reading


def get(tx: Statements, ids: Sequence[str]) -> dict[str, Row]:
    """These rows, by their ids, as far as they are there."""
    found = tx.execute(
        f"SELECT {_SHOWN} FROM {_WHOLE} WHERE id IN {_TEXTS[tx.dialect]}",
        (json.dumps(list(ids)),),
    )
    return {row.id: row for row in (Row(*one) for one in found.fetchall())}


def page(
    tx: Statements, chosen: Chosen, after: int | None, limit: int, *, newest: bool
) -> list[Row]:
    """The next rows that fit, in the order of their coming, or newest first."""
    text, values = _condition(tx, chosen)
    if after is not None:
        text += f" AND number {'<' if newest else '>'} ?"
        values.append(after)
    found = tx.execute(
        f"SELECT {_SHOWN} FROM {_WHOLE} WHERE {text} "
        f"ORDER BY number {'DESC' if newest else 'ASC'} LIMIT ?",
        (*values, limit),
    )
    return [Row(*one) for one in found.fetchall()]


def ids_after(tx: Statements, chosen: Chosen, after: str, limit: int) -> list[tuple[str, str]]:
    """The next rows that fit, by their ids: each with its type."""
    text, values = _condition(tx, chosen)
    found = tx.execute(
        f"SELECT id, type FROM entries_entry WHERE {text} AND id > ? ORDER BY id LIMIT ?",
        (*values, after, limit),
    )
    return [(one, name) for one, name in found.fetchall()]


def _condition(tx: Statements, chosen: Chosen) -> tuple[str, list[Any]]:
    parts, values = ["1 = 1"], []
    for name in ("type", "category", "embedding_status"):
        if (value := getattr(chosen, name)) is not None:
            parts.append(f"{name} = ?")
            values.append(value)
    if chosen.ids is not None:
        parts.append(f"id IN {_TEXTS[tx.dialect]}")
        values.append(json.dumps(chosen.ids))
    return " AND ".join(parts), values


def due(tx: Statements, jobs: Sequence[int]) -> list[Due]:
    """The rows that name these jobs, oldest job first."""
    found = tx.execute(
        f"SELECT id, job, version, type, category, text, digest FROM {_WHOLE} "
        f"WHERE job IN {_NUMBERS[tx.dialect]} ORDER BY job, number",
        (json.dumps(list(jobs)),),
    )
    return [Due(*one) for one in found.fetchall()]


def versions(tx: Statements, ids: Sequence[str]) -> dict[str, tuple[int, int, str]]:
    """Job, version and status of each of these rows, as far as they are there."""
    found = tx.execute(
        "SELECT id, job, version, embedding_status FROM entries_entry "
        f"WHERE id IN {_TEXTS[tx.dialect]}",
        (json.dumps(list(ids)),),
    )
    return {one: (job, version, status) for one, job, version, status in found.fetchall()}


def digests(tx: Statements, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The digest and the status of each of these rows, as far as they are there."""
    found = tx.execute(
        f"SELECT id, digest, embedding_status FROM entries_entry WHERE id IN {_TEXTS[tx.dialect]}",
        (json.dumps(list(ids)),),
    )
    return {one: (digest, status) for one, digest, status in found.fetchall()}


def embedded(tx: Statements, ids: Sequence[str]) -> list[Due]:
    """Those of these rows that are embedded."""
    found = tx.execute(
        f"SELECT id, job, version, type, category, text, digest FROM {_WHOLE} "
        f"WHERE id IN {_TEXTS[tx.dialect]} AND embedding_status = 'embedded'",
        (json.dumps(list(ids)),),
    )
    return [Due(*one) for one in found.fetchall()]


def embedded_after(tx: Statements, after: str, limit: int) -> list[tuple[str, str]]:
    """The next rows that are embedded, by their ids: each with its digest."""
    found = tx.execute(
        "SELECT id, digest FROM entries_entry WHERE id > ? AND embedding_status = 'embedded' "
        "ORDER BY id LIMIT ?",
        (after, limit),
    )
    return [(one, digest) for one, digest in found.fetchall()]


def types_of(tx: Statements, jobs: Sequence[int]) -> dict[str, int]:
    """How many rows of each type name these jobs."""
    found = tx.execute(
        f"SELECT type, count(*) FROM entries_entry WHERE job IN {_NUMBERS[tx.dialect]} "
        "GROUP BY type",
        (json.dumps(list(jobs)),),
    )
    return {name: int(n) for name, n in found.fetchall()}


def newest_job(tx: Statements) -> int:
    """The newest job that a row names which is not embedded yet; 0 if there is none."""
    found = tx.execute(
        "SELECT coalesce(max(job), 0) FROM entries_entry "
        "WHERE embedding_status IN ('pending', 'processing')"
    )
    return int(found.fetchone()[0])


def unfinished(tx: Statements, upto: int) -> int:
    """How many rows are not embedded yet and name a job up to this one."""
    found = tx.execute(
        "SELECT count(*) FROM entries_entry "
        "WHERE embedding_status IN ('pending', 'processing') AND job <= ?",
        (upto,),
    )
    return int(found.fetchone()[0])


def counts(tx: Statements) -> dict[tuple[str, str], int]:
    """How many rows there are of each type and status; the cost does not grow with them."""
    found = tx.execute(
        "SELECT type, embedding_status, sum(n) FROM entries_count GROUP BY type, embedding_status"
    )
    return {(name, status): int(n) for name, status, n in found.fetchall()}


def gather_counts(tx: Transaction) -> None:
    """Add up what connections have counted that are closed: on PostgreSQL each has a slot."""
    if tx.dialect == "postgres":
        tx.execute(
            "WITH gone AS (DELETE FROM entries_count WHERE slot <> 0 AND slot NOT IN "
            "(SELECT pid FROM pg_stat_activity) RETURNING type, embedding_status, n) "
            "INSERT INTO entries_count AS known SELECT 0, type, embedding_status, sum(n) "
            "FROM gone GROUP BY type, embedding_status "
            "ON CONFLICT (slot, type, embedding_status) DO UPDATE SET n = known.n + excluded.n"
        )


# Rows that have failed


def failed(tx: Statements, limit: int) -> list[str]:
    """Rows that have failed, and whose vectors have not been looked for since."""
    found = tx.execute("SELECT id FROM entries_failed LIMIT ?", (limit,))
    return [one for (one,) in found.fetchall()]


def looked_at(tx: Transaction, ids: Sequence[str]) -> None:
    """None of these has a vector that it should not have."""
    tx.execute(
        f"DELETE FROM entries_failed WHERE id IN {_TEXTS[tx.dialect]}", (json.dumps(list(ids)),)
    )


# Facts


def fact(tx: Statements, name: str) -> str | None:
    """What is kept under a name."""
    found = tx.execute("SELECT value FROM entries_fact WHERE name = ?", (name,)).fetchone()
    return None if found is None else str(found[0])


def keep(tx: Transaction, name: str, value: str) -> None:
    """Keep a value under a name."""
    tx.execute(
        "INSERT INTO entries_fact VALUES (?, ?) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )


def keep_first(tx: Transaction, name: str, value: str) -> None:
    """Keep a value under a name that has none yet."""
    tx.execute(
        "INSERT INTO entries_fact VALUES (?, ?) ON CONFLICT (name) DO NOTHING", (name, value)
    )


# How many jobs each worker has ended

_TALLY = "worker:"


class Tally(NamedTuple):
    """How many jobs a worker has ended, since it was started."""

    succeeded: int = 0
    failed: int = 0


def keep_tally(tx: Transaction, worker: str, tally: Tally) -> None:
    """Keep how many jobs a worker has ended."""
    keep(tx, f"{_TALLY}{worker}", json.dumps(tally))


def tallies(tx: Statements) -> dict[str, Tally]:
    """How many jobs each worker has ended that is known."""
    found = tx.execute(
        "SELECT name, value FROM entries_fact WHERE name >= ? AND name < ?", (_TALLY, "worker;")
    )
    return {name.removeprefix(_TALLY): Tally(*json.loads(value)) for name, value in found}


def forget_tally(tx: Transaction, worker: str) -> None:
    """Forget what a worker has ended that ends itself."""
    tx.execute("DELETE FROM entries_fact WHERE name = ?", (f"{_TALLY}{worker}",))


def forget_tallies(tx: Transaction, known: Collection[str]) -> None:
    """Forget what workers have ended that are none of these."""
    gone = [f"{_TALLY}{name}" for name in tallies(tx) if name not in known]
    if gone:
        tx.execute(
            f"DELETE FROM entries_fact WHERE name IN {_TEXTS[tx.dialect]}", (json.dumps(gone),)
        )
