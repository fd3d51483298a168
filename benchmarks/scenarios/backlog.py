"""What a large store costs: the claim beside a million jobs it must not look at, worker memory.

penstock only. Data sets are built through the public API.
"""

import asyncio
import os
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import processes
from benchmarks.contenders import Contender, Payload, make_payload, make_payloads
from benchmarks.contenders.penstock import PenstockQueue, open_ours
from benchmarks.scenarios import Figures, Load, Scenario, percentile
from penstock import Job
from penstock.leases import Done

SMALL = 10_000
CHUNK = 10_000
CLAIM = 100
KEYS = 100
WARM_UP = 20
KINDS = ("pending", "scheduled", "blocked", "finished", "tagged")


def claim(contender: Contender, folder: Path, load: Load, *, kind: str) -> Figures:
    """Claims of 100 from a small and a large store in turn; adding and settling are not timed."""
    return asyncio.run(_compare(contender, folder, kind, load))


async def _compare(contender: Contender, folder: Path, kind: str, load: Load) -> Figures:
    sizes = {"small": SMALL, "large": load.backlog}
    for name, size in sizes.items():
        await build(open_ours(contender, folder, name), kind, size)
    os.sync()
    small, large = (open_ours(contender, folder, name) for name in sizes)
    times: dict[PenstockQueue, list[float]] = {small: [], large: []}
    for _ in range(WARM_UP + load.claims):
        for queue, seen in times.items():
            seen.append(await _time_claim(queue, kind))
    for queue in times:
        await queue.app.close()
    before, after = (seen[WARM_UP:] for seen in times.values())
    return {
        "small": median(before),
        "p50": median(after),
        "p99": percentile(after, 0.99),
        "ratio": median(after) / median(before),
    }


async def _time_claim(queue: PenstockQueue, kind: str) -> float:
    """Milliseconds of one claim; the jobs it takes are added before and settled after."""
    tags = ["mine"] if kind == "tagged" else []
    ready = queue.task.using(tags=tags)
    await queue.app.enqueue_many([ready.new(make_payload(str(n))) for n in range(CLAIM)])
    start = time.perf_counter()
    jobs = await queue.app.leases.claim(limit=CLAIM, worker="bench", queues=["default"], tags=tags)
    elapsed = time.perf_counter() - start
    if len(jobs) != CLAIM:
        raise RuntimeError(f"claimed {len(jobs)} jobs instead of {CLAIM}")
    await _finish(queue, jobs)
    return elapsed * 1e3


async def build(queue: PenstockQueue, kind: str, size: int) -> None:
    """Put that many jobs of a kind into the store, and close it."""
    payloads = make_payloads(CHUNK)
    if kind == "blocked":
        await _hold_keys(queue)
    for start in range(0, size, CHUNK):
        await _add(queue, kind, payloads[: size - start])
        while kind == "finished" and (jobs := await _claim_some(queue, 1000)):
            await _finish(queue, jobs)
    await queue.app.close()
    queue.rest()


async def _add(queue: PenstockQueue, kind: str, payloads: Sequence[Payload]) -> None:
    task = queue.task
    if kind == "scheduled":
        task = task.using(delay=timedelta(days=1))
    elif kind == "tagged":
        task = task.using(tags=["other"])
    jobs = [
        (task.using(key=f"key-{n % KEYS}") if kind == "blocked" else task).new(payload)
        for n, payload in enumerate(payloads)
    ]
    await queue.app.enqueue_many(jobs)


async def _hold_keys(queue: PenstockQueue) -> None:
    """Let one running job hold each key, so that all behind it are blocked."""
    lease = timedelta(days=1)
    await queue.app.enqueue_many(
        [
            queue.task.using(key=f"key-{n}", lease=lease).new(make_payload(str(n)))
            for n in range(KEYS)
        ]
    )
    await _claim_some(queue, KEYS)


async def _claim_some(queue: PenstockQueue, limit: int) -> Sequence[Job]:
    return await queue.app.leases.claim(limit=limit, worker="bench", queues=["default"])


async def _finish(queue: PenstockQueue, jobs: Sequence[Job]) -> None:
    await queue.app.leases.settle([(job.lease, Done()) for job in jobs])


def memory(contender: Contender, folder: Path, load: Load) -> Figures:
    """Peak memory of a worker process that works at the head of a large backlog."""
    asyncio.run(build(open_ours(contender, folder), "pending", load.backlog))
    return {"peak": processes.run(_work, contender, folder, min(load.jobs, load.backlog))}


def _work(contender: Contender, folder: Path, jobs: int) -> float:
    """The worker process: run so many jobs, then tell its peak in MB."""
    queue = open_ours(contender, folder)
    queue.serve(lambda _: queue.ran < jobs)
    return _peak_megabytes()


def _peak_megabytes() -> float:
    # On Linux ru_maxrss also counts the process that started this one; VmHWM does not.
    with suppress(FileNotFoundError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


CLAIMS = tuple(
    Scenario(
        f"claim-{kind}",
        partial(claim, kind=kind),
        contenders=("penstock",),
        interleaves=False,
    )
    for kind in KINDS
)

SCENARIOS = (
    *CLAIMS,
    Scenario("memory", memory, contenders=("penstock",), interleaves=False),
)
