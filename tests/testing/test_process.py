import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from penstock import ConfigurationError, Penstock, State, run_sync
from penstock.jobs import Event
from penstock.testing import Clock, WorkerProcess, drain, expire_lease, fresh
from penstock.testing.process import locate
from tests.environment import SOON
from tests.testing.program import app, hang, write

MILLISECOND = timedelta(milliseconds=1)
ROOT = Path(__file__).parents[2]
KILLED = -signal.SIGKILL


@pytest.fixture(autouse=True)
def moved(tmp_path: Path) -> Iterator[Clock]:
    """The clock of the program's app, which is on a file of the test's own."""
    clock = Clock()
    with fresh(app, url=f"sqlite:///{tmp_path}/jobs.db", clock=clock):
        yield clock


def write_lines(tmp_path: Path, *texts: str) -> Path:
    file = tmp_path / "written"
    for text in texts:
        run_sync(write.enqueue(str(file), text))
    return file


def states() -> list[State]:
    return [job.state for job in reversed(run_sync(app.find()))]


@pytest.mark.parametrize(
    ("point", "written", "second"),
    [
        ("claimed", ["a"], State.RUNNING),
        ("ran", ["a", "b"], State.RUNNING),
        ("settled", ["a", "b"], State.DONE),
    ],
)
def test_dies_at_the_nth_job(tmp_path: Path, point: str, written: list[str], second: State) -> None:
    file = write_lines(tmp_path, "a", "b", "c")
    with WorkerProcess(app, kill_at=2, point=point) as worker:  # type: ignore[arg-type] # one of the points
        assert worker.wait() == KILLED
    assert file.read_text().split() == written
    assert states()[:2] == [State.DONE, second]


def test_what_a_killed_worker_held_is_run_by_the_next(tmp_path: Path) -> None:
    """The crash test of a handler whose effect is not idempotent: it shows here."""
    file = write_lines(tmp_path, "a")
    with WorkerProcess(app, kill_at=1, point="ran") as worker:
        worker.wait()
    [job] = run_sync(app.find())
    assert drain(app) == []
    expire_lease(app, job)
    assert [done.state for done in drain(app)] == [State.DONE]
    assert file.read_text().split() == ["a", "a"]
    events = [entry.event for entry in run_sync(app.log(job.id))]
    assert events == [Event.ENQUEUED, Event.CLAIMED, Event.EXPIRED, Event.CLAIMED, Event.DONE]


def test_time_stands_in_the_child_where_it_stood_here(moved: Clock) -> None:
    run_sync(hang.enqueue())
    with WorkerProcess(app) as worker:
        [job_id] = worker.wait_for("claimed")
        job = run_sync(app.get(job_id))
        assert job.started_at == job.enqueued_at
        worker.kill()
    moved.advance(job.lease_time)
    assert run_sync(app.leases.reclaim()) == 1


def test_dies_when_told() -> None:
    job = run_sync(hang.enqueue())
    with WorkerProcess(app) as worker:
        assert worker.wait_for("claimed") == [job.id]
        assert worker.kill() == KILLED
        with pytest.raises(ProcessLookupError):
            os.kill(worker.pid, 0)
        assert worker.kill() == KILLED
    assert states() == [State.RUNNING]


def test_end_of_the_block_kills() -> None:
    with WorkerProcess(app) as worker:
        os.kill(worker.pid, 0)
    assert worker.wait() == KILLED


PARENT = """
import sys, time
from penstock.testing import WorkerProcess
with WorkerProcess("tests.testing.program:app", url=sys.argv[1]) as worker:
    worker.wait_for("claimed")
    print(worker.pid, flush=True)
    sys.stdin.read()
"""


def alive(pid: int) -> bool:
    """Whether it lives: a process that nobody has buried yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends while this is read
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
def test_ends_with_a_parent_that_is_killed() -> None:
    run_sync(hang.enqueue())
    command = [sys.executable, "-c", PARENT, app.url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as parent:  # type: ignore[call-overload] # options as data
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    deadline = time.monotonic() + SOON
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)  # there is no event for it
    assert not alive(pid)


def test_stops_gracefully(tmp_path: Path) -> None:
    write_lines(tmp_path, "a", "b")
    with WorkerProcess(app) as worker:
        ids = worker.wait_for("settled", 2)
        assert worker.jobs("ran") == ids
        assert worker.stop() == 0
    assert states() == [State.DONE, State.DONE]


def test_named_app(tmp_path: Path) -> None:
    file = write_lines(tmp_path, "a")
    with WorkerProcess("tests.testing.program:app", url=app.url) as worker:
        worker.wait_for("settled")
    assert file.read_text() == "a\n"


def test_child_that_cannot_begin_shows_why() -> None:
    with (
        WorkerProcess("tests.testing.no_such:app", url=app.url) as worker,
        pytest.raises(AssertionError, match=r"no module tests\.testing\.no_such"),
    ):
        worker.wait_for("claimed")
    with (
        WorkerProcess("tests.testing.program:hang", url=app.url) as worker,
        pytest.raises(AssertionError, match="is not a Penstock"),
    ):
        worker.wait_for("claimed")


def test_waiting_gives_up() -> None:
    with WorkerProcess(app) as worker:
        with pytest.raises(AssertionError, match="still runs, before 1 jobs were settled, only 0"):
            worker.wait_for("settled", timeout=MILLISECOND)
        with pytest.raises(AssertionError, match="still runs, before it ended"):
            worker.wait(timeout=MILLISECOND)


def test_memory_cannot_be_shared() -> None:
    with fresh(app), pytest.raises(ConfigurationError, match="that both can open"):
        WorkerProcess(app)
    with pytest.raises(ConfigurationError, match="that both can open"):
        WorkerProcess("tests.testing.program:app")


def test_place_is_the_module_of_the_tasks() -> None:
    """This module holds the app too."""
    place = locate(app)
    assert (place.module, place.name) == ("tests.testing.program", "app")


def test_app_that_no_module_holds() -> None:
    with pytest.raises(ConfigurationError, match="no module holds this app"):
        WorkerProcess(Penstock("sqlite:///x.db"))
    with pytest.raises(ConfigurationError, match="'module:name'"):
        WorkerProcess("app", url=app.url)


def test_starts_once() -> None:
    worker = WorkerProcess(app)
    with pytest.raises(ConfigurationError, match="not started"):
        worker.kill()
    with worker, pytest.raises(ConfigurationError, match="started once"):
        worker.start()
