"""Bare SQLite, durable, no queue around it: the limit below every contender."""

# ruff: noqa: D102 - the protocols in __init__.py say what the methods do

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.contenders import Handle, Payload

BATCH = 100

DURABLE = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
"""
SCHEMA = """
CREATE TABLE IF NOT EXISTS job (id INTEGER PRIMARY KEY, payload BLOB, state INTEGER);
CREATE INDEX IF NOT EXISTS ready ON job (id) WHERE state = 0;
"""
INSERT = "INSERT INTO job (payload, state) VALUES (?, 0)"
CLAIM = """
UPDATE job SET state = 1 WHERE id IN (SELECT id FROM job WHERE state = 0 ORDER BY id LIMIT ?)
RETURNING id, payload
"""
SETTLE = "UPDATE job SET state = 2 WHERE id = ?"

FIVE_TABLES = """
CREATE TABLE IF NOT EXISTS job (
    id INTEGER PRIMARY KEY, queue TEXT, task TEXT, state INTEGER, priority INTEGER, ready_at INTEGER
);
CREATE INDEX IF NOT EXISTS ready ON job (queue, priority, ready_at, id) WHERE state = 0;
CREATE TABLE IF NOT EXISTS payload (id INTEGER PRIMARY KEY, arguments BLOB);
CREATE TABLE IF NOT EXISTS log (
    id INTEGER PRIMARY KEY, job INTEGER, at INTEGER, event INTEGER, worker TEXT
);
CREATE TABLE IF NOT EXISTS totals (
    queue TEXT, state INTEGER, jobs INTEGER, PRIMARY KEY (queue, state)
);
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER);
INSERT OR IGNORE INTO totals VALUES ('default', 0, 0);
INSERT OR IGNORE INTO meta VALUES ('last', 0);
"""
ADD = (
    "INSERT INTO job (queue, task, state, priority, ready_at) VALUES ('default', 'noop', 0, 0, ?)",
    "INSERT INTO payload (id, arguments) VALUES (?, ?)",
    "INSERT INTO log (job, at, event) VALUES (?, ?, 0)",
    "UPDATE totals SET jobs = jobs + ? WHERE queue = 'default' AND state = 0",
    "UPDATE meta SET value = ? WHERE name = 'last'",
)


class BareQueue:
    """Drains in batches of 100 without leases, tokens or audit."""

    def __init__(self, folder: Path) -> None:
        self._connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
        self._connection.executescript(DURABLE + SCHEMA)
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(Payload).decode

    def enqueue(self, payload: Payload) -> None:
        self._connection.execute(INSERT, (self._encode(payload),))

    def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        self._write(INSERT, [(self._encode(payload),) for payload in payloads])

    def fill(self, payloads: Sequence[Payload]) -> None:
        self.enqueue_many(payloads)

    def drain(self, handle: Handle) -> None:
        wanted = True
        while wanted:
            claimed = self._connection.execute(CLAIM, (BATCH,)).fetchall()
            for _, payload in claimed:
                wanted = handle(self._decode(payload))
            self._write(SETTLE, [(job,) for job, _ in claimed])

    def close(self) -> None:
        self._connection.close()

    def _write(self, sql: str, rows: Sequence[tuple[object, ...]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(sql, rows)
        self._connection.execute("COMMIT")


class BareFiveTables:
    """Writes what a queue with a log writes for an enqueue, and nothing else; does not drain."""

    def __init__(self, folder: Path) -> None:
        self._connection = sqlite3.connect(folder / "five.db", isolation_level=None)
        self._connection.executescript(DURABLE + FIVE_TABLES)
        self._encode = msgspec.json.Encoder().encode

    def enqueue(self, payload: Payload) -> None:
        self.enqueue_many([payload])

    def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        execute, now = self._connection.execute, time.time_ns() // 1000
        job, arguments, log, totals, meta = ADD
        execute("BEGIN IMMEDIATE")
        last = 0
        for payload in payloads:
            last = execute(job, (now,)).lastrowid or 0
            execute(arguments, (last, self._encode(payload)))
            execute(log, (last, now))
        execute(totals, (len(payloads),))
        execute(meta, (last,))
        execute("COMMIT")

    def fill(self, payloads: Sequence[Payload]) -> None:
        self.enqueue_many(payloads)

    def close(self) -> None:
        self._connection.close()
