"""The demo and the tour of the examples run, as `./dev run --demo` starts them."""

import shutil
import signal
import sys
import time
from pathlib import Path

import httpx

from penstock import Penstock, run_sync
from tests.cli.support import SOON, started
from tests.server.commands import address

ROOT = Path(__file__).parents[2]


def test_demo_fills_a_server_with_work_until_it_is_stopped(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "demo.py", tmp_path)
    options = ("--port", "0", "--data", "elsewhere")
    with started((sys.executable, "demo.py", *options), tmp_path) as demo:
        url = address(demo)
        _wait_for_completed_events(url)
        app = Penstock(f"sqlite:///{tmp_path}/elsewhere/penstock.db", create=False)
        assert {"events", "mail", "reports"} <= {queue.name for queue in run_sync(app.queues())}
        run_sync(app.close())
        demo.send(signal.SIGTERM)
        assert demo.wait() == 0


def _wait_for_completed_events(url: str) -> None:
    deadline = time.monotonic() + SOON
    with httpx.Client(base_url=url, timeout=SOON) as client:
        while not client.get("/events", params={"status": "COMPLETED"}).json()["events"]:
            assert time.monotonic() < deadline


def test_tour_runs(tmp_path: Path) -> None:
    with started((sys.executable, str(ROOT / "examples" / "tour.py")), tmp_path) as tour:
        tour.wait_for("The log of job 6")
        assert tour.wait() == 0
