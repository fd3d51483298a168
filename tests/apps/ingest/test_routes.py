"""Test the routes and worker processes of a real server."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, cast

import pytest

from penstock.apps.ingest import checked
from penstock.apps.ingest.routes import completed
from penstock.apps.ingest.settings import Roots
from tests.apps.indexing.support import Embeddings, Server, serving, write
from tests.environment import SOON


@pytest.fixture
def server(tmp_path: Path, embeddings: Embeddings) -> Iterator[Server]:
    project = tmp_path / "project"
    project.mkdir()
    settings = {
        "PENSTOCK_INGEST_EMBEDDER": embeddings.configuration,
        "PENSTOCK_INGEST_LEASE": "1",
        "PENSTOCK_INGEST_RETRY_DELAY": "0",
    }
    with serving(project, embeddings, **settings) as running:
        yield running


def until(server: Server, queue_id: str, *statuses: str) -> Any:
    deadline = time.monotonic() + SOON
    while (item := server.ask("GET", f"/api/v1/queue/items/{queue_id}"))["status"] not in statuses:
        assert time.monotonic() < deadline, (item, server.output.read_text())
        time.sleep(0.02)
    return item


def settled(server: Server, tenant_id: str = "default") -> Any:
    """Return the totals of a tenant once all its items have ended."""
    deadline = time.monotonic() + SOON
    while True:
        found = server.ask("GET", f"/api/v1/queue/items/stats?tenant_id={tenant_id}")
        if not found["total"].keys() & {"pending", "in_progress"}:
            return found
        assert time.monotonic() < deadline, (found, server.output.read_text())
        time.sleep(0.02)


def found(server: Server, query: str) -> set[str]:
    results = server.ask("POST", "/api/v1/ingest/search", {"query": query, "top_k": 50})["results"]
    return {Path(one["path"]).name for one in results}


def test_a_folder_is_ingested_by_a_process_that_may_be_killed(
    server: Server, embeddings: Embeddings
) -> None:
    write(server.project, {f"{n}.md": f"words of document {n}" for n in range(30)})
    write(server.project, {"bad.md": b"\0"})
    embeddings.hold("document")
    answer = server.ask("POST", "/api/v1/ingest", {"path": str(server.project)}, status=202)
    [accepted] = answer["items"]
    embeddings.wait_until_held()
    children = _children(server)
    assert len(children) == 1
    os.kill(children[0], signal.SIGKILL)
    embeddings.release()
    totals = settled(server)
    assert totals["total"] == {"done": 31}
    assert totals["by_type"] == {"folder": {"done": 1}, "file": {"done": 30}}
    folder = until(server, accepted["queue_id"], "done")
    assert folder["children"]["total"] == folder["children"]["done"] == 30
    assert folder["result"]["passed_by"] == {"binary": 1}
    assert "7.md" in found(server, "words of document 7")
    assert _children(server) != children

    page = server.ask("GET", "/api/v1/queue/items?item_type=file&limit=20")
    rest = server.ask("GET", f"/api/v1/queue/items?item_type=file&limit=20&before={page['next']}")
    assert server.ask("GET", "/api/v1/queue/items?status=failed") == {"items": [], "next": None}
    names = {one["payload"]["file_path"] for one in page["items"] + rest["items"]}
    assert (len(names), rest["next"]) == (30, None)
    listed = server.ask("GET", f"/api/v1/queue/items?parent={accepted['queue_id']}&limit=100")
    assert len(listed["items"]) == 30

    again = server.ask("POST", "/api/v1/ingest", {"path": str(server.project)}, status=202)
    assert again["items"][0]["queue_id"] != accepted["queue_id"]
    assert settled(server)["total"] == {"done": 62}
    assert server.stop() == 0


def test_items_are_checked_cancelled_and_retried(server: Server, embeddings: Embeddings) -> None:
    item = {
        "item_type": "content",
        "op": "ingest",
        "tenant_id": "default",
        "collection": "default",
        "payload": {"content": "wait for it"},
    }
    wrong = {**item, "op": "scan", "payload": {"content": 3, "colour": "red"}, "priority": "soon"}
    refused = server.ask("POST", "/api/v1/queue/items", wrong, status=422)
    assert set(refused["problems"]) == {"op", "priority", "payload.content", "payload.colour"}
    refused = server.ask("POST", "/api/v1/queue/items", {"items": [item, wrong]}, status=422)
    assert "items[1].op" in refused["problems"]
    server.ask("POST", "/api/v1/ingest", {}, status=422)
    outside = server.ask("POST", "/api/v1/ingest", {"path": "/etc/passwd"}, status=422)
    assert "PENSTOCK_INGEST_ROOTS" in outside["detail"]
    assert server.ask("GET", "/api/v1/queue/items/stats")["total"] == {}

    embeddings.hold("wait")
    answer = server.ask("POST", "/api/v1/queue/items/", {"items": [item, item]}, status=202)
    first, second = answer["items"]
    assert first["queue_id"] == second["queue_id"]
    assert second["duplicate"]
    embeddings.wait_until_held()
    path = f"/api/v1/queue/items/{first['queue_id']}"
    assert server.ask("GET", path)["status"] == "in_progress"
    server.ask("POST", f"{path}/retry", status=409)
    server.ask("POST", f"{path}/cancel")
    assert until(server, first["queue_id"], "failed", "done")["status"] == "failed"
    embeddings.release()
    server.ask("POST", f"{path}/cancel", status=409)
    assert server.ask("POST", f"{path}/retry")["status"] == "pending"
    assert until(server, first["queue_id"], "failed", "done")["status"] == "done"
    assert found(server, "wait") != set()
    server.ask("GET", "/api/v1/queue/items/nonsense", status=404)


def test_a_store_without_tables_has_no_items(tmp_path: Path, embeddings: Embeddings) -> None:
    project = tmp_path / "project"
    project.mkdir()
    with serving(project, embeddings, PENSTOCK_STORE="memory://") as running:
        body = {"content": "a text"}
        refused = running.ask("POST", "/api/v1/ingest", body, status=503)
        assert "SQLite or PostgreSQL" in refused["detail"]
        running.ask("GET", "/api/v1/queue/items", status=503)


def _children(server: Server) -> list[int]:
    """Return the worker processes of the server."""
    assert server.process is not None
    listed = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(server.process.pid)],  # noqa: S607 - on any PATH
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "penstock.apps.ingest" in line]


class WithoutPackage:
    """Stands for a module that needs a package which is not installed."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ModuleNotFoundError("No module named 'no_such_package'", name="no_such_package")


def test_server_without_packages_accepts_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot read files or check patterns; the workers of another server do so."""
    monkeypatch.setitem(sys.modules, "penstock.vectors", cast("ModuleType", WithoutPackage()))
    path = write(tmp_path, {"a.md": "text"}) / "a.md"
    fields = {"op": "ingest", "tenant_id": "shop", "collection": "docs"}
    file = checked({"item_type": "file", "payload": {"file_path": str(path)}, **fields})
    assert completed(file, Roots((str(tmp_path),), tmp_path / "data"), 100) == file
    patterns = {"folder_path": str(tmp_path), "patterns": ["!"]}
    assert checked({"item_type": "folder", "payload": patterns, **fields}).payload == patterns
