"""An app whose handlers run in child processes; tests and children import it."""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from penstock import Cancel, Penstock, Snooze, context
from tests.worker.support import AT_ONCE, ONCE

FOREVER = 600
MEMORY = 150_000_000
SLEEPER = [sys.executable, "-c", f"import time; time.sleep({FOREVER})"]

app = Penstock("memory://")


class Hopeless(Exception):
    """An error that no further attempt can fix."""


# Deeds that only a child process may do


def loop(_folder: Path) -> None:
    while True:
        pass


def sleep(_folder: Path) -> None:
    time.sleep(FOREVER)


def sleep_in_c(_folder: Path) -> None:
    ctypes.CDLL(None).sleep(FOREVER)


def ignore_signals(folder: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / "begun").touch()
    time.sleep(FOREVER)


def crash(_folder: Path) -> None:
    ctypes.string_at(0)


def leave(_folder: Path) -> None:
    os._exit(3)


def leave_politely(_folder: Path) -> None:
    sys.exit(4)


def kill_itself(_folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def signal_itself(_folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGRTMIN + 1)


def terminate_itself(_folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(FOREVER)


def fail(_folder: Path) -> None:
    raise RuntimeError("as requested")


def fail_for_good(_folder: Path) -> None:
    raise Hopeless("never")


def snooze(_folder: Path) -> None:
    raise Snooze(timedelta(hours=1), "later")


def cancel(_folder: Path) -> None:
    raise Cancel("no more")


def return_an_object(_folder: Path) -> object:
    return object()


def return_much(_folder: Path) -> str:
    return "é" * 400_000


def clean_up(folder: Path) -> None:
    try:
        (folder / "begun").touch()
        time.sleep(FOREVER)
    finally:
        (folder / "tidied").write_text(str(context().cancelled))


def report_and_sleep(_folder: Path) -> None:
    for n in range(1, 4):
        context().progress(n, 3)
    time.sleep(FOREVER)


def finish_anyway(folder: Path) -> str:
    try:
        (folder / "begun").touch()
        time.sleep(FOREVER)
    except SystemExit:
        pass
    return "finished"


def start_processes(folder: Path) -> None:
    started = [subprocess.Popen(SLEEPER) for _ in range(2)]
    (folder / "started").write_text(" ".join(str(process.pid) for process in started))
    ignore_signals(folder)


def leave_a_process_behind(folder: Path) -> None:
    (folder / "started").write_text(str(subprocess.Popen(SLEEPER).pid))
    os._exit(3)


def leave_a_fork_behind(folder: Path) -> None:
    """Leave a fork that keeps all descriptors of its parent open."""
    if left := os.fork():
        (folder / "started").write_text(str(left))
        os._exit(3)
    time.sleep(FOREVER)


def fork_and_return(_folder: Path) -> str:
    if (fork := os.fork()) == 0:
        return "fork"
    os.waitpid(fork, 0)
    return "itself"


def corrupt_every_descriptor(_folder: Path) -> None:
    """Write to every open descriptor, including the socket of the worker."""
    for number in range(3, 256):
        with contextlib.suppress(OSError):
            os.write(number, b"\0\0\0\4null")
    time.sleep(FOREVER)


def speak(_folder: Path) -> None:
    os.write(1, b"on stdout\n")
    os.write(2, b"on stderr\n")


def fail_with_a_surrogate(_folder: Path) -> None:
    raise RuntimeError("a name that is no UTF-8: \udcff")


def log_everywhere(_folder: Path) -> None:
    logging.getLogger("library").warning("a line of %s", "a library")


def enqueue(_folder: Path) -> None:
    asyncio.run(act.enqueue("nothing"))


def log(_folder: Path) -> None:
    context().logger.info("half %s", "done")
    logging.getLogger("penstock.task").debug("too fine")


DEEDS: dict[str, Callable[[Path], Any]] = {
    deed.__name__: deed
    for deed in (
        loop,
        sleep,
        sleep_in_c,
        ignore_signals,
        crash,
        leave,
        leave_politely,
        kill_itself,
        signal_itself,
        terminate_itself,
        fail,
        fail_for_good,
        snooze,
        cancel,
        return_an_object,
        return_much,
        clean_up,
        report_and_sleep,
        finish_anyway,
        start_processes,
        leave_a_process_behind,
        leave_a_fork_behind,
        fork_and_return,
        speak,
        corrupt_every_descriptor,
        fail_with_a_surrogate,
        log_everywhere,
        enqueue,
        log,
    )
}


@app.task(isolation="process", retry=ONCE, permanent=(Hopeless,))
def act(deed: str, folder: str = ".") -> Any:
    """Do one of these deeds, or nothing."""
    (Path(folder) / "pid").write_text(str(os.getpid()))
    (Path(folder) / "began").touch()
    return DEEDS[deed](Path(folder)) if deed in DEEDS else os.getpid()


@app.task(isolation="process")
def resume() -> list[int]:
    """Count to five with checkpoints, and die after the third."""
    steps: list[int] = context().state or []
    for step in range(len(steps), 5):
        context().progress(step, 5, f"step {step}")
        steps.append(step + 10 * context().attempt)
        context().checkpoint(steps)
        if len(steps) == 3:
            kill_itself(Path())
    context().progress(5, 5)
    context().logger.info("counted")
    return steps


@app.task(isolation="process")
async def resume_async() -> object:
    """Save a checkpoint and read it."""
    before = context().state
    await context().checkpoint({"n": 1})
    return [before, context().state]


@app.task(isolation="process", retry=ONCE)
async def wait(folder: str, *, blocking: bool = False) -> None:
    """Wait until cancelled."""
    if blocking:
        await asyncio.sleep(0)
        (Path(folder) / "began").touch()
        sleep(Path(folder))
    try:
        (Path(folder) / "began").touch()
        await asyncio.sleep(FOREVER)
    except asyncio.CancelledError:
        (Path(folder) / "tidied").write_text(str(context().cancelled))
        raise


@app.task(isolation="process", retry=ONCE)
async def where() -> int:
    await asyncio.sleep(0)
    return os.getpid()


@app.task(isolation="process", retry=ONCE)
def tell() -> dict[str, Any]:
    """Describe the context."""
    here = context()
    return {
        "id": here.job.id,
        "tags": here.job.tags,
        "token": here.token,
        "attempt": here.attempt,
        "cancelled": here.cancelled,
        "leads its group": os.getpgid(0) == os.getpid(),
    }


@app.task(isolation="process", retry=AT_ONCE)
def recover() -> int:
    """Die in the first two attempts."""
    if context().attempt < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return context().attempt


@app.task(isolation="process", memory=MEMORY, recycle=2, retry=ONCE)
def fill(size: int) -> int:
    return len(bytearray(size))


@app.task(isolation="process", memory=MEMORY, recycle=2, retry=ONCE)
def worn() -> int:
    return os.getpid()


@app.task(retry=ONCE)
def plain() -> int:
    return os.getpid()


def made(text: str) -> Penstock:
    """An app that no module contains, as a child recreates it."""
    made_app = Penstock("memory://")

    def echo() -> str:
        return text

    made_app.task("echo", echo, isolation="process")
    return made_app


def last() -> None:
    time.sleep(FOREVER)


def made_to_last(_text: str) -> Penstock:
    made_app = Penstock("memory://")
    made_app.task("last", last, isolation="process")
    return made_app
