"""The demo and the tour of the examples run, as `./dev run --demo` starts them."""

import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from penstock import JobQuery, Penstock, State, run_sync
from tests.cli.support import started
from tests.environment import SOON
from tests.server.support import address

ROOT = Path(__file__).parents[2]


def test_demo_fills_a_server_with_work_until_it_is_stopped(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "demo.py", tmp_path)
    options = ("--port", "0", "--data", "elsewhere")
    with started((sys.executable, "demo.py", *options), tmp_path) as demo:
        url = address(demo)
        with httpx.Client(base_url=url, timeout=SOON) as client:
            until(lambda: client.get("/events", params={"status": "COMPLETED"}).json()["events"])
            until(lambda: client.get("/index/folders").json()["folders"])
            until(lambda: client.get("/api/v1/queue/items").json()["items"])
            until(lambda: client.post("/api/v1/entries/list", json={}).json()["entries"])
            until(lambda: client.get("/api/v1/notebooks/handbook/files").json()["files"])
        app = Penstock(f"sqlite:///{tmp_path}/elsewhere/penstock.db", create=False)
        queues = {queue.name for queue in run_sync(app.queues.list())}
        assert {"events", "mail", "orders"} <= queues
        assert {one.name for one in run_sync(app.schedules.list())} == {"monthly", "stock"}
        jobs = run_sync(app.find(JobQuery(limit=1000)))
        until(lambda: run_sync(app.queues.keys()))
        for field in ("tenant", "correlation", "tags"):
            assert any(getattr(job, field) for job in jobs), field
        assert run_sync(app.edges([job.id for job in jobs]))  # chains
        until(lambda: run_sync(app.find(JobQuery(error="mailbox"))))  # failures
        running = JobQuery(queue="images", states=[State.RUNNING])
        until(lambda: any(run_sync(app.progress(run_sync(app.find_ids(running)))).values()))
        run_sync(app.close())
        demo.send(signal.SIGTERM)
        assert demo.wait() == 0


def until(holds: Callable[[], object]) -> None:
    """Wait until this is true."""
    deadline = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_tour_runs(tmp_path: Path) -> None:
    with started((sys.executable, str(ROOT / "examples" / "tour.py")), tmp_path) as tour:
        tour.wait_for("The log of job 6")
        assert tour.wait() == 0
