"""Does a number of plain jobs, for counting instructions: python benchmarks/instructions.py bulk 4.

Under `valgrind --tool=callgrind`, the difference between two runs is what the jobs between them
cost, without the start of the program.
"""

import asyncio
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from penstock import Penstock, Worker, run_sync

DATA = {"k": "x" * 180}
AT_ONCE = 1_000


def do(what: str, n: int, app: Penstock) -> None:
    """Enqueue n single jobs, or n thousands in bulk; and run those, to drain."""

    @app.task
    async def noop(data: dict[str, str]) -> None: ...

    async def many() -> None:
        for _ in range(n):
            await app.enqueue_many([noop.new(DATA) for _ in range(AT_ONCE)])
        if what == "drain":
            worker = Worker(app, concurrency=100, sweep=timedelta(hours=1))
            await worker.run(until_empty=True)

    if what == "single":
        for _ in range(n):
            run_sync(noop.enqueue(DATA))
    else:
        asyncio.run(many())
    run_sync(app.close())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        do(sys.argv[1], int(sys.argv[2]), Penstock(f"sqlite:///{Path(folder)}/jobs.db"))
