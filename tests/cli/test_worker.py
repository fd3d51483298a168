import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Event, Penstock, State, run_sync
from penstock.cli.worker import load_app
from penstock.core.errors import ConfigurationError
from penstock.logs import JsonFormatter
from tests.cli.support import COMMAND, SOON, Shell, started

TASKS = '''
import asyncio, os, threading, time
from penstock import Penstock, context

app = Penstock("sqlite:///jobs.db")
empty = Penstock("sqlite:///jobs.db")

@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"

@app.task
def note() -> None:
    context().logger.info("noted")

@app.task
def held() -> str:
    """Runs until something is written into the named pipe."""
    print("held runs", flush=True)
    with open("pipe") as pipe:
        return pipe.read()

@app.task
async def endless() -> None:
    print("endless runs", flush=True)
    await asyncio.Event().wait()

@app.task
def endless_thread() -> None:
    print("endless_thread runs", flush=True)
    threading.Event().wait()

@app.task
async def blocking() -> None:
    print("blocking runs", flush=True)
    time.sleep(3600)
'''
WORKER = (*COMMAND, "worker", "tasks:app")
# The same, with less patience after the grace.
HASTY_WORKER = (
    sys.executable,
    "-c",
    "from penstock.cli import main, stopping; stopping._WIND_DOWN = 0.2; main.main()",
    "worker",
    "tasks:app",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


@pytest.fixture
def producer(folder: Path) -> Iterator[Penstock]:
    """Enqueues for the worker under test."""
    app = Penstock(f"sqlite:///{folder}/jobs.db")
    app.task("greet", lambda name: None)
    for name in ("note", "held", "endless", "endless_thread", "blocking"):
        app.task(name, lambda: None)
    yield app
    run_sync(app.close())


def wait_until_done(folder: Path, job_id: int) -> object:
    """What the job returned."""
    shell = Shell(f"sqlite:///{folder}/jobs.db")
    shell("drain", "--timeout", str(SOON))
    return shell.json("jobs", str(job_id))["result"]


def test_worker_works_and_stops_gracefully(folder: Path, producer: Penstock) -> None:
    job = run_sync(producer.enqueue("greet", {"name": "Ada"}))
    with started(WORKER, folder) as worker:
        line = worker.wait_for("Worker ")
        assert "on sqlite:///jobs.db: all queues, 20 at a time; tasks: blocking, endless, " in line
        assert wait_until_done(folder, job.id) == "Hello, Ada!"
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
        stopping, stopped = worker.printed[-2:]
        assert "SIGTERM: stopping; running jobs have 30 s" in stopping
        assert "has stopped" in stopped


def test_worker_creates_its_store(folder: Path) -> None:
    with started(WORKER, folder) as worker:
        worker.wait_for("Worker ")
        assert (folder / "jobs.db").exists()
        worker.send(signal.SIGINT)
        assert worker.wait() == 0


def test_worker_removes_what_need_not_be_kept(folder: Path, producer: Penstock) -> None:
    job = run_sync(producer.tasks["greet"].enqueue("Ada"))
    run_sync(producer.cancel(job.id))
    seen, deadline = 0, time.monotonic() + SOON
    with started((*WORKER, "--keep-finished", "0"), folder):
        while run_sync(producer.find()):
            assert time.monotonic() < deadline
            seen = run_sync(producer.store.wait(seen, 1))


def test_running_job_finishes_within_its_grace(folder: Path, producer: Penstock) -> None:
    os.mkfifo(folder / "pipe")
    job = run_sync(producer.enqueue("held"))
    with started(WORKER, folder) as worker:
        worker.wait_for("held runs")
        worker.send(signal.SIGTERM)
        worker.wait_for("stopping")
        (folder / "pipe").write_text("finished")
        assert worker.wait() == 0
    found = run_sync(producer.get(job.id))
    assert (found.state, found.returned) == (State.DONE, "finished")


def test_coroutine_goes_back_to_the_queue_after_the_grace(folder: Path, producer: Penstock) -> None:
    job = run_sync(producer.enqueue("endless"))
    with started((*WORKER, "--grace", "0"), folder) as worker:
        worker.wait_for("endless runs")
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    found = run_sync(producer.get(job.id))
    assert (found.state, found.attempt) == (State.PENDING, 0)
    assert run_sync(producer.log(job.id))[-1].event is Event.SNOOZED


@pytest.mark.parametrize("task", ["endless_thread", "blocking"])
def test_job_that_cannot_be_stopped_does_not_keep_the_worker(
    task: str, folder: Path, producer: Penstock
) -> None:
    run_sync(producer.enqueue(task))
    with started((*HASTY_WORKER, "--grace", "0"), folder) as worker:
        worker.wait_for("runs")
        worker.send(signal.SIGTERM)
        assert worker.wait() == 7
        assert "leaving jobs behind that did not stop" in "\n".join(worker.printed)


@pytest.mark.parametrize("task", ["endless", "endless_thread"])
def test_second_signal_stops_at_once(task: str, folder: Path, producer: Penstock) -> None:
    run_sync(producer.enqueue(task))
    with started(WORKER, folder) as worker:
        worker.wait_for("runs")
        worker.send(signal.SIGTERM)
        worker.wait_for("stopping")
        worker.send(signal.SIGINT)
        assert worker.wait() == 128 + signal.SIGINT
        assert worker.printed[-1] == "penstock: stopped at once; unfinished jobs run again"


def test_queues_and_tags_narrow(folder: Path, producer: Penstock) -> None:
    greet = producer.tasks["greet"]
    for options in ({"queue": "mail"}, {"tags": ["x"]}, {"queue": "mail", "tags": ["x", "y"]}):
        run_sync(greet.using(**options).enqueue("Ada"))
    command = (*WORKER, "--queues", "post, mail", "--tags", "x", "--concurrency", "3")
    with started(command, folder) as worker:
        assert ": queues post, mail, tags x, 3 at a time; " in worker.wait_for("Worker ")
        assert run_sync_until_done(producer, 3) == State.DONE
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    assert [job.state for job in run_sync(producer.find())] == ["done", "pending", "pending"]


def run_sync_until_done(app: Penstock, job_id: int) -> State:
    seen, deadline = 0, time.monotonic() + SOON
    while not (job := run_sync(app.get(job_id))).state.final:
        assert time.monotonic() < deadline
        seen = run_sync(app.store.wait(seen, 1))
    return job.state


def test_json_has_a_start_document_and_log_lines(folder: Path, producer: Penstock) -> None:
    job = run_sync(producer.enqueue("note"))
    with started((*WORKER, "--json", "--grace", "1.5"), folder) as worker:
        start = json.loads(worker.wait_for("{"))
        assert start.pop("worker")
        assert start == {
            "store": "sqlite:///jobs.db",
            "queues": None,
            "tags": [],
            "concurrency": 20,
            "grace": 1.5,
            "tasks": ["blocking", "endless", "endless_thread", "greet", "held", "note"],
        }
        noted = json.loads(worker.wait_for("noted"))
        assert (noted["logger"], noted["level"]) == ("penstock.task", "info")
        assert (noted["job_id"], noted["task"], noted["attempt"]) == (job.id, "note", 1)
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0


def test_json_log_line_has_the_traceback() -> None:
    try:
        _ = 1 // 0
    except ZeroDivisionError:
        record = logging.LogRecord("x", logging.ERROR, "", 1, "it %s", ("broke",), sys.exc_info())
    line = json.loads(JsonFormatter().format(record))
    assert line["message"] == "it broke"
    assert line["error"].endswith("ZeroDivisionError: integer division or modulo by zero")
    assert line["at"].endswith("Z")


def test_json_log_line_has_what_was_given_along() -> None:
    record = logging.makeLogRecord({"msg": "x", "job_id": 7, "path": "/health", "logger": "no"})
    line = json.loads(JsonFormatter().format(record))
    assert set(line) == {"at", "level", "logger", "message", "job_id", "path"}
    assert (line["job_id"], line["path"]) == (7, "/health")
    assert line["logger"] != "no"


@pytest.fixture
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_app_is_found_in_the_current_folder(inside: Path) -> None:
    assert "greet" in load_app("tasks:app").tasks


def test_app_may_be_an_attribute(inside: Path) -> None:
    (inside / "program.py").write_text("import tasks\nclass settings:\n    app = tasks.app\n")
    assert "greet" in load_app("program:settings.app").tasks


@pytest.mark.parametrize(
    ("target", "message", "step"),
    [
        ("tasks", "'tasks' does not name an app", "penstock worker tasks:app"),
        ("tasks:", "'tasks:' does not name an app", "penstock worker tasks:app"),
        ("pkg.tasks", "does not name an app", "penstock worker pkg.tasks:app"),
        ("./sub/tasks.py", "does not name an app", "penstock worker sub.tasks:app"),
        (":", "':' does not name an app", "penstock worker tasks:app"),
        ("tasks:nope", "module 'tasks' has no 'nope'", "penstock worker tasks:app"),
        ("tasks:greet", "tasks:greet is a Task, not a Penstock", "penstock worker tasks:app"),
        ("tasks:empty", "tasks:empty has no tasks", "import the modules with its tasks from tasks"),
        ("nope:app", "no module 'nope' in this folder", "it in the folder that holds nope.py"),
        ("a.b:app", "no module 'a' in this folder", "it in the folder that holds a/b.py"),
        ("bare:app", "module 'bare' has no 'app'", 'app = Penstock("sqlite:///penstock.db")'),
        ("needy:app", "importing 'needy' failed: ModuleNotFoundError", 'python -c "import needy"'),
        ("crash:app", "ZeroDivisionError: division by zero", 'python -c "import crash"'),
        ("quits:app", "importing 'quits' failed: SystemExit: 3", 'python -c "import quits"'),
    ],
)
def test_app_that_cannot_be_had_is_explained(
    target: str, message: str, step: str, inside: Path
) -> None:
    (inside / "bare.py").write_text("")
    (inside / "needy.py").write_text("import nowhere_to_be_found")
    (inside / "crash.py").write_text("\n1 / 0")
    (inside / "quits.py").write_text("raise SystemExit(3)")
    with pytest.raises(ConfigurationError) as caught:
        load_app(target)
    assert message in str(caught.value)
    assert caught.value.__notes__[0].startswith(step)


def test_wrong_app_is_one_line_and_code_2(inside: Path, shell: Shell) -> None:
    assert shell.error("worker", "nope:app", code=2).startswith("penstock: there is no module")
    error = json.loads(shell.error("worker", "nope:app", "--json", code=2))
    assert error["type"] == "ConfigurationError"


def test_failed_import_names_its_line(inside: Path, shell: Shell) -> None:
    (inside / "crash.py").write_text("\n1 / 0")
    assert "crash.py, line 2)" in shell.error("worker", "crash:app", code=2)


@pytest.mark.parametrize(
    "options",
    [
        ["--concurrency", "0"],
        ["--grace", "x"],
        ["--queues", "a,,b"],
        ["--tags", ""],
        ["--store", "x"],
    ],
    ids=" ".join,
)
def test_wrong_options_are_refused(options: list[str], inside: Path, shell: Shell) -> None:
    assert options[0] in shell.error("worker", "tasks:app", *options, code=2)


def test_store_that_cannot_be_opened_is_code_5(inside: Path, shell: Shell) -> None:
    (inside / "jobs.db").write_text("nothing like a database " * 100)
    assert "not a SQLite file" in shell.error("worker", "tasks:app", code=5)
