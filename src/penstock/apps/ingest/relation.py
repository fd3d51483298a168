"""The relation `unified_queue`: a row for each item, which says what its job says.

A row and its job are added in one transaction, and a mirror changes the row with every change of
the job. `unified_queue_job` says which job a row has; `unified_queue_total` counts the rows.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

from penstock import JobId, Mirror, NewJob, OnFailure, Penstock, RetryPolicy, Tables, Transaction

QUEUE = "ingest"
TASK = "ingest.item"

_TABLE = """
CREATE TABLE unified_queue (
    queue_id TEXT NOT NULL PRIMARY KEY,
    item_type TEXT NOT NULL CHECK (item_type IN (
        'content', 'file', 'folder', 'project', 'library', 'delete_tenant', 'delete_document',
        'rename'
    )),
    op TEXT NOT NULL CHECK (op IN ('ingest', 'update', 'delete', 'scan')),
    tenant_id TEXT NOT NULL,
    collection TEXT NOT NULL,
    priority INTEGER NOT NULL DEFAULT 5 CHECK (priority BETWEEN 0 AND 10),
    status TEXT NOT NULL DEFAULT 'pending'
        CHECK (status IN ('pending', 'in_progress', 'done', 'failed')),
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    lease_until TEXT,
    worker_id TEXT,
    idempotency_key TEXT NOT NULL,
    payload_json TEXT NOT NULL,
    retry_count INTEGER NOT NULL DEFAULT 0,
    max_retries INTEGER NOT NULL DEFAULT 3,
    error_message TEXT,
    last_error_at TEXT,
    branch TEXT DEFAULT 'main',
    metadata TEXT DEFAULT '{}',
    CHECK (CASE
        WHEN item_type IN ('content', 'file', 'library') THEN op IN ('ingest', 'update', 'delete')
        WHEN item_type IN ('folder', 'project') THEN op IN ('ingest', 'delete', 'scan')
        WHEN item_type = 'rename' THEN op = 'update'
        ELSE op = 'delete'
    END)
);
CREATE INDEX idx_unified_queue_dequeue ON unified_queue (status, priority DESC, created_at);
CREATE UNIQUE INDEX idx_unified_queue_idempotency ON unified_queue (idempotency_key)
WHERE status IN ('pending', 'in_progress');
CREATE INDEX idx_unified_queue_lease_expiry ON unified_queue (lease_until)
WHERE status = 'in_progress';
CREATE INDEX idx_unified_queue_collection_tenant ON unified_queue (collection, tenant_id);
CREATE INDEX idx_unified_queue_item_type ON unified_queue (item_type, status);
CREATE INDEX idx_unified_queue_failed ON unified_queue (status, last_error_at)
WHERE status = 'failed';
CREATE INDEX idx_unified_queue_worker ON unified_queue (worker_id, status)
WHERE status = 'in_progress';
CREATE TABLE unified_queue_job (job_id {BIGINT} PRIMARY KEY, queue_id TEXT NOT NULL UNIQUE);
CREATE TABLE unified_queue_total (
    tenant_id TEXT NOT NULL,
    collection TEXT NOT NULL,
    item_type TEXT NOT NULL,
    status TEXT NOT NULL,
    n {BIGINT} NOT NULL,
    PRIMARY KEY (tenant_id, collection, item_type, status)
);
"""
_COUNT = """
    INSERT INTO unified_queue_total (tenant_id, collection, item_type, status, n)
    VALUES ({row}.tenant_id, {row}.collection, {row}.item_type, {row}.status, {n})
    ON CONFLICT (tenant_id, collection, item_type, status)
    DO UPDATE SET n = unified_queue_total.n + excluded.n;
"""
_MORE = _COUNT.format(row="NEW", n=1)
_LESS = _COUNT.format(row="OLD", n=-1)
_SQLITE = f"""
{_TABLE.replace("{BIGINT}", "INTEGER")}
CREATE TRIGGER unified_queue_added AFTER INSERT ON unified_queue BEGIN {_MORE} END;
CREATE TRIGGER unified_queue_recounted AFTER UPDATE OF tenant_id, collection, item_type, status
ON unified_queue WHEN OLD.status <> NEW.status OR OLD.tenant_id <> NEW.tenant_id
OR OLD.collection <> NEW.collection OR OLD.item_type <> NEW.item_type
BEGIN {_LESS} {_MORE} END;
CREATE TRIGGER unified_queue_deleted AFTER DELETE ON unified_queue BEGIN {_LESS} END;
"""
_POSTGRES = f"""
{_TABLE.replace("{BIGINT}", "BIGINT")}
CREATE FUNCTION unified_queue_count() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN {_LESS} END IF;
    IF TG_OP <> 'DELETE' THEN {_MORE} END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER unified_queue_counted AFTER INSERT OR DELETE
OR UPDATE OF tenant_id, collection, item_type, status ON unified_queue
FOR EACH ROW EXECUTE FUNCTION unified_queue_count();
"""
_MIRROR = """
UPDATE unified_queue SET
    status = CASE WHEN NEW.stage < 3 THEN 'pending' WHEN NEW.stage = 3 THEN 'in_progress'
        WHEN NEW.stage = 4 THEN 'done' ELSE 'failed' END,
    lease_until = CASE NEW.stage WHEN 3 THEN {until} WHEN 1 THEN {due} END,
    worker_id = NEW.worker,
    retry_count = CASE WHEN NEW.attempt > 1 THEN NEW.attempt - 1 ELSE 0 END,
    priority = NEW.priority,
    error_message = coalesce(NEW.error, CASE NEW.stage WHEN 6 THEN 'cancelled'
        WHEN 7 THEN 'superseded' WHEN 4 THEN NULL ELSE error_message END),
    last_error_at = CASE WHEN NEW.stage > 4 OR NEW.error IS NOT NULL THEN {now}
        ELSE last_error_at END,
    updated_at = {now}
WHERE queue_id = (SELECT queue_id FROM unified_queue_job WHERE job_id = NEW.id)
"""


def _in_sqlite(micros: str) -> str:
    return f"strftime('%Y-%m-%dT%H:%M:%fZ', {micros} / 1000000.0, 'unixepoch')"


def _in_postgres(micros: str) -> str:
    at = f"to_timestamp({micros} / 1000000.0) AT TIME ZONE 'UTC'"
    return f"""to_char({at}, 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""


_NOW = "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"
_FOLLOWING = Mirror(
    name="unified_queue",
    queue=QUEUE,
    sqlite=_MIRROR.format(
        until=_in_sqlite("NEW.expires_at"),
        due=_in_sqlite("NEW.run_at"),
        now="strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
    ),
    postgres=_MIRROR.format(
        until=_in_postgres("NEW.expires_at"), due=_in_postgres("NEW.run_at"), now=_NOW
    ),
    removed="DELETE FROM unified_queue WHERE queue_id = "
    "(SELECT queue_id FROM unified_queue_job WHERE job_id = OLD.id)",
)
_INSERT = (
    "INSERT INTO unified_queue (queue_id, item_type, op, tenant_id, collection, priority, "
    "created_at, updated_at, lease_until, idempotency_key, payload_json, retry_count, max_retries, "
    "branch, metadata) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row to be added, and what its job asks for besides."""

    queue_id: str
    item_type: str
    op: str
    tenant_id: str
    collection: str
    priority: int
    idempotency_key: str
    payload_json: str
    max_retries: int
    branch: str
    metadata: str
    key: str | None = None
    after: tuple[int, ...] = ()
    parent: int | None = None
    run_at: datetime | None = None
    lease: timedelta = timedelta(seconds=300)
    retry: RetryPolicy = RetryPolicy(attempts=4)


class Added(NamedTuple):
    """A row that was added, or the unfinished one that has the same idempotency key."""

    queue_id: str
    job_id: int
    duplicate: bool


async def prepare(app: Penstock) -> None:
    """Make the relation; raises `ConfigurationError` on a store that can have none."""
    await app.tables("ingest", Tables(sqlite=(_SQLITE,), postgres=(_POSTGRES,)))
    await app.mirror(_FOLLOWING)


def add(tx: Transaction, rows: Sequence[Row]) -> list[Added]:
    """Add rows with their jobs; the answers have their order."""
    jobs = tx.enqueue([_job(row) for row in rows])
    links, values, answers = [], [], []
    for row, job in zip(rows, jobs, strict=True):
        if job.duplicate:
            answers.append(Added(job.args["queue_id"], job.id, duplicate=True))
            continue
        links.append((job.id, row.queue_id))
        values.append(_values(row, job.enqueued_at))
        answers.append(Added(row.queue_id, job.id, duplicate=False))
    tx.executemany("INSERT INTO unified_queue_job (job_id, queue_id) VALUES (?, ?)", links)
    tx.executemany(_INSERT, values)
    return answers


def _job(row: Row) -> NewJob:
    about = {
        "queue_id": row.queue_id,
        "item_type": row.item_type,
        "op": row.op,
        "tenant_id": row.tenant_id,
        "collection": row.collection,
        "branch": row.branch,
        "payload": json.loads(row.payload_json),
        "metadata": json.loads(row.metadata),
    }
    return NewJob(
        task=TASK,
        payload=json.dumps(about, ensure_ascii=False),
        queue=QUEUE,
        priority=row.priority,
        run_at=row.run_at,
        key=row.key,
        dedupe=f"ingest:{row.idempotency_key}",
        tenant=row.tenant_id,
        parent=None if row.parent is None else JobId(row.parent),
        after=tuple(map(JobId, row.after)),
        on_failure=OnFailure.RUN,
        lease=row.lease,
        retry=row.retry,
    )


def _values(row: Row, at: datetime) -> tuple[object, ...]:
    return (
        row.queue_id,
        row.item_type,
        row.op,
        row.tenant_id,
        row.collection,
        row.priority,
        _stamp(at),
        _stamp(at),
        None if row.run_at is None else _stamp(row.run_at),
        row.idempotency_key,
        row.payload_json,
        0,
        row.max_retries,
        row.branch,
        row.metadata,
    )


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
