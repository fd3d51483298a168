"""The public command-line client of Agent Brain, unmodified, against a real server.

It gets an environment of its own, which is made once and kept in pytest's cache.
"""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apps.indexing.support import Embeddings, Server, serving, write

NEEDED = (
    "click<9",
    "httpx<0.29",
    "psutil<7",
    "pydantic<3",
    "pyyaml<7",
    "rich<14",
    "tomlkit<0.14",
    "mcp<2",
)
OTHERS = {"10.7.0": ("agent-brain-uds==10.7.0",), "3.0.0": ()}
"""Parts of each version that come in packages of their own."""

pytestmark = pytest.mark.timeout(600)  # the first time, packages are installed


class Client:
    """`agent-brain`, as a user calls it in a project."""

    def __init__(self, command: Path, project: Path, home: Path) -> None:
        self._command = command
        self._project = project
        self._environment = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "COLUMNS": "200",
            "NO_COLOR": "1",
            "XDG_STATE_HOME": str(home / "state"),
        }

    def __call__(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [self._command, *arguments],
            cwd=self._project,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code))


def installed(version: str, folder: Path) -> Path:
    """The command of a version, from an environment that may be there already."""
    command = folder / "bin" / "agent-brain"
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        stamp = folder / "finished"
        if not stamp.exists():
            python = folder / "bin" / "python"
            quiet = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            own = (f"agent-brain-cli=={version}", *OTHERS[version])
            steps = (
                (sys.executable, "-m", "venv", "--clear", folder),
                (python, *quiet, "--no-deps", *own),
                (python, *quiet, *NEEDED),
            )
            for step in steps:
                words = list(map(str, step))
                done = subprocess.run(words, capture_output=True, text=True, check=False)
                if done.returncode:
                    pytest.fail(f"agent-brain-cli cannot be installed here: {done.stderr[-300:]}")
            stamp.touch()
    return command


@pytest.fixture(params=sorted(OTHERS), scope="module")
def command(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = getattr(request.config, "cache", None)  # a run may do without: -p no:cacheprovider
    kept = cache.mkdir("agent-brain") if cache else tmp_path_factory.mktemp("agent-brain")
    return installed(request.param, kept / request.param)


@pytest.fixture
def project(folder: Path) -> Path:
    return write(
        folder,
        {
            "docs/retry.md": "# Retry\n\nA failed job is tried again with a growing pause.",
            "code/pump.py": "def pump(water):\n    return water + 1\n",
            "many/0.md": "stone",
        },
    )


@pytest.fixture
def server(project: Path, embeddings: Embeddings) -> Iterator[Server]:
    with serving(project, embeddings, PENSTOCK_INDEXING_RUNTIME_FILE="true") as server:
        yield server


@pytest.fixture
def client(command: Path, project: Path, tmp_path: Path) -> Client:
    home = tmp_path / "home"
    home.mkdir()
    return Client(command, project, home)


def test_a_day_with_the_client(
    client: Client, server: Server, project: Path, embeddings: Embeddings
) -> None:
    folders_are_known = "folders" in client("--help")
    assert "Job queued!" in client("index", "docs", "--url", server.url)
    server.finished("job_1")
    code = client.json("index", "code", "--include-code", "--url", server.url)
    assert (code["job_id"], code["status"]) == ("job_2", "pending")
    server.finished("job_2")

    embeddings.hold("stone")
    held = client.json("index", "many", "--url", server.url)["job_id"]
    embeddings.wait_until_held()
    assert "Duplicate" in client("index", "many", "--url", server.url)
    status = client("status", "--url", server.url)
    assert "HEALTHY" in status
    assert "10.7.0" in status
    assert client("reset", "--yes", "--url", server.url, code=1).count("409") == 1

    listed = client("jobs", "--url", server.url)
    for shown in ("job_1", "job_2", "job_3", "running", "done", "100.0%"):
        assert shown in listed
    assert [job["id"] for job in client.json("jobs", "--url", server.url)] == [
        "job_3", "job_2", "job_1",
    ]  # fmt: skip
    assert "many" in client("jobs", held, "--url", server.url)
    cancelled = client("jobs", held, "--cancel", "--url", server.url)
    assert "asked to stop" in cancelled
    assert server.finished(held)["status"] == "cancelled"
    assert "Completed" in client("jobs", "job_1", "--url", server.url)
    assert client("jobs", "job_1", "--cancel", "--url", server.url, code=1).count("409") == 1
    assert client("jobs", "job_9", "--url", server.url, code=1).count("404") == 1

    for mode in ("hybrid", "bm25", "vector"):
        found = client.json("query", "pause of a failed job", "-m", mode, "--url", server.url)
        assert found["results"][0]["source"].endswith("docs/retry.md")
    assert "pump.py" in client("query", "water", "--scores", "--full", "--url", server.url)
    found = client.json("query", "water job", "--source-types", "code", "--url", server.url)
    assert [Path(one["source"]).name for one in found["results"]] == ["pump.py"]

    if folders_are_known:
        assert str(project / "docs") in client("folders", "list", "--url", server.url)
        removed = client("folders", "remove", str(project / "docs"), "--yes", "--url", server.url)
        assert "1" in removed
        assert client("folders", "remove", "none", "--yes", "--url", server.url, code=1)
    assert "reset" in client("reset", "--yes", "--url", server.url)
    assert server.found("water") == []


# Version 3.0.0 looks for its server elsewhere, and is told by --url.
@pytest.mark.parametrize("command", ["10.7.0"], indirect=True)
def test_client_finds_the_server_of_its_project(
    client: Client, server: Server, project: Path
) -> None:
    assert server.url  # only the file tells it
    (project / ".agent-brain" / "config.json").write_text("{}")
    answer = client.json("index", "docs")
    assert server.finished(answer["job_id"])["status"] == "done"
    assert client.json("status")["health"]["status"] == "healthy"


def test_client_is_told_why_a_folder_is_refused(
    client: Client, server: Server, tmp_path: Path
) -> None:
    outside = write(tmp_path / "outside", {"a.md": "a"})
    said = client("index", str(outside), "--url", server.url, code=1)
    assert "400" in said
    assert "PENSTOCK_ALLOW_EXTERNAL_PATHS" in said.replace("\n", "")
    if "--allow-external" in client("index", "--help"):
        said = client("index", str(outside), "--allow-external", "--url", server.url, code=1)
        assert "PENSTOCK_ALLOW_EXTERNAL_PATHS" in said.replace("\n", "")


def test_client_indexes_folders_outside_of_the_project_where_the_setting_allows_it(
    client: Client, project: Path, embeddings: Embeddings, tmp_path: Path
) -> None:
    outside = write(tmp_path / "outside", {"a.md": "a"})
    with serving(project, embeddings, PENSTOCK_ALLOW_EXTERNAL_PATHS="true") as server:
        job = client.json("index", str(outside), "--url", server.url)["job_id"]
        assert server.finished(job)["status"] == "done"
