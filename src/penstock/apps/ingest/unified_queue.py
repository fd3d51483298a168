"""The table `unified_queue`: the items of the queue as rows, which other programs use with SQL.

A row and its job agree at every moment: the triggers in `unified_queue_sqlite.sql` and
`unified_queue_postgres.sql` keep them equal.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock import Job, NewJob, Penstock, RetryPolicy
from penstock.apps.ingest.items import BRANCH, MAX_RETRIES
from penstock.apps.kit import read_json
from penstock.errors import Unreadable
from penstock.jobs import JobId, OnFailure
from penstock.tables import Mirror, Statements, Tables, Transaction

QUEUE = "ingest"
TASK = "ingest.item"
LEASE = timedelta(minutes=5)
"""The default lease of an item."""
FILTERS = ("item_type", "op", "tenant_id", "collection", "branch")
"""The columns by which items are listed; a status selects jobs instead."""

_COLUMNS = (
    *("queue_id", "item_type", "op", "tenant_id", "collection", "branch", "priority", "status"),
    *("created_at", "updated_at", "lease_until", "worker_id", "idempotency_key", "payload_json"),
    *("retry_count", "max_retries", "error_message", "last_error_at", "metadata"),
)
_SELECT = (
    f"SELECT j.job_id, {', '.join(f'q.{name}' for name in _COLUMNS)} "
    "FROM unified_queue_job j JOIN unified_queue q ON q.queue_id = j.queue_id"
)
_TOTALS = (
    "SELECT tenant_id, collection, item_type, status, n FROM unified_queue_total "
    "WHERE n > 0 AND (? = '' OR tenant_id = ?) AND (? = '' OR collection = ?) "
    "ORDER BY tenant_id, collection, item_type, status"
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """An item to add, with the options of its job that no column holds."""

    queue_id: str
    item_type: str
    op: str
    tenant_id: str
    collection: str
    priority: int
    idempotency_key: str
    payload_json: str
    max_retries: int = MAX_RETRIES
    branch: str = BRANCH
    metadata: str = "{}"
    key: str | None = None
    after: tuple[int, ...] = ()
    parent: int | None = None
    run_at: datetime | None = None
    lease: timedelta = LEASE
    retry: RetryPolicy | None = None


class Added(NamedTuple):
    """A requested item: its ID, its job, and whether an equal unfinished item existed already."""

    queue_id: str
    job_id: int
    duplicate: bool


class Total(NamedTuple):
    """The number of items of a kind."""

    tenant_id: str
    collection: str
    item_type: str
    status: str
    n: int


class QueueItem(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of an item. `job_id` is its job; `payload` is null if it is not JSON."""

    job_id: int
    queue_id: str
    item_type: str
    op: str
    tenant_id: str
    collection: str
    branch: str | None
    priority: int
    status: str
    created_at: str
    updated_at: str
    lease_until: str | None
    worker_id: str | None
    idempotency_key: str
    payload: Any
    retry_count: int
    max_retries: int
    error_message: str | None
    last_error_at: str | None
    metadata: Any


async def prepare(app: Penstock) -> None:
    """Create the table in the database of the store; several processes may do so at once."""
    await app.tables.prepare("unified_queue", TABLES)
    await app.tables.mirror(MIRROR)


def add(tx: Transaction, rows: Sequence[Row]) -> list[Added]:
    """Add items and their jobs; an item whose idempotency key is in use is a duplicate."""
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


def get(tx: Statements, queue_id: str) -> QueueItem | None:
    """Return the item with this ID; None if there is none."""
    row = tx.execute(f"{_SELECT} WHERE j.queue_id = ?", (queue_id,)).fetchone()
    return None if row is None else _item(row)


def find(tx: Statements, jobs: Sequence[int], wanted: Mapping[str, str]) -> list[QueueItem]:
    """Return the items of these jobs that have the wanted values of `FILTERS`, newest first."""
    names = [name for name in FILTERS if name in wanted]
    text = "".join(f" AND q.{name} = ?" for name in names)
    marks = ", ".join("?" * len(jobs))
    rows = tx.execute(
        f"{_SELECT} WHERE j.job_id IN ({marks}){text} ORDER BY j.job_id DESC",
        (*jobs, *(wanted[name] for name in names)),
    )
    return [_item(row) for row in rows]


def totals(tx: Statements, tenant_id: str = "", collection: str = "") -> list[Total]:
    """Return the maintained totals of a tenant and a collection; by default of all."""
    found = tx.execute(_TOTALS, (tenant_id, tenant_id, collection, collection))
    return [Total(*row) for row in found.fetchall()]


def _item(row: Sequence[Any]) -> QueueItem:
    values = dict(zip(("job_id", *_COLUMNS), row, strict=True))
    payload, metadata = values.pop("payload_json"), values.pop("metadata")
    return QueueItem(**values, payload=_decoded(payload), metadata=_decoded(metadata))


def _decoded(text: str | None) -> Any:
    try:
        return None if text is None else read_json(text, "")
    except Unreadable:
        return None


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
    """Format an instant as in the rows."""
    text = instant.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z"


# The SQL of the table

_MILLIS = "CAST(round((julianday({0}) - 2440587.5) * 86400000) AS INTEGER)"
# As `order.key_of` escapes them.
_ESCAPED = "replace(replace(replace({0}, '%', '%25'), '/', '%2F'), ':', '%3A')"
_STAMP = "strftime('%Y-%m-%dT%H:%M:%fZ', {0} / 1000000.0, 'unixepoch')"
_ERRORS = (
    "penstock.apps.ingest.items.Rejected",
    "penstock.apps.ingest.tasks.ItemFailed",
    # As they are named in the errors of jobs that failed before these classes were moved.
    "penstock.apps.ingest.writing.Rejected",
    "penstock.apps.ingest.handlers.ItemFailed",
    "UnknownTask",
)
"""Classes whose names precede the messages in the errors of jobs, but not in rows."""


def _read(name: str, macros: Mapping[str, str]) -> str:
    """Read a file of SQL and expand its macros."""
    text = Path(__file__).with_name(f"unified_queue_{name}.sql").read_text("utf-8")
    for macro, meaning in macros.items():
        text = re.sub(rf"\{{{macro}\(([\w.]+)\)\}}", lambda m, w=meaning: w.format(m[1]), text)  # type: ignore[misc] # bound now
    return text


def _without_names(line: str) -> str:
    """Return SQL that removes the names of error classes from a line."""
    for name in _ERRORS:
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
