import os
import socket
from datetime import UTC, datetime, timedelta

import pytest

from penstock import Penstock, run_sync
from penstock.leases import WorkerInfo
from tests.cli.support import Shell

LONG_AGO = 1_000_000


def heartbeat(app: Penstock, name: str, **fields: object) -> WorkerInfo:
    now = datetime.now(UTC)
    told = {"host": "h1", "pid": 7, "concurrency": 20, "started_at": now - timedelta(hours=3)}
    worker = WorkerInfo(name=name, seen_at=now, **(told | fields))  # type: ignore[arg-type] # options as data
    run_sync(app.store.heartbeat([worker]))
    return worker


def heartbeat_long_ago(url: str, name: str) -> None:
    past = Penstock(url, clock=lambda: LONG_AGO)
    heartbeat(past, name)
    run_sync(past.close())


def test_workers_are_listed_busy_or_idle(app: Penstock, shell: Shell) -> None:
    heartbeat(app, "busy")
    heartbeat(app, "idle", queues=("mail", "web"), tags=("gpu",))
    for _ in range(2):
        run_sync(app.tasks["greet"].enqueue("Ada"))
        run_sync(app.leases.claim(worker="busy"))
    head, busy, idle = (line.split() for line in shell("workers").stdout.splitlines())
    assert head == ["name", "running", "last", "seen", "started", "host", "queues", "tags"]
    assert (busy[:4], busy[-2:]) == (["busy", "2", "of", "20"], ["h1", "all"])
    assert idle[:4] == ["idle", "0", "of", "20"]
    assert " ".join(idle[-7:]) == "3 h ago h1 mail, web gpu"


def test_worker_without_a_heartbeat_is_listed_by_its_leases(app: Penstock, shell: Shell) -> None:
    run_sync(app.tasks["greet"].enqueue("Ada"))
    run_sync(app.leases.claim(worker="foreign"))
    head, row = shell("workers").stdout.splitlines()
    assert head.split() == ["name", "running", "last", "seen"]
    assert row.split()[:2] == ["foreign", "1"]


def test_silent_worker_is_marked(app: Penstock, url: str, shell: Shell) -> None:
    heartbeat_long_ago(url, "dead")
    heartbeat(app, "live")
    _, dead, live = (line.split() for line in shell("workers").stdout.splitlines())
    assert dead[:5] == ["dead", "silent", "0", "of", "20"]
    assert live[:4] == ["live", "0", "of", "20"]
    marks = [worker["silent"] for worker in shell.json("workers")["workers"]]
    assert marks == [True, False]


def test_workers_as_json_have_every_field(app: Penstock, shell: Shell) -> None:
    heartbeat(app, "w", queues=("mail",), tags=("gpu",))
    [stored] = run_sync(app.workers.list())
    assert stored.started_at is not None
    assert shell.json("workers") == {
        "workers": [
            {
                "name": "w",
                "host": "h1",
                "pid": 7,
                "queues": ["mail"],
                "tags": ["gpu"],
                "concurrency": 20,
                "started_at": f"{stored.started_at:%Y-%m-%dT%H:%M:%S.%f}Z",
                "seen_at": f"{stored.seen_at:%Y-%m-%dT%H:%M:%S.%f}Z",
                "running": 0,
                "oldest_start": None,
                "expires_at": None,
                "draining": False,
                "silent": False,
                "tasks": None,
            }
        ]
    }


@pytest.mark.usefixtures("app")
def test_no_worker_says_how_to_start_one(shell: Shell) -> None:
    assert shell("workers").stdout == (
        "There are no workers; to start one: penstock worker MODULE:APP\n"
    )
    assert shell.json("workers") == {"workers": []}


def test_status_says_how_many_are_alive(app: Penstock, url: str, shell: Shell) -> None:
    def said() -> str:
        return shell("status").stdout.splitlines()[-1]

    assert said() == "No worker is alive."
    heartbeat_long_ago(url, "dead")
    assert said() == "No worker is alive, 1 silent; to list them: penstock workers"
    heartbeat(app, "one")
    heartbeat(app, "two")
    assert said() == "2 workers are alive, 1 silent; to list them: penstock workers"
    assert shell.json("status")["workers"] == {"alive": 2, "silent": 1}


def test_host_and_process_of_a_real_worker_are_told(app: Penstock, shell: Shell) -> None:
    """What `Worker` says of itself is what the command shows."""
    from penstock import Worker

    introduction = Worker(app, name="real")._info()
    run_sync(app.store.heartbeat([introduction]))
    [listed] = shell.json("workers")["workers"]
    assert (listed["host"], listed["pid"]) == (socket.gethostname(), os.getpid())
