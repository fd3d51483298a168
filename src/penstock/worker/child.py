"""The child process: imports the app, then runs one job at a time as its worker says.

Only its main thread exists unless a handler makes others, so that handlers may fork. SIGTERM
raises `SystemExit` in the handler: `finally` blocks run, and then the process ends as signalled.
"""

import asyncio
import ctypes
import faulthandler
import logging
import os
import resource
import signal
import socket
import sys
import threading
from types import FrameType
from typing import Any

import msgspec

from penstock.core.errors import PenstockError
from penstock.core.job import Job
from penstock.core.lifecycle import Failed, Outcome
from penstock.core.note import Progress
from penstock.engine import Penstock
from penstock.task import Task
from penstock.worker.context import Context, enter
from penstock.worker.execute import described, raised
from penstock.worker.finding import load
from penstock.worker.finishing import finished
from penstock.worker.frames import (
    TASK_LOGGER,
    Answer,
    Ask,
    Boot,
    Frames,
    FromChild,
    Line,
    Ready,
    Refused,
    Said,
    Start,
    ToChild,
    decode_to_child,
    ended,
    framed,
    sayable,
)
from penstock.worker.remote import RemoteBook

_PIECE = 65_536
_PR_SET_PDEATHSIG = 1


class Link:
    """The child's end of the socket."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._frames = Frames()
        self._sending = threading.Lock()
        self._asking = threading.Lock()
        self._owner = os.getpid()

    def send(self, message: FromChild) -> None:
        """Tell the worker, from any thread; waits until it is on its way."""
        if os.getpid() != self._owner:
            os._exit(1)  # a fork that came out of its handler: not the one that was asked
        with self._sending:
            self._end.sendall(framed(message))

    def ask(self, what: str, text: str | None = None) -> str | None:
        """Have the worker do or look up something, and wait for it; raises `PenstockError`."""
        with self._asking:
            self.send(Ask(what, text))
            match self._next():
                case Answer(error=None, text=answer):
                    return answer
                case Answer(error=error):
                    raise PenstockError(error)
                case _:
                    raise ConnectionError("the worker is gone")

    def receive(self) -> Job | None:
        """The next job to run; None when there will be no more."""
        message = self._next()
        return message.job if isinstance(message, Start) else None

    def _next(self) -> ToChild | None:
        data = b""
        while True:
            for body in self._frames.feed(data):
                message: ToChild = decode_to_child(body)
                return message
            if not (data := self._end.recv(_PIECE)):
                return None


class Child:
    """Runs jobs, and can be stopped in the middle of one."""

    def __init__(self, app: Penstock, link: Link) -> None:
        self._app = app
        self._link = link
        self._context: Context | None = None
        self._stopped = False

    def serve(self) -> None:
        """Run what comes, until the worker hangs up."""
        signal.signal(signal.SIGTERM, self._stop)
        while (job := self._link.receive()) is not None:
            book = RemoteBook(self._app, self._link.ask, self._tell)
            self._context = Context(job, book)
            task = self._app.tasks.get(job.task)
            outcome, last = self._perform(self._context, task)
            self._context = None
            self._link.send(ended(outcome, last=last))
            if last:
                return

    def _tell(self, progress: Progress) -> None:
        self._link.send(Said(progress))

    def _perform(self, context: Context, task: Task[..., Any] | None) -> tuple[Outcome, bool]:
        if task is None:
            name = context.job.task
            return Failed(f"UnknownTask: the child process has no handler called {name!r}"), False
        enter(context)
        try:
            result = task.handler(**task.arguments.decode(context.job.payload))
            if task.is_async:
                result = asyncio.run(result)
            return finished(result), self._stopped
        except BaseException as error:
            if self._stopped and isinstance(error, SystemExit | asyncio.CancelledError):
                raise
            # After a failed allocation, nobody knows what else is amiss.
            return raised(error, task), self._stopped or isinstance(error, MemoryError)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # once: cleaning up is not interrupted again
        if self._context is None:
            _end_by(number)
        else:
            self._stopped = True
            self._context.cancelled = True
            sys.exit(128 + number)


class Lines(logging.Handler):
    """Sends what is logged here to the worker, whose logging is set up."""

    def __init__(self, link: Link, level: int) -> None:
        super().__init__(level)
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        """Send one line."""
        try:
            text = sayable(self.format(record))
            self._link.send(Line(record.name, record.levelno, text))
        except Exception:  # noqa: BLE001 - logging does not fail a job
            self.handleError(record)


def main() -> None:
    """Be a child, as the last argument says."""
    boot = msgspec.json.decode(sys.argv[-1], type=Boot)
    end = socket.socket(fileno=boot.fd)
    end.set_inheritable(False)
    end.settimeout(None)
    _die_with(boot.parent)
    link = Link(end)
    try:
        if boot.memory is not None:
            _limit(boot.memory)
        if not faulthandler.is_enabled():
            faulthandler.enable()
        app = load(boot)
    except BaseException as error:  # noqa: BLE001 - the worker says what is wrong
        link.send(Refused(sayable(described(error))))
        sys.exit(1)
    _forward_lines(link, boot.log_level)
    try:
        link.send(Ready(sorted(app.tasks)))
        Child(app, link).serve()
    except SystemExit:
        _end_by(signal.SIGTERM)
    except OSError:  # the worker is gone
        sys.exit(1)


def _forward_lines(link: Link, level: int) -> None:
    """Log where the worker logs, unless the app has set up its own logging when imported."""
    own = logging.getLogger(TASK_LOGGER)
    # The worker keeps what a job says from INFO on, whatever it prints.
    own.setLevel(min(level, logging.INFO))
    own.addHandler(Lines(link, own.level))
    own.propagate = False
    if not logging.root.handlers:
        logging.root.setLevel(level)
        logging.root.addHandler(Lines(link, level))
        logging.captureWarnings(capture=True)


def _die_with(parent: int) -> None:
    """End when the worker does, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def _limit(memory: int) -> None:
    """Let allocations fail beyond this.

    On Linux, RLIMIT_DATA counts what is written to; RLIMIT_AS would also count what is merely
    mapped, such as libraries and the arenas that each thread reserves.
    """
    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    resource.setrlimit(kind, (memory, memory))


def _end_by(number: int) -> None:
    """End as the signal does that was asked to wait."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
