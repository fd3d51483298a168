"""Several processes behind one socket: one parent starts them, and replaces any that dies.

The parent forks and does nothing else: it opens no store and starts no thread, so that a child
begins as clean as the first one, and has its settings without a command line or a file.
"""

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from penstock.cli.exits import Exit, leave, report
from penstock.cli.stopping import SIGNALS
from penstock.core.errors import ConfigurationError

_log = logging.getLogger("penstock.server")

# A process that lived shorter than this is replaced only after a pause.
_SHORT_LIFE = 10.0
_PAUSE = 1.0


class Told:
    """What a child knows of its parent: its number, whom to tell that it is ready, its lifeline.

    `replaces` is the process that had its number before, and is dead.
    """

    def __init__(
        self, number: int, ready: int, lifeline: int, *, replaces: int | None = None
    ) -> None:
        self.number = number
        self.replaces = replaces
        self.lifeline = lifeline
        self._ready = ready

    def ready(self) -> None:
        """Tell the parent that requests are served."""
        with contextlib.suppress(BrokenPipeError):  # it asks only those that it starts first
            os.write(self._ready, b"!")
        os.close(self._ready)


class Processes:
    """So many processes that all run `work`; the first signal stops them gracefully.

    Then `stop_listening` is called in the parent: while it held the socket, new connections would
    wait for an answer that nobody gives, instead of being refused.
    """

    def __init__(
        self,
        work: Callable[[Told], None],
        count: int,
        *,
        stop_listening: Callable[[], None],
        as_json: bool,
    ) -> None:
        if not hasattr(os, "fork"):
            raise ConfigurationError("this system cannot fork: it serves with --processes 1 only")
        self._work = work
        self._count = count
        self._stop_listening = stop_listening
        self._as_json = as_json
        self._children: dict[int, tuple[int, float]] = {}  # pid: number, and when it began
        self._stopped_by: list[int] = []
        self._lifeline, self._own_end = os.pipe()

    def run(self, ready: Callable[[], None]) -> int:
        """Run until a signal, and until the last has ended; the exit code for all of them."""
        for number in SIGNALS:
            signal.signal(number, self._handle)
        begun = [self._start(number) for number in range(self._count)]
        # A child that ends without a word could not begin, and none of its like would.
        heard = [_read(told) for told in begun]
        if all(heard):
            ready()
            return self._supervise()
        if not self._stopped_by:
            self._tell(signal.SIGTERM)
        codes = self._wait_for_all()
        return 0 if self._stopped_by else max(codes)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._stopped_by.append(number)
        self._tell(number)
        self._stop_listening()

    def _tell(self, number: int) -> None:
        for pid in list(self._children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _start(self, number: int, replaces: int | None = None) -> int:
        """Fork a child; where it says that it is ready."""
        hears, says = os.pipe()
        # No signal may come between the fork and the moment when both know who they are.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.close(hears)
            os.close(self._own_end)
            self._become(Told(number, says, self._lifeline, replaces=replaces))
        self._children[pid] = (number, time.monotonic())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.close(says)
        return hears

    def _become(self, told: Told) -> NoReturn:
        """Be a child, in a process group of its own: Ctrl-C reaches it through the parent alone."""
        code: int = Exit.OK
        try:
            os.setpgid(0, 0)
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            self._work(told)
        except BaseException as error:  # noqa: BLE001 - the last to see it
            report(error, as_json=self._as_json)
            code = Exit.of(error)
        leave(code)

    def _supervise(self) -> int:
        codes: list[int] = []
        while self._children:
            pid, number, lived, code = self._wait()
            if self._stopped_by:
                codes.append(code)
                continue
            _log.error(
                "process %d of the server ended with code %d; starting it anew", number, code
            )
            if lived < _SHORT_LIFE:
                time.sleep(_PAUSE)
            if not self._stopped_by:
                os.close(self._start(number, replaces=pid))
        return self._code(codes)

    def _code(self, codes: list[int]) -> int:
        """The worst of them; who was told twice may have heard the second signal first."""
        worst = max(codes, default=0)
        return 128 + self._stopped_by[1] if worst and len(self._stopped_by) > 1 else worst

    def _wait_for_all(self) -> list[int]:
        return [self._wait()[-1] for _ in list(self._children)]

    def _wait(self) -> tuple[int, int, float, int]:
        """The next child to end, its number, how long it lived, and its exit code."""
        pid, status = os.waitpid(-1, 0)
        number, began = self._children.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        return pid, number, time.monotonic() - began, 128 - code if code < 0 else code


def _read(told: int) -> bool:
    with os.fdopen(told, "rb") as pipe:
        return bool(pipe.read(1))
