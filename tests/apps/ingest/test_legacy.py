import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigurationError, Penstock, State
from penstock.apps.ingest import Service, Settings
from penstock.apps.ingest.legacy import Report, dry_run, migrate
from penstock.apps.ingest.unified_queue import QueueItem

OLD, NEW, FUTURE = "2024-01-01 00:00:00", "2025-01-01T00:00:00.000Z", "2099-01-01T00:00:00+00:00"
INGESTION = (
    "file_absolute_path TEXT PRIMARY KEY, collection_name TEXT, tenant_id TEXT DEFAULT 'default', "
    "branch TEXT DEFAULT 'main', operation TEXT, priority INTEGER DEFAULT 5, "
    "queued_timestamp TEXT, "
    "retry_count INTEGER DEFAULT 0, retry_from TEXT, error_message_id INTEGER"
)
SCHEMAS = {
    "A": f"CREATE TABLE ingestion_queue ({INGESTION}, metadata TEXT)",
    "B": f"CREATE TABLE ingestion_queue ({INGESTION}, collection_type TEXT)",
    "messages": "CREATE TABLE messages (id INTEGER PRIMARY KEY, error_type TEXT, error_message TEXT"
    ", error_details TEXT, occurred_timestamp TEXT, file_path TEXT, collection_name TEXT, "
    "retry_count INTEGER)",
    "content": "CREATE TABLE content_ingestion_queue (queue_id TEXT PRIMARY KEY, idempotency_key "
    "TEXT UNIQUE, content TEXT, collection TEXT, source_type TEXT DEFAULT 'scratchbook', priority "
    "INTEGER DEFAULT 8, status TEXT DEFAULT 'pending', main_tag TEXT, full_tag TEXT, "
    "metadata TEXT, "
    "created_at TEXT, updated_at TEXT, started_at TEXT, completed_at TEXT, retry_count INTEGER "
    "DEFAULT 0, max_retries INTEGER DEFAULT 3, error_message TEXT)",
    "processing": "CREATE TABLE processing_queue (queue_id TEXT PRIMARY KEY, file_path TEXT, "
    "collection TEXT, priority INTEGER DEFAULT 2, created_at TEXT, scheduled_at TEXT, attempts "
    "INTEGER DEFAULT 0, metadata TEXT)",
    "missing": "CREATE TABLE missing_metadata_queue (queue_id TEXT PRIMARY KEY, file_absolute_path "
    "TEXT, collection_name TEXT, tenant_id TEXT, branch TEXT, operation TEXT, priority INTEGER "
    "DEFAULT 5, missing_tools TEXT, queued_timestamp TEXT, retry_count INTEGER DEFAULT 0, "
    "last_check_timestamp TEXT, metadata TEXT, UNIQUE (file_absolute_path, tenant_id, branch))",
    "deletions": "CREATE TABLE cumulative_deletions_queue (id INTEGER PRIMARY KEY, "
    "file_absolute_path TEXT, collection_name TEXT, tenant_id TEXT, branch TEXT, "
    "marked_for_deletion_at TEXT, deletion_scheduled_at TEXT, deleted_at TEXT, status TEXT DEFAULT "
    "'pending', retry_count INTEGER DEFAULT 0, error_message TEXT, UNIQUE (file_absolute_path, "
    "collection_name, tenant_id, branch))",
}


class Legacy:
    """A file with legacy tables."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def make(self, *shapes: str) -> None:
        with closing(sqlite3.connect(self.file)) as db, db:
            for shape in shapes:
                db.execute(SCHEMAS[shape])

    def put(self, table: str, **values: Any) -> None:
        self.put_all(table, [values])

    def put_all(self, table: str, rows: Sequence[dict[str, Any]]) -> None:
        names = ", ".join(rows[0])
        marks = ", ".join("?" * len(rows[0]))
        with closing(sqlite3.connect(self.file)) as db, db:
            db.executemany(
                f"INSERT INTO {table} ({names}) VALUES ({marks})",  # noqa: S608 - the test's own
                [tuple(row.values()) for row in rows],
            )

    def tables(self) -> set[str]:
        with closing(sqlite3.connect(self.file)) as db:
            rows = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        return {name for (name,) in rows}

    def migrate(self, *, drop: bool = False) -> tuple[Report, list[QueueItem]]:
        return asyncio.run(self._migrate(drop=drop))

    async def _migrate(self, *, drop: bool) -> tuple[Report, list[QueueItem]]:
        async with Penstock(f"sqlite:///{self.file}") as app:
            service = Service(app, Settings())
            report = await migrate(service, self.file, drop=drop)
            items, _ = await service.page({}, limit=1_000)
            self.jobs = {item.queue_id: await app.get(item.job_id) for item in items}
            return report, items[::-1]


@pytest.fixture
def legacy(tmp_path: Path) -> Legacy:
    return Legacy(tmp_path / "legacy.db")


def test_ingestion_queue_with_metadata(legacy: Legacy) -> None:
    legacy.make("A")
    legacy.put(
        "ingestion_queue",
        file_absolute_path="/a.py",
        collection_name="code",
        tenant_id="shop",
        branch="dev",
        operation="update",
        priority=7,
        queued_timestamp=OLD,
        retry_count=2,
        retry_from="/other.py",
        metadata='{"x": "ü"}',
    )
    report, [item] = legacy.migrate()
    assert report.tables["ingestion_queue"].migrated == 1
    assert (item.item_type, item.op, item.tenant_id, item.branch) == (
        "file",
        "update",
        "shop",
        "dev",
    )
    assert (item.collection, item.priority, item.status) == ("code", 7, "pending")
    assert item.payload == {"file_path": "/a.py"}
    assert item.metadata == {
        "x": "ü",
        "retry_from": "/other.py",
        "migrated_from": "ingestion_queue",
        "legacy_id": "/a.py",
    }
    job = legacy.jobs[item.queue_id]
    assert (item.retry_count, job.attempt, job.retry.attempts) == (2, 2, 4)  # two are left


def test_ingestion_queue_with_messages_and_with_times(legacy: Legacy) -> None:
    legacy.make("B", "messages")
    legacy.put("messages", id=7, error_message="it was locked")
    row = {"collection_name": "code", "operation": "ingest", "collection_type": "project"}
    legacy.put("ingestion_queue", file_absolute_path="/b", error_message_id=7, **row)
    legacy.put("ingestion_queue", file_absolute_path="/later", retry_from=FUTURE, **row)
    legacy.put("ingestion_queue", file_absolute_path="/past", retry_from=OLD, **row)
    _, items = legacy.migrate()
    found = {item.payload["file_path"]: item for item in items}
    assert found["/b"].metadata["legacy_error"] == "it was locked"
    assert found["/b"].metadata["collection_type"] == "project"
    assert found["/b"].tenant_id == "default"
    assert found["/later"].lease_until == "2099-01-01T00:00:00.000Z"
    assert legacy.jobs[found["/later"].queue_id].run_at.year == 2099
    assert found["/past"].lease_until is None


def test_content_ingestion_queue(legacy: Legacy) -> None:
    legacy.make("content")
    for status in ("pending", "in_progress", "done", "failed"):
        legacy.put(
            "content_ingestion_queue",
            queue_id=status,
            content=f"text {status}",
            collection="notes",
            status=status,
            main_tag="shop" if status == "pending" else None,
            full_tag="shop/a" if status == "pending" else None,
            error_message="too large" if status == "failed" else None,
            created_at=NEW,
        )
    report, items = legacy.migrate()
    counted = report.tables["content_ingestion_queue"]
    assert (counted.rows, counted.migrated, counted.skipped) == (4, 3, 1)
    found = {item.metadata["legacy_id"]: item for item in items}
    assert {name: item.status for name, item in found.items()} == {
        "pending": "pending",
        "in_progress": "pending",
        "failed": "failed",
    }
    assert found["pending"].tenant_id == "shop"
    assert found["in_progress"].tenant_id == "default"
    assert found["pending"].payload["full_tag"] == "shop/a"
    assert found["pending"].priority == 8
    assert found["failed"].metadata["legacy_error"] == "too large"
    assert found["failed"].error_message == "too large"
    assert legacy.jobs[found["failed"].queue_id].state is State.CANCELLED


def test_processing_queue(legacy: Legacy) -> None:
    legacy.make("processing")
    for priority in (1, 2, 3, 4, 5):
        legacy.put(
            "processing_queue",
            queue_id=str(priority),
            file_path=f"/{priority}",
            collection="code",
            priority=priority,
            attempts=priority,
            scheduled_at=FUTURE if priority == 4 else OLD,
        )
    report, items = legacy.migrate()
    assert [item.priority for item in items] == [2, 5, 7, 9]
    assert [item.retry_count for item in items] == [1, 2, 3, 4]
    assert [item.lease_until is None for item in items] == [True, True, True, False]
    assert [(one.id, one.why) for one in report.misfits] == [("5", "its priority is 5, not 1 to 4")]


def test_missing_metadata_and_deletions(legacy: Legacy) -> None:
    legacy.make("missing", "deletions")
    where = {"collection_name": "code", "tenant_id": "shop", "branch": "dev"}
    legacy.put(
        "missing_metadata_queue",
        queue_id="m",
        file_absolute_path="/m",
        operation="update",
        missing_tools='["gopls"]',
        **where,
    )
    legacy.put("cumulative_deletions_queue", id=1, file_absolute_path="/gone", **where)
    legacy.put(
        "cumulative_deletions_queue", id=2, file_absolute_path="/done", deleted_at=OLD, **where
    )
    report, [held, deletion] = legacy.migrate()
    assert (held.op, held.metadata["missing_tools"]) == ("update", ["gopls"])
    assert (deletion.op, deletion.priority, deletion.branch) == ("delete", 1, "dev")
    assert report.tables["cumulative_deletions_queue"].skipped == 1


def test_attempts_of_every_table_count_once(legacy: Legacy) -> None:
    legacy.make("A", "content", "processing", "missing", "deletions")
    file = {"collection_name": "code", "tenant_id": "default", "branch": "main", "retry_count": 2}
    legacy.put("ingestion_queue", file_absolute_path="/a", operation="ingest", **file)
    legacy.put("missing_metadata_queue", queue_id="m", file_absolute_path="/m", **file)
    legacy.put("cumulative_deletions_queue", id=1, file_absolute_path="/d", **file)
    legacy.put("processing_queue", queue_id="p", file_path="/p", collection="code", attempts=2)
    legacy.put(
        "content_ingestion_queue", queue_id="c", content="text", collection="c", retry_count=2
    )
    _, items = legacy.migrate()
    assert [item.retry_count for item in items] == [2] * 5
    assert not any("retry_count" in item.metadata for item in items)

    assert {(one.attempt, one.retry.attempts) for one in legacy.jobs.values()} == {(2, 4)}


@pytest.mark.parametrize("text", ["not JSON", "[1]", '{"x": NaN}', b"\xff", "a\0b", 7])
def test_metadata_that_is_not_a_json_object_is_kept_as_text(legacy: Legacy, text: Any) -> None:
    legacy.make("A", "content", "processing", "missing")
    legacy.put("ingestion_queue", file_absolute_path="/a", collection_name="c", metadata=text)
    legacy.put("processing_queue", queue_id="p", file_path="/p", collection="c", metadata=text)
    row = {"file_absolute_path": "/m", "missing_tools": '["gopls"]', "metadata": text}
    legacy.put("missing_metadata_queue", queue_id="m", collection_name="c", **row)
    legacy.put("content_ingestion_queue", queue_id="c", content="t", collection="c", metadata=text)
    report, items = legacy.migrate(drop=True)
    assert (report.misfits, report.kept, len(items)) == ([], [], 4)
    shown = text.decode(errors="backslashreplace") if isinstance(text, bytes) else str(text)
    for item in items:
        assert item.metadata["legacy_metadata"] == shown.replace("\0", "\\0")
    assert [one.metadata.get("missing_tools") for one in items].count(["gopls"]) == 1


def test_missing_tools_are_kept_as_the_other_program_writes_them(legacy: Legacy) -> None:
    legacy.make("missing")
    tools = '[{"TreeSitterParser":{"language":"zig"}}, "gopls"]'
    row = {"file_absolute_path": "/m", "collection_name": "c", "missing_tools": tools}
    legacy.put("missing_metadata_queue", queue_id="m", **row)
    report, [item] = legacy.migrate(drop=True)
    assert item.metadata["missing_tools"] == [{"TreeSitterParser": {"language": "zig"}}, "gopls"]
    assert report.dropped == ["missing_metadata_queue"]


def mixed(legacy: Legacy) -> None:
    """Fill all five tables, with rows about the same file and some invalid ones."""
    legacy.make("A", "content", "processing", "missing", "deletions")
    ingestion = {"collection_name": "code", "operation": "ingest"}
    legacy.put("ingestion_queue", file_absolute_path="/a", queued_timestamp=OLD, **ingestion)
    legacy.put("ingestion_queue", file_absolute_path="relative", queued_timestamp=OLD, **ingestion)
    legacy.put("processing_queue", queue_id="p", file_path="/a", collection="code", created_at=NEW)
    legacy.put("content_ingestion_queue", queue_id="c", content="text", collection="notes")
    legacy.put(
        "missing_metadata_queue",
        queue_id="m",
        file_absolute_path="/m",
        collection_name="code",
        missing_tools="gopls",
    )
    legacy.put(
        "cumulative_deletions_queue",
        id=1,
        file_absolute_path="/a",
        collection_name="code",
        tenant_id="default",
        branch="main",
        marked_for_deletion_at="2026-01-01T00:00:00Z",
    )


def test_newest_row_wins_and_invalid_rows_are_reported(legacy: Legacy) -> None:
    mixed(legacy)
    before = legacy.tables()
    told = dry_run(legacy.file)
    assert legacy.tables() == before  # nothing was changed
    report, items = legacy.migrate()
    assert told == report
    assert sorted((item.item_type, item.op) for item in items) == [
        ("content", "ingest"),
        ("file", "delete"),
    ]
    assert sorted((one.table, one.id) for one in report.conflicts) == [
        ("ingestion_queue", "/a"),
        ("processing_queue", "p"),
    ]
    assert [(one.table, one.id) for one in report.misfits] == [
        ("ingestion_queue", "relative"),
        ("missing_metadata_queue", "m"),
    ]
    assert before <= legacy.tables()


def test_repeating_it_adds_what_is_new_and_nothing_else(legacy: Legacy) -> None:
    mixed(legacy)
    legacy.migrate()
    report, items = legacy.migrate()
    assert len(items) == 2
    assert sum(one.migrated for one in report.tables.values()) == 0
    assert sum(one.before for one in report.tables.values()) == 2
    row = {"collection_name": "code", "operation": "ingest", "queued_timestamp": NEW}
    legacy.put("ingestion_queue", file_absolute_path="/new", **row)
    report, items = legacy.migrate()
    assert (len(items), report.tables["ingestion_queue"].migrated) == (3, 1)


def test_tables_are_dropped_on_request_unless_rows_are_invalid(legacy: Legacy) -> None:
    mixed(legacy)
    report, items = legacy.migrate(drop=True)
    assert report.kept == ["ingestion_queue", "missing_metadata_queue"]
    assert set(report.dropped).isdisjoint(legacy.tables())
    assert set(report.kept) <= legacy.tables()
    assert len(items) == 2


def test_a_table_of_another_shape_is_left_alone(legacy: Legacy) -> None:
    with closing(sqlite3.connect(legacy.file)) as db, db:
        db.execute("CREATE TABLE processing_queue (id INTEGER PRIMARY KEY, what TEXT)")
    report, items = legacy.migrate(drop=True)
    assert items == []
    assert "has no column" in report.misfits[0].why
    assert report.kept == ["processing_queue"]


def test_files_without_legacy_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no file"):
        dry_run(tmp_path / "missing.db")
    (tmp_path / "text").write_text("no database, but longer than a header would be" * 20)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        dry_run(tmp_path / "text")
    torn = Legacy(tmp_path / "torn.db")
    torn.make("processing")
    torn.put_all("processing_queue", [{"queue_id": f"{n}" * 1_000} for n in range(50)])
    with torn.file.open("r+b") as file:  # the schema can still be read
        file.seek(4096)
        file.write(b"\xff" * (torn.file.stat().st_size - 4096))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        dry_run(torn.file)
    with closing(sqlite3.connect(tmp_path / "empty.db")) as db, db:
        db.execute("CREATE TABLE other (id)")
    with pytest.raises(ConfigurationError, match="none of the legacy tables"):
        dry_run(tmp_path / "empty.db")


def kill_when_it_says(script: str, file: Path, what: bytes) -> None:
    process = subprocess.Popen([sys.executable, "-c", script, str(file)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert what in iter(process.stdout.readline, b"")
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("is_late", [False, True])
def test_killed_in_the_middle_and_run_again(legacy: Legacy, is_late: bool) -> None:
    legacy.make("A")
    rows = 1_500
    legacy.put_all(
        "ingestion_queue",
        [
            {"file_absolute_path": f"/{n}", "collection_name": "code", "operation": "ingest"}
            for n in range(rows)
        ],
    )
    script = (
        "import asyncio, sys; from pathlib import Path\n"
        "from penstock import Penstock; from penstock.apps.ingest import Service, Settings\n"
        "from penstock.apps.ingest import legacy\n"
        "apply = legacy._apply\n"
        "def told(tx, *a, **k):\n"
        "    print('in the middle', flush=True); done = apply(tx, *a, **k)\n"
        "    print('at the end', flush=True); return done\n"
        "legacy._apply = told\n"
        "async def main(file):\n"
        "    async with Penstock(f'sqlite:///{file}') as app:\n"
        "        await legacy.migrate(Service(app, Settings()), Path(file))\n"
        "asyncio.run(main(sys.argv[1]))\n"
    )
    # The late kill happens before or after the commit.
    kill_when_it_says(script, legacy.file, b"at the end\n" if is_late else b"in the middle\n")
    with closing(sqlite3.connect(legacy.file)) as db:
        (there,) = db.execute("SELECT count(*) FROM unified_queue").fetchone()
    assert there in (0, rows)
    report, _ = legacy.migrate()
    counted = report.tables["ingestion_queue"]
    assert counted.migrated + counted.before == rows
    with closing(sqlite3.connect(legacy.file)) as db:
        count = "SELECT count(*), count(DISTINCT payload_json) FROM unified_queue"
        assert db.execute(count).fetchone() == (rows, rows)


def test_killed_right_after_the_commit_what_had_failed_is_failed(legacy: Legacy) -> None:
    legacy.make("content")
    row = {"content": "text", "collection": "notes", "created_at": NEW}
    for status in ("failed", "pending"):
        legacy.put("content_ingestion_queue", queue_id=status, status=status, **row)
        row["content"] = "other"
    script = (
        "import asyncio, sys; from pathlib import Path\n"
        "from penstock import Penstock; from penstock.apps.ingest import Service, Settings\n"
        "from penstock.apps.ingest import legacy\n"
        "transact = Penstock.transaction\n"
        "async def told(self, work):\n"
        "    await transact(self, work); print('committed', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "Penstock.transaction = told\n"
        "async def main(file):\n"
        "    async with Penstock(f'sqlite:///{file}') as app:\n"
        "        await legacy.migrate(Service(app, Settings()), Path(file))\n"
        "asyncio.run(main(sys.argv[1]))\n"
    )
    kill_when_it_says(script, legacy.file, b"committed\n")
    count = "SELECT status, count(*) FROM unified_queue GROUP BY status ORDER BY status"
    for _ in range(2):
        with closing(sqlite3.connect(legacy.file)) as db:
            assert db.execute(count).fetchall() == [("failed", 1), ("pending", 1)]
        _, items = legacy.migrate()
        assert sorted(legacy.jobs[item.queue_id].state for item in items) == [
            State.CANCELLED,
            State.PENDING,
        ]
