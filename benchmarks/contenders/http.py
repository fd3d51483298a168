"""HTTP servers: each a process of its own, started in a folder of its own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks import machine

BEFORE = "BENCH_BEFORE"
"""Names the folder of another tree, whose server is then measured beside ours."""

_PATIENCE = 30.0


def earlier_commit() -> str:
    """The commit of that other tree."""
    return machine.commit(Path(os.environ[BEFORE]))


def earlier_folder() -> str:
    """Where that other tree can be checked out again, seen from this one."""
    return f"../penstock-{earlier_commit()}"


class Site:
    """A server that listens on this machine while the block lasts."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._process = subprocess.Popen(
            self.command(folder), stdout=subprocess.DEVNULL, env={**os.environ, **self.variables()}
        )
        self.pid = self._process.pid

    def command(self, folder: Path) -> Sequence[str]:
        """How it is started."""
        raise NotImplementedError

    def variables(self) -> Mapping[str, str]:
        """Variables of its environment that differ from those of this process."""
        return {}

    def __enter__(self) -> Self:
        """Wait until it answers."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop it."""
        self._process.terminate()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    # What Contender.open expects of a queue; a server has none of it.
    enqueue = fill = close = None


class PenstockServer(Site):
    """`penstock serve`, durable, with its log."""

    def command(self, folder: Path) -> Sequence[str]:
        """See `Site`."""
        serve = "from penstock.cli.main import main; main()"
        options = ("--data", str(folder), "--port", str(self.port), "--workers", "0")
        return (sys.executable, "-c", serve, "serve", *options)


class EarlierServer(PenstockServer):
    """The same of another tree, with the packages of this one: what a change is worth."""

    def variables(self) -> Mapping[str, str]:
        """See `Site`."""
        return {"PYTHONPATH": str(Path(os.environ[BEFORE], "src").resolve())}


class NoopServer(Site):
    """FastAPI with a pydantic model, on the same uvicorn: takes the same body, stores nothing."""

    def command(self, folder: Path) -> Sequence[str]:  # noqa: ARG002 - it keeps nothing
        """See `Site`."""
        return (sys.executable, "-m", "benchmarks.contenders.noop", str(self.port))
