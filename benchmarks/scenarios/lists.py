"""A server with very many queues (penstock only).

Makes queues over HTTP, each with one job, and reads everything that lists them, while `/health`
is asked all the time. Then puts many jobs behind one of a rare task, and searches for that one.
`/health` on the idle server, in the same run, says how much of it is the machine.
"""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from benchmarks.contenders import Contender
from benchmarks.scenarios import Figures, Load, Scenario, percentile
from penstock import NewJob, Penstock, run_sync

_BATCH = 1_000
_ASKED_EVERY = 0.005
_TURNS = 5
LISTS = {
    "queues": ("list of queues, 1,000 of them", "/api/v1/queues"),
    "page": ("list of queues, a page of 50", "/api/v1/queues?after=q010000&limit=50"),
    "named": ("queues by a part of the name", "/api/v1/queues?name=999&limit=50"),
    "queue": ("one queue", "/api/v1/queues/q000001"),
    "summary": ("summary of all queues", "/api/v1/summary"),
    "together": ("history of all queues together", "/api/v1/history?together=true"),
    "history": ("history of 100 queues", "/api/v1/history"),
    "workers": ("workers", "/api/v1/workers"),
    "keys": ("keys", "/api/v1/keys"),
    "store": ("store", "/api/v1/store"),
    "metrics": ("metrics", "/metrics"),
}
SEARCHES = {
    "task": ("a rare task", "task=rare"),
    "named": ("a rare queue", "queue=rare"),
    "text": ("a text in the arguments", "text=needle"),
    "none": ("a task that nothing has", "task=none&timeout=30"),
}


def lists(contender: Contender, folder: Path, load: Load) -> Figures:  # noqa: ARG001 - a server
    """As many queues as jobs; milliseconds of the first answer, of the median, and its size."""
    with _server(_store(folder), folder) as url:
        idle = _health(url, lambda: time.sleep(2 * load.idle_seconds))
        for start in range(0, load.jobs, _BATCH):
            numbers = range(start, min(start + _BATCH, load.jobs))
            jobs = [{"task": "t", "queue": f"q{n:06}"} for n in numbers]
            _ask(url, "/api/v1/jobs/batch", {"jobs": jobs})
        _ask(url, "/api/v1/store")  # counts what has happened
        figures: dict[str, float] = {}
        for name, (_, path) in LISTS.items():
            answers = [_timed(url, path) for _ in range(_TURNS)]
            figures[f"{name}_first"] = answers[0][0]
            figures[f"{name}_p50"] = median(took for took, _ in answers)
            figures[f"{name}_kilobytes"] = answers[-1][1] / 1000
        busy = _health(url, lambda: _read_all(url, 2 * load.idle_seconds))
    return {**figures, "idle_p99": percentile(idle, 0.99), "health_p99": percentile(busy, 0.99)}


def searches(contender: Contender, folder: Path, load: Load) -> Figures:  # noqa: ARG001 - a server
    """Seconds to find one job behind very many others."""
    figures: dict[str, float] = {}
    _fill(_store(folder), load.backlog)

    def search() -> None:
        for name, (_, query) in SEARCHES.items():
            began = time.monotonic()
            page = json.loads(_ask(url, f"/api/v1/jobs?{query}&limit=1"))
            figures[name] = time.monotonic() - began
            if len(page["jobs"]) != int(name != "none"):
                raise RuntimeError(f"{query} found {len(page['jobs'])} jobs")

    with _server(_store(folder), folder) as url:
        idle = _health(url, lambda: time.sleep(load.idle_seconds))
        busy = _health(url, search)
    return {**figures, "idle_p99": percentile(idle, 0.99), "health_p99": percentile(busy, 0.99)}


def _store(folder: Path) -> str:
    return f"sqlite:///{folder}/jobs.db"


def _health(url: str, meanwhile: Callable[[], None]) -> list[float]:
    """How many milliseconds each answer took."""
    times: list[float] = []
    over = threading.Event()

    def ask() -> None:
        connection = _connection(url)
        while not over.is_set():
            began = time.monotonic()
            connection.request("GET", "/health")
            connection.getresponse().read()
            times.append((time.monotonic() - began) * 1000)
            over.wait(_ASKED_EVERY)

    asking = threading.Thread(target=ask)
    asking.start()
    meanwhile()
    over.set()
    asking.join()
    return times


def _read_all(url: str, seconds: float) -> None:
    """Four clients that read every list, over and over, and one that follows the log."""
    deadline = time.monotonic() + seconds

    def read(paths: Sequence[str]) -> None:
        while time.monotonic() < deadline:
            for path in paths:
                _ask(url, path)

    def follow() -> None:
        connection = _connection(url)
        connection.request("GET", "/api/v1/stream?after=1")
        answer = connection.getresponse()
        while time.monotonic() < deadline and answer.read1(65_536):
            pass
        connection.close()

    paths = [path for _, path in LISTS.values()]
    readers = [threading.Thread(target=read, args=(paths[n:] + paths[:n],)) for n in range(0, 8, 2)]
    readers.append(threading.Thread(target=follow, daemon=True))
    for reader in readers:
        reader.start()
    for reader in readers[:-1]:
        reader.join()


def _timed(url: str, path: str) -> tuple[float, int]:
    began = time.monotonic()
    body = _ask(url, path)
    return (time.monotonic() - began) * 1000, len(body)


def _ask(url: str, path: str, body: object = None) -> bytes:
    connection = _connection(url)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            text = json.dumps(body)
            connection.request("POST", path, text, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = answer.read()
    finally:
        connection.close()
    if answer.status >= http.client.BAD_REQUEST:
        raise RuntimeError(f"{path}: {answer.status} {found[:300]!r}")
    return found


def _connection(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)


@contextmanager
def _server(store: str, folder: Path) -> Iterator[str]:
    """A server in a process of its own."""
    command = [sys.executable, "-m", "penstock.cli.main", "serve", "--store", store]
    command += ["--port", "0", "--workers", "0", "--data", str(folder / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        words = (word for line in process.stdout for word in line.split())
        try:
            yield next(word.rstrip(".,") for word in words if word.startswith("http://"))
        finally:
            process.terminate()


def _fill(store: str, jobs: int) -> None:
    app = Penstock(store)
    rare = NewJob(task="rare", payload='{"text":"needle"}', queue="rare")
    run_sync(app.enqueue_many([rare]))
    for start in range(0, jobs, _BATCH):
        many = [NewJob(task="common", payload='{"n":1}')] * min(_BATCH, jobs - start)
        run_sync(app.enqueue_many(many))
    run_sync(app.close())


SCENARIOS = (
    Scenario("lists", lists, interleaves=False),
    Scenario("searches", searches, interleaves=False),
)
