"""A process that has imported everything and opened nothing: it forks a client in milliseconds.

Started as `python -m tests.crash.zygote`; reads orders, one JSON line each, and answers each with
one line. When its input ends it kills the clients that are left and ends.
"""

import gc
import importlib
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec


class Order(msgspec.Struct):
    """Fork a client that calls this function of `tests.crash.clients`, or poll one by its pid."""

    folder: str = ""
    role: str = ""
    options: dict[str, Any] = {}
    poll: int = 0


class Answer(msgspec.Struct):
    """The pid of a new client; or how a client ended, None while it lives."""

    pid: int
    status: int | None = None


def main() -> None:
    importlib.import_module("tests.crash.clients")
    gc.freeze()
    alive: set[int] = set()
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=Order)
        answer = poll(order.poll) if order.poll else Answer(fork(order))
        if order.poll and answer.status is not None:
            alive.discard(answer.pid)
        else:
            alive.add(answer.pid)
        os.write(1, msgspec.json.encode(answer) + b"\n")
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


def poll(pid: int) -> Answer:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return Answer(pid, os.waitstatus_to_exitcode(status) if ended else None)


def fork(order: Order) -> int:
    """Fork a client; until it handles SIGTERM itself, that signal ends it without an error."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if pid == 0:
        os._exit(run(order))
    return pid


def run(order: Order) -> int:
    """The life of a client, after the fork."""
    folder = Path(order.folder)
    nothing = os.open(os.devnull, os.O_RDONLY)
    errors = os.open(folder / "errors.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(nothing, 0)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    try:
        clients = importlib.import_module("tests.crash.clients")
        clients.run(order.role, folder, order.options)
    except BaseException:  # noqa: BLE001 - whatever it is, the test shall see it
        traceback.print_exc()
        return 1
    else:
        return 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    main()
