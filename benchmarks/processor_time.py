"""Measures the processor time of plain jobs: python benchmarks/processor_time.py single.

For machines with other work to do: the fastest tenth of many short runs, on a file in memory, and
only the time of the thread that enqueues. `single` enqueues one by one, `bulk` by 1,000.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from penstock import Penstock, run_sync

DATA = {"k": "x" * 180}
IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of its own is made there
RUNS = 150
SINGLES, AT_ONCE = 20, 1_000


def measured(work: Callable[[], None], jobs: int) -> float:
    """Return the microseconds a job that the fastest tenth of the runs stays under."""
    work()
    times = []
    for _ in range(RUNS):
        start = time.thread_time()
        work()
        times.append((time.thread_time() - start) / jobs * 1e6)
    return sorted(times)[RUNS // 10]


def main(what: str) -> None:
    """Print the processor time of a job."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.exists() else None) as folder:
        app = Penstock(f"sqlite:///{folder}/jobs.db")

        @app.task
        async def noop(data: dict[str, str]) -> None: ...

        def single() -> None:
            for _ in range(SINGLES):
                run_sync(noop.enqueue(DATA))

        def bulk() -> None:
            run_sync(app.enqueue_many([noop.new(DATA) for _ in range(AT_ONCE)]))

        taken = measured(single, SINGLES) if what == "single" else measured(bulk, AT_ONCE)
        print(f"{what}: {taken:.1f} µs a job")
        run_sync(app.close())


if __name__ == "__main__":
    main(sys.argv[1])
