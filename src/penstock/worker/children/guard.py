"""The guard: kills child processes, with everything they started, if their worker is killed.

Linux can let a child die with its parent, but not the child's own processes, and other systems
cannot do even that. So a worker with children has one more process, which waits for its end.
"""

import contextlib
import logging
import os
import subprocess
import sys

from penstock.runtime import Runtime

_log = logging.getLogger(__name__)

# Receives process groups on its standard input, as `+17` and `-17`, until the worker is gone. It
# imports nothing of the package, so that it starts in milliseconds.
_PROGRAM = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
groups = set()
for line in sys.stdin.buffer:
    (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
"""


class ProcessGuard:
    """Has process groups killed when this process is; the guard process starts on first use."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def add(self, group: int) -> None:
        """Kill this process group if this process is killed."""
        self._groups.add(group)
        if self._process is None:
            self._start_if_possible()
        else:
            self._send(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Forget a process group that has ended."""
        self._groups.discard(group)
        if self._process is not None:
            self._send(f"-{group}\n")

    def close(self) -> None:
        """End the guard process; no group is guarded any longer."""
        if self._process is not None:
            self._process.kill()  # it has nothing to clean up
            self._process.communicate()
            self._process = None

    def _start_if_possible(self) -> None:
        try:
            self._start()
        except OSError as error:
            _log.warning("child processes are not guarded: %s", error)

    def _start(self) -> None:
        self._process = self._runtime.spawn(
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)
        with contextlib.suppress(OSError):  # already killed: the next message starts another one
            self._write("".join(f"+{group}\n" for group in self._groups))

    def _send(self, line: str) -> None:
        try:
            self._write(line)
        except OSError:
            _log.warning("the guard of child processes was killed, starting another")
            self.close()
            self._start_if_possible()

    def _write(self, text: str) -> None:
        if self._process is None or self._process.stdin is None:
            return
        if self._process.stdin.write(text.encode()) is None:
            raise BlockingIOError("the guard process does not read its input")
