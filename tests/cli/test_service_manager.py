"""What a service manager hears from `penstock serve` and `penstock worker`: real datagrams."""

import contextlib
import os
import secrets
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from penstock import Penstock, run_sync
from penstock.cli.service_manager import ServiceManager
from tests.cli.support import COMMAND, started
from tests.environment import SOON
from tests.server.support import PROBE_SERVE, SERVE, served

INTERVAL = 0.15
"""Seconds of the watchdog; a process beats three times as often."""

TASKS = """
from penstock import Penstock

app = Penstock("sqlite:///jobs.db")

@app.task
async def stuck() -> None:
    print("stuck runs", flush=True)
    with open("pipe") as pipe:  # the event loop waits for this, too
        pipe.read()

@app.task
def held() -> None:
    print("held runs", flush=True)
    with open("pipe") as pipe:
        pipe.read()
"""
WORKER = (*COMMAND, "worker", "tasks:app")


class Manager:
    """A service manager that listens."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self.heard: list[str] = []

    def next(self, patience: float = SOON) -> str:
        self._socket.settimeout(patience)
        self.heard.append(self._socket.recv(4096).decode())
        return self.heard[-1]

    def wait_for(self, text: str) -> str:
        """The next report with this in it."""
        while text not in self.next():
            pass
        return self.heard[-1]

    def is_silent(self) -> bool:
        """Whether nothing comes for many intervals, once what was sent before has been read."""
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(4096):
                pass
        try:
            self.next(10 * INTERVAL)
        except TimeoutError:
            return True
        return False

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with listening(str(tmp_path / "notify")) as opened:
        yield opened


@contextmanager
def listening(address: str) -> Iterator[Manager]:
    opened = Manager(address)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def watched(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> Manager:
    """It waits for signs of life from the processes that a test starts."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", str(int(INTERVAL * 1_000_000)))
    return manager


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def enqueue(folder: Path, task: str) -> None:
    app = Penstock(f"sqlite:///{folder}/jobs.db")
    app.task(task, lambda: None)
    run_sync(app.enqueue(task))
    run_sync(app.close())


# The protocol


@pytest.mark.parametrize("abstract", [False, True], ids=["file", "abstract"])
def test_reports_reach_the_socket(tmp_path: Path, *, abstract: bool) -> None:
    if abstract and sys.platform != "linux":
        pytest.skip("abstract sockets are a feature of Linux")
    address = f"@penstock-{secrets.token_hex(8)}" if abstract else str(tmp_path / "notify")
    with listening(address) as manager:
        reporter = ServiceManager({"NOTIFY_SOCKET": address})
        reporter.ready("serves")
        reporter.status("is busy")
        reporter.alive()
        reporter.stopping("drains")
        assert [manager.next() for _ in range(4)] == [
            "READY=1\nSTATUS=serves",
            "STATUS=is busy",
            "WATCHDOG=1",
            "STOPPING=1\nSTATUS=drains",
        ]


def test_what_jobs_start_does_not_see_the_socket() -> None:
    environment = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "9", "WATCHDOG_PID": "1", "HOME": "/"}
    ServiceManager(environment)
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 10.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 10.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "often"}, None),
    ],
)
def test_watchdog_is_fed_if_it_waits_for_this_process(
    variables: dict[str, str], seconds: float | None
) -> None:
    every = ServiceManager({"NOTIFY_SOCKET": "/x", **variables}).every
    assert (every and every.total_seconds()) == seconds
    assert ServiceManager(dict(variables)).every is None  # nobody listens


def test_service_manager_that_is_gone_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("serves")
    assert "could not be sent" in caplog.text


def test_without_a_service_manager_nothing_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager({}).ready("serves")
    assert not caplog.text


# A worker


def test_worker_tells_when_it_is_ready_alive_and_stopping(watched: Manager, folder: Path) -> None:
    enqueue(folder, "held")
    with started(WORKER, folder) as worker:
        assert watched.next() == "READY=1\nSTATUS=runs jobs of sqlite:///jobs.db"
        worker.wait_for("held runs")
        watched.wait_for("WATCHDOG=1")
        worker.send(signal.SIGTERM)
        assert watched.wait_for("STOPPING=1") == "STOPPING=1\nSTATUS=finishes running jobs"
        watched.wait_for("WATCHDOG=1")  # also while it drains
        (folder / "pipe").write_text("finished")
        assert worker.wait() == 0


def test_worker_with_several_processes_speaks_with_one_voice(
    watched: Manager, folder: Path
) -> None:
    health = folder / "alive"
    command = (*WORKER, "--processes", "2", "--health-file", str(health))
    with started(command, folder) as worker:
        assert watched.next() == "READY=1\nSTATUS=runs jobs in 2 processes"
        pids = [int(worker.wait_for("Worker ").split(":")[1]) for _ in range(2)]
        watched.wait_for("WATCHDOG=1")
        os.kill(pids[1], signal.SIGSTOP)
        watched.is_silent()  # one beat of each may have been under way
        assert watched.is_silent()
        health.unlink()
        os.kill(pids[1], signal.SIGCONT)
        watched.wait_for("WATCHDOG=1")
        assert health.exists()
        worker.send(signal.SIGTERM)
        assert watched.wait_for("STOPPING=1") == "STOPPING=1\nSTATUS=finishes running jobs"
        assert worker.wait() == 0
        assert sum("STOPPING" in one for one in watched.heard) == 1


def test_worker_whose_event_loop_hangs_feeds_no_watchdog(watched: Manager, folder: Path) -> None:
    with started(WORKER, folder) as worker:
        watched.wait_for("WATCHDOG=1")
        enqueue(folder, "stuck")
        worker.wait_for("stuck runs")
        assert watched.is_silent()
        (folder / "pipe").write_text("free")
        watched.wait_for("WATCHDOG=1")


def test_worker_whose_store_hangs_feeds_no_watchdog(watched: Manager, folder: Path) -> None:
    with started(WORKER, folder):
        watched.wait_for("WATCHDOG=1")
        with contextlib.closing(
            sqlite3.connect(folder / "jobs.db", timeout=SOON, isolation_level=None)
        ) as other:
            other.execute("BEGIN IMMEDIATE")
            assert watched.is_silent()
            other.execute("ROLLBACK")
        watched.wait_for("WATCHDOG=1")


def test_worker_without_a_watchdog_only_tells_what_it_does(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    with started(WORKER, folder) as worker:
        assert "READY=1" in manager.next()
        worker.send(signal.SIGTERM)
        assert "STOPPING=1" in manager.next()
        assert worker.wait() == 0


def test_worker_touches_its_health_file_as_long_as_it_is_healthy(folder: Path) -> None:
    program = (
        "from datetime import timedelta; from penstock.cli import main, worker;"
        "worker._HEALTH_FILE_EVERY = timedelta(milliseconds=50); main.main()"
    )
    file = folder / "alive"
    command = (sys.executable, "-c", program, "worker", "tasks:app", "--health-file", str(file))
    with started(command, folder) as worker:
        wait_for_touches(file)
        enqueue(folder, "stuck")
        worker.wait_for("stuck runs")
        last = file.stat().st_mtime_ns
        time.sleep(10 * INTERVAL)  # a worker that hangs does nothing that could be waited for
        assert file.stat().st_mtime_ns == last
        (folder / "pipe").write_text("free")
        wait_for_touches(file)


def wait_for_touches(file: Path) -> None:
    seen: set[int] = set()
    deadline = time.monotonic() + SOON
    while len(seen) < 3:
        assert time.monotonic() < deadline
        with contextlib.suppress(FileNotFoundError):
            seen.add(file.stat().st_mtime_ns)
        time.sleep(0.01)


# A server


@pytest.mark.parametrize("processes", ["1", "2"])
def test_server_tells_when_it_is_ready_alive_and_stopping(
    processes: str, watched: Manager, tmp_path: Path
) -> None:
    with served(tmp_path, "--processes", processes) as (server, url):
        assert watched.next() == f"READY=1\nSTATUS=serves on {url}"
        watched.wait_for("WATCHDOG=1")
        watched.wait_for("WATCHDOG=1")
        server.send(signal.SIGTERM)
        assert "STATUS=finishes requests and running jobs" in watched.wait_for("STOPPING=1")
        assert server.wait() == 0
        assert sum("STOPPING" in one for one in watched.heard) == 1


def test_server_whose_store_hangs_feeds_no_watchdog(watched: Manager, tmp_path: Path) -> None:
    with served(tmp_path) as (_, url):
        watched.wait_for("WATCHDOG=1")
        store = tmp_path / "penstock-data" / "penstock.db"
        with contextlib.closing(
            sqlite3.connect(store, timeout=SOON, isolation_level=None)
        ) as other:
            other.execute("BEGIN IMMEDIATE")
            assert watched.is_silent()
            assert httpx.get(f"{url}/health/live", timeout=SOON).status_code == 200
            other.execute("ROLLBACK")
        watched.wait_for("WATCHDOG=1")


@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes below /proc")
def test_process_of_a_server_that_hangs_does_not_hide_behind_others(
    watched: Manager, tmp_path: Path
) -> None:
    command = (*SERVE, "--processes", "3")
    with served(tmp_path, command=command) as (server, _):
        watched.wait_for("WATCHDOG=1")
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        assert len(children) == 3
        os.kill(int(children[1]), signal.SIGSTOP)
        # One beat of each may have been under way.
        watched.is_silent()
        assert watched.is_silent()
        os.kill(int(children[1]), signal.SIGCONT)
        watched.wait_for("WATCHDOG=1")
        os.kill(int(children[1]), signal.SIGKILL)  # the one that replaces it beats as well
        server.wait_for("restarting it")
        watched.is_silent()
        watched.wait_for("WATCHDOG=1")
        server.send(signal.SIGTERM)
        assert server.wait() == 0


def test_jobs_of_a_server_get_their_grace_while_the_watchdog_is_fed(
    watched: Manager, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with served(tmp_path, "--grace", "600", command=PROBE_SERVE) as (server, url):
        httpx.post(f"{url}/jobs", timeout=SOON)
        server.wait_for("job runs")
        server.send(signal.SIGTERM)
        watched.wait_for("STOPPING=1")
        watched.wait_for("WATCHDOG=1")
        watched.wait_for("WATCHDOG=1")
