"""Starts clients in processes of their own, kills them, and waits for what they do."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec

from tests.crash.zygote import Answer, Order
from tests.environment import SOON

ROOT = Path(__file__).parents[2]


class Child:
    """A client process that this test started."""

    def __init__(self, zygote: "Zygote", pid: int, folder: Path) -> None:
        self.pid = pid
        self.status: int | None = None
        self._zygote = zygote
        self._folder = folder

    def kill(self) -> None:
        """End it as a power cut would, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> None:
        """Ask it to end, and see that it does so well."""
        self.signal(signal.SIGTERM)
        self.succeed()

    def signal(self, number: signal.Signals) -> None:
        if not self.ended:
            os.kill(self.pid, number)

    @property
    def ended(self) -> bool:
        if self.status is None:
            self.status = self._zygote.poll(self.pid)
        return self.status is not None

    def wait(self) -> int:
        """Its exit status, negative for a signal."""
        until(lambda: self.ended, "a client did not end", pause=0.001)
        assert self.status is not None
        return self.status

    def succeed(self) -> None:
        assert self.wait() == 0, self._said()

    def die(self) -> None:
        """See that it was killed, by itself or another; nothing else may have ended it."""
        assert self.wait() == -signal.SIGKILL, self._said()

    def _said(self) -> str:
        return f"exit status {self.status}\n{(self._folder / 'errors.txt').read_text()}"


class Zygote:
    """The process that forks clients, of this tree or of another."""

    def __init__(self, root: Path = ROOT) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.crash.zygote"],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._children: list[Child] = []

    def start(self, role: str, folder: Path, **options: Any) -> Child:
        answer = self._order(Order(folder=str(folder), role=role, options=options))
        child = Child(self, answer.pid, folder)
        self._children.append(child)
        return child

    def poll(self, pid: int) -> int | None:
        return self._order(Order(poll=pid)).status

    def kill_all(self) -> None:
        """End what a test has left running."""
        for child in self._children:
            child.kill()
        self._children.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def _order(self, order: Order) -> Answer:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(msgspec.json.encode(order) + b"\n")
        stdin.flush()
        return msgspec.json.decode(stdout.readline(), type=Answer)


def until(
    condition: Callable[[], bool],
    otherwise: str,
    *,
    pause: float = 0.01,
    progress: Callable[[], object] = lambda: None,
) -> None:
    """Wait for something that other processes bring about, as long as `progress` changes."""
    seen, deadline = progress(), time.monotonic() + SOON
    while not condition():
        if time.monotonic() >= deadline:
            latest = progress()
            assert latest != seen, otherwise
            seen, deadline = latest, time.monotonic() + SOON
        time.sleep(pause)


def meet(folder: Path, where: str = "here") -> None:
    """Wait until two processes have come this far."""
    (folder / f"{where}-{os.getpid()}").touch()
    until(lambda: len(list(folder.glob(f"{where}-*"))) > 1, "nobody comes", pause=0.001)
