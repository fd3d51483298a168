"""Forks under gunicorn, which imports the app, uses its store, and then forks workers."""

import http.client
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock import JobQuery, Penstock, run_sync
from tests.cli.support import started
from tests.client.support import free_port
from tests.contract.support import SHARED, STORES
from tests.environment import SOON

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

SITE = """
import asyncio, json, os
from penstock import Penstock

app = Penstock(os.environ["SITE_STORE"])

@app.task
def note(n: int) -> None: ...

# Before the fork, in every way: with and without an event loop, and with a listener.
note.sync.enqueue(-1)
asyncio.run(app.find())
app.sync.wait(0, 0)

def site(environ, start_response):
    n = int(environ["QUERY_STRING"])
    job = note.sync.enqueue(n) if n % 2 else asyncio.run(enqueue(n))
    assert app.sync.get(job.id).id == job.id
    assert app.queues.sync.list()[0].name == job.queue
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps([os.getpid(), job.id]).encode()]

async def enqueue(n):
    return await note.enqueue(n)
"""
REQUESTS = 300


@pytest.mark.parametrize("store", SHARED)
def test_workers_of_gunicorn_share_a_preloaded_app_and_lose_nothing(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site_app.py").write_text(SITE)
    url = STORES[store](tmp_path)
    monkeypatch.setenv("SITE_STORE", url)
    port = free_port()
    command = (
        *(sys.executable, "-W", "error::DeprecationWarning", "-m", "gunicorn", "--preload"),
        *("--workers", "3", "--threads", "2", "--bind", f"127.0.0.1:{port}"),
        *("--max-requests", "40", "--graceful-timeout", str(SOON), "site_app:site"),
    )  # after 40 requests the parent forks another worker
    with started(command, tmp_path) as server:
        for _ in range(3):
            server.wait_for("Booting worker")
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda n: ask(port, n), range(REQUESTS)))
        server.send(signal.SIGTERM)
        assert server.wait() == 0
        assert not [line for line in server.printed if "Traceback" in line or "fork" in line]
    assert len({process for process, _ in answers}) > 3
    reader = Penstock(url)
    found = run_sync(reader.find(JobQuery(limit=10_000)))
    run_sync(reader.close())
    noted = Counter(json.loads(job.payload)["n"] for job in found)
    assert {job_id for _, job_id in answers} <= {job.id for job in found}
    assert noted == Counter([-1, *range(REQUESTS)])


POOL = """
import multiprocessing, os
from penstock import Penstock

app = Penstock(os.environ["SITE_STORE"])

@app.task
def note(n: int) -> None: ...

def child(n):
    job = note.sync.enqueue(n)
    assert app.sync.get(job.id) == job
    return os.getpid(), job.id

note.sync.enqueue(-1)
with multiprocessing.get_context("fork").Pool(3) as pool:
    answers = pool.map(child, range(60), chunksize=5)
parent = note.sync.enqueue(-2)
found = app.sync.find()
assert {job for _, job in answers} < {job.id for job in found}, answers
assert len(found) == 62 and os.getpid() not in {process for process, _ in answers}
print("all there")
"""


@pytest.mark.parametrize("store", SHARED)
def test_pool_of_forked_processes_shares_an_app_that_was_used(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SITE_STORE", STORES[store](tmp_path))
    command = (sys.executable, "-W", "error", "-c", POOL)
    with started(command, tmp_path) as program:
        assert program.wait() == 0, program.printed
        assert "all there" in "".join(program.printed)


def ask(port: int, n: int) -> tuple[int, int]:
    """Have a job enqueued; return the process that did it, and the job."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SOON)
    try:
        connection.request("GET", f"/?{n}")
        answer = connection.getresponse()
        assert answer.status == 200
        process, job = json.loads(answer.read())
    finally:
        connection.close()
    return process, job


# uWSGI forks in C, without calling Python's hooks; a module of its name is all that tells it.
UWSGI = """
import ctypes, os, sys, types
sys.modules["uwsgi"] = types.ModuleType("uwsgi")
from penstock import Penstock
from penstock.errors import StoreError

app = Penstock(os.environ["SITE_STORE"])
app.task("note", lambda: None)
used = sys.argv[1] == "used"
if used:
    app.sync.enqueue("note")
child = ctypes.PyDLL(None).fork()
if child == 0:
    code = 1
    try:
        app.sync.enqueue("note")
        code = 10
    except StoreError as error:
        code = 20 if "lazy-apps" in str(error) else 2
    finally:
        os._exit(code)
_, status = os.waitpid(child, 0)
if used:
    app.sync.enqueue("note")  # the parent goes on
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize(("state", "code"), [("unused", "10"), ("used", "20")])
def test_child_of_uwsgi_opens_its_own_store_or_is_told_what_to_set(
    state: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SITE_STORE", url := f"sqlite:///{tmp_path}/jobs.db")
    done = subprocess.run(
        [sys.executable, "-c", UWSGI, state], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == code, done.stderr
    app = Penstock(url)
    assert len(app.sync.find()) == (2 if state == "used" else 1)
    app.sync.close()
