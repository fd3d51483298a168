"""What names cost: drains of one queue, of as many queues as jobs, and of as many tenants.

Each run has a store of its own, and the kinds take turns: a slow minute hits all alike.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from benchmarks.contenders import Contender, make_payloads
from benchmarks.contenders.penstock import PenstockQueue
from benchmarks.contenders.postgres.penstock import PostgresQueue
from benchmarks.scenarios import Figures, Load, Scenario, timed
from penstock import NewJob, Worker, run_sync
from penstock.cli.event_loop import run

# Jobs of the queue that a worker names, beside all the others.
_SINGLE = "single"
_AT_ONCE = 1_000

Open = Callable[[Path, str], PenstockQueue]


def measure(_contender: Contender, folder: Path, load: Load, *, opened: Open) -> Figures:
    """Drain rates, and those of many names as a share of those of one."""
    rates: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    for turn in range(load.rounds):
        for kind, drain in _KINDS.items():
            rates[kind].append(drain(opened(folder, f"{kind}_{turn}"), load.jobs))
    medians = {kind: median(found) for kind, found in rates.items()}
    return {
        **medians,
        "queues_share": medians["queues"] / medians["one"],
        "tenants_share": medians["tenants"] / medians["one"],
        "beside_share": medians["beside"] / medians["alone"],
    }


def _drain_one(queue: PenstockQueue, jobs: int) -> float:
    _fill(queue, jobs, lambda job, _: job)
    return _rate(queue, jobs)


def _drain_queues(queue: PenstockQueue, jobs: int) -> float:
    _fill(queue, jobs, _in_own_queue)
    return _rate(queue, jobs)


def _drain_tenants(queue: PenstockQueue, jobs: int) -> float:
    _fill(queue, jobs, lambda job, n: replace(job, tenant=f"tenant-{n}"))
    return _rate(queue, jobs)


def _drain_alone(queue: PenstockQueue, jobs: int) -> float:
    _fill(queue, jobs, _in_single)
    return _rate(queue, jobs, _SINGLE)


def _drain_beside(queue: PenstockQueue, jobs: int) -> float:
    _fill(queue, jobs, _in_own_queue)
    _fill(queue, jobs, _in_single)
    return _rate(queue, jobs, _SINGLE)


_KINDS: dict[str, Callable[[PenstockQueue, int], float]] = {
    "one": _drain_one,
    "queues": _drain_queues,
    "tenants": _drain_tenants,
    "alone": _drain_alone,
    "beside": _drain_beside,
}


def _in_own_queue(job: NewJob, n: int) -> NewJob:
    return replace(job, queue=f"queue-{n}")


def _in_single(job: NewJob, _: int) -> NewJob:
    return replace(job, queue=_SINGLE)


def _fill(queue: PenstockQueue, jobs: int, named: Callable[[NewJob, int], NewJob]) -> None:
    new = [
        named(queue.task.new(payload), n) for n, payload in enumerate(make_payloads(jobs), start=1)
    ]
    for start in range(0, jobs, _AT_ONCE):
        run_sync(queue.app.enqueue_many(new[start : start + _AT_ONCE]))
    queue.rest()


def _rate(queue: PenstockQueue, jobs: int, name: str | None = None) -> float:
    queues = None if name is None else [name]
    worker = Worker(queue.app, queues=queues, concurrency=queue.slots)
    with timed() as watch:
        run(worker.run(until_empty=True))
    if queue.ran != jobs:
        raise AssertionError(f"{queue.ran} jobs ran, not {jobs}")
    queue.close()
    return jobs / watch.seconds


SCENARIOS = (
    Scenario("sqlite", partial(measure, opened=PenstockQueue), interleaves=False),
    Scenario("postgres", partial(measure, opened=PostgresQueue), interleaves=False),
)
