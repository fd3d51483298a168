"""Several processes that do the same: a parent starts them, and replaces any that die.

The parent only forks: it opens no store, starts no thread and imports no program. So every child
starts from the same clean state, and has its settings without a command line or a file.
"""

import asyncio
import contextlib
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NamedTuple, NoReturn

from penstock.cli.errors import Exit, leave, report
from penstock.cli.signals import SIGNALS
from penstock.core.errors import ConfigurationError

# A process that lived less than this is replaced after a pause.
_SHORT_LIFE = 10.0
_PAUSE = 1.0
# How often the parent looks for changes of the program, in seconds.
_LOOK_EVERY = 0.5
# The exit code of a child that shall not be replaced.
_RETIRED = 64


class Child:
    """A child's link to its parent: its number, pipes to report to it, and a lifeline.

    The lifeline is closed when the parent dies. `replaces` is the dead process that had the same
    number before. A child that sets `retired` is not replaced when it ends.
    """

    def __init__(
        self, number: int, ready: int, pulse: int, lifeline: int, *, replaces: int | None = None
    ) -> None:
        self.number = number
        self.replaces = replaces
        self.retired = False
        self._lifeline = lifeline
        self._ready = ready
        self._pulse = pulse

    def ready(self) -> None:
        """Tell the parent that this child does its work."""
        with contextlib.suppress(BrokenPipeError):  # the parent does not wait for a replacement
            os.write(self._ready, b"!")
        os.close(self._ready)

    def beat(self) -> None:
        """Tell the parent that this child does not hang."""
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._pulse, b".")

    def when_orphaned(self, stop: Callable[[], None]) -> None:
        """Call `stop` in the running event loop when the parent has died."""
        loop = asyncio.get_running_loop()

        def orphaned() -> None:
            loop.remove_reader(self._lifeline)
            os.close(self._lifeline)
            stop()

        loop.add_reader(self._lifeline, orphaned)


class _Ended(NamedTuple):
    pid: int
    number: int
    lived: float
    code: int
    retired: bool = False


class Processes:
    """A number of processes that all run `work`; the first signal stops them gracefully.

    The parent then calls `on_stop`: a server must close its socket, because new connections would
    otherwise wait for an answer that never comes, instead of being refused. It calls `on_beat`
    whenever every child has beaten: one that hangs must not hide behind the others. `changed`
    returns what has changed in the program that the children import: then all are stopped
    gracefully and started again. `kind` names the processes in the log.
    """

    def __init__(
        self,
        work: Callable[[Child], None],
        count: int,
        kind: str,
        *,
        on_stop: Callable[[], None],
        on_beat: Callable[[], None],
        as_json: bool,
        changed: Callable[[], str | None] | None = None,
    ) -> None:
        if not hasattr(os, "fork"):
            raise ConfigurationError("this system cannot fork: use one process, without reloading")
        self._work = work
        self._kind = kind
        self._on_stop = on_stop
        self._on_beat = on_beat
        self._as_json = as_json
        self._changed = changed
        self._log = logging.getLogger(f"penstock.{kind}")
        self._numbers = list(range(count))  # of the children that there should be
        self._children: dict[int, tuple[int, float]] = {}  # pid: number and start time
        self._stopped_by: list[int] = []
        self._reloading = False
        self._lifeline, self._own_end = os.pipe()
        self._pulses: dict[int, int] = {}  # number: pipe on which the child beats
        self._beaten: set[int] = set()
        self._woken, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)

    def run(self, ready: Callable[[], None]) -> int:
        """Run until a signal has ended all processes; return the exit code for all of them."""
        for number in SIGNALS:
            signal.signal(number, self._handle)
        signal.signal(signal.SIGCHLD, _ignore)  # ends the wait for beats
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        if (failed := self._start_all()) is not None:
            return self._code(failed)
        ready()
        return self._supervise()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._stopped_by.append(number)
        # Children that are being reloaded are stopping already: for them, this is the first signal.
        if not self._reloading or len(self._stopped_by) > 1:
            self._signal(number)
        self._on_stop()

    def _signal(self, number: int) -> None:
        for pid in list(self._children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    # Starting

    def _start_all(self) -> list[int] | None:
        """Start all children and wait until they are ready; if not, return their exit codes.

        The first starts alone: what keeps it from starting would keep the others, too, and is
        reported once.
        """
        for numbers in (self._numbers[:1], self._numbers[1:]):
            pipes = [self._start(number) for number in numbers]
            ready = [_is_ready(pipe) for pipe in pipes]
            if not all(ready):
                if not self._stopped_by:
                    self._signal(signal.SIGTERM)
                # A signal kills a child that has not begun to work, which is what it was sent for.
                killed = {128 + number for number in self._stopped_by[:1]}
                return [code for code in self._wait_for_all() if code not in killed]
        return None

    def _start(self, number: int, replaces: int | None = None) -> int:
        """Fork a child, unless asked to stop; return the pipe on which it reports readiness."""
        reads, writes = os.pipe()
        pulse, beats = os.pipe()
        os.set_blocking(beats, False)
        # No signal may arrive between the fork and the moment both know who they are.
        with _signals_blocked():
            sys.stdout.flush()
            pid = None if self._stopped_by else os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for end in (reads, pulse, self._own_end, self._woken, self._wakeup):
                    os.close(end)
                self._become(Child(number, writes, beats, self._lifeline, replaces=replaces))
            if pid is not None:
                self._children[pid] = (number, time.monotonic())
        os.close(writes)
        os.close(beats)
        if (former := self._pulses.pop(number, None)) is not None:
            os.close(former)
        self._pulses[number] = pulse
        return reads

    def _become(self, child: Child) -> NoReturn:
        """Run as a child, in its own process group: only the parent forwards Ctrl-C to it."""
        code: int = Exit.OK
        try:
            os.setpgid(0, 0)
            for number in (*SIGNALS, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            self._work(child)
        except BaseException as error:  # noqa: BLE001 - nobody else reports it
            report(error, as_json=self._as_json)
            code = Exit.of(error)
        leave(_RETIRED if child.retired else code)

    # Supervising

    def _supervise(self) -> int:
        """Replace children that die, and reload them when the program changes, until a signal."""
        codes: list[int] = []
        while self._numbers and not self._stopped_by:
            if ended := self._reap():
                if self._stopped_by:
                    codes.append(ended.code)
                elif ended.retired:
                    self._numbers.remove(ended.number)
                else:
                    self._replace(ended)
            elif self._changed is not None and (change := self._changed()) is not None:
                codes += self._reload(change)
            else:
                self._listen()
        return self._code([*codes, *self._wait_for_all()])

    def _replace(self, ended: _Ended) -> None:
        text = "%s process %d exited with code %d; restarting it"
        self._log.error(text, self._kind, ended.number, ended.code)
        if ended.lived < _SHORT_LIFE:
            time.sleep(_PAUSE)
        os.close(self._start(ended.number, replaces=ended.pid))

    def _reload(self, change: str) -> list[int]:
        """Stop all children gracefully and start new ones; return exit codes if that was the end.

        If the new ones cannot start, for example because of a syntax error, wait for a change.
        """
        self._log.info("%s has changed: reloading", change)
        with _signals_blocked():
            if self._stopped_by:
                return []
            self._reloading = True
            self._signal(signal.SIGTERM)
        codes = self._wait_for_all()
        self._reloading = False
        if self._stopped_by:
            return codes
        failed = self._start_all()
        if failed is None or self._stopped_by:
            return failed or []
        self._log.error("the program cannot be started: waiting for a change")
        return []

    def _code(self, codes: list[int]) -> int:
        """Return the worst code; after two signals, a child may have seen the second one first."""
        worst = max(codes, default=0)
        return 128 + self._stopped_by[1] if worst and len(self._stopped_by) > 1 else worst

    def _wait_for_all(self) -> list[int]:
        codes = []
        while self._children:
            if ended := self._reap():
                codes.append(ended.code)
            else:
                self._listen()
        return codes

    def _reap(self) -> _Ended | None:
        """Return a child that has ended, if any has."""
        pid, status = os.waitpid(-1, os.WNOHANG) if self._children else (0, 0)
        if not pid:
            return None
        number, began = self._children.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        lived = time.monotonic() - began
        if code == _RETIRED:
            return _Ended(pid, number, lived, 0, retired=True)
        return _Ended(pid, number, lived, 128 - code if code < 0 else code)

    def _listen(self) -> None:
        """Wait for a signal, also that of a child's end, or for a beat, and pass beats on.

        If changes are to be noticed, not for long.
        """
        numbers = {pipe: number for number, pipe in self._pulses.items()}
        timeout = None if self._changed is None else _LOOK_EVERY
        for readable in select.select([self._woken, *numbers], [], [], timeout)[0]:
            if not os.read(readable, 4096) and readable in numbers:  # the child has ended
                os.close(self._pulses.pop(numbers[readable]))
            elif readable in numbers:
                self._beaten.add(numbers[readable])
        if self._numbers and self._beaten.issuperset(self._numbers):
            self._beaten.clear()
            self._on_beat()


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal by doing nothing, which interrupts waiting, unlike ignoring it."""


def _is_ready(pipe: int) -> bool:
    with os.fdopen(pipe, "rb") as opened:
        return bool(opened.read(1))
