"""The example of a Django project works: a request, a worker, and an order that is confirmed."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

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
