"""Administration of many jobs, and what it means for others: `python -m benchmarks.bulk`.

Each verb works on one SQLite file in a process of its own, while another process enqueues single
jobs into it: how long the verb takes, what memory it peaks at, how long an enqueue has to wait.
"""

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from penstock import JobQuery, NewJob, Penstock, Retention, State, run_sync

_PORTION = 5_000
_PAUSE = 0.005
_CANCELLED = JobQuery(queue="bulk", states=frozenset({State.CANCELLED}))
_BULK = JobQuery(queue="bulk")


def _prune(app: Penstock, folder: Path) -> Any:
    return app.archive.prune(
        Retention(finished=timedelta(0), failed=timedelta(0)), archive=folder / "archive.jsonl.gz"
    )


STEPS: dict[str, Callable[[Penstock, Path], Any]] = {
    "reprioritise": lambda app, _: app.bulk(_BULK).reprioritise(7),
    "cancel": lambda app, _: app.bulk(_BULK).cancel(),
    "retry": lambda app, _: app.bulk(_CANCELLED).retry(),
    "cancel again": lambda app, _: app.bulk(_BULK).cancel(),
    "delete half": lambda app, _: app.bulk(JobQuery(queue="bulk", task="even")).delete(),
    "prune": _prune,
}


def main() -> None:
    """Fill a file, do one verb after the other, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--verbs", nargs="+", choices=STEPS, default=list(STEPS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bulk-") as name:
        folder = Path(name)
        _fill(folder, options.jobs)
        print("| verb | jobs | s | jobs/s | peak MB | enqueue p50 / p99 / max ms |")
        print("|---|---|---|---|---|---|")
        for step in options.verbs:
            print(_measured(folder, step), flush=True)


def _fill(folder: Path, jobs: int) -> None:
    app = _open(folder)
    even, odd = (NewJob(task=task, payload='{"n":1}', queue="bulk") for task in ("even", "odd"))
    for _ in range(jobs // _PORTION):
        run_sync(app.enqueue_many([even, odd] * (_PORTION // 2)))
    run_sync(app.close())


def _measured(folder: Path, step: str) -> str:
    context = multiprocessing.get_context("spawn")
    told: multiprocessing.Queue[Any] = context.Queue()
    heard: multiprocessing.Queue[Any] = context.Queue()
    stop = context.Event()
    neighbour = context.Process(target=_enqueue, args=(folder, stop, heard))
    neighbour.start()
    heard.get()  # it is there
    worker = context.Process(target=_do, args=(folder, step, told))
    worker.start()
    changed, seconds, peak = told.get()
    stop.set()
    waits = sorted(heard.get())
    for process in (worker, neighbour):
        process.join()
    p50, p99, most = (1_000 * waits[int(part * (len(waits) - 1))] for part in (0.5, 0.99, 1))
    return (
        f"| {step} | {changed:,} | {seconds:.1f} | {changed / seconds:,.0f} | {peak} "
        f"| {p50:.1f} / {p99:.1f} / {most:.0f} |"
    )


def _do(folder: Path, step: str, told: "multiprocessing.Queue[Any]") -> None:
    app = _open(folder)
    start = time.perf_counter()
    done = run_sync(STEPS[step](app, folder))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    told.put((done.changed, seconds, peak // (1 << 20 if sys.platform == "darwin" else 1 << 10)))
    run_sync(app.close())


def _enqueue(folder: Path, stop: Event, heard: "multiprocessing.Queue[Any]") -> None:
    app = _open(folder)
    job = NewJob(task="other", payload="{}", queue="other")
    run_sync(app.enqueue_many([job]))
    heard.put(None)
    waits = []
    while not stop.is_set():
        start = time.perf_counter()
        run_sync(app.enqueue_many([job]))
        waits.append(time.perf_counter() - start)
        time.sleep(_PAUSE)
    heard.put(waits)
    run_sync(app.close())


def _open(folder: Path) -> Penstock:
    return Penstock(f"sqlite:///{folder / 'jobs.db'}")


if __name__ == "__main__":
    main()
