"""Items as rows of `unified_queue`: the SQL that looks at them, all columns named here."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock import Statements
from penstock.core.errors import Unreadable
from penstock.core.jsontext import read

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
    "WHERE n > 0 AND (? = '' OR tenant_id = ?) AND (? = '' OR collection = ?)"
)
FILTERS = ("item_type", "op", "tenant_id", "collection", "branch")
"""Columns that items are listed by; by their status, their jobs are found."""


class QueueItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item as it is now. `job_id` is that of its job; `payload` is null where it is no JSON."""

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


def get(tx: Statements, queue_id: str) -> QueueItem | None:
    """The item with this id."""
    row = tx.execute(f"{_SELECT} WHERE j.queue_id = ?", (queue_id,)).fetchone()
    return None if row is None else _listed(row)


def among(tx: Statements, jobs: Sequence[int], wanted: Mapping[str, str]) -> list[QueueItem]:
    """The items of these jobs that fit, newest first."""
    names = [name for name in FILTERS if name in wanted]
    text = "".join(f" AND q.{name} = ?" for name in names)
    marks = ", ".join("?" * len(jobs))
    rows = tx.execute(
        f"{_SELECT} WHERE j.job_id IN ({marks}){text} ORDER BY j.job_id DESC",
        (*jobs, *(wanted[name] for name in names)),
    )
    return [_listed(row) for row in rows]


def totals(tx: Statements, tenant_id: str, collection: str) -> list[tuple[str, str, str, str, int]]:
    """Tenant, collection, type, status and how many; from kept totals. Empty stands for all."""
    rows = tx.execute(_TOTALS, (tenant_id, tenant_id, collection, collection))
    return [(row[0], row[1], row[2], row[3], int(row[4])) for row in rows]


def _listed(row: Sequence[Any]) -> QueueItem:
    values = dict(zip(("job_id", *_COLUMNS), row, strict=True))
    payload, metadata = values.pop("payload_json"), values.pop("metadata")
    return QueueItem(**values, payload=_decoded(payload), metadata=_decoded(metadata))


def _decoded(text: str | None) -> Any:
    try:
        return None if text is None else read(text, "")
    except Unreadable:
        return None
