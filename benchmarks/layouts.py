"""Which table layout and which way of writing a batch cost how much: `python -m benchmarks.layouts`.

The figures behind docs/adr/0001 and 0003. CPU time per job, best of several rounds, because the
question is which of two ways is cheaper, not how fast the disk is.
"""

import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

JOBS = 20_000
BATCH = 100
ROUNDS = 5
NOW = 1_700_000_000_000_000
PAYLOAD = msgspec.json.encode({"data": {"text": "x" * 180}}).decode()

MUTABLE = """stage INT NOT NULL, version INT NOT NULL, attempt INT NOT NULL DEFAULT 0, token INT,
    run_at INT NOT NULL, started_at INT, expires_at INT, finished_at INT, worker TEXT,
    queue TEXT NOT NULL, priority INT NOT NULL"""
FIXED = "task TEXT NOT NULL, enqueued_at INT NOT NULL, lease_time INT NOT NULL, payload TEXT"
INDEXES = """
CREATE INDEX ready ON {0} (queue, priority DESC, run_at, id) WHERE stage = 0;
CREATE INDEX leased ON {0} (expires_at) WHERE stage = 3;
CREATE INDEX finished ON {0} (stage, finished_at) WHERE stage >= 4;
"""
LOG = "CREATE TABLE log (id INTEGER PRIMARY KEY, job_id INT, at INT, event TEXT, actor TEXT);"

LAYOUTS = {
    "one table": f"CREATE TABLE job (id INTEGER PRIMARY KEY, {MUTABLE}, {FIXED});"
    + INDEXES.format("job"),
    "fixed and mutable apart": f"CREATE TABLE job (id INTEGER PRIMARY KEY, {FIXED});"
    f"CREATE TABLE status (id INTEGER PRIMARY KEY, {MUTABLE});" + INDEXES.format("status"),
    "narrow ready and lease": f"CREATE TABLE job (id INTEGER PRIMARY KEY, {FIXED});"
    "CREATE TABLE ready (queue TEXT, priority INT, run_at INT, id INT, attempt INT,"
    " PRIMARY KEY (queue, priority DESC, run_at, id)) WITHOUT ROWID;"
    "CREATE TABLE lease (id INTEGER PRIMARY KEY, token INT, attempt INT, started_at INT,"
    " expires_at INT, worker TEXT);"
    "CREATE INDEX leased ON lease (expires_at);"
    "CREATE TABLE finished (id INTEGER PRIMARY KEY, stage INT, at INT, worker TEXT);"
    "CREATE INDEX finished_at ON finished (stage, at);",
}

Ids = list[int]
Step = Callable[[sqlite3.Connection, Ids], object]

_FIXED_ROW = "?1 + key, 'noop', ?2, 30000000, value FROM json_each(?3)"
_ADD_ONE = (
    "INSERT INTO job (id, task, enqueued_at, lease_time, payload, stage, version, run_at, queue,"
    " priority) SELECT ?1 + key, 'noop', ?2, 30000000, value, 0, ?1 + key, ?2, 'default', 5"
    " FROM json_each(?3)"
)
_ADD_FIXED = f"INSERT INTO job (id, task, enqueued_at, lease_time, payload) SELECT {_FIXED_ROW}"
_ADD_STATUS = (
    "INSERT INTO status (id, stage, version, run_at, queue, priority)"
    " SELECT ?1 + key, 0, ?1 + key, ?2, 'default', 5 FROM json_each(?3)"
)
_ADD_READY = "INSERT INTO ready SELECT 'default', 5, ?2, ?1 + key, 0 FROM json_each(?3)"


def add(layout: str, connection: sqlite3.Connection) -> None:
    """All jobs in one transaction, with their log."""
    statements = {
        "one table": [_ADD_ONE],
        "fixed and mutable apart": [_ADD_FIXED, _ADD_STATUS],
        "narrow ready and lease": [_ADD_FIXED, _ADD_READY],
    }[layout]
    parameters = (1, NOW, msgspec.json.encode([PAYLOAD] * JOBS).decode())
    connection.execute("BEGIN IMMEDIATE")
    for statement in statements:
        connection.execute(statement, parameters)
    connection.execute("INSERT INTO log SELECT id, id, enqueued_at, 'enqueued', 'me' FROM job")
    connection.execute("COMMIT")


def claim(layout: str, connection: sqlite3.Connection) -> Ids:
    """The next batch, with its log and its payloads."""
    connection.execute("BEGIN IMMEDIATE")
    table = {"one table": "job", "fixed and mutable apart": "status"}.get(layout)
    where = f"{table} WHERE stage = 0 AND" if table else "ready WHERE"
    (ids,) = connection.execute(
        f"SELECT json_group_array(id) FROM (SELECT id FROM {where} queue = 'default'"  # noqa: S608 - our own names
        f" ORDER BY priority DESC, run_at, id LIMIT {BATCH})"
    ).fetchone()
    if table:
        connection.execute(
            f"UPDATE {table} SET stage = 3, version = version + ?1, token = version, attempt = 1,"  # noqa: S608 - as above
            f" started_at = ?1, expires_at = ?1, worker = 'me' FROM json_each(?2) AS p"
            f" WHERE {table}.id = p.value",
            (NOW, ids),
        )
    else:
        connection.execute(
            "DELETE FROM ready WHERE (queue, priority, run_at, id) IN"
            " (SELECT 'default', 5, ?1, value FROM json_each(?2))",
            (NOW, ids),
        )
        connection.execute(
            "INSERT INTO lease SELECT value, ?1, 1, ?1, ?1, 'me' FROM json_each(?2)", (NOW, ids)
        )
    _log(connection, "claimed", ids)
    connection.execute(
        "SELECT json_group_array(payload) FROM json_each(?) AS p CROSS JOIN job ON job.id = p.value",
        (ids,),
    ).fetchone()
    connection.execute("COMMIT")
    return msgspec.json.decode(ids, type=Ids)


def settle(layout: str, connection: sqlite3.Connection, ids: Ids) -> None:
    """End a batch as done, with its log."""
    connection.execute("BEGIN IMMEDIATE")
    encoded = msgspec.json.encode(ids).decode()
    table = {"one table": "job", "fixed and mutable apart": "status"}.get(layout)
    if table:
        connection.execute(
            f"UPDATE {table} SET stage = 4, expires_at = NULL, finished_at = ?1"  # noqa: S608 - as above
            f" FROM json_each(?2) AS p WHERE {table}.id = p.value",
            (NOW, encoded),
        )
    else:
        connection.execute(
            "INSERT INTO finished SELECT id, 4, ?1, worker FROM lease WHERE id IN"
            " (SELECT value FROM json_each(?2))",
            (NOW, encoded),
        )
        connection.execute(
            "DELETE FROM lease WHERE id IN (SELECT value FROM json_each(?))", (encoded,)
        )
    _log(connection, "done", encoded)
    connection.execute("COMMIT")


def settle_row_by_row(connection: sqlite3.Connection, ids: Ids) -> None:
    """The same on one table, binding every row."""
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(
        "UPDATE job SET stage = 4, expires_at = NULL, finished_at = ? WHERE id = ?",
        [(NOW, job_id) for job_id in ids],
    )
    connection.executemany(
        "INSERT INTO log (job_id, at, event, actor) VALUES (?, ?, 'done', 'me')",
        [(job_id, NOW) for job_id in ids],
    )
    connection.execute("COMMIT")


def add_row_by_row(connection: sqlite3.Connection) -> None:
    """All jobs into one table, binding every row."""
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(
        "INSERT INTO job (id, task, enqueued_at, lease_time, payload, stage, version, run_at, queue,"
        " priority) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (n, "noop", NOW, 30_000_000, PAYLOAD, 0, n, NOW, "default", 5)
            for n in range(1, JOBS + 1)
        ],
    )
    connection.execute("INSERT INTO log SELECT id, id, enqueued_at, 'enqueued', 'me' FROM job")
    connection.execute("COMMIT")


def _log(connection: sqlite3.Connection, event: str, ids: str) -> None:
    connection.execute(
        "INSERT INTO log (job_id, at, event, actor) SELECT value, ?, ?, 'me' FROM json_each(?)",
        (NOW, event, ids),
    )


def measure(layout: str, folder: Path, *, row_by_row: bool = False) -> tuple[float, float, float]:
    """CPU microseconds per job: added, claimed, settled."""
    connection = sqlite3.connect(folder / "layout.db", isolation_level=None)
    connection.executescript(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 4000;"
        + LAYOUTS[layout]
        + LOG
    )
    start = time.process_time()
    if row_by_row:
        add_row_by_row(connection)
    else:
        add(layout, connection)
    added = time.process_time() - start
    claiming = settling = 0.0
    while True:
        start = time.process_time()
        ids = claim(layout, connection)
        claiming += time.process_time() - start
        if not ids:
            break
        start = time.process_time()
        if row_by_row:
            settle_row_by_row(connection, ids)
        else:
            settle(layout, connection, ids)
        settling += time.process_time() - start
    connection.close()
    return added / JOBS * 1e6, claiming / JOBS * 1e6, settling / JOBS * 1e6


def main() -> None:
    """Measure all, interleaved, and print the best of each."""
    cases = [(layout, False) for layout in LAYOUTS] + [("one table", True)]
    found: dict[tuple[str, bool], list[tuple[float, float, float]]] = {case: [] for case in cases}
    for _ in range(ROUNDS):
        for layout, row_by_row in cases:
            with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # noqa: S108 - on disk
                figures = measure(layout, Path(folder), row_by_row=row_by_row)
                found[layout, row_by_row].append(figures)
    table = Table("layout", "add", "claim", "settle", title="CPU µs per job, best of rounds")
    for (layout, row_by_row), rounds in found.items():
        best = [f"{min(values):.1f}" for values in zip(*rounds, strict=True)]
        table.add_row(layout + (", row by row" if row_by_row else ""), *best)
    Console().print(table)


if __name__ == "__main__":
    main()
