"""`penstock serve` as a process: where it listens, how it stops, how it reports errors."""

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

import httpx
import pytest

from penstock import Penstock, Retention, State, run_sync
from penstock.apps.notebooks.registry import Registry
from penstock.apps.notebooks.settings import Settings
from penstock.config import Server, Sources
from penstock.jobs import Event
from penstock.server.process import ServerProcess
from tests.cli.support import COMMAND, started
from tests.environment import SOON
from tests.server.support import PROBE_SERVE, SERVE, served


def test_it_listens_where_it_says_and_stops_gracefully(tmp_path: Path) -> None:
    with served(tmp_path) as (server, url):
        assert server.printed == [f"Penstock serves on {url}"]
        assert not url.endswith(":0")
        answer = httpx.post(f"{url}/events", json={"title": "x", "tags": "a"}, timeout=SOON)
        assert answer.status_code == 201
        assert (tmp_path / "penstock-data" / "penstock.db").exists()
        server.send(signal.SIGTERM)
        assert server.wait() == 0


def test_as_json_the_address_and_the_log_are_documents(tmp_path: Path) -> None:
    with started((*SERVE, "--json", "--request-log"), tmp_path) as server:
        url = json.loads(server.wait_for("{"))["url"]
        httpx.get(f"{url}/events?limit=1", headers={"Authorization": "Bearer s3cret"}, timeout=SOON)
        line = json.loads(server.wait_for("GET"))
        assert (line["logger"], line["method"], line["path"], line["status"]) == (
            "penstock.server.requests",
            "GET",
            "/events",
            200,
        )
        assert line["seconds"] >= 0
        server.send(signal.SIGINT)
        assert server.wait() == 0
        assert "s3cret" not in "".join(server.printed)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_stop_cuts_no_request_off_and_answers_those_who_wait(
    processes: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    # With so much grace nothing ends by itself: whatever does was answered.
    command = (*PROBE_SERVE, "--grace", "600", "--processes", processes)
    with (
        ThreadPoolExecutor() as threads,
        served(tmp_path, command=command) as (server, url),
    ):
        held = threads.submit(httpx.post, f"{url}/held", timeout=SOON)
        server.wait_for("request runs")
        asked = threading.Event()
        waiting = threads.submit(_long_poll, url, asked)
        assert asked.wait(SOON)
        server.send(signal.SIGTERM)
        server.wait_for("stopping")
        assert waiting.result(SOON).status_code == 204
        (tmp_path / "pipe").write_text("whole")
        assert held.result(SOON).json() == {"read": "whole"}
        assert server.wait() == 0


@pytest.mark.parametrize("processes", ["1", "2"])
def test_server_that_stops_refuses_new_connections(processes: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = (*PROBE_SERVE, "--grace", "600", "--processes", processes)
    with (
        ThreadPoolExecutor() as threads,
        served(tmp_path, command=command) as (server, url),
    ):
        held = threads.submit(httpx.post, f"{url}/held", timeout=SOON)
        server.wait_for("request runs")
        address = urlsplit(url)
        server.send(signal.SIGTERM)
        deadline = time.monotonic() + SOON
        while _connects(str(address.hostname), int(address.port or 0)):
            assert time.monotonic() < deadline, "connections are taken and never answered"
        (tmp_path / "pipe").write_text("whole")
        assert held.result(SOON).json() == {"read": "whole"}
        assert server.wait() == 0


@pytest.mark.parametrize("processes", ["1", "2"])
def test_server_that_drains_is_not_ready_first_and_goes_on_serving(
    processes: str, tmp_path: Path
) -> None:
    options = ("--processes", processes, "--drain-delay", "600")
    with served(tmp_path, *options) as (server, url):
        assert httpx.get(f"{url}/health/ready", timeout=SOON).status_code == 200
        server.send(signal.SIGTERM)
        deadline = time.monotonic() + SOON
        while httpx.get(f"{url}/health/ready", timeout=SOON).status_code != 503:
            assert time.monotonic() < deadline
        assert httpx.get(f"{url}/health/live", timeout=SOON).status_code == 200
        answer = httpx.post(f"{url}/events", json={"title": "x", "tags": "a"}, timeout=SOON)
        assert answer.status_code == 201
        server.send(signal.SIGTERM)
        assert server.wait() == 143


def test_server_stops_when_its_drain_delay_is_over(tmp_path: Path) -> None:
    with served(tmp_path, "--drain-delay", "0.1") as (server, _):
        server.send(signal.SIGTERM)
        assert server.wait() == 0


def _connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=SOON).close()
    except ConnectionError:
        return False
    return True


def _long_poll(url: str, asked: threading.Event) -> httpx.Response:
    """Subscribe to events; `asked` is set once the server has the request."""
    with httpx.Client(timeout=SOON * 2) as client:
        client.get(f"{url}/events", params={"limit": 1})
        asked.set()
        query: dict[str, str | int] = {"tags": "nothing", "worker_id": "w", "wait": 60}
        try:
            return client.get(f"{url}/events/subscribe", params=query)
        except httpx.TransportError:  # it came when the server listened no more
            return httpx.Response(204)


def test_workers_of_a_server_keep_finished_jobs_as_long_as_it_says(tmp_path: Path) -> None:
    settings = Server(data=str(tmp_path), keep_finished=100, keep_failed=200)
    for worker in ServerProcess(settings, Sources({}))._create_workers():
        assert worker._retention == Retention(
            finished=timedelta(seconds=100), failed=timedelta(seconds=200)
        )


def test_jobs_get_their_grace_and_are_released(tmp_path: Path) -> None:
    with served(tmp_path, "--grace", "0", command=PROBE_SERVE) as (server, url):
        job_id = httpx.post(f"{url}/jobs", timeout=SOON).json()["id"]
        server.wait_for("job runs")
        server.send(signal.SIGTERM)
        assert server.wait() == 0
    app = Penstock(f"sqlite:///{tmp_path}/penstock-data/penstock.db", create=False)
    assert run_sync(app.get(job_id)).state is State.PENDING
    assert run_sync(app.log(job_id))[-1].event is Event.SNOOZED
    run_sync(app.close())


@pytest.mark.parametrize("processes", ["1", "2"])
def test_second_signal_stops_at_once(processes: str, tmp_path: Path) -> None:
    command = (*PROBE_SERVE, "--processes", processes)
    with served(tmp_path, command=command) as (server, url):
        httpx.post(f"{url}/jobs", timeout=SOON)
        server.wait_for("job runs")
        server.send(signal.SIGTERM)
        server.wait_for("stopping")
        server.send(signal.SIGINT)
        assert server.wait() == 128 + signal.SIGINT


def test_workers_0_accepts_work_and_runs_none(tmp_path: Path) -> None:
    with served(tmp_path, "--workers", "0", command=PROBE_SERVE) as (server, url):
        job_id = httpx.post(f"{url}/jobs", timeout=SOON).json()["id"]
        server.send(signal.SIGTERM)
        assert server.wait() == 0
    app = Penstock(f"sqlite:///{tmp_path}/penstock-data/penstock.db", create=False)
    assert [entry.event for entry in run_sync(app.log(job_id))] == [Event.ENQUEUED]
    run_sync(app.close())


def test_server_without_workers_leaves_all_work_to_another(tmp_path: Path) -> None:
    """This includes the processes and folders that applications have of their own."""
    apps = ("--apps", "entries,notebooks")
    data = tmp_path / "penstock-data"
    data.mkdir()
    asyncio.run(_add_notebook(f"sqlite:///{data}/penstock.db", data))
    with (
        served(tmp_path, "--workers", "0", *apps) as (_, url),
        httpx.Client(base_url=url, timeout=SOON) as client,
    ):
        client.put("/api/v1/notebooks/garden/content?path=a.md", content=b"a")
        text = {"title": "x", "playbook": "y"}
        entry = {"entity_type": "experience", "category_code": "A", "data": text}
        assert client.post("/api/v1/entries/write", json=entry).status_code == 200

        def embeds() -> tuple[str, int, int]:
            found = client.get("/admin/queue/status").json()
            workers = found["workers"]
            return workers["status"], workers["num_workers"], found["queue"]["embedded"]["total"]

        assert embeds() == ("off", 0, 0)
        assert client.get("/api/v1/workers").json()["workers"] == []
        file = data / "notebooks" / "garden" / "a.md"
        assert not file.exists()
        with served(tmp_path, *apps):
            deadline = time.monotonic() + SOON
            while embeds() != ("running", 0, 1) or not file.exists():
                assert time.monotonic() < deadline
                time.sleep(0.05)


async def _add_notebook(store: str, data: Path) -> None:
    async with Penstock(store) as app:
        registry = Registry(app, Settings(), data)
        await registry.prepare()
        await registry.add("garden", None, git=False)


def test_leases_that_run_out_are_taken_back_although_nobody_works_here(tmp_path: Path) -> None:
    query: dict[str, str | int] = {"tags": "a", "worker_id": "w", "wait": 60}
    (tmp_path / "penstock.toml").write_text("workers = 0\n[events]\nlease = 0.1\nretry_delay = 0\n")
    with served(tmp_path) as (_, url), httpx.Client(base_url=url, timeout=SOON * 2) as client:
        client.post("/events", json={"title": "x", "tags": "a"})
        first = client.get("/events/subscribe", params=query).json()
        again = client.get("/events/subscribe", params=query).json()
        assert again["id"] == first["id"]


# Several processes


def _pids(url: str, wanted: int) -> set[int]:
    """Return the ids of the processes, once this many have answered."""
    found: set[int] = set()
    while len(found) < wanted:
        with ThreadPoolExecutor(8) as threads:
            found |= set(threads.map(_pid, [url] * 8))
    return found


def _pid(url: str) -> int:
    """Return the id of the process that answers a new connection."""
    while True:
        try:
            with urlopen(f"{url}/pid", timeout=SOON) as answer:  # noqa: S310 - our own server
                return int(json.load(answer)["pid"])
        except OSError:  # taken by one that was killed before it answered
            continue


def test_a_process_that_dies_is_replaced(tmp_path: Path) -> None:
    with served(tmp_path, "--processes", "2", command=PROBE_SERVE) as (server, url):
        first, second = _pids(url, 2)
        os.kill(first, signal.SIGKILL)
        server.wait_for("exited with code 137; restarting it")
        now = _pids(url, 2)
        while first in now:
            now = _pids(url, 2)
        assert second in now
        server.send(signal.SIGTERM)
        assert server.wait() == 0


def test_workers_of_a_process_that_died_are_off_the_list_when_it_was_replaced(
    tmp_path: Path,
) -> None:
    with served(tmp_path, "--processes", "2", command=PROBE_SERVE) as (server, url):

        def processes() -> set[int]:
            answer = httpx.get(f"{url}/api/v1/workers", timeout=SOON)
            return {one["pid"] for one in answer.json()["workers"]}

        def until(holds: Callable[[set[int]], bool]) -> set[int]:
            deadline = time.monotonic() + SOON
            while not holds(found := processes()):
                assert time.monotonic() < deadline, found
                time.sleep(0.02)
            return found

        (killed,) = until(lambda found: len(found) == 1)
        os.kill(killed, signal.SIGKILL)
        server.wait_for("exited with code 137; restarting it")
        until(lambda found: len(found) == 1 and killed not in found)
        server.send(signal.SIGTERM)
        assert server.wait() == 0


def test_jobs_run_in_one_of_the_processes(tmp_path: Path) -> None:
    with served(
        tmp_path, "--processes", "3", "--workers", "8", "--grace", "0", command=PROBE_SERVE
    ) as (server, url):
        for _ in range(6):
            httpx.post(f"{url}/jobs", timeout=SOON)
        assert len({server.wait_for("job runs in").split()[-1] for _ in range(6)}) == 1
        server.send(signal.SIGTERM)
        assert server.wait() == 0


def test_processes_do_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    with served(tmp_path, "--processes", "2") as (server, url):
        server.send(signal.SIGKILL)
        server.wait()  # until nobody holds its output any more
        port = int(url.rpartition(":")[2])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


@pytest.mark.parametrize("processes", ["1", "2"])
def test_store_that_cannot_be_used_is_code_5(processes: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_text("nothing like a database " * 100)
    command = (*SERVE, "--store", "sqlite:///jobs.db", "--processes", processes)
    with started(command, tmp_path) as server:
        assert server.wait() == 5
        assert "not a SQLite file" in server.printed[0]


# Runs a command without the rights of root over files, which cannot be refused anything.
AS_ANYBODY = """
import ctypes, os, sys
for right in (1, 2) if os.geteuid() == 0 else ():
    assert ctypes.CDLL(None).prctl(24, right, 0, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.parametrize("processes", ["1", "2"])
def test_store_that_may_not_be_written_is_code_5(processes: str, tmp_path: Path) -> None:
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db")
    run_sync(app.count())
    run_sync(app.close())
    (tmp_path / "jobs.db").chmod(0o444)
    command = (*SERVE, "--store", "sqlite:///jobs.db", "--apps", "events")
    anybody = (COMMAND[0], "-c", AS_ANYBODY, *command, "--processes", processes)
    with started(anybody, tmp_path) as server:
        assert server.wait() == 5
        assert "jobs.db cannot be used: it may not be written" in server.printed[0]


@pytest.mark.parametrize(
    ("store", "says"),
    [
        ("sqlite:///none/jobs.db", "does its folder exist, and may it be written?"),
        ("postgresql://127.0.0.1:1/jobs", "does not answer"),
    ],
)
def test_store_that_is_not_there_is_code_5(store: str, says: str, tmp_path: Path) -> None:
    with started((*SERVE, "--store", store, "--apps", "events"), tmp_path) as server:
        assert server.wait() == 5
        assert says in server.printed[0]


# What is wrong


def test_unknown_variable_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_WORKRES", "2")
    with served(tmp_path, "--processes", "2") as (server, _):
        server.send(signal.SIGTERM)
        server.wait()
    told = [line for line in server.printed if "PENSTOCK_WORKRES" in line]
    assert len(told) == 1
    assert told[0].endswith("is not a setting and is ignored; did you mean PENSTOCK_WORKERS?")


def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with started((*COMMAND, "serve", "--port", port), tmp_path) as server:
            assert server.wait() == 2
    (line,) = server.printed
    assert line == (
        f"penstock: cannot listen on 127.0.0.1, port {port}: Address already in use; "
        "try: --port 0, which chooses a free one"
    )


def test_a_wrong_setting_is_told_before_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = (*COMMAND, "serve", "--port", port, "--apps", "nope")
        with started(command, tmp_path) as server:
            assert server.wait() == 2
    assert "there is no application 'nope'" in server.printed[0]


def test_another_port_is_advised_only_where_that_helps(tmp_path: Path) -> None:
    with started((*SERVE, "--host", "no host"), tmp_path) as server:
        assert server.wait() == 2
    assert "try:" not in server.printed[0]


def test_data_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with started((*SERVE, "--data", "file"), tmp_path) as server:
        assert server.wait() == 2
        assert "cannot create the data folder" in server.printed[0]
        assert ": File exists; try: --data DIR" in server.printed[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--apps", "nope"], "there is no application 'nope'; choose from entries"),
        (["--host", "0.0.0.0"], "0.0.0.0 is reachable from other machines"),  # noqa: S104 - it is refused
        (["--host", "no host"], "cannot listen on no host"),
        (
            ["--store", "http://localhost:8000"],
            "http://localhost:8000 is another server; try: --store",
        ),
        (
            ["--port", "99999"],
            "port (from command line) is 99999: must be an integer from 0 to 65,535",
        ),
        (
            ["--log-format", "xml"],
            "log_format (from command line) is 'xml': must be one of json, text",
        ),
        (["--config", "none.toml"], "there is no file none.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_settings_are_one_line_and_code_2(
    options: list[str], message: str, tmp_path: Path
) -> None:
    with started((*SERVE, *options), tmp_path) as server:
        assert server.wait() == 2
    (line,) = server.printed
    assert message in line


def serve_without(module: str) -> tuple[str, ...]:
    """Return a command for a server in which an import of this module fails."""
    program = (
        f"import sys; sys.modules[{module!r}] = None; from penstock.cli.main import main; main()"
    )
    return (COMMAND[0], "-c", program, "serve")


def test_missing_extra_is_named(tmp_path: Path) -> None:
    with started(serve_without("uvicorn"), tmp_path) as server:
        assert server.wait() == 2
    assert server.printed[0].endswith("try: pip install 'penstock[server]'")


@pytest.mark.parametrize("module", ["penstock.server.app", "penstock.apps.events.routes"])
def test_module_of_our_own_that_cannot_be_imported_is_no_missing_package(
    module: str, tmp_path: Path
) -> None:
    with started(serve_without(module), tmp_path) as server:
        assert server.wait() == 1
    printed = "\n".join(server.printed)
    assert f"ModuleNotFoundError: import of {module} halted" in printed
    assert "pip install" not in printed


def test_server_goes_on_when_its_workers_are_drained(tmp_path: Path) -> None:
    with served(tmp_path) as (server, url):
        deadline = time.monotonic() + SOON
        workers: list[dict[str, str]] = []
        while len(workers) < 2:  # they greet a moment after the server answers
            assert time.monotonic() < deadline
            workers = httpx.get(f"{url}/api/v1/workers", timeout=SOON).json()["workers"]
        for worker in workers:
            name = quote(worker["name"], safe="")
            answer = httpx.post(f"{url}/api/v1/workers/{name}/drain", timeout=SOON)
            assert answer.json()["draining"]
        server.wait_for("is draining")
        while httpx.get(f"{url}/api/v1/workers", timeout=SOON).json()["workers"]:
            assert time.monotonic() < deadline
        answer = httpx.post(f"{url}/events", json={"title": "x", "tags": "a"}, timeout=SOON)
        assert answer.status_code == 201
        server.send(signal.SIGTERM)
        assert server.wait() == 0
