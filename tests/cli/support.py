"""Runs command lines, inside this process and as processes of their own."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from penstock import Job, Lease, Outcome, Penstock, run_sync
from penstock.cli.main import cli

SOON = 60
"""Seconds after which a test gives up; nothing comes near unless it is broken."""

COMMAND = (sys.executable, "-m", "penstock.cli.main")


class Shell:
    """Runs commands on one store, as a user who has set PENSTOCK_STORE."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *args: str, code: int = 0, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(cli, args, input=stdin, env={"PENSTOCK_STORE": self.url})
        assert result.exit_code == code, result.output
        return result

    def json(self, *args: str, code: int = 0) -> Any:
        """The document that a command prints."""
        return json.loads(self(*args, "--json", code=code).stdout)

    def error(self, *args: str, code: int) -> str:
        """The one line on stderr of a command that fails."""
        result = self(*args, code=code)
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        return line


def run_one(app: Penstock, outcome: Outcome) -> Job:
    """Claim the next job and settle it so."""
    (job,) = run_sync(app.claim(worker="w"))
    (settled,) = run_sync(app.settle([(Lease(job.id, job.token, "w"), outcome)]))
    return settled


class Process:
    """A command that runs beside the test; what it prints is waited for, line by line."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._popen = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.printed: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for(self, text: str) -> str:
        """The next line with this text in it."""
        while (line := self._lines.get(timeout=SOON)) is not None:
            self.printed.append(line)
            if text in line:
                return line
        raise AssertionError(f"it ended without saying {text!r}: {self.printed}")

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def wait(self) -> int:
        """Its exit code."""
        code = self._popen.wait(timeout=SOON)
        while (line := self._lines.get(timeout=SOON)) is not None:
            self.printed.append(line)
        return code

    def close(self) -> None:
        self._popen.kill()
        self._popen.wait()
        self._reader.join()
        assert self._popen.stdout is not None
        self._popen.stdout.close()


def read_all(terminal: int) -> bytes:
    """All that was printed on a terminal that nobody holds open any more."""
    printed = b""
    with suppress(OSError):  # its way to say that this was all
        while piece := os.read(terminal, 65_536):
            printed += piece
    os.close(terminal)
    return printed


@contextmanager
def started(command: Sequence[str], folder: Path) -> Iterator[Process]:
    """A process that is gone afterwards, whatever happens."""
    process = Process(command, folder)
    try:
        yield process
    finally:
        process.close()
