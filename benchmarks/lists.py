"""A server with very many queues: `python -m benchmarks.lists`.

Makes queues over HTTP, each with one job, and reads everything that lists them, while `/health`
is asked all the time. Then puts many jobs behind one of a rare task, and searches for that one.
`/health` on the idle server, in the same run, says how much of it is the machine. With
`--store postgresql://…` the server works on that database, which should be empty.
"""

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from penstock import NewJob, Penstock, run_sync

_BATCH = 1_000
_ASKED_EVERY = 0.005
_MEASURED = 10.0
_HOUR = "2000-01-01T00:00:00Z"  # the server looks back for 8 days at most
_LISTS = {
    "list of queues, 1,000 of them": "/api/v1/queues",
    "list of queues, a page of 50": "/api/v1/queues?after=q010000&limit=50",
    "queues by a part of the name": "/api/v1/queues?name=999&limit=50",
    "one queue": "/api/v1/queues/q000001",
    "summary of all queues": "/api/v1/summary",
    "history of all queues together": "/api/v1/history?together=true",
    "history of 100 queues": "/api/v1/history",
    "workers": "/api/v1/workers",
    "keys": "/api/v1/keys",
    "store": "/api/v1/store",
    "metrics": "/metrics",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lists", description=__doc__)
    parser.add_argument("--queues", type=int, default=20_000, help="how many (20,000)")
    parser.add_argument(
        "--jobs", type=int, default=1_000_000, help="behind the rare one (1,000,000)"
    )
    parser.add_argument("--store", help="the URL of an empty store; else a SQLite file")
    options = parser.parse_args(argv)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="penstock-lists-", dir="/var/tmp") as folder:
        store = options.store or f"sqlite:///{folder}/jobs.db"
        with _server(store, Path(folder)) as url:
            _measure_lists(url, options.queues, console)
        if options.jobs:
            _fill(store, options.jobs)
            with _server(store, Path(folder)) as url:
                _measure_search(url, options.jobs, console)
    return 0


def _measure_lists(url: str, queues: int, console: Console) -> None:
    idle = _health(url, lambda: time.sleep(_MEASURED))
    began = time.monotonic()
    for start in range(0, queues, _BATCH):
        numbers = range(start, min(start + _BATCH, queues))
        jobs = [{"task": "t", "queue": f"q{n:06}"} for n in numbers]
        _ask(url, "/api/v1/jobs/batch", {"jobs": jobs})
    console.print(f"{queues:,} queues made in {time.monotonic() - began:.1f} s")
    _ask(url, "/api/v1/store")  # counts what has happened
    table = Table("", "first ms", "median ms", "KB")
    for title, path in _LISTS.items():
        times, size = [], 0
        for _ in range(5):
            took, size = _timed(url, path)
            times.append(took)
        median = sorted(times)[len(times) // 2]
        table.add_row(title, f"{times[0]:.1f}", f"{median:.1f}", f"{size / 1000:,.0f}")
    console.print(table)
    busy = _health(url, lambda: _read_all(url, _MEASURED))
    _print_health(console, idle, busy, "while four clients read all lists and one the stream")


def _measure_search(url: str, jobs: int, console: Console) -> None:
    idle = _health(url, lambda: time.sleep(3))
    found: dict[str, tuple[float, int]] = {}

    def search() -> None:
        for path in ("task=rare", "queue=rare", "text=needle", "task=none&timeout=30"):
            began = time.monotonic()
            page = json.loads(_ask(url, f"/api/v1/jobs?{path}&limit=1"))
            found[path] = time.monotonic() - began, len(page["jobs"])

    busy = _health(url, search)
    table = Table(f"one job behind {jobs:,}, limit=1", "s", "found")
    for path, (took, n) in found.items():
        table.add_row(path, f"{took:.2f}", str(n))
    console.print(table)
    _print_health(console, idle, busy, "while it was searched for")


def _print_health(
    console: Console, idle: Sequence[float], busy: Sequence[float], when: str
) -> None:
    table = Table("/health", "n", "p50 ms", "p99 ms", "max ms")
    for title, times in (("idle server", idle), (when, busy)):
        at = [sorted(times)[min(len(times) - 1, int(len(times) * part))] for part in (0.5, 0.99)]
        table.add_row(title, str(len(times)), *(f"{one:.1f}" for one in (*at, max(times))))
    console.print(table)


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

    paths = list(_LISTS.values())
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
        raise SystemExit(f"{path}: {answer.status} {found[:300]!r}")
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


if __name__ == "__main__":
    sys.exit(main())
