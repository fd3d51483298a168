"""Bare PostgreSQL with psycopg, durable, no queue around it: the limit below every contender."""

# ruff: noqa: D102 - the protocols in benchmarks.contenders say what the methods do

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import psycopg

from benchmarks import postgres
from benchmarks.contenders import Handle, Payload

BATCH = 500

SCHEMA = """
CREATE TABLE IF NOT EXISTS job (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    payload text NOT NULL,
    state smallint NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS ready ON job (id) WHERE state = 0;
"""
INSERT = "INSERT INTO job (payload) VALUES (%s)"
INSERT_AND_NOTIFY = (
    "WITH added AS (INSERT INTO job (payload) VALUES (%s)) SELECT pg_notify('ready', '')"
)
INSERT_MANY = "INSERT INTO job (payload) SELECT unnest(%s::text[])"
COPY = "COPY job (payload) FROM STDIN"
CLAIM = """
WITH next AS MATERIALIZED (
    SELECT id FROM job WHERE state = 0 ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
)
UPDATE job SET state = 1 FROM next WHERE job.id = next.id RETURNING job.id, payload
"""
SETTLE = "UPDATE job SET state = 2 WHERE id = ANY(%s)"


class BareQueue:
    """Claims and completes in batches of 500 without leases, tokens or audit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._url = postgres.url_of(folder)
        self._connection = psycopg.connect(self._url, autocommit=True)
        self._connection.execute(SCHEMA)
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(Payload).decode

    def enqueue(self, payload: Payload) -> None:
        self._connection.execute(INSERT, (self._encode(payload).decode(),))

    def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        texts = [self._encode(payload).decode() for payload in payloads]
        self._connection.execute(INSERT_MANY, (texts,))

    def enqueue_own_way(self, payloads: Sequence[Payload]) -> None:
        """All of them in one COPY."""
        with self._connection.cursor() as cursor, cursor.copy(COPY) as copy:
            for payload in payloads:
                copy.write_row((self._encode(payload).decode(),))

    def fill(self, payloads: Sequence[Payload]) -> None:
        self.enqueue_many(payloads)
        postgres.rest(self.folder)

    def drain(self, handle: Handle) -> None:
        self._work(handle, lambda: None)

    def _work(self, handle: Handle, wait: Callable[[], object]) -> None:
        wanted = True
        while wanted:
            claimed = self._connection.execute(CLAIM, (BATCH,)).fetchall()
            for _, payload in claimed:
                wanted = handle(self._decode(payload))
            if claimed:
                self._connection.execute(SETTLE, ([job for job, _ in claimed],))
            else:
                wait()

    def close(self) -> None:
        self._connection.close()


class NotifyingBareQueue(BareQueue):
    """Each single insert tells who listens, in the same transaction."""

    def enqueue(self, payload: Payload) -> None:
        self._connection.execute(INSERT_AND_NOTIFY, (self._encode(payload).decode(),))

    def serve(self, handle: Handle) -> None:
        with psycopg.connect(self._url, autocommit=True) as listener:
            listener.execute("LISTEN ready")
            self._work(handle, lambda: list(listener.notifies(stop_after=1)))
