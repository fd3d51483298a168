"""Two worker processes on one queue."""

import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks import processes
from benchmarks.contenders import Contender, Payload, SharingQueue, make_payloads
from benchmarks.scenarios import Figures, Load, Scenario, timed
from benchmarks.tally import Tally

PROCESSES = 2


def drain_together(contender: Contender, folder: Path, load: Load) -> Figures | None:
    """Worker processes work off jobs that were there before them, until none is left.

    Timed from the moment when all have opened the queue until all have settled and stopped.
    """
    producer = contender.open(folder)
    if not isinstance(producer, SharingQueue):
        producer.close()
        return None
    producer.fill(make_payloads(load.jobs))
    producer.close()
    there, go = Tally(folder / "there", PROCESSES), Tally(folder / "go", 1)
    Tally(folder / "ran", PROCESSES)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(processes.started(_work, contender, folder, n, load))
            for n in range(PROCESSES)
        ]
        there.wait_for(PROCESSES, unless=lambda: any(worker.done() for worker in workers))
        with timed() as watch:
            go.numbers[0] = 1
            ran = [worker.result() for worker in workers]
    if sum(ran) != load.jobs and watch.seconds < load.drain_seconds:
        raise RuntimeError(f"{sum(ran)} of {load.jobs} jobs ran")
    return {"rate": sum(ran) / watch.seconds, "least": 100 * min(ran) / sum(ran)}


def _work(contender: Contender, folder: Path, own: int, load: Load) -> int:
    """A worker process: its jobs."""
    there, go, ran = (
        Tally(folder / name, size)
        for name, size in (("there", PROCESSES), ("go", 1), ("ran", PROCESSES))
    )
    queue = contender.open(folder)

    def count(_: Payload) -> bool:
        ran.numbers[own] += 1
        return True

    there.numbers[own] = 1
    go.wait_for(1)
    deadline = time.monotonic() + load.drain_seconds
    if isinstance(queue, SharingQueue):
        queue.share(count, lambda: sum(ran.numbers) >= load.jobs or time.monotonic() > deadline)
    queue.close()
    return ran.numbers[own]


DRAIN_TWO = Scenario(f"drain-{PROCESSES}", drain_together)
