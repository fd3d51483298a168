"""Jobs per second: added one by one, added in bulk, worked off."""

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from benchmarks.contenders import (
    BulkQueue,
    Contender,
    Countdown,
    DrainableQueue,
    OwnWayQueue,
    Payload,
    Queue,
    make_payloads,
)
from benchmarks.scenarios import Figures, Load, Scenario, timed

WARM_UP = 10


def one_by_one(contender: Contender, folder: Path, load: Load) -> Figures:
    """Single enqueues from synchronous code, each durable before the next."""
    queue = contender.open(folder)
    payloads = make_payloads(load.jobs)
    _warm_up(queue)
    with timed(folder) as watch:
        added = _add_until(queue.enqueue, payloads, load.limit_seconds)
    queue.close()
    return watch.figures(added)


def bulk(contender: Contender, folder: Path, load: Load, *, batch: int) -> Figures | None:
    """Enqueues of `batch` jobs, one transaction each."""
    queue = contender.open(folder)
    if not isinstance(queue, BulkQueue):
        queue.close()
        return None
    payloads = make_payloads(load.jobs)
    _warm_up(queue)
    with timed(folder) as watch:
        for start in range(0, len(payloads), batch):
            queue.enqueue_many(payloads[start : start + batch])
    queue.close()
    return watch.figures(load.jobs)


def bulk_own_way(contender: Contender, folder: Path, load: Load) -> Figures | None:
    """All jobs in the way that the contender likes best, in one transaction or in several."""
    queue = contender.open(folder)
    if not isinstance(queue, OwnWayQueue):
        queue.close()
        return None
    payloads = make_payloads(load.jobs)
    _warm_up(queue)
    with timed(folder) as watch:
        queue.enqueue_own_way(payloads)
    queue.close()
    return watch.figures(load.jobs)


def drain(contender: Contender, folder: Path, load: Load) -> Figures | None:
    """One worker process works off no-op jobs that were there before it."""
    producer = contender.open(folder)
    producer.fill(make_payloads(load.jobs))
    producer.close()
    queue = contender.open(folder)
    if not isinstance(queue, DrainableQueue):
        queue.close()
        return None
    return _drain(queue, load.jobs, folder, load.drain_seconds)


def drain_rate(queue: DrainableQueue, jobs: int) -> float:
    """Jobs per second, of all that are there; close the queue."""
    return _drain(queue, jobs)["rate"]


def _drain(
    queue: DrainableQueue, jobs: int, folder: Path | None = None, seconds: float = math.inf
) -> Figures:
    """Work off all jobs that are there, or those that run in so long; close the queue."""
    with timed(folder) as watch:
        handle = Countdown(jobs, seconds)
        queue.drain(handle)
    queue.close()
    if handle.ran != jobs and not handle.is_late:
        raise RuntimeError(f"{handle.ran} of {jobs} jobs ran")
    return watch.figures(handle.ran)


def _warm_up(queue: Queue) -> None:
    """Let it connect and make its tables before it is timed."""
    for payload in make_payloads(WARM_UP):
        queue.enqueue(payload)


def _add_until(
    enqueue: Callable[[Payload], None], payloads: Iterable[Payload], seconds: float
) -> int:
    """Enqueue one after the other, for at most so long; return how many."""
    deadline = time.perf_counter() + seconds
    added = 0
    for payload in payloads:
        enqueue(payload)
        added += 1
        if time.perf_counter() > deadline:
            break
    return added


ONE_BY_ONE = Scenario("one-by-one", one_by_one)
BULK_1000 = Scenario("bulk-1000", partial(bulk, batch=1000))
BULK_OWN = Scenario("bulk-own", bulk_own_way)
DRAIN = Scenario("drain", drain)

SCENARIOS = (ONE_BY_ONE, Scenario("bulk-100", partial(bulk, batch=100)), BULK_1000, DRAIN)
