import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Penstock, RetryPolicy, State, run_sync
from penstock.jobs import Event
from penstock.logs import JsonFormatter
from tests.cli.support import COMMAND, Shell, started
from tests.environment import SOON

TASKS = '''
import asyncio, os, threading, time
from datetime import timedelta
from penstock import Penstock, RetryPolicy, Snooze, context

app = Penstock("sqlite:///jobs.db")
empty = Penstock("sqlite:///jobs.db")

@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"

@app.task
def note() -> None:
    context().logger.info("noted")

@app.task
async def later() -> None:
    raise Snooze(timedelta(hours=1), reason="the shop is closed")

@app.task(retry=RetryPolicy(attempts=1))
def broken() -> None:
    1 / 0

@app.task
def chatty() -> None:
    logger = context().logger
    logger.debug("a detail")
    logger.info("some information")
    logger.error("an error")

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
    "from penstock.cli import main, signals; signals._WIND_DOWN = 0.2; main.main()",
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
    for name in ("note", "later", "broken", "chatty"):
        app.task(name, lambda: None, retry=RetryPolicy(attempts=1))
    for name in ("held", "endless", "endless_thread", "blocking"):
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
        assert "on sqlite:///jobs.db: all queues, 20 at a time; tasks: blocking, broken, " in line
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
        assert "exiting while jobs are still running" in "\n".join(worker.printed)


@pytest.mark.parametrize("task", ["endless", "endless_thread"])
def test_second_signal_stops_at_once(task: str, folder: Path, producer: Penstock) -> None:
    run_sync(producer.enqueue(task))
    with started(WORKER, folder) as worker:
        worker.wait_for("runs")
        worker.send(signal.SIGTERM)
        worker.wait_for("stopping")
        worker.send(signal.SIGINT)
        assert worker.wait() == 128 + signal.SIGINT
        assert worker.printed[-1] == "penstock: stopped immediately; unfinished jobs run again"


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
            "tasks": [
                *("blocking", "broken", "chatty", "endless", "endless_thread"),
                *("greet", "held", "later", "note"),
            ],
        }
        noted = json.loads(worker.wait_for("noted"))
        assert (noted["logger"], noted["level"]) == ("penstock.task", "info")
        assert (noted["job_id"], noted["task"], noted["attempt"]) == (job.id, "note", 1)
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0


# The log


def test_one_line_for_each_job_that_ends(folder: Path, producer: Penstock) -> None:
    greet = run_sync(producer.tasks["greet"].using(queue="mail").enqueue("Ada"))
    with started(WORKER, folder) as worker:
        line = worker.wait_for(f"job {greet.id} (greet)")
        pattern = r"INFO .* is done; queue mail, attempt 1 of \d+, \d+\.\d{3} s$"
        assert re.search(pattern, line), line
        snoozed = run_sync(producer.enqueue("later"))
        line = worker.wait_for(f"job {snoozed.id} (later)")
        assert "INFO" in line
        assert "is snoozed: the shop is closed; queue default, attempt 1 of " in line


def test_jobs_that_end_need_not_be_logged(folder: Path, producer: Penstock) -> None:
    for task in ("note", "broken"):
        run_sync(producer.enqueue(task))
    with started((*WORKER, "--no-log-jobs", "--concurrency", "1"), folder) as worker:
        worker.wait_for("(broken) is failed")
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
        assert not [line for line in worker.printed if "(note)" in line]


def test_failure_is_logged_with_its_traceback(folder: Path, producer: Penstock) -> None:
    job = run_sync(producer.enqueue("broken"))
    with started(WORKER, folder) as worker:
        line = worker.wait_for(f"job {job.id} (broken)")
        assert "ERROR" in line
        assert (
            " is failed: ZeroDivisionError: division by zero; queue default, attempt 1 of 1" in line
        )
        worker.wait_for("Traceback (most recent call last):")
        worker.wait_for(", in broken")
        assert worker.wait_for("ZeroDivisionError") == "ZeroDivisionError: division by zero"


def test_log_in_json_has_fields_for_each_job(folder: Path, producer: Penstock) -> None:
    job = run_sync(producer.enqueue("broken"))
    with started((*WORKER, "--json"), folder) as worker:
        line = json.loads(worker.wait_for('"outcome"'))
    assert (line["level"], line["job_id"], line["task"]) == ("error", job.id, "broken")
    assert (line["queue"], line["attempt"], line["outcome"]) == ("default", 1, "failed")
    assert line["seconds"] >= 0
    assert line["error"].startswith("Traceback")
    assert line["error"].endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize(("level", "logged"), [("debug", 3), ("info", 2), ("ERROR", 1)])
def test_log_level_is_the_lowest_that_is_logged(
    level: str, logged: int, folder: Path, producer: Penstock
) -> None:
    run_sync(producer.enqueue("chatty"))
    with started((*WORKER, "--log-level", level), folder) as worker:
        worker.wait_for("an error")
        worker.send(signal.SIGTERM)
        worker.wait()
        said = [line for line in worker.printed if "penstock.task: " in line]
        assert len(said) == logged


def test_program_may_set_up_its_own_logging(folder: Path, producer: Penstock) -> None:
    setup = "import logging\nlogging.basicConfig(level='INFO', format='mine: %(message)s')\n"
    (folder / "own.py").write_text(setup + "from tasks import app\n")
    run_sync(producer.enqueue("note"))
    for options in ((), ("--processes", "2")):
        with started((*COMMAND, "worker", "own:app", *options), folder) as worker:
            worker.wait_for("Worker ")
            worker.send(signal.SIGTERM)
            assert worker.wait() == 0
            assert any(line.startswith("mine: SIGTERM: stopping") for line in worker.printed)


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
        ["--processes", "0"],
        ["--log-level", "loud"],
    ],
    ids=" ".join,
)
def test_wrong_options_are_refused(options: list[str], inside: Path, shell: Shell) -> None:
    assert options[0] in shell.error("worker", "tasks:app", *options, code=2)


def test_store_that_cannot_be_opened_is_code_5(inside: Path, shell: Shell) -> None:
    (inside / "jobs.db").write_text("nothing like a database " * 100)
    assert "not a SQLite file" in shell.error("worker", "tasks:app", code=5)
