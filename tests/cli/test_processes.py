"""A worker with several processes: started, stopped, killed and drained together."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import JobQuery, Penstock, State, run_sync
from tests.cli.support import COMMAND, Process, Shell, started
from tests.environment import SOON

TASKS = '''
import asyncio, os, threading
from penstock import Penstock

app = Penstock("sqlite:///jobs.db")

@app.task
async def where() -> int:
    return os.getpid()

@app.task
def held() -> None:
    """Runs until something is written into the named pipe."""
    print("held runs in", os.getpid(), flush=True)
    with open("pipe") as pipe:
        pipe.read()

@app.task
async def endless() -> None:
    print("endless runs in", os.getpid(), flush=True)
    await asyncio.Event().wait()

@app.task
def endless_thread() -> None:
    print("endless_thread runs in", os.getpid(), flush=True)
    threading.Event().wait()
'''
WORKER = (*COMMAND, "worker", "tasks", "--concurrency", "1", "--processes")
# The same, with less patience after the grace and in between.
HASTY = """
from penstock.cli import main, processes, signals
signals._WIND_DOWN = 0.2
processes._PAUSE = 0.01
main.main()
"""
HASTY_WORKER = (
    sys.executable,
    "-c",
    HASTY,
    *WORKER[len(COMMAND) :],
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.fixture
def producer(folder: Path) -> Iterator[Penstock]:
    """Enqueues for the worker under test."""
    app = Penstock(f"sqlite:///{folder}/jobs.db")
    for name in ("where", "held", "endless", "endless_thread"):
        app.task(name, lambda: None)
    yield app
    run_sync(app.close())


def ready(worker: Process, count: int) -> list[int]:
    """Return the ids of the processes, which their first lines name, once all are there."""
    return [int(worker.wait_for("Worker ").split(" on ")[0].split(":")[1]) for _ in range(count)]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def unfinished(app: Penstock) -> list[tuple[State, int]]:
    return [(job.state, job.attempt) for job in run_sync(app.find(JobQuery()))]


def test_all_processes_run_jobs(folder: Path, producer: Penstock) -> None:
    with started((*WORKER, "3"), folder) as worker:
        pids = ready(worker, 3)
        for _ in range(3):
            run_sync(producer.enqueue("held"))
        ran = {int(worker.wait_for("held runs in").split()[-1]) for _ in range(3)}
        assert ran == set(pids)
        assert worker.pid not in pids
        release(folder, producer)
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("to", ["group", "parent"])
def test_signal_drains_all_processes(
    to: str, number: signal.Signals, folder: Path, producer: Penstock
) -> None:
    """Ctrl-C in a terminal goes to the whole group; a service manager tells the parent alone."""
    with started((*WORKER, "2"), folder) as worker:
        pids = ready(worker, 2)
        for _ in range(2):
            run_sync(producer.enqueue("held"))
        for _ in range(2):
            worker.wait_for("held runs in")
        # Otherwise they might take the signal of the terminal and that of the parent for two.
        assert worker.pid not in {os.getpgid(pid) for pid in pids}
        (worker.send_to_group if to == "group" else worker.send)(number)
        for _ in range(2):
            worker.wait_for(f"{number.name}: stopping; running jobs have 30 s")
        for pid in pids:  # each waits for a writer of its own
            assert is_alive(pid)
        release(folder, producer)
        assert worker.wait() == 0
        assert not any(map(is_alive, pids))
        assert "stopped immediately" not in "\n".join(worker.printed)
    assert unfinished(producer) == [(State.DONE, 1)] * 2


def release(folder: Path, app: Penstock) -> None:
    """Let the held jobs end, whichever of them reads what is written."""
    while any(job.state is State.RUNNING for job in run_sync(app.find(JobQuery()))):
        try:
            pipe = os.open(folder / "pipe", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads at this moment
            continue
        os.write(pipe, b".")
        os.close(pipe)


def test_processes_that_stop_release_their_jobs_after_the_grace(
    folder: Path, producer: Penstock
) -> None:
    for _ in range(2):
        run_sync(producer.enqueue("endless"))
    with started((*WORKER, "2", "--grace", "0"), folder) as worker:
        for _ in range(2):
            worker.wait_for("endless runs in")
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    assert unfinished(producer) == [(State.PENDING, 0)] * 2


@pytest.mark.parametrize("to", ["group", "parent"])
def test_second_signal_stops_all_processes_at_once(
    to: str, folder: Path, producer: Penstock
) -> None:
    with started((*WORKER, "2"), folder) as worker:
        pids = ready(worker, 2)
        for _ in range(2):
            run_sync(producer.enqueue("endless"))
        for _ in range(2):
            worker.wait_for("endless runs in")
        send = worker.send_to_group if to == "group" else worker.send
        send(signal.SIGINT)
        for _ in range(2):
            worker.wait_for("stopping")
        send(signal.SIGINT)
        assert worker.wait() == 128 + signal.SIGINT
        assert not any(map(is_alive, pids))
        assert "penstock: stopped immediately; unfinished jobs run again" in worker.printed


def test_thread_that_cannot_be_stopped_is_code_7(folder: Path, producer: Penstock) -> None:
    run_sync(producer.enqueue("endless_thread"))
    command = (*HASTY_WORKER, "2", "--grace", "0")
    with started(command, folder) as worker:
        worker.wait_for("endless_thread runs in")
        worker.send(signal.SIGTERM)
        assert worker.wait() == 7
        assert "exiting while jobs are still running" in "\n".join(worker.printed)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_process_that_ends_is_replaced(
    number: signal.Signals, folder: Path, producer: Penstock
) -> None:
    with started((*HASTY_WORKER, "2"), folder) as worker:
        first, second = ready(worker, 2)
        os.kill(first, number)
        code = 128 + number if number is signal.SIGKILL else 0
        worker.wait_for(f"worker process 0 exited with code {code}; restarting it")
        (third,) = ready(worker, 1)
        assert third not in {first, second}
        assert is_alive(second)
        job = run_sync(producer.enqueue("where"))
        shell = Shell(producer.url)
        shell("drain", "--timeout", str(SOON))
        assert shell.json("jobs", str(job.id))["result"] in {second, third}
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0


def test_process_that_dies_at_its_start_is_tried_again_after_a_pause(folder: Path) -> None:
    with started((*WORKER, "2"), folder) as worker:
        first, _ = ready(worker, 2)
        (folder / "tasks.py").write_text("raise SystemExit(9)")
        os.kill(first, signal.SIGKILL)
        worker.wait_for("worker process 0 exited with code 137; restarting it")
        worker.wait_for("importing 'tasks' failed: SystemExit: 9")
        worker.wait_for("worker process 0 exited with code 2; restarting it")
        (folder / "tasks.py").write_text(TASKS)
        ready(worker, 1)
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0


def test_processes_that_were_drained_stay_away(folder: Path, producer: Penstock) -> None:
    """As a single worker does under systemd, with Restart=on-failure."""
    with started((*WORKER, "2"), folder) as worker:
        names = [worker.wait_for("Worker ").split()[1] for _ in range(2)]
        for name in names:
            registered(producer, name)
            assert run_sync(producer.workers.drain(name))
        assert worker.wait() == 0
        assert "restarting" not in "\n".join(worker.printed)


def registered(app: Penstock, name: str) -> None:
    seen = 0
    while name not in {one.name for one in run_sync(app.workers.list())}:
        seen = run_sync(app.store.wait(seen, 0.05))


def test_processes_do_not_outlive_a_parent_that_is_killed(folder: Path, producer: Penstock) -> None:
    run_sync(producer.enqueue("endless"))
    with started((*WORKER, "2", "--grace", "0"), folder) as worker:
        worker.wait_for("endless runs in")
        worker.send(signal.SIGKILL)
        worker.wait()  # until nobody holds its output any more
        assert "the parent process has ended: stopping" in "\n".join(worker.printed)
    assert unfinished(producer) == [(State.PENDING, 0)]


def test_what_keeps_a_worker_from_starting_is_reported_once(folder: Path) -> None:
    (folder / "tasks.py").write_text("\n1 / 0")
    with started((*WORKER, "3"), folder) as worker:
        assert worker.wait() == 2
        (line,) = worker.printed
        assert "tasks.py, line 2" in line


def test_signal_while_it_starts_ends_it(folder: Path) -> None:
    (folder / "tasks.py").write_text("print('imported', flush=True)\nopen('pipe').read()")
    with started((*WORKER, "2"), folder) as worker:
        worker.wait_for("imported")
        worker.send_to_group(signal.SIGINT)
        assert worker.wait() == 0
        assert worker.printed == ["imported"]


@pytest.mark.parametrize("store", ["memory://", "journal:///jobs"])
def test_store_of_one_process_is_refused(store: str, folder: Path) -> None:
    text = TASKS.replace("sqlite:///jobs.db", store)
    (folder / "tasks.py").write_text(text)
    with started((*WORKER, "2"), folder) as worker:
        assert worker.wait() == 2
        assert (
            "belongs to one process, and 2 cannot share it; try: --processes 1"
            in (worker.printed[0])
        )
