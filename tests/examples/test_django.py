"""The example of a Django project works: a request, a worker, and an order that is confirmed."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.support import free_port
from tests.crash.processes import until
from tests.environment import SOON

EXAMPLE = Path(__file__).parents[2] / "examples" / "django_site"
BUY = """
from django.test import Client
client = Client(raise_request_exception=False, SERVER_NAME="localhost")
print(client.get("/buy/tea/").content.decode(), client.get("/buy/nothing/").status_code)
"""
CONFIRMED = """
from shop.models import Order
print([(order.item, order.confirmed) for order in Order.objects.all()])
"""


def test_order_is_confirmed_by_a_worker(tmp_path: Path) -> None:
    site = shutil.copytree(EXAMPLE, tmp_path / "site", ignore=shutil.ignore_patterns("*.db*"))

    def manage(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=site,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    manage("check", "--fail-level", "WARNING")
    manage("makemigrations", "--check", "--dry-run")
    manage("migrate")
    answer = manage("shell", "-v", "0", "-c", BUY)
    assert "is confirmed soon" in answer
    assert "500" in answer
    worker = subprocess.Popen([sys.executable, "manage.py", "penstock", "worker"], cwd=site)
    try:
        until(
            lambda: "('tea', True)" in manage("shell", "-v", "0", "-c", CONFIRMED),
            "it is not confirmed",
        )
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(SOON) == 0
    finally:
        worker.kill()
        worker.wait()
    assert "nothing" not in manage("shell", "-v", "0", "-c", CONFIRMED)


@pytest.mark.parametrize(
    "command",
    [
        ("gunicorn", "--preload", "--workers", "2", "--bind", "127.0.0.1:{port}", "wsgi"),
        ("uvicorn", "--port", "{port}", "asgi:application"),
    ],
    ids=["gunicorn", "uvicorn"],
)
def test_servers_run_the_project(command: tuple[str, ...], tmp_path: Path) -> None:
    site = shutil.copytree(EXAMPLE, tmp_path / "site", ignore=shutil.ignore_patterns("*.db*"))
    manage = [sys.executable, "manage.py"]
    subprocess.run([*manage, "migrate", "-v", "0"], cwd=site, check=True)
    port = free_port()
    program = [sys.executable, "-m", *(part.format(port=port) for part in command)]
    server = subprocess.Popen(program, cwd=site)
    try:
        until(lambda: get(port, "/buy/tea/") == 200, "it does not answer")
        assert get(port, "/buy/nothing/") == 500
        jobs = subprocess.run(
            [*manage, "penstock", "jobs", "--json"], cwd=site, capture_output=True, check=True
        )
        assert [job["task"] for job in json.loads(jobs.stdout)["jobs"]] == ["shop.tasks.confirm"]
    finally:
        server.terminate()
        server.wait(SOON)


def get(port: int, path: str) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SOON)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except ConnectionError:
        return None
    finally:
        connection.close()
