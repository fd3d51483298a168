"""Whether a store stays as it was, after millions of jobs and a transaction held open meanwhile.

Jobs are added and worked off in portions, and removed when they are done. A figure is taken for
each portion; those of the last tenth are compared with those of the first. penstock only.
"""

import faulthandler
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from benchmarks.contenders import Contender, make_payloads
from benchmarks.contenders.penstock import PenstockQueue
from benchmarks.processes import PATIENCE_SECONDS
from benchmarks.scenarios import Figures, Load, Scenario
from penstock import Retention
from penstock.cli.event_loop import run

LARGEST = 10_000
PORTIONS = 40
"""At least so many, so that a tenth of them is more than one."""
AT_ONCE = 1_000
GONE = Retention(finished=timedelta(0), failed=timedelta(0))

MEASURED = ("enqueue", "drain", "size", "memory")
"""Jobs a second, twice, and megabytes on disk and in memory."""


def soak(_: Contender, folder: Path, load: Load, *, on_server: bool) -> Figures:
    """Work through all jobs; the transaction is held open in the second and third quarter."""
    portion = max(AT_ONCE, min(LARGEST, load.soak_jobs // PORTIONS))
    portions = max(PORTIONS, load.soak_jobs // portion)
    queue = _open(folder, on_server=on_server)
    begun = time.monotonic()
    seen: list[dict[str, float]] = []
    held: list[dict[str, float]] = []
    with ExitStack() as stack:
        run(_portion(queue, portion))  # caches and pages of the first jobs
        seen += _portions(queue, portion, portions // 4)
        stack.enter_context(queue.held_open())
        until = time.monotonic() + 60 * load.soak_minutes
        held += _portions(queue, portion, portions // 2, until)
    queue.rest()
    seen += _portions(queue, portion, portions - portions // 4 - portions // 2)
    queue.close()
    tenth = max(1, len(seen) // 5)  # of all of them, half of which were while it was held open
    return {
        "jobs": float((1 + len(seen) + len(held)) * portion),
        "minutes": (time.monotonic() - begun) / 60,
        **{f"{name}_first": _median(seen[:tenth], name) for name in MEASURED},
        **{f"{name}_held": _median(held[-tenth:], name) for name in MEASURED},
        **{f"{name}_last": _median(seen[-tenth:], name) for name in MEASURED},
        **{
            f"{name}_ratio": _median(seen[-tenth:], name) / _median(seen[:tenth], name)
            for name in MEASURED
        },
    }


def _open(folder: Path, *, on_server: bool) -> PenstockQueue:
    if not on_server:
        return PenstockQueue(folder)
    from benchmarks.contenders.postgres.penstock import PostgresQueue

    return PostgresQueue(folder)


def _portions(
    queue: PenstockQueue, portion: int, count: int, until: float = 0.0
) -> Iterator[dict[str, float]]:
    """Work through so many portions, and through more until that time."""
    done = 0
    while done < count or time.monotonic() < until:
        faulthandler.dump_traceback_later(PATIENCE_SECONDS, exit=True)  # for each anew
        yield run(_portion(queue, portion))
        done += 1


async def _portion(queue: PenstockQueue, jobs: int) -> dict[str, float]:
    payloads = make_payloads(jobs)
    start = time.perf_counter()
    for first in range(0, jobs, AT_ONCE):
        new = [queue.task.new(payload) for payload in payloads[first : first + AT_ONCE]]
        await queue.app.enqueue_many(new)
    added = time.perf_counter()
    ran = queue.ran
    await queue.work_until_empty()
    ended = time.perf_counter()
    if queue.ran - ran != jobs:
        raise RuntimeError(f"{queue.ran - ran} of {jobs} jobs ran")
    while await queue.app.store.prune(GONE, AT_ONCE):
        pass
    return {
        "enqueue": jobs / (added - start),
        "drain": jobs / (ended - added),
        "size": queue.size() / 1e6,
        "memory": psutil.Process().memory_info().rss / 1e6,
    }


def _median(portions: list[dict[str, float]], name: str) -> float:
    return median(one[name] for one in portions)


SCENARIOS = tuple(
    Scenario(name, partial(soak, on_server=on_server), interleaves=False)
    for name, on_server in (("sqlite", False), ("postgres", True))
)
