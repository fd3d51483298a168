"""Guards against children that outlive a worker which is killed.

Linux lets a child die with its parent, but not the processes of the child, and other systems not
even that. So beside a worker with children there is one more process, the watchman.
"""

import contextlib
import logging
import os
import subprocess
import sys
from pathlib import Path

_log = logging.getLogger(__name__)

_WATCHMAN = str(Path(__file__).with_name("watchman.py"))


class Guard:
    """Has process groups killed when this process is, by a watchman that is started at need."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._watchman: subprocess.Popen[bytes] | None = None

    def watch(self, group: int) -> None:
        """From now on, this process group ends with us."""
        self._groups.add(group)
        if self._watchman is None:
            self._start_if_possible()
        else:
            self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """It has ended."""
        self._groups.discard(group)
        if self._watchman is not None:
            self._tell(f"-{group}\n")

    def close(self) -> None:
        """There is nothing left to guard."""
        if self._watchman is not None:
            self._watchman.kill()  # it has nothing to clean up
            self._watchman.communicate()
            self._watchman = None

    def _start_if_possible(self) -> None:
        try:
            self._start()
        except OSError as error:
            _log.warning("child processes have no watchman: %s", error)

    def _start(self) -> None:
        self._watchman = subprocess.Popen(  # noqa: S603 - the program's own interpreter
            [sys.executable, "-I", "-S", _WATCHMAN],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._watchman.stdin is not None:
            os.set_blocking(self._watchman.stdin.fileno(), False)
        with contextlib.suppress(OSError):  # killed already: the next word is told to another
            self._write("".join(f"+{group}\n" for group in self._groups))

    def _tell(self, line: str) -> None:
        try:
            self._write(line)
        except OSError:
            _log.warning("the watchman of child processes was killed; starting another")
            self.close()
            self._start_if_possible()

    def _write(self, text: str) -> None:
        if self._watchman is None or self._watchman.stdin is None:
            return
        if self._watchman.stdin.write(text.encode()) is None:
            raise BlockingIOError("it was stopped, and does not read any more")
