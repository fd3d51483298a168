"""Moves the rows of legacy tables into the queue: in one transaction, and each of them once."""

import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path

import msgspec

from penstock import ConfigurationError, Tables, Transaction
from penstock.apps.ingest.legacy_rows import (
    TABLES,
    Executes,
    Legacy,
    Misfit,
    Table,
    columns_of,
    legacy_of,
    rows_of,
)
from penstock.apps.ingest.service import Added, Service

_NOTES = (
    "CREATE TABLE ingest_migrated (source TEXT, id TEXT, digest TEXT, PRIMARY KEY (source, id));"
)
MAPPING = {
    "ingestion_queue": "file items with their operation; a future retry_from is a not-before time",
    "content_ingestion_queue": "content/ingest; the tenant is main_tag, done rows are left out",
    "processing_queue": "file/ingest; priorities 1 to 4 become 2, 5, 7 and 9",
    "missing_metadata_queue": "file items with their operation, held until their tools are there",
    "cumulative_deletions_queue": "file/delete at low priority; deleted ones are left out",
}
"""What the rows of each table become."""
_FAILED = "it had failed in the legacy table"


class Listed(msgspec.Struct, frozen=True):
    """A row that did not become an item, and why."""

    table: str
    id: str
    why: str


class Counted(msgspec.Struct, kw_only=True):
    """What became of the rows of a table."""

    rows: int = 0
    migrated: int = 0
    before: int = 0
    """Migrated by an earlier run."""
    skipped: int = 0
    """There was nothing left to do for them."""
    conflicts: int = 0
    """Another row is newer, and about the same."""
    misfits: int = 0


class Report(msgspec.Struct, kw_only=True):
    """What a migration came to, or would."""

    tables: dict[str, Counted] = {}
    conflicts: list[Listed] = []
    misfits: list[Listed] = []
    dropped: list[str] = []
    kept: list[str] = []
    """Tables that `drop` did not drop, because rows of them did not fit."""


class Plan(msgspec.Struct):
    """What is to be done, and what is to be told."""

    report: Report
    rows: list[Legacy]


def dry_run(file: Path) -> Report:
    """What a migration would do; the file is only read. Raises `ConfigurationError`."""
    check(file)
    with _looking(file) as db:
        return plan(db).report


async def migrate(service: Service, file: Path, *, drop: bool = False) -> Report:
    """Make items of all legacy rows; raises `ConfigurationError` where there are none.

    One transaction: after a kill, all of it has happened or nothing. Rows that were migrated
    before are known by what they said, so that repeating it does nothing. The tables stay unless
    `drop` is set, and then those stay in which a row did not fit.
    """
    check(file)
    await service.prepare()
    steps = (_NOTES,)
    await service.penstock.tables("ingest_legacy", Tables(sqlite=steps, postgres=steps))
    ids: list[str] = []
    return await service.penstock.transact(lambda tx: _apply(tx, service, ids, drop=drop))


def plan(db: Executes) -> Plan:
    """Read all tables, and decide what becomes of each row."""
    report = Report()
    found: list[Legacy] = []
    for table in TABLES:
        columns = columns_of(db, table.name)
        if columns:
            report.tables[table.name] = Counted()
            found += _read(db, table, columns, report)
    return Plan(report, _without_before(db, _newest(found, report), report))


def _read(db: Executes, table: Table, columns: Sequence[str], report: Report) -> list[Legacy]:
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
            one = legacy_of(table, row)
        except Misfit as error:
            counted.misfits += 1
            report.misfits.append(Listed(table.name, str(row[table.id]), str(error)))
            continue
        if one is None:
            counted.skipped += 1
        else:
            found.append(one)
    return found


def _newest(found: Sequence[Legacy], report: Report) -> list[Legacy]:
    """Of rows about the same, the newest; the others are listed."""
    newest: dict[tuple[str, ...], Legacy] = {}
    for one in found:
        other = newest.get(one.place)
        if other is None:
            newest[one.place] = one
            continue
        winner, loser = (one, other) if one.at > other.at else (other, one)
        newest[one.place] = winner
        report.tables[loser.table].conflicts += 1
        why = f"{winner.table} has a newer row about the same: {winner.id}"
        report.conflicts.append(Listed(loser.table, loser.id, why))
    return list(newest.values())


def _without_before(db: Executes, rows: Sequence[Legacy], report: Report) -> list[Legacy]:
    known: Mapping[tuple[str, str], str] = {}
    if columns_of(db, "ingest_migrated"):
        notes = db.execute("SELECT source, id, digest FROM ingest_migrated").fetchall()
        known = {(source, name): digest for source, name, digest in notes}
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
    """Carry out the plan inside a transaction."""
    if tx.dialect != "sqlite":
        raise ConfigurationError("legacy tables are read from SQLite files")
    made = plan(tx)
    ids += [str(uuid.uuid4()) for _ in range(len(made.rows) - len(ids))]
    alike = groupby(zip(made.rows, ids, strict=False), partial(_not_before, datetime.now(UTC)))
    for run_at, group in alike:
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


def _count_attempts(tx: Transaction, added: Iterable[tuple[Legacy, Added]]) -> None:
    """Count the attempts of the legacy table as attempts of the job; its row follows it."""
    tx.executemany(
        "UPDATE penstock_job SET attempt = ? WHERE id = ?",
        [(row.retries, one.job_id) for row, one in added if row.retries],
    )


def _fail(tx: Transaction, added: Iterable[tuple[Legacy, Added]]) -> None:
    """What had failed there is shown as failed, and may be retried."""
    tx.executemany(
        "UPDATE unified_queue SET status = 'failed', error_message = ? WHERE queue_id = ?",
        [
            (row.item.metadata.get("legacy_error", _FAILED), one.queue_id)
            for row, one in added
            if row.is_failed
        ],
    )


def _not_before(now: datetime, one: tuple[Legacy, str]) -> datetime | None:
    """When an item may run; None if it may now."""
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
    """Raise `ConfigurationError` unless it is a database with legacy tables; it is only read."""
    if not file.is_file():
        raise ConfigurationError(f"there is no file {file}")
    with _looking(file) as db:
        there = [table.name for table in TABLES if columns_of(db, table.name)]
        noted = columns_of(db, "ingest_migrated")
    if not there and not noted:
        names = ", ".join(table.name for table in TABLES)
        raise ConfigurationError(f"{file} has none of the legacy tables: {names}")


@contextmanager
def _looking(file: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as db:
            yield db
    except sqlite3.Error as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
