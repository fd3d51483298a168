"""The compose file: valid, with commands that exist and time to drain. No engine runs it here."""

import os
import shutil
import signal
import subprocess
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock, run_sync
from tests.cli.support import COMMAND, started
from tests.deploy.support import DEPLOY, LAST_BREATH, WIND_DOWN, documents, options, seconds, tool
from tests.environment import SOON

FILE = DEPLOY / "compose" / "compose.yaml"
(DOCUMENT,) = documents("compose/compose.yaml")
SERVICES: dict[str, Any] = DOCUMENT["services"]


def test_it_is_a_compose_file() -> None:
    command = [tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(FILE)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_it_has_a_server_two_workers_and_postgresql() -> None:
    assert SERVICES.keys() == {"server", "worker", "postgres"}
    assert SERVICES["worker"]["deploy"]["replicas"] == 2
    assert (FILE.parent / SERVICES["server"]["build"]["context"]).resolve() == DEPLOY.parent
    assert (DEPLOY.parent / SERVICES["server"]["build"]["dockerfile"]).exists()


def test_nothing_has_a_default_password_or_is_reachable_from_elsewhere() -> None:
    text = FILE.read_text("utf-8")
    assert text.count("${PENSTOCK_DB_PASSWORD:?") == 2
    assert all(
        port.startswith("127.0.0.1:") for one in SERVICES.values() for port in one.get("ports", ())
    )


@pytest.mark.parametrize("name", ["server", "worker"])
def test_there_is_time_to_drain(name: str) -> None:
    given = options(SERVICES[name]["command"])
    grace = given["grace"] if name == "server" else given["grace"].total_seconds()
    needed = grace + (given.get("drain_delay") or 0) + WIND_DOWN + LAST_BREATH
    assert seconds(SERVICES[name]["stop_grace_period"]) > needed


def test_worker_runs_its_app_and_passes_its_health_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the container, but for the store."""
    shutil.copy(FILE.parent / "tasks.py", tmp_path)
    url = f"sqlite:///{tmp_path}/jobs.db"
    monkeypatch.setenv("PENSTOCK_STORE", url)
    healthy = str(tmp_path / "healthy")
    shell = SERVICES["worker"]["healthcheck"]["test"][1]
    check = shell.replace("$$", "$").replace("/tmp/healthy", healthy)  # noqa: S108 - as it is there
    assert (
        subprocess.run(["/bin/sh", "-c", check], capture_output=True, check=False).returncode == 1
    )
    command = [one.replace("/tmp/healthy", healthy) for one in SERVICES["worker"]["command"]]  # noqa: S108
    with started((*COMMAND, *command), tmp_path) as worker:
        deadline = time.monotonic() + SOON
        while subprocess.run(["/bin/sh", "-c", check], capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline
        app = Penstock(url)
        app.task("greet", lambda name: None)
        job = run_sync(app.enqueue("greet", {"name": "Ada"}))
        assert run_sync(app.result(job.id, timeout=timedelta(seconds=SOON))) == "Hello, Ada!"
        run_sync(app.close())
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    old = time.time() - 120
    os.utime(healthy, (old, old))
    assert (
        subprocess.run(["/bin/sh", "-c", check], capture_output=True, check=False).returncode == 1
    )
