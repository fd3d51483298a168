import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.cli.main import cli
from tests.apps.indexing.support import Embeddings, serving, write


def run(*arguments: str, code: int = 0, **more: Any) -> Result:
    result = CliRunner().invoke(cli, arguments, **more)
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embeddings: Embeddings) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_INGEST_EMBEDDER", embeddings.configuration)
    return tmp_path


def found(query: str, *options: str) -> set[str]:
    results = json.loads(run("ingest", "search", query, "--json", *options).output)["results"]
    return {Path(one["path"]).name for one in results}


def test_all_that_can_be_ingested_without_a_server(here: Path) -> None:
    files = write(here / "files", {"a.md": "about rivers", "sub/b.md": "about mountains"})
    assert "changed True" in run("ingest", "file", str(files / "a.md")).output
    assert "2 of 2 files are done" in run("ingest", "folder", str(files)).output
    told = json.loads(run("ingest", "project", str(files), "--json").output)
    assert told["result"]["project_type"] == "unknown"
    run("ingest", "content", "-", "--id", "note", input="about lakes")
    write(here / "docs", {"guide.md": "about pumps"})
    run("ingest", "library", "pump", str(here / "docs"), "--version", "1.0")
    assert found("rivers mountains lakes pumps") == {"a.md", "b.md", "note", "guide.md"}
    run("ingest", "rename", str(files), str(here / "moved"), "--folder")
    run("ingest", "delete", "file", str(here / "moved" / "a.md"))
    run("ingest", "delete", "document", "note")
    run("ingest", "delete", "library", "pump", "--version", "1.0")
    assert found("rivers mountains lakes pumps") == {"b.md"}
    run("ingest", "delete", "tenant", "default")
    assert found("mountains") == set()
    stats = json.loads(run("queue", "stats", "--json", "--tenant", "default").output)
    assert stats["by_type"]["rename"] == {"done": 1}
    assert "by tenant:" in run("queue", "stats").output


def test_failures_are_reported(here: Path) -> None:
    write(here, {"binary.md": b"\0"})
    result = run("ingest", "file", "binary.md", code=4)
    assert "binary" in result.output
    assert "Rejected" not in result.output.splitlines()[-1]
    told = run("ingest", "project", ".").output
    assert "  skipped: " in told
    assert f"    {here / 'binary.md'}: binary" in told
    told = run("ingest", "delete", "file", "nowhere.md").output
    assert told.endswith(" is done\n")


def test_empty_queue_is_reported(here: Path) -> None:
    assert run("queue", "stats").output == "There are no items.\n"


def test_a_file_without_legacy_tables_stays_as_it_is(here: Path) -> None:
    """SQLite treats a short file as an empty database and would overwrite it."""
    write(here, {"note.txt": "x"})
    assert "none of the legacy tables" in run("migrate-legacy", "note.txt", code=2).output
    assert (here / "note.txt").read_text() == "x"


def test_a_server_does_the_same(here: Path, embeddings: Embeddings) -> None:
    project = write(here / "project", {"a.md": "about rivers"})
    with serving(project, embeddings) as server:
        url = ("--url", server.url)
        assert "1 of 1 files are done" in run("ingest", "folder", str(project), *url).output
        queued = run("ingest", "content", "lakes", "--no-wait", *url).output
        job_id = queued.rpartition("is queued as job ")[2].strip()
        assert "ingest" in run("jobs", job_id, *url).output
        assert found("rivers", *url) >= {"a.md"}
        assert "folder: 1 done" in run("queue", "stats", *url).output


def test_legacy_tables_become_items(here: Path) -> None:
    with closing(sqlite3.connect("legacy.db")) as db, db:
        db.execute(
            "CREATE TABLE processing_queue (queue_id TEXT PRIMARY KEY, file_path TEXT, "
            "collection TEXT, priority INTEGER, created_at TEXT, scheduled_at TEXT, "
            "attempts INTEGER, metadata TEXT)"
        )
        db.execute("INSERT INTO processing_queue VALUES ('1', '/a', 'c', 3, NULL, NULL, 0, NULL)")
        db.execute("INSERT INTO processing_queue VALUES ('2', 'b', 'c', 3, NULL, NULL, 0, NULL)")
    told = run("migrate-legacy", "legacy.db", "--dry-run").output
    assert "processing_queue: 2 rows, 1 to migrate" in told
    assert "does not fit: processing_queue 2" in told
    done = json.loads(run("migrate-legacy", "legacy.db", "--drop", "--json").output)
    assert done["tables"]["processing_queue"]["migrated"] == 1
    assert done["kept"] == ["processing_queue"]
    assert "file: 1 pending" in run("queue", "stats", "--store", "sqlite:///legacy.db").output
    run("migrate-legacy", "nowhere.db", code=2)
