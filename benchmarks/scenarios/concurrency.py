"""What group commit is worth: many async callers at once against one (penstock only)."""

import asyncio
import time
from pathlib import Path

from benchmarks.contenders import Contender, Payload, make_payloads
from benchmarks.contenders.penstock import PenstockQueue, open_ours
from benchmarks.scenarios import Figures, Load, Scenario, timed

CALLERS = 100


def concurrent(contender: Contender, folder: Path, load: Load) -> Figures:
    """Single enqueues by 100 callers, each waiting for its answer before its next."""
    payloads = make_payloads(load.jobs)
    seconds = load.limit_seconds
    one = asyncio.run(_rate(open_ours(contender, folder, "one"), payloads, 1, seconds / 2))
    many = asyncio.run(_rate(open_ours(contender, folder, "many"), payloads, CALLERS, seconds))
    return {"one": one, "rate": many, "ratio": many / one}


async def _rate(
    queue: PenstockQueue, payloads: list[Payload], callers: int, seconds: float
) -> float:
    waiting = iter(payloads)
    deadline = time.perf_counter() + seconds
    added = 0

    async def call() -> None:
        nonlocal added
        for payload in waiting:
            await queue.task.enqueue(payload)
            added += 1
            if time.perf_counter() > deadline:
                break

    with timed() as watch:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(callers):
                tasks.create_task(call())
    await queue.app.close()
    return added / watch.seconds


SCENARIOS = (Scenario("concurrent", concurrent, contenders=("penstock", "penstock-journal")),)
