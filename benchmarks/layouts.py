"""What table layouts and ways of writing a batch cost: `python -m benchmarks.layouts`.

The figures behind docs/adr/0001 and 0003. CPU time per job, best of several rounds, because the
question is which of two ways is cheaper, not how fast the disk is.
"""

import sqlite3
import tempfile
import time
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
FIXED = "task TEXT NOT NULL, enqueued_at INT NOT NULL, lease_time INT NOT NULL"
INDEXES = """
CREATE INDEX ready ON job (queue, priority DESC, run_at, id) WHERE stage = 0;
CREATE INDEX leased ON job (expires_at) WHERE stage = 3;
CREATE INDEX finished ON job (stage, finished_at) WHERE stage >= 4;
"""
LOG = "CREATE TABLE log (id INTEGER PRIMARY KEY, job_id INT, at INT, event TEXT, actor TEXT);"

LAYOUTS = {
    "one table": f"CREATE TABLE job (id INTEGER PRIMARY KEY, {MUTABLE}, {FIXED}, payload TEXT);"
    + INDEXES,
    "arguments apart": f"CREATE TABLE job (id INTEGER PRIMARY KEY, {MUTABLE}, {FIXED});"
    "CREATE TABLE payload (job_id INTEGER PRIMARY KEY, body TEXT);" + INDEXES,
    "narrow ready and lease": f"CREATE TABLE job (id INTEGER PRIMARY KEY, {FIXED}, payload TEXT);"
    "CREATE TABLE ready (queue TEXT, priority INT, run_at INT, id INT, attempt INT,"
    " PRIMARY KEY (queue, priority DESC, run_at, id)) WITHOUT ROWID;"
    "CREATE TABLE lease (id INTEGER PRIMARY KEY, token INT, attempt INT, started_at INT,"
    " expires_at INT, worker TEXT);"
    "CREATE INDEX leased ON lease (expires_at);"
    "CREATE TABLE finished (id INTEGER PRIMARY KEY, stage INT, at INT, worker TEXT);"
    "CREATE INDEX finished_at ON finished (stage, at);",
}

Ids = list[int]

_ADD_WHOLE = (
    "INSERT INTO job (id, task, enqueued_at, lease_time, payload, stage, version, run_at, queue,"
    " priority) SELECT ?1 + key, 'noop', ?2, 30000000, value, 0, ?1 + key, ?2, 'default', 5"
    " FROM json_each(?3)"
)
_ADD_JOB = _ADD_WHOLE.replace(" payload,", "").replace(" value,", "")
_ADD_PAYLOAD = "INSERT INTO payload SELECT ?1 + key, value FROM json_each(?3)"
_ADD_FIXED = (
    "INSERT INTO job (id, task, enqueued_at, lease_time, payload)"
    " SELECT ?1 + key, 'noop', ?2, 30000000, value FROM json_each(?3)"
)
_ADD_READY = "INSERT INTO ready SELECT 'default', 5, ?2, ?1 + key, 0 FROM json_each(?3)"

_PICK = (
    "SELECT json_group_array(id) FROM (SELECT id FROM job WHERE stage = 0 AND queue = 'default'"
    " ORDER BY priority DESC, run_at, id LIMIT ?)"
)
_PICK_NARROW = _PICK.replace("job WHERE stage = 0 AND", "ready WHERE")
_START = (
    "UPDATE job SET stage = 3, version = version + ?1, token = version, attempt = 1,"
    " started_at = ?1, expires_at = ?1, worker = 'me' FROM json_each(?2) AS p"
    " WHERE job.id = p.value"
)
_TAKE_READY = (
    "DELETE FROM ready WHERE queue = 'default' AND priority = 5 AND run_at = ?1"
    " AND id IN (SELECT value FROM json_each(?2))"
)
_LEASE = "INSERT INTO lease SELECT value, ?1, 1, ?1, ?1, 'me' FROM json_each(?2)"
_READ = (
    "SELECT json_group_array(json_array(job.id, task, payload)) FROM json_each(?) AS p"
    " CROSS JOIN job ON job.id = p.value"
)
_READ_APART = (
    "SELECT json_group_array(json_array(job.id, task, body)) FROM json_each(?) AS p"
    " CROSS JOIN job ON job.id = p.value CROSS JOIN payload ON job_id = p.value"
)
_FINISH = (
    "UPDATE job SET stage = 4, expires_at = NULL, finished_at = ?1 FROM json_each(?2) AS p"
    " WHERE job.id = p.value"
)
_FINISH_NARROW = (
    "INSERT INTO finished SELECT id, 4, ?1, worker FROM lease"
    " WHERE id IN (SELECT value FROM json_each(?2))"
)
_END_LEASE = "DELETE FROM lease WHERE id IN (SELECT value FROM json_each(?))"


def add(layout: str, connection: sqlite3.Connection) -> None:
    """All jobs in one transaction, with their log."""
    statements = {
        "one table": [_ADD_WHOLE],
        "arguments apart": [_ADD_JOB, _ADD_PAYLOAD],
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
    narrow = layout.startswith("narrow")
    ids: str = connection.execute(_PICK_NARROW if narrow else _PICK, (BATCH,)).fetchone()[0]
    if narrow:
        connection.execute(_TAKE_READY, (NOW, ids))
        connection.execute(_LEASE, (NOW, ids))
    else:
        connection.execute(_START, (NOW, ids))
    _log(connection, "claimed", ids)
    payloads = _READ_APART if layout == "arguments apart" else _READ
    connection.execute(payloads, (ids,)).fetchone()
    connection.execute("COMMIT")
    return msgspec.json.decode(ids, type=Ids)


def settle(layout: str, connection: sqlite3.Connection, ids: Ids) -> None:
    """End a batch as done, with its log."""
    connection.execute("BEGIN IMMEDIATE")
    encoded = msgspec.json.encode(ids).decode()
    if layout.startswith("narrow"):
        connection.execute(_FINISH_NARROW, (NOW, encoded))
        connection.execute(_END_LEASE, (encoded,))
    else:
        connection.execute(_FINISH, (NOW, encoded))
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
        "INSERT INTO job (id, task, enqueued_at, lease_time, payload, stage, version, run_at,"
        " queue, priority) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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


def measure(layout: str, folder: Path, *, row_by_row: bool = False) -> tuple[float, ...]:
    """Per job: CPU µs to add, claim, settle; bytes of WAL for claiming and settling."""
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
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
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
    wal = (folder / "layout.db-wal").stat().st_size
    connection.close()
    return added / JOBS * 1e6, claiming / JOBS * 1e6, settling / JOBS * 1e6, wal / JOBS


def main() -> None:
    """Measure all, interleaved, and print the best of each."""
    cases = [(layout, False) for layout in LAYOUTS] + [("one table", True)]
    found: dict[tuple[str, bool], list[tuple[float, ...]]] = {case: [] for case in cases}
    for _ in range(ROUNDS):
        for layout, row_by_row in cases:
            with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
                figures = measure(layout, Path(folder), row_by_row=row_by_row)
                found[layout, row_by_row].append(figures)
    table = Table("layout", "add", "claim", "settle", "WAL bytes", title="per job, CPU µs, best")
    for (layout, row_by_row), rounds in found.items():
        best = [f"{min(values):.1f}" for values in zip(*rounds, strict=True)]
        table.add_row(layout + (", row by row" if row_by_row else ""), *best)
    Console().print(table)


if __name__ == "__main__":
    main()
