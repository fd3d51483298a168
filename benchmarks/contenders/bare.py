"""Bare SQLite, durable, no queue around it: the limit below every contender."""

# ruff: noqa: D102 - the protocols in __init__.py say what the methods do

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.contenders import Handle, Payload

BATCH = 100

SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS job (id INTEGER PRIMARY KEY, payload BLOB, state INTEGER);
CREATE INDEX IF NOT EXISTS ready ON job (id) WHERE state = 0;
"""
INSERT = "INSERT INTO job (payload, state) VALUES (?, 0)"
CLAIM = """
UPDATE job SET state = 1 WHERE id IN (SELECT id FROM job WHERE state = 0 ORDER BY id LIMIT ?)
RETURNING id, payload
"""
SETTLE = "UPDATE job SET state = 2 WHERE id = ?"


class BareQueue:
    """Drains in batches of 100 without leases, tokens or audit."""

    def __init__(self, folder: Path) -> None:
        self._connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
        self._connection.executescript(SCHEMA)
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
