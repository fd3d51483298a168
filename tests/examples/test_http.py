"""The examples of publishers and workers run against a real server."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock.client import Client
from tests.client.support import Server, serving
from tests.environment import SOON

EXAMPLES = Path(__file__).parents[2] / "examples" / "http"
# Without node or curl these fail: an example that nobody runs is not known to work.
PUBLISHERS = {
    "curl": ("sh", "publish.sh"),
    "python": (sys.executable, "publisher.py"),
    "node": ("node", "publisher.mjs"),
}
WORKERS = {
    "curl": ("sh", "worker.sh"),
    "python": (sys.executable, "worker.py"),
    "node": ("node", "worker.mjs"),
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """With a token, as a server for others has one."""
    from penstock import Penstock, run_sync

    app = Penstock(f"sqlite:///{tmp_path / 'jobs.db'}")
    token = run_sync(app.tokens.create("all", ["publish", "work", "read"]))
    run_sync(app.close())
    with serving(tmp_path, token) as running:
        yield running


def environment(server: Server, **more: str) -> dict[str, str]:
    assert server.token is not None
    return {
        **os.environ,
        "PENSTOCK_URL": server.url,
        "PENSTOCK_TOKEN": server.token,
        "PYTHONUNBUFFERED": "1",
        **more,
    }


def command(program: Sequence[str]) -> list[str]:
    *start, file = program
    return [*start, str(EXAMPLES / file)]


@pytest.mark.parametrize("name", PUBLISHERS)
def test_publisher_publishes(name: str, server: Server) -> None:
    ran = subprocess.run(
        command(PUBLISHERS[name]),
        env=environment(server),
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    with server.client() as client:
        events = client.list(tags="email").events
        assert len(events) == (4 if name == "python" else 1)
        assert client.get(events[-1].id).payload == {"to": "ada@example.com"}
        assert str(events[-1].id) in ran.stdout


@pytest.mark.parametrize("name", WORKERS)
def test_worker_works_off_what_comes(name: str, server: Server) -> None:
    process = subprocess.Popen(
        command(WORKERS[name]),
        env=environment(server, COUNT="2"),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with process, server.client() as client:
            assert process.stdout is not None
            for id_in_payload in (7, 8):
                payload = {"to": "ada@example.com", "id": id_in_payload, "token": 9}
                event = client.publish("Send a welcome", ["email"], payload)
                seen = next(line for line in process.stdout if "working on" in line)
                assert f"event {event.id}:" in seen
                until_completed(client, event.id)
            if name != "curl":  # which ends by itself
                process.send_signal(signal.SIGTERM)
                assert "stopped" in process.stdout.read()
            assert process.wait(SOON) == 0
    finally:
        process.kill()


def until_completed(client: Client, event_id: int) -> None:
    while client.get(event_id).status != "COMPLETED":
        pass
