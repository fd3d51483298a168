"""`penstock entries import`, `export` and `rebuild`, on a server and without one."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.apps.entries import filing
from penstock.http.problems import Problem
from penstock.http.routes import Call
from tests.apps.entries.test_serving import Server
from tests.apps.entries.transfers import lines
from tests.apps.indexing.support import SOON, Embeddings
from tests.contract.support import SHARED, STORES

CSV = 'title,content,tags\nKettle,Descale it,"[""a""]"\nLamp,Change the bulb,\n'


@pytest.fixture
def embeddings() -> Iterator[Embeddings]:
    with Embeddings() as service:
        yield service


class Shell:
    """Runs commands."""

    def __init__(self, folder: Path, embeddings: Embeddings) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "PENSTOCK_ENTRIES_EMBEDDER": embeddings.configuration,
            "PENSTOCK_ENTRIES_WORKERS": "1",
            "PENSTOCK_ENTRIES_LEASE": "1",
        }

    def __call__(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli.main", "entries", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=2 * SOON,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def shell(tmp_path: Path, embeddings: Embeddings) -> Shell:
    (tmp_path / "manuals.csv").write_text(CSV)
    (tmp_path / "many.jsonl").write_bytes(lines(range(300)))
    return Shell(tmp_path, embeddings)


def test_file_goes_in_and_comes_out_without_a_server(shell: Shell) -> None:
    options = ("--type", "skill", "--category", "HOME")
    dry = shell("import", "manuals.csv", *options, "--dry-run")
    assert dry.startswith("2 records read: 2 would be added, 0 would be replaced, 0 would be")
    said = shell("import", "manuals.csv", *options)
    assert said == "2 records read: 2 added, 0 replaced, 0 removed, 0 wrong.\n"
    assert shell.json("import", "many.jsonl", "--mode", "replace")["removed"] == 2
    shell("export", "all.xlsx")
    assert shell.json("import", "all.xlsx")["replaced"] == 300
    shell("export", "some.csv", "--type", "experience")
    assert (shell.folder / "some.csv").read_text().count("\n") == 1
    assert [path.name for path in shell.folder.glob(".*")] == []


def test_what_is_wrong_is_told_by_line(shell: Shell) -> None:
    (shell.folder / "bad.jsonl").write_bytes(lines([1]) + b"\n{\n" + lines([1]))
    said = shell("import", "bad.jsonl", code=4)
    assert "line 2: is no JSON object" in said
    assert "line 3: id: m-1 is that of line 1, too" in said
    assert said.endswith("nothing was stored: 2 of 3 records are wrong\n")
    assert "1 added" in shell("import", "bad.jsonl", "--skip-bad")
    assert "there is no column 'titel'" in _wrong(shell, "titel\n1\n")
    assert "there is no 'colour'" in shell("import", "manuals.csv", "--type", "colour", code=2)
    (shell.folder / "a.pdf").touch()
    assert "ends with none of" in shell("import", "a.pdf", code=2)


def _wrong(shell: Shell, content: str) -> str:
    (shell.folder / "wrong.csv").write_text(content)
    return shell("import", "wrong.csv", code=2)


@pytest.mark.parametrize("kind", SHARED)
def test_server_imports_exports_and_rebuilds(shell: Shell, tmp_path: Path, kind: str) -> None:
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
        assert "no embedder" in shell("rebuild", "--embedder", "nonsense", *url, code=2)
    finally:
        server.kill()
        server.client.close()


def test_server_that_is_killed_in_mid_import_ends_it_when_it_is_back(
    shell: Shell, tmp_path: Path
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
        server.eventually(lambda: _operation(server, job)["note"] is not None)
        killed = [*server.pids()]
        server.kill()
        for pid in killed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        server.start()
        done = server.eventually(
            lambda: (found := _operation(server, job))["status"] == "succeeded" and found
        )
        assert (done["result"]["added"], done["result"]["bad"]) == (5_000, 0)
        assert server.client.get("/api/v1/queues/entries").json()["paused_until"] is None
        server.eventually(lambda: _embedded(server) == 5_000)
        assert not list((tmp_path / "data" / "entries" / "imports").iterdir())
    finally:
        server.kill()
        server.client.close()


def test_command_that_waits_says_for_what(shell: Shell, tmp_path: Path) -> None:
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
        assert "goes on when the server is back" in waiting.stderr.readline()
        assert waiting.wait() == 5
        impatient.cancel()
    server.client.close()


def test_files_are_bounded(shell: Shell, tmp_path: Path) -> None:
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
            assert said.count("is no JSON object") == 100
            assert "\n… and 50 more.\n" in said
        assert ask("/api/v1/entries/import?format=pdf", content=b"x").status_code == 422
        assert ask("/api/v1/entries/import", content=b"x").status_code == 422
        both = {"payload": {"rows": [], "file": "x"}}
        assert ask("/api/v1/operations/import", json=both).status_code == 422
        for name in ("../penstock.db", "x" * 32 + ".csv"):
            sent = ask("/api/v1/operations/import", json={"payload": {"file": name}})
            job = sent.json()["job_id"]
            server.eventually(lambda: _operation(server, job)["status"] == "failed")  # noqa: B023 - at once
            assert "there is no file" in _operation(server, job)["error"]
    finally:
        server.kill()
        server.client.close()


@pytest.mark.parametrize("announced", [True, False])
async def test_file_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, announced: bool
) -> None:
    monkeypatch.setattr(filing, "FILE_LIMIT", 10)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"123456", "more_body": True}

    headers = [(b"content-length", b"11")] if announced else []
    call = Call({"headers": headers}, receive, "", lambda: None)
    with pytest.raises(Problem, match="larger than 10 bytes"):
        await filing.save_body(tmp_path / "file", call)


def _operation(server: Server, job: str) -> Any:
    return server.client.get(f"/api/v1/operations/jobs/{job}").json()


def _ours(shell: Shell) -> dict[str, str]:
    return {name: value for name, value in shell.environment.items() if "ENTRIES" in name}


def _embedded(server: Server) -> int:
    status = server.client.get("/admin/queue/status").json()
    return int(status["queue"]["embedded"]["total"])
