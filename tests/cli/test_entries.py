"""`penstock entries import`, `export` and `rebuild`, on a server and without one."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.apps.entries.support import Server, lines
from tests.apps.indexing.support import Embeddings
from tests.apps.support import Commands
from tests.contract.support import SHARED, STORES
from tests.environment import SOON

CSV = 'title,content,tags\nKettle,Descale it,"[""a""]"\nLamp,Change the bulb,\n'


@pytest.fixture
def shell(tmp_path: Path, embeddings: Embeddings) -> Commands:
    (tmp_path / "manuals.csv").write_text(CSV)
    (tmp_path / "many.jsonl").write_bytes(lines(range(300)))
    return Commands(
        tmp_path,
        "entries",
        PENSTOCK_ENTRIES_EMBEDDER=embeddings.configuration,
        PENSTOCK_ENTRIES_WORKERS="1",
    )


def test_file_goes_in_and_comes_out_without_a_server(shell: Commands) -> None:
    options = ("--type", "skill", "--category", "HOME")
    dry = shell("import", "manuals.csv", *options, "--dry-run")
    assert dry.startswith("2 records read: 2 would be added, 0 would be replaced, 0 would be")
    said = shell("import", "manuals.csv", *options)
    assert said == "2 records read: 2 added, 0 replaced, 0 removed, 0 invalid.\n"
    assert shell.json("import", "many.jsonl", "--mode", "replace")["removed"] == 2
    shell("export", "all.xlsx")
    assert shell.json("import", "all.xlsx")["replaced"] == 300
    shell("export", "some.csv", "--type", "experience")
    assert (shell.folder / "some.csv").read_text().count("\n") == 1
    assert [path.name for path in shell.folder.glob(".*")] == []


def test_what_is_wrong_is_reported_by_line(shell: Commands) -> None:
    (shell.folder / "bad.jsonl").write_bytes(lines([1]) + b"\n{\n" + lines([1]))
    said = shell("import", "bad.jsonl", code=4)
    assert "line 2: is not a JSON object" in said
    assert "line 3: id: m-1 is also the id of line 1" in said
    assert said.endswith("nothing was stored: 2 of 3 records are invalid\n")
    assert "1 added" in shell("import", "bad.jsonl", "--skip-bad")
    assert "unknown column 'titel'" in _wrong(shell, "titel\n1\n")
    assert "'colour' is not one of" in shell("import", "manuals.csv", "--type", "colour", code=2)
    (shell.folder / "a.pdf").touch()
    assert "the name ends with none of" in shell("import", "a.pdf", code=2)


def _wrong(shell: Commands, content: str) -> str:
    (shell.folder / "wrong.csv").write_text(content)
    return shell("import", "wrong.csv", code=2)


@pytest.mark.every_store
@pytest.mark.parametrize("kind", SHARED)
def test_server_imports_exports_and_rebuilds(shell: Commands, tmp_path: Path, kind: str) -> None:
    server = Server(tmp_path, STORES[kind](tmp_path), **_ours(shell))
    server.start()
    try:
        url = ("--url", str(server.client.base_url))
        assert shell.json("import", "many.jsonl", *url)["added"] == 300
        assert "nothing was stored: 2 of 2" in shell("import", "manuals.csv", *url, code=4)
        dry = shell.json("import", "manuals.csv", *url, "--dry-run", "--type", "manual")
        assert [one["line"] for one in dry["errors"]] == [2, 3]
        server.eventually(lambda: _embedded(server) == 300)
        row = {"entity_type": "manual", "category_code": "B", "title": "t", "content": "c"}
        payload = {"payload": {"rows": [row]}}
        answer = server.client.post("/api/v1/operations/import", json=payload)
        assert answer.status_code == 202
        server.eventually(lambda: _embedded(server) == 301)
        assert shell.json("rebuild", "--embedder", "wordllama", *url)["embedded"] == 301
        found = server.ask("/api/v1/entries/search", {"query": "text 17", "limit": 1})
        assert found["count"] == 1
        shell("export", "all.csv", *url)
        assert len((tmp_path / "all.csv").read_text().splitlines()) == 302
        assert not list((tmp_path / "data" / "entries" / "imports").iterdir())
        assert "cannot use the embedder" in shell("rebuild", "--embedder", "nonsense", *url, code=2)
    finally:
        server.kill()
        server.client.close()


def test_server_that_is_killed_in_mid_import_ends_it_when_it_is_back(
    shell: Commands, tmp_path: Path
) -> None:
    """All of its processes die while rows are stored; the file is stored once."""
    server = Server(tmp_path, f"sqlite:///{tmp_path}/jobs.db", **_ours(shell))
    server.start()
    content = lines(range(5_000), id=None)
    try:
        sent = server.client.post("/api/v1/entries/import?format=jsonl", content=content)
        job = sent.json()["job_id"]
        again = server.client.post("/api/v1/entries/import?format=jsonl", content=b"{}")
        assert again.status_code == 409
        server.eventually(lambda: server.operation(job)["note"] is not None)
        killed = server.pids()
        server.kill()
        server.kill_processes(killed)
        server.start()
        done = server.eventually(
            lambda: (found := server.operation(job))["status"] == "succeeded" and found
        )
        assert (done["result"]["added"], done["result"]["bad"]) == (5_000, 0)
        assert server.client.get("/api/v1/queues/entries").json()["paused_until"] is None
        server.eventually(lambda: _embedded(server) == 5_000)
        assert not list((tmp_path / "data" / "entries" / "imports").iterdir())
    finally:
        server.kill()
        server.client.close()


def test_command_that_waits_says_for_what(shell: Commands, tmp_path: Path) -> None:
    """The server has no workers, and is gone then; what it has accepted is not lost."""
    server = Server(tmp_path, f"sqlite:///{tmp_path}/jobs.db", **_ours(shell))
    server.start("--workers", "0")
    command = ["entries", "import", "many.jsonl", "--url", str(server.client.base_url)]
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", *command],
        cwd=tmp_path,
        env=shell.environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as waiting:
        impatient = threading.Timer(2 * SOON, waiting.kill)
        impatient.start()
        assert waiting.stderr is not None
        assert "waits for a worker" in waiting.stderr.readline()
        server.kill()
        assert "continues when the server is back" in waiting.stderr.readline()
        assert waiting.wait() == 5
        impatient.cancel()
    server.client.close()


def test_files_are_bounded(shell: Commands, tmp_path: Path) -> None:
    server = Server(tmp_path, f"sqlite:///{tmp_path}/jobs.db", **_ours(shell))
    server.start()
    try:
        ask = server.client.post
        assert ask("/api/v1/entries/import?format=csv").status_code == 400
        (shell.folder / "wrong.jsonl").write_bytes(b"{\n" * 150)
        url = ("--url", str(server.client.base_url))
        for said in (
            shell("import", "wrong.jsonl", "--dry-run"),
            shell("import", "wrong.jsonl", code=4),
            shell("import", "wrong.jsonl", *url, code=4),
        ):
            assert said.count("is not a JSON object") == 100
            assert "\n… and 50 more.\n" in said
        assert ask("/api/v1/entries/import?format=pdf", content=b"x").status_code == 422
        assert ask("/api/v1/entries/import", content=b"x").status_code == 422
        both = {"payload": {"rows": [], "file": "x"}}
        assert ask("/api/v1/operations/import", json=both).status_code == 422
        for name in ("../penstock.db", "x" * 32 + ".csv"):
            sent = ask("/api/v1/operations/import", json={"payload": {"file": name}})
            job = sent.json()["job_id"]
            server.eventually(lambda: server.operation(job)["status"] == "failed")  # noqa: B023 - at once
            assert "there is no uploaded file" in server.operation(job)["error"]
    finally:
        server.kill()
        server.client.close()


def _ours(shell: Commands) -> dict[str, str]:
    return {name: value for name, value in shell.environment.items() if "ENTRIES" in name}


def _embedded(server: Server) -> int:
    status = server.client.get("/admin/queue/status").json()
    return int(status["queue"]["embedded"]["total"])
