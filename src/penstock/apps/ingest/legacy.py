"""The migration of legacy tables: their rows become items, in one transaction and once each."""

import hashlib
import json
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from penstock import ConfigurationError
from penstock.apps.ingest.items import (
    BRANCH,
    MAX_RETRIES,
    InvalidItem,
    Item,
    canonical,
    checked,
)
from penstock.apps.ingest.service import Service
from penstock.apps.ingest.unified_queue import Added
from penstock.tables import Tables, Transaction

TENANT = "default"
TEXT = "legacy_metadata"
"""The key in an item's metadata for legacy metadata that is not a JSON object."""
MAPPING = {
    "ingestion_queue": "file items with their operation; a future retry_from delays them",
    "content_ingestion_queue": "content/ingest; the tenant is main_tag; done rows are skipped",
    "processing_queue": "file/ingest; priorities 1 to 4 become 2, 5, 7 and 9",
    "missing_metadata_queue": "file items with their operation, held until their tools exist",
    "cumulative_deletions_queue": "file/delete at low priority; deleted rows are skipped",
}
"""What the rows of each table become."""
_MIGRATED = (
    "CREATE TABLE ingest_migrated (source TEXT, id TEXT, digest TEXT, PRIMARY KEY (source, id));"
)
_FAILED = "it had failed in the legacy table"
_PRIORITIES = {1: 2, 2: 5, 3: 7, 4: 9}
_LOW = 1
_OLDEST = datetime.min.replace(tzinfo=UTC)

Values = Mapping[str, Any]


# Tables and rows


class Executes(Protocol):
    """A connection to the database with the legacy tables."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Any:
        """Run a statement."""
        ...


class InvalidRow(Exception):
    """A row that cannot become an item; the message says why."""


class Draft(NamedTuple):
    """What a row describes, before it is checked."""

    item: dict[str, Any]
    at: Any
    """When the row was added."""
    not_before: Any = None
    retries: int = 0
    error: str | None = None
    is_failed: bool = False


class LegacyRow(NamedTuple):
    """A row of a legacy table that becomes an item."""

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
        """The place; only the newest of all rows with the same place is migrated."""
        item = self.item
        return item.tenant_id, item.collection, item.branch, item.typed.place


class Table(NamedTuple):
    """A legacy table: its ID column, its required columns, and its mapping."""

    name: str
    id: str
    needed: tuple[str, ...]
    draft: Callable[[Values], Draft | None]
    """Returns None for a row with nothing left to do."""


def _ingestion(row: Values) -> Draft:
    metadata = _object(row, "metadata")
    if isinstance(row.get("collection_type"), str):
        metadata["collection_type"] = row["collection_type"]
    not_before = row.get("retry_from")
    if not_before is not None and _moment(not_before) is None:  # another row's path
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
        raise InvalidRow(f"its status is {status!r}")
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
        raise InvalidRow(f"its priority is {priority!r}, not 1 to 4")
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
        raise InvalidRow("its missing_tools is not a JSON list")
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
    """Return the columns of a table; none if it does not exist."""
    rows = db.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
    return [str(row[0]) for row in rows]


def rows_of(db: Executes, table: Table, columns: Sequence[str]) -> Iterator[Values]:
    """Yield all rows by column, with the message of an error from the table `messages`."""
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


def converted(table: Table, row: Values) -> LegacyRow | None:
    """Return the item of a row, None if it has nothing left to do; raise `InvalidRow`."""
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
            raise InvalidRow(str(error)) from error
        item = _with_text(draft, about, row)
    return LegacyRow(
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
    """Return the item with its metadata as text, if it is JSON that no store accepts, as NaN."""
    kept = {name: draft.item["metadata"].get(name) for name in ("missing_tools",)}
    given = {name: value for name, value in kept.items() if value is not None}
    try:
        return checked({**draft.item, "metadata": {**given, **_as_text(row["metadata"]), **about}})
    except InvalidItem as error:
        raise InvalidRow(str(error)) from error


def digest_of(row: Values) -> str:
    """Return a digest of all values of a row."""
    text = canonical({name: repr(value) for name, value in row.items()})
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _file(row: Values, path: str, op: str, metadata: dict[str, Any]) -> dict[str, Any]:
    return {
        "item_type": "file",
        "op": op,
        "tenant_id": row.get("tenant_id") or TENANT,
        "collection": row.get("collection_name") or row.get("collection"),
        "branch": row.get("branch") or BRANCH,
        "priority": _default(row, "priority", 5),
        "payload": {"file_path": row[path]},
        "metadata": metadata,
    }


def _object(row: Values, name: str) -> dict[str, Any]:
    """Return a JSON object; anything else is kept as text under the key `TEXT`."""
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
        raise InvalidRow(f"its {name} is {value!r}")
    return value


def _moment(value: Any) -> datetime | None:
    """Parse a timestamp in any known format, by default in UTC; None if it is not one."""
    try:
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        found = datetime.fromisoformat(str(value).strip())
    except (ValueError, OverflowError, OSError):
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


# The migration


class Listed(msgspec.Struct, frozen=True):
    """A row that did not become an item, and why."""

    table: str
    id: str
    why: str


class Counted(msgspec.Struct, kw_only=True):
    """The rows of a table by result."""

    rows: int = 0
    migrated: int = 0
    before: int = 0
    """Migrated by an earlier run."""
    skipped: int = 0
    """Rows with nothing left to do."""
    conflicts: int = 0
    """Rows that are older than another row about the same place."""
    misfits: int = 0


class Report(msgspec.Struct, kw_only=True):
    """The result of a migration or a dry run."""

    tables: dict[str, Counted] = {}
    conflicts: list[Listed] = []
    misfits: list[Listed] = []
    dropped: list[str] = []
    kept: list[str] = []
    """Tables that `drop` kept because some of their rows are invalid."""


class Plan(msgspec.Struct):
    """The rows to migrate, and the report."""

    report: Report
    rows: list[LegacyRow]


def dry_run(file: Path) -> Report:
    """Return what a migration would do, without changing the file; raise `ConfigurationError`."""
    check(file)
    with _read_only(file) as db:
        return plan(db).report


async def migrate(service: Service, file: Path, *, drop: bool = False) -> Report:
    """Migrate all legacy rows to items; raise `ConfigurationError` if there are no legacy tables.

    The migration is one transaction. Rows that were migrated before are recognised by their
    content, so that it can be repeated. With `drop`, tables without invalid rows are dropped.
    """
    check(file)
    await service.prepare()
    steps = (_MIGRATED,)
    await service.penstock.tables.prepare("ingest_legacy", Tables(sqlite=steps, postgres=steps))
    ids: list[str] = []
    return await service.penstock.transaction(lambda tx: _apply(tx, service, ids, drop=drop))


def plan(db: Executes) -> Plan:
    """Read all tables and decide what each row becomes."""
    report = Report()
    found: list[LegacyRow] = []
    for table in TABLES:
        columns = columns_of(db, table.name)
        if columns:
            report.tables[table.name] = Counted()
            found += _read(db, table, columns, report)
    return Plan(report, _not_migrated(db, _newest(found, report), report))


def _read(db: Executes, table: Table, columns: Sequence[str], report: Report) -> list[LegacyRow]:
    counted = report.tables[table.name]
    if missing := sorted(set(table.needed) - set(columns)):
        counted.misfits += 1
        why = f"the table has no column {', '.join(missing)}"
        report.misfits.append(Listed(table.name, "*", why))
        return []
    found = []
    for row in rows_of(db, table, columns):
        counted.rows += 1
        try:
            one = converted(table, row)
        except InvalidRow as error:
            counted.misfits += 1
            report.misfits.append(Listed(table.name, str(row[table.id]), str(error)))
            continue
        if one is None:
            counted.skipped += 1
        else:
            found.append(one)
    return found


def _newest(found: Sequence[LegacyRow], report: Report) -> list[LegacyRow]:
    """Keep the newest row about each place; report the others."""
    newest: dict[tuple[str, ...], LegacyRow] = {}
    for one in found:
        other = newest.get(one.place)
        if other is None:
            newest[one.place] = one
            continue
        winner, loser = (one, other) if one.at > other.at else (other, one)
        newest[one.place] = winner
        report.tables[loser.table].conflicts += 1
        why = f"{winner.table} has a newer row about the same place: {winner.id}"
        report.conflicts.append(Listed(loser.table, loser.id, why))
    return list(newest.values())


def _not_migrated(db: Executes, rows: Sequence[LegacyRow], report: Report) -> list[LegacyRow]:
    known: Mapping[tuple[str, str], str] = {}
    if columns_of(db, "ingest_migrated"):
        recorded = db.execute("SELECT source, id, digest FROM ingest_migrated").fetchall()
        known = {(source, name): digest for source, name, digest in recorded}
    left = []
    for one in rows:
        counted = report.tables[one.table]
        if known.get((one.table, one.id)) == one.digest:
            counted.before += 1
        else:
            counted.migrated += 1
            left.append(one)
    return left


def _apply(tx: Transaction, service: Service, ids: list[str], *, drop: bool) -> Report:
    """Execute the plan inside a transaction."""
    if tx.dialect != "sqlite":
        raise ConfigurationError("legacy tables can only be read from SQLite files")
    made = plan(tx)
    ids += [str(uuid.uuid4()) for _ in range(len(made.rows) - len(ids))]
    groups = groupby(zip(made.rows, ids, strict=False), partial(_not_before, datetime.now(UTC)))
    for run_at, group in groups:
        rows, names = zip(*group, strict=True)
        added = service.add_within(tx, [row.item for row in rows], names, run_at=run_at)
        new = [pair for pair in zip(rows, added, strict=True) if not pair[1].duplicate]
        _count_attempts(tx, new)
        _fail(tx, new)
    tx.executemany(
        "INSERT INTO ingest_migrated (source, id, digest) VALUES (?, ?, ?) "
        "ON CONFLICT (source, id) DO UPDATE SET digest = excluded.digest",
        [(one.table, one.id, one.digest) for one in made.rows],
    )
    if drop:
        _drop(tx, made.report)
    return made.report


def _count_attempts(tx: Transaction, added: Iterable[tuple[LegacyRow, Added]]) -> None:
    """Set the attempts of jobs to those of the legacy rows; triggers update the items."""
    tx.executemany(
        "UPDATE penstock_job SET attempt = ? WHERE id = ?",
        [(row.retries, one.job_id) for row, one in added if row.retries],
    )


def _fail(tx: Transaction, added: Iterable[tuple[LegacyRow, Added]]) -> None:
    """Mark items as failed whose legacy rows had failed; they can be retried."""
    tx.executemany(
        "UPDATE unified_queue SET status = 'failed', error_message = ? WHERE queue_id = ?",
        [
            (row.item.metadata.get("legacy_error", _FAILED), one.queue_id)
            for row, one in added
            if row.is_failed
        ],
    )


def _not_before(now: datetime, one: tuple[LegacyRow, str]) -> datetime | None:
    """Return when an item may run; None if it may run now."""
    row, _ = one
    is_due = row.not_before is None or row.not_before <= now
    return None if is_due else row.not_before


def _drop(tx: Transaction, report: Report) -> None:
    for name, counted in report.tables.items():
        if counted.misfits:
            report.kept.append(name)
        else:
            tx.execute(f'DROP TABLE "{name}"')
            report.dropped.append(name)


def check(file: Path) -> None:
    """Raise `ConfigurationError` unless the file is a database with legacy tables."""
    if not file.is_file():
        raise ConfigurationError(f"there is no file {file}")
    with _read_only(file) as db:
        there = [table.name for table in TABLES if columns_of(db, table.name)]
        recorded = columns_of(db, "ingest_migrated")
    if not there and not recorded:
        names = ", ".join(table.name for table in TABLES)
        raise ConfigurationError(f"{file} has none of the legacy tables: {names}")


@contextmanager
def _read_only(file: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as db:
            yield db
    except sqlite3.Error as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
