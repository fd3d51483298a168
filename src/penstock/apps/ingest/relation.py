"""The relation `unified_queue`: items of the queue as rows that other programs work on with SQL.

A row has a job, and both say the same at every moment: see `relation_sqlite.sql` and
`relation_postgres.sql`, where all the SQL of the relation stands.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock import (
    Job,
    JobId,
    Mirror,
    NewJob,
    OnFailure,
    Penstock,
    RetryPolicy,
    Statements,
    Tables,
    Transaction,
)

QUEUE = "ingest"
TASK = "ingest.item"
FAILED = "penstock.apps.ingest.handlers.ItemFailed"
"""What handlers raise for an item that may be tried again; its name is not shown in rows."""
LEASE = timedelta(minutes=5)
"""How long a silent worker keeps an item, where nothing else is said."""

_MILLIS = "CAST(round((julianday({0}) - 2440587.5) * 86400000) AS INTEGER)"
# As `order.key_of` does it.
_ESCAPED = "replace(replace(replace({0}, '%', '%25'), '/', '%2F'), ':', '%3A')"
_STAMP = "strftime('%Y-%m-%dT%H:%M:%fZ', {0} / 1000000.0, 'unixepoch')"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """An item that is to be added, and what only ours can ask for."""

    queue_id: str
    item_type: str
    op: str
    tenant_id: str
    collection: str
    priority: int
    idempotency_key: str
    payload_json: str
    max_retries: int = 3
    branch: str = "main"
    metadata: str = "{}"
    key: str | None = None
    after: tuple[int, ...] = ()
    parent: int | None = None
    run_at: datetime | None = None
    lease: timedelta = LEASE
    retry: RetryPolicy | None = None


class Added(NamedTuple):
    """What became of a row: a duplicate is the unfinished one with the same idempotency key."""

    queue_id: str
    job_id: int
    duplicate: bool


class Total(NamedTuple):
    """How many items of a kind there are."""

    tenant_id: str
    collection: str
    item_type: str
    status: str
    n: int


async def prepare(app: Penstock) -> None:
    """Have the relation in the database of the store; safe when many start at once."""
    await app.tables("unified_queue", TABLES)
    await app.mirror(MIRROR)


def add(tx: Transaction, rows: Sequence[Row]) -> list[Added]:
    """Add items, each with its job; one whose idempotency key is taken is a duplicate."""
    jobs = tx.enqueue([_job(row) for row in rows])
    new = [(row, job) for row, job in zip(rows, jobs, strict=True) if not job.duplicate]
    tx.executemany(
        "INSERT INTO unified_queue_job (job_id, queue_id, token) VALUES (?, ?, -1)",
        [(job.id, row.queue_id) for row, job in new],
    )
    tx.executemany(
        "INSERT INTO unified_queue (queue_id, item_type, op, tenant_id, collection, priority, "
        "status, created_at, updated_at, lease_until, idempotency_key, payload_json, max_retries, "
        "branch, metadata) VALUES (?, ?, ?, ?, ?, ?, 'pending', ?, ?, ?, ?, ?, ?, ?, ?)",
        [_columns(row, job) for row, job in new],
    )
    tx.executemany(
        "UPDATE unified_queue_job SET token = 0 WHERE job_id = ?", [(job.id,) for _, job in new]
    )
    return [
        Added(_holder(tx, job) if job.duplicate else row.queue_id, job.id, job.duplicate)
        for row, job in zip(rows, jobs, strict=True)
    ]


def stats(tx: Statements) -> list[Total]:
    """How many items there are, by tenant, collection, type and status; nothing is counted."""
    found = tx.execute(
        "SELECT tenant_id, collection, item_type, status, n FROM unified_queue_total WHERE n > 0 "
        "ORDER BY tenant_id, collection, item_type, status"
    )
    return [Total(*row) for row in found.fetchall()]


def _job(row: Row) -> NewJob:
    body = {
        "queue_id": row.queue_id,
        "item_type": row.item_type,
        "op": row.op,
        "tenant_id": row.tenant_id,
        "collection": row.collection,
        "branch": row.branch,
        "payload": msgspec.Raw(row.payload_json.encode()),
        "metadata": msgspec.Raw(row.metadata.encode()),
    }
    return NewJob(
        task=TASK,
        payload=msgspec.json.encode(body).decode(),
        queue=QUEUE,
        priority=row.priority,
        run_at=row.run_at,
        key=row.key,
        dedupe=f"ingest:{row.idempotency_key}",
        tenant=row.tenant_id or None,
        parent=None if row.parent is None else JobId(row.parent),
        after=tuple(map(JobId, row.after)),
        on_failure=OnFailure.RUN,
        lease=row.lease,
        retry=row.retry or RetryPolicy(attempts=row.max_retries + 1),
    )


def _columns(row: Row, job: Job) -> tuple[object, ...]:
    at = stamp(job.enqueued_at)
    until = None if job.run_at <= job.enqueued_at else stamp(job.run_at)
    return (
        *(row.queue_id, row.item_type, row.op, row.tenant_id, row.collection, row.priority),
        *(at, at, until, row.idempotency_key, row.payload_json, row.max_retries, row.branch),
        row.metadata,
    )


def _holder(tx: Statements, job: Job) -> str:
    found = tx.execute("SELECT queue_id FROM unified_queue_job WHERE job_id = ?", (job.id,))
    row = found.fetchone()
    return str(row[0] if row else json.loads(job.payload)["queue_id"])


def stamp(instant: datetime) -> str:
    """An instant as rows have it."""
    text = instant.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z"


def _read(name: str, macros: Mapping[str, str]) -> str:
    """The SQL of a file, its macros replaced."""
    text = Path(__file__).with_name(f"relation_{name}.sql").read_text("utf-8")
    for macro, meaning in macros.items():
        text = re.sub(rf"\{{{macro}\(([\w.]+)\)\}}", lambda m, w=meaning: w.format(m[1]), text)  # type: ignore[misc] # bound at once
    return text


def _without_names(line: str) -> str:
    """SQL for a line without the names of the classes that our handlers raise."""
    for name in ("penstock.apps.ingest.writing.Rejected", FAILED, "UnknownTask"):
        line = f"replace({line}, '{name}: ', '')"
    return line


_SQLITE_MACROS = {
    "millis": _MILLIS,
    "stamp": _STAMP,
    "sentence": _without_names("substr({0}, 1, instr({0} || char(10), char(10)) - 1)"),
    "escaped": _ESCAPED,
}
_POSTGRES_MACROS = {
    "sentence": _without_names("split_part({0}, chr(10), 1)"),
    "escaped": _ESCAPED,
}
_SQLITE, _, _SQLITE_MIRROR = _read("sqlite", _SQLITE_MACROS).partition("-- mirror\n")
_POSTGRES, _, _POSTGRES_MIRROR = _read("postgres", _POSTGRES_MACROS).partition("-- mirror\n")

_STEPS = ("errors", "keys")
TABLES = Tables(
    sqlite=(_SQLITE, *(_read(f"sqlite_{step}", _SQLITE_MACROS) for step in _STEPS)),
    postgres=(_POSTGRES, *(_read(f"postgres_{step}", _POSTGRES_MACROS) for step in _STEPS)),
)
MIRROR = Mirror(
    name="unified_queue",
    queue=QUEUE,
    sqlite=_SQLITE_MIRROR,
    postgres=_POSTGRES_MIRROR,
    removed=(
        "DELETE FROM unified_queue WHERE queue_id = "
        "(SELECT queue_id FROM unified_queue_job WHERE job_id = OLD.id)"
    ),
)
"""Rows of a store are where its tables are."""
