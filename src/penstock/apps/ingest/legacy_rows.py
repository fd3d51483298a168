"""The five legacy tables, in every shape that is known: their rows as items.

| table | becomes |
|---|---|
| `ingestion_queue` | file, with its operation; `retry_from` in the future is a not-before time |
| `content_ingestion_queue` | content/ingest; its tenant is `main_tag` |
| `processing_queue` | file/ingest; priorities 1 to 4 become 2, 5, 7 and 9 |
| `missing_metadata_queue` | file, with its operation; held until its missing tools are there |
| `cumulative_deletions_queue` | file/delete at low priority, unless it was deleted |
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from penstock.apps.ingest.items import MAX_RETRIES, InvalidItem, Item, canonical, checked

TENANT = "default"
TEXT = "legacy_metadata"
"""The name in an item's metadata of what a row had there that is no JSON object."""
_PRIORITIES = {1: 2, 2: 5, 3: 7, 4: 9}
_LOW = 1
_OLDEST = datetime.min.replace(tzinfo=UTC)

Values = Mapping[str, Any]


class Executes(Protocol):
    """Runs SQL on the database with the legacy tables."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Any:
        """Run a statement."""
        ...


class Misfit(Exception):
    """A row that cannot become an item; the message says why."""


class Draft(NamedTuple):
    """What a row asks for, before it is checked."""

    item: dict[str, Any]
    at: Any
    """When it was put there."""
    not_before: Any = None
    retries: int = 0
    error: str | None = None
    is_failed: bool = False


class Legacy(NamedTuple):
    """A row of a legacy table that became an item."""

    table: str
    id: str
    digest: str
    item: Item
    at: datetime
    not_before: datetime | None
    retries: int
    is_failed: bool

    @property
    def place(self) -> tuple[str, ...]:
        """Of all rows with the same place, the newest counts."""
        item = self.item
        return item.tenant_id, item.collection, item.branch, item.typed.place


class Table(NamedTuple):
    """A legacy table: what names a row, the columns it cannot do without, and its mapping."""

    name: str
    id: str
    needed: tuple[str, ...]
    draft: Callable[[Values], Draft | None]
    """None for a row that has nothing left to do."""


def _ingestion(row: Values) -> Draft:
    metadata = _object(row, "metadata")
    if isinstance(row.get("collection_type"), str):
        metadata["collection_type"] = row["collection_type"]
    not_before = row.get("retry_from")
    if not_before is not None and _moment(not_before) is None:  # the path of another row
        metadata["retry_from"], not_before = not_before, None
    return Draft(
        _file(row, "file_absolute_path", row.get("operation") or "ingest", metadata),
        row.get("queued_timestamp"),
        not_before,
        _whole(row, "retry_count"),
        row.get("message"),
    )


def _content(row: Values) -> Draft | None:
    status = row.get("status") or "pending"
    if status == "done":
        return None
    if status not in ("pending", "in_progress", "failed"):
        raise Misfit(f"its status is {status!r}")
    tags = {name: row[name] for name in ("main_tag", "full_tag") if row.get(name)}
    item = {
        "item_type": "content",
        "op": "ingest",
        "tenant_id": row.get("main_tag") or TENANT,
        "collection": row["collection"],
        "priority": _default(row, "priority", 8),
        "payload": {
            "content": row["content"],
            "source_type": row.get("source_type") or "scratchbook",
            **tags,
        },
        "metadata": _object(row, "metadata"),
        "max_retries": _default(row, "max_retries", MAX_RETRIES),
    }
    return Draft(
        item,
        row.get("created_at"),
        None,
        _whole(row, "retry_count"),
        row.get("error_message"),
        is_failed=status == "failed",
    )


def _processing(row: Values) -> Draft:
    priority = _default(row, "priority", 2)
    if priority not in _PRIORITIES:
        raise Misfit(f"its priority is {priority!r}, not 1 to 4")
    item = _file(
        {**row, "priority": _PRIORITIES[priority]}, "file_path", "ingest", _object(row, "metadata")
    )
    return Draft(item, row.get("created_at"), row.get("scheduled_at"), _whole(row, "attempts"))


def _missing_metadata(row: Values) -> Draft:
    try:
        tools = json.loads(row.get("missing_tools") or "[]")
    except (TypeError, ValueError):
        tools = None
    if not isinstance(tools, list):
        raise Misfit("its missing_tools are no JSON list")
    metadata = {**_object(row, "metadata"), "missing_tools": tools}
    item = _file(row, "file_absolute_path", row.get("operation") or "ingest", metadata)
    return Draft(item, row.get("queued_timestamp"), None, _whole(row, "retry_count"))


def _deletion(row: Values) -> Draft | None:
    if row.get("deleted_at") is not None:
        return None
    item = _file({**row, "priority": _LOW}, "file_absolute_path", "delete", {})
    return Draft(
        item,
        row.get("marked_for_deletion_at"),
        row.get("deletion_scheduled_at"),
        _whole(row, "retry_count"),
        row.get("error_message"),
    )


TABLES = (
    Table(
        "ingestion_queue",
        "file_absolute_path",
        ("file_absolute_path", "collection_name"),
        _ingestion,
    ),
    Table("content_ingestion_queue", "queue_id", ("queue_id", "content", "collection"), _content),
    Table("processing_queue", "queue_id", ("queue_id", "file_path", "collection"), _processing),
    Table(
        "missing_metadata_queue",
        "queue_id",
        ("queue_id", "file_absolute_path", "collection_name"),
        _missing_metadata,
    ),
    Table(
        "cumulative_deletions_queue",
        "id",
        ("id", "file_absolute_path", "collection_name"),
        _deletion,
    ),
)


def columns_of(db: Executes, table: str) -> list[str]:
    """The columns of a table; none if it is not there."""
    rows = db.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
    return [str(row[0]) for row in rows]


def rows_of(db: Executes, table: Table, columns: Sequence[str]) -> Iterator[Values]:
    """All rows, by column; with the message that an error is kept as elsewhere."""
    messages = _messages(db) if "error_message_id" in columns else {}
    names = ", ".join(f'"{name}"' for name in columns)
    for row in db.execute(f'SELECT {names} FROM "{table.name}"').fetchall():
        values = dict(zip(columns, row, strict=True))
        if values.get("error_message_id") in messages:
            values["message"] = messages[values["error_message_id"]]
        yield values


def _messages(db: Executes) -> dict[Any, str]:
    if {"id", "error_message"} <= set(columns_of(db, "messages")):
        return dict(db.execute("SELECT id, error_message FROM messages").fetchall())
    return {}


def legacy_of(table: Table, row: Values) -> Legacy | None:
    """A row as an item; None if nothing is left to do for it. Raises `Misfit`."""
    draft = table.draft(row)
    if draft is None:
        return None
    about: dict[str, Any] = {"migrated_from": table.name, "legacy_id": str(row[table.id])}
    if draft.error:
        about["legacy_error"] = str(draft.error)
    metadata = {**draft.item["metadata"], **about}
    try:
        item = checked({**draft.item, "metadata": metadata})
    except InvalidItem as error:
        if error.problems.keys() != {"metadata"}:
            raise Misfit(str(error)) from error
        item = _with_text(draft, about, row)
    return Legacy(
        table.name,
        str(row[table.id]),
        digest_of(row),
        item,
        _moment(draft.at) or _OLDEST,
        _moment(draft.not_before),
        draft.retries,
        draft.is_failed,
    )


def _with_text(draft: Draft, about: Mapping[str, Any], row: Values) -> Item:
    """The item with its metadata as text: JSON that no store could hold, such as NaN."""
    kept = {name: draft.item["metadata"].get(name) for name in ("missing_tools",)}
    given = {name: value for name, value in kept.items() if value is not None}
    try:
        return checked({**draft.item, "metadata": {**given, **_as_text(row["metadata"]), **about}})
    except InvalidItem as error:
        raise Misfit(str(error)) from error


def digest_of(row: Values) -> str:
    """Changes with everything that a row says."""
    text = canonical({name: repr(value) for name, value in row.items()})
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _file(row: Values, path: str, op: str, metadata: dict[str, Any]) -> dict[str, Any]:
    return {
        "item_type": "file",
        "op": op,
        "tenant_id": row.get("tenant_id") or TENANT,
        "collection": row.get("collection_name") or row.get("collection"),
        "branch": row.get("branch") or "main",
        "priority": _default(row, "priority", 5),
        "payload": {"file_path": row[path]},
        "metadata": metadata,
    }


def _object(row: Values, name: str) -> dict[str, Any]:
    """A JSON object; what is none is kept as text under a name of its own."""
    text = row.get(name)
    if text in (None, ""):
        return {}
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return _as_text(text)
    return found if isinstance(found, dict) else _as_text(text)


def _as_text(value: Any) -> dict[str, Any]:
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return {TEXT: text.replace("\0", "\\0")}


def _default(row: Values, name: str, default: int) -> Any:
    return default if row.get(name) is None else row[name]


def _whole(row: Values, name: str) -> int:
    value = row.get(name)
    if value is None:
        return 0
    if not isinstance(value, int) or value < 0:
        raise Misfit(f"its {name} is {value!r}")
    return value


def _moment(value: Any) -> datetime | None:
    """A timestamp in one of the formats that there are; None if it is none. UTC if not said."""
    try:
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        found = datetime.fromisoformat(str(value).strip())
    except (ValueError, OverflowError, OSError):
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
