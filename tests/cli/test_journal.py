"""Commands, servers and moves on a journal, which one process has at a time."""

import os
import signal
from pathlib import Path

import httpx
import pytest

from penstock import Penstock, run_sync
from tests.cli.support import COMMAND, Shell, started
from tests.environment import SOON
from tests.server.support import SERVE, served


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"journal:///{tmp_path}/jobs"


def test_commands_work_on_it(app: Penstock, shell: Shell, tmp_path: Path) -> None:
    run_sync(app.close())
    job = shell.json("enqueue", "greet", "name=Ada")["job"]
    assert shell.json("jobs", str(job["id"]))["state"] == "pending"
    shell("cancel", str(job["id"]))
    shell("export", str(tmp_path / "out.jsonl"))
    shell("prune", "--older-than", "0s")
    assert shell.json("jobs")["jobs"] == []
    other = Shell(f"journal:///{tmp_path}/other")
    other("import", str(tmp_path / "out.jsonl"))
    assert [one["state"] for one in other.json("jobs")["jobs"]] == ["cancelled"]


def test_second_process_is_told_who_has_it(app: Penstock, shell: Shell, tmp_path: Path) -> None:
    said = shell.error("status", code=5)
    assert f"the journal in {tmp_path}/jobs is in use by process {os.getpid()}" in said
    (tmp_path / "tasks.py").write_text(
        f"from penstock import Penstock\napp = Penstock({app.url!r})\napp.task('t', lambda: None)"
    )
    with started([*COMMAND, "worker", "tasks:app"], tmp_path) as worker:
        assert worker.wait() == 5
    assert "is in use by process" in worker.printed[-1]


def test_move_there_and_back(app: Penstock, url: str, shell: Shell, tmp_path: Path) -> None:
    run_sync(app.enqueue("greet", {"name": "Ada"}))
    run_sync(app.close())
    there, back = f"sqlite:///{tmp_path}/there.db", f"journal:///{tmp_path}/back"
    assert "Would move 1 job," in shell("migrate", url, there, "--dry-run").stdout
    assert "Moved 1 job," in shell("migrate", url, there).stdout
    assert "Moved 1 job," in shell("migrate", there, back).stdout
    assert [one["state"] for one in Shell(back).json("jobs")["jobs"]] == ["pending"]


def test_several_processes_cannot_serve_it(url: str, tmp_path: Path) -> None:
    with started((*SERVE, "--store", url, "--processes", "2"), tmp_path) as server:
        assert server.wait() == 2
    assert "belongs to one process, and 2 cannot share it" in server.printed[-1]
    assert "try: --processes 1, or a store that processes share" in server.printed[-1]


def test_server_that_is_killed_goes_on_where_it_was(url: str, tmp_path: Path) -> None:
    job = {"task": "nobody.does", "args": {"n": 1}}
    with served(tmp_path, "--store", url) as (server, address):
        answer = httpx.post(f"{address}/api/v1/jobs", json=job, timeout=SOON)
        assert answer.status_code == 201, answer.text
        server.send(signal.SIGKILL)
        server.wait()
    with served(tmp_path, "--store", url) as (server, address):
        found = httpx.get(f"{address}/api/v1/jobs/{answer.json()['id']}", timeout=SOON).json()
        assert (found["task"], found["state"]) == ("nobody.does", "pending")
        assert "is in use by process" in Shell(url).error("status", code=5)
        assert Shell(address).json("jobs")["jobs"][0]["id"] == found["id"]
        server.send(signal.SIGTERM)
        assert server.wait() == 0
