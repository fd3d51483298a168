"""An app whose handlers run in child processes: imported by the tests and by the children."""

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from penstock import Cancel, Penstock, Snooze, context
from tests.worker.support import AT_ONCE, ONCE

FOREVER = 600
MEMORY = 150_000_000

app = Penstock("memory://")


class Hopeless(Exception):
    pass


@app.task(isolation="process", retry=ONCE, permanent=(Hopeless,))
def act(deed: str, folder: str = ".") -> Any:
    """Do something that only a child process should do."""
    Path(folder, "pid").write_text(str(os.getpid()))
    match deed:
        case "loop":
            while True:
                pass
        case "sleep in C":
            ctypes.CDLL(None).sleep(FOREVER)  # begins again after a signal? no: see "stubborn"
        case "sleep":
            time.sleep(FOREVER)
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            Path(folder, "stubborn").touch()
            time.sleep(FOREVER)
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "sys.exit":
            sys.exit(4)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "real-time signal":
            os.kill(os.getpid(), signal.SIGRTMIN + 1)
        case "raise":
            raise RuntimeError("as it was told")
        case "permanent":
            raise Hopeless("never")
        case "snooze":
            raise Snooze(timedelta(hours=1), "later")
        case "cancel":
            raise Cancel("no more")
        case "unencodable":
            return object()
        case "large":
            return "é" * 400_000
        case "tidy":
            try:
                Path(folder, "begun").touch()
                time.sleep(FOREVER)
            finally:
                Path(folder, "tidied").write_text(str(context().cancelled))
        case "finish anyway":
            try:
                Path(folder, "begun").touch()
                time.sleep(FOREVER)
            except SystemExit:
                return "finished"
        case "grandchildren":
            sleeper = [sys.executable, "-c", f"import time; time.sleep({FOREVER})"]
            ours = [subprocess.Popen(sleeper) for _ in range(2)]
            Path(folder, "grandchildren").write_text(" ".join(str(one.pid) for one in ours))
            time.sleep(FOREVER)
        case "leave a grandchild":
            left = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"])
            Path(folder, "grandchildren").write_text(str(left.pid))
            os._exit(3)
        case "fork and return":
            os.fork()
        case "print":
            print("on stdout", flush=True)  # noqa: T201
            print("on stderr", file=sys.stderr, flush=True)  # noqa: T201
        case "enqueue":
            asyncio.run(act.enqueue("nothing"))
        case "log":
            context().logger.info("half %s", "done")
            logging.getLogger("penstock.task").debug("too fine")
    return os.getpid()


@app.task(isolation="process", retry=ONCE)
async def act_async(deed: str, folder: str = ".") -> Any:
    Path(folder, "pid").write_text(str(os.getpid()))
    match deed:
        case "sleep":
            try:
                await asyncio.sleep(FOREVER)
            except asyncio.CancelledError:
                Path(folder, "tidied").write_text(str(context().cancelled))
                raise
        case "block":
            time.sleep(FOREVER)
        case "raise":
            raise RuntimeError("as it was told")
    await asyncio.sleep(0)
    return os.getpid()


@app.task(isolation="process", retry=ONCE)
def tell() -> dict[str, Any]:
    """What the context says."""
    here = context()
    return {
        "id": here.job.id,
        "tags": here.job.tags,
        "token": here.token,
        "attempt": here.attempt,
        "cancelled": here.cancelled,
        "group": os.getpgid(0) == os.getpid(),
    }


@app.task(isolation="process", retry=AT_ONCE)
def recover(folder: str) -> int:
    """Die in the first two attempts."""
    if context().attempt < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return context().attempt


@app.task(isolation="process", memory=MEMORY, retry=ONCE)
def fill(size: int) -> int:
    return len(bytearray(size))


@app.task(isolation="process", recycle=2, retry=ONCE)
def worn() -> int:
    return os.getpid()


@app.task(retry=ONCE)
def plain() -> int:
    return os.getpid()
