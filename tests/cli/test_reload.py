"""`penstock worker --reload`: new code runs, and no reload uses up an attempt."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Job, JobQuery, Penstock, RetryPolicy, State, run_sync
from penstock.cli.reload import SourceFiles
from penstock.jobs import Event
from tests.cli.support import Process, started
from tests.environment import SOON

TASKS = '''
import asyncio, os, threading, time
from penstock import Penstock, RetryPolicy

app = Penstock("sqlite:///jobs.db")
once = app.task(retry=RetryPolicy(attempts=1))
VERSION = 1

@once
async def version() -> int:
    return VERSION

@once
def held() -> str:
    """Runs until something is written into the named pipe."""
    print("held runs", flush=True)
    with open("pipe") as pipe:
        return pipe.read()

@once
async def endless() -> None:
    print("endless runs", VERSION, flush=True)
    if VERSION == 1:
        await asyncio.Event().wait()

@once
def endless_thread() -> None:
    print("endless_thread runs", VERSION, flush=True)
    if VERSION == 1:
        threading.Event().wait()

@once
async def blocking() -> None:
    print("blocking runs", VERSION, flush=True)
    while VERSION == 1:
        time.sleep(0.01)

@app.task(retry=RetryPolicy(attempts=1), isolation="process")
def isolated() -> None:
    print("isolated runs", VERSION, flush=True)
    while VERSION == 1:
        time.sleep(0.01)
'''
# With less patience, after the grace and between looks.
HASTY = """
from penstock.cli import main, processes, signals
signals._WIND_DOWN = 0.2
processes._LOOK_EVERY = 0.02
main.main()
"""
WORKER = (
    sys.executable,
    "-c",
    HASTY,
    "worker",
    "tasks",
    "--reload",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.fixture
def producer(folder: Path) -> Iterator[Penstock]:
    """Enqueues for the worker under test; every job has one attempt."""
    app = Penstock(f"sqlite:///{folder}/jobs.db")
    for name in ("version", "held", "endless", "endless_thread", "blocking", "isolated"):
        app.task(name, lambda: None, retry=RetryPolicy(attempts=1))
    yield app
    run_sync(app.close())


def change(folder: Path, old: str = "VERSION = 1", new: str = "VERSION = 2") -> None:
    file = folder / "tasks.py"
    # Of another size: compiled files are told apart by size and whole seconds only.
    file.write_text(file.read_text().replace(old, new) + "# edited\n")


def until_done(app: Penstock, job: Job) -> Job:
    seen, deadline = 0, time.monotonic() + SOON
    while not (found := run_sync(app.get(job.id))).state.final:
        assert time.monotonic() < deadline, found
        seen = run_sync(app.store.wait(seen, 1))
    return found


def stop(worker: Process) -> None:
    worker.send_to_group(signal.SIGINT)
    assert worker.wait() == 0


@pytest.mark.parametrize("processes", ["1", "2"])
def test_changed_program_is_run(processes: str, folder: Path, producer: Penstock) -> None:
    with started((*WORKER, "--processes", processes), folder) as worker:
        worker.wait_for("Worker ")
        assert until_done(producer, run_sync(producer.enqueue("version"))).returned == 1
        change(folder)
        worker.wait_for("tasks.py has changed: reloading")
        for _ in range(int(processes)):
            worker.wait_for("Worker ")
        assert until_done(producer, run_sync(producer.enqueue("version"))).returned == 2
        stop(worker)


def test_running_job_finishes_before_the_reload(folder: Path, producer: Penstock) -> None:
    job = run_sync(producer.enqueue("held"))
    with started(WORKER, folder) as worker:
        worker.wait_for("held runs")
        change(folder)
        worker.wait_for("SIGTERM: stopping")
        (folder / "pipe").write_text("finished")
        worker.wait_for("Worker ")
        assert until_done(producer, job).returned == "finished"
        stop(worker)


@pytest.mark.parametrize("task", ["endless", "endless_thread", "blocking", "isolated"])
def test_job_that_does_not_finish_runs_again_and_keeps_its_only_attempt(
    task: str, folder: Path, producer: Penstock
) -> None:
    job = run_sync(producer.enqueue(task))
    with started((*WORKER, "--grace", "0"), folder) as worker:
        worker.wait_for(f"{task} runs 1")
        change(folder)
        worker.wait_for(f"{task} runs 2")
        found = until_done(producer, job)
        assert (found.state, found.attempt) == (State.DONE, 1)
    events = [entry.event for entry in run_sync(producer.log(job.id))]
    assert Event.SNOOZED in events
    assert Event.EXPIRED not in events


def test_job_that_does_not_stop_is_released_before_the_program_works_again(
    folder: Path, producer: Penstock
) -> None:
    """Otherwise its lease could expire while somebody mends the program."""
    job = run_sync(producer.enqueue("endless_thread"))
    with started((*WORKER, "--grace", "0"), folder) as worker:
        worker.wait_for("endless_thread runs 1")
        change(folder, "VERSION = 1", "VERSION = ?")
        worker.wait_for(f"job {job.id} (endless_thread) did not stop in time and is released")
        worker.wait_for("SyntaxError")
        found = run_sync(producer.get(job.id))
        assert (found.state, found.attempt) == (State.PENDING, 0)


def test_program_that_cannot_be_started_is_tried_again_when_it_changes(
    folder: Path, producer: Penstock
) -> None:
    with started(WORKER, folder) as worker:
        worker.wait_for("Worker ")
        change(folder, "VERSION = 1", "VERSION = ?")
        worker.wait_for("importing 'tasks' failed: SyntaxError")
        worker.wait_for("the program cannot be started: waiting for a change")
        change(folder, "VERSION = ?", "VERSION = 2")
        worker.wait_for("Worker ")
        assert until_done(producer, run_sync(producer.enqueue("version"))).returned == 2
        stop(worker)


def test_signal_ends_a_worker_whose_program_cannot_be_started(folder: Path) -> None:
    with started(WORKER, folder) as worker:
        worker.wait_for("Worker ")
        change(folder, "VERSION = 1", "VERSION = ?")
        worker.wait_for("waiting for a change")
        stop(worker)


def test_signal_during_a_reload_ends_the_worker_gracefully(
    folder: Path, producer: Penstock
) -> None:
    """The reload has told the process to stop; the first signal of a person is not the second."""
    job = run_sync(producer.enqueue("held"))
    with started(WORKER, folder) as worker:
        worker.wait_for("held runs")
        change(folder)
        worker.wait_for("SIGTERM: stopping")
        worker.send_to_group(signal.SIGINT)
        (folder / "pipe").write_text("finished")
        assert worker.wait() == 0
        assert not [line for line in worker.printed[1:] if line.startswith("Worker ")]
    assert run_sync(producer.get(job.id)).returned == "finished"


def test_second_signal_during_a_reload_stops_at_once(folder: Path, producer: Penstock) -> None:
    run_sync(producer.enqueue("held"))
    with started(WORKER, folder) as worker:
        worker.wait_for("held runs")
        change(folder)
        worker.wait_for("SIGTERM: stopping")
        worker.send_to_group(signal.SIGINT)
        worker.send_to_group(signal.SIGTERM)  # another one: two of a kind may be merged
        assert worker.wait() == 128 + signal.SIGTERM
    assert [job.state for job in run_sync(producer.find(JobQuery()))] == [State.RUNNING]


# The files


def test_files_that_matter_are_those_of_the_program(tmp_path: Path) -> None:
    for folder in ("shop/mail", ".venv", "env/lib", "node_modules/x", "shop/__pycache__"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "env" / "pyvenv.cfg").touch()
    files = SourceFiles(tmp_path)
    assert files.changed() is None
    for name in (
        *(".venv/a.py", "env/lib/a.py", "env/a.py", "node_modules/x/a.py"),
        *("shop/__pycache__/a.py", "shop/notes.txt", "jobs.db"),
    ):
        (tmp_path / name).write_text("x")
        assert look(files) is None, name
    file = tmp_path / "shop" / "mail" / "tasks.py"
    for act in (lambda: file.write_text("x"), lambda: file.write_text("xy"), file.unlink):
        act()
        assert look(files) == "shop/mail/tasks.py"
        assert look(files) is None


def look(files: SourceFiles) -> str | None:
    files._next = 0.0  # as if enough time had passed
    return files.changed()


def test_looking_for_changes_takes_a_share_of_the_time(tmp_path: Path) -> None:
    files = SourceFiles(tmp_path)
    (tmp_path / "a.py").touch()
    files._next = time.monotonic() + SOON
    assert files.changed() is None
    files._next = 0.0
    assert files.changed() == "a.py"
