"""A worker whose handlers run in child processes, for `test_children.py`.

As a program, `python -m tests.crash.families FOLDER`, it works until it is killed.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

from penstock.core.retry import RetryPolicy
from penstock.engine.penstock import Penstock
from penstock.worker.context import context
from penstock.worker.worker import Worker

MOMENT = timedelta(milliseconds=10)
RETRY = RetryPolicy(attempts=4, delay=MOMENT, factor=1)

app = Penstock("memory://")


@app.task(isolation="process", retry=RETRY, recycle=20)
def work(folder: str) -> int:
    """Say that it runs, be busy for a moment, and say that it has."""
    note(folder, "began")
    if random.random() < 0.5:
        time.sleep(random.uniform(0, 0.03))
    else:
        until = time.monotonic() + random.uniform(0, 0.01)
        while time.monotonic() < until:
            pass
    note(folder, "ended")
    return context().token


@app.task(retry=RetryPolicy(attempts=1))
async def companion(folder: str) -> None:
    """Work in the worker itself."""
    await asyncio.sleep(random.uniform(0, 0.03))
    note(folder, "ended")


@app.task(isolation="process", retry=RetryPolicy(attempts=1))
def father(folder: str) -> None:
    """Start processes, report their numbers, and ignore signals."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    family = [os.getpid(), *(subprocess.Popen(sleeper).pid for _ in range(2))]
    draft = Path(folder, "draft")
    draft.write_text(" ".join(map(str, family)))
    draft.rename(Path(folder, "family"))
    while True:
        time.sleep(1)


def note(folder: str, what: str) -> None:
    """One line that outlives the process."""
    here = context()
    with Path(folder, "notes").open("ab", buffering=0) as notes:
        notes.write(f"{here.job.id} {here.token} {os.getpid()} {what}\n".encode())


if __name__ == "__main__":
    from tests.crash import families  # this one, as its children import it

    families.app.connection.url = f"sqlite:///{sys.argv[1]}/jobs.db"
    asyncio.run(Worker(families.app, concurrency=2).run())
