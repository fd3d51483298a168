import json
import os
import signal
import subprocess
import sys

from penstock import Penstock, run_sync
from penstock.leases import Done
from tests.cli.support import Shell, run_one


def enqueue(app: Penstock) -> int:
    return run_sync(app.enqueue("greet", {"name": "Ada"})).id


def test_log_of_all_shows_the_newest(app: Penstock, shell: Shell) -> None:
    for _ in range(3):
        enqueue(app)
    run_one(app, Done())
    lines = shell("log", "--limit", "2").stdout.splitlines()
    assert [line.split()[1:4] for line in lines[1:]] == [
        ["1", "claimed", "running"],
        ["1", "done", "done"],
    ]


def test_log_of_one_job(app: Penstock, shell: Shell) -> None:
    enqueue(app)
    second = enqueue(app)
    document = shell.json("log", str(second))
    assert isinstance(document, dict)
    assert [(entry["job_id"], entry["event"]) for entry in document["log"]] == [(2, "enqueued")]
    assert "no job 9" in shell("log", "9", code=3).stderr


def test_empty_log_says_so(app: Penstock, shell: Shell) -> None:
    assert shell("log").stdout == "The log is empty.\n"


def test_follow_goes_on_with_what_happens(app: Penstock, url: str) -> None:
    enqueue(app)
    command = [sys.executable, "-m", "penstock.cli.main", "log", "-f", "--json", "--store", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["event"] == "enqueued"
        run_one(app, Done())
        events = [json.loads(following.stdout.readline())["event"] for _ in range(2)]
        os.kill(following.pid, signal.SIGINT)
    assert events == ["claimed", "done"]
    assert following.returncode == 130
