"""The program of a child process: imports the app, then runs one job after the other.

It has one thread unless a handler starts others, so that handlers may fork. SIGTERM raises
`SystemExit` in the handler: its `finally` blocks run, and then the process dies of the signal.
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
from collections.abc import Sequence
from datetime import datetime
from types import FrameType
from typing import Any

import msgspec

from penstock.core.errors import LeaseLost, PenstockError
from penstock.core.job import Job
from penstock.core.lifecycle import Done, Failed, Outcome
from penstock.core.progress import Line, Progress
from penstock.core.times import from_micros
from penstock.engine.penstock import Penstock
from penstock.engine.task import Task
from penstock.worker.children.app_import import import_app
from penstock.worker.children.messages import (
    Boot,
    Finishing,
    Frames,
    FromChild,
    ImportFailed,
    LoadCheckpoint,
    LogLine,
    ProgressReport,
    Ready,
    Reply,
    Request,
    SaveCheckpoint,
    Start,
    ToChild,
    decode_to_child,
    ended,
    framed,
    printable,
)
from penstock.worker.context import TASK_LOGGER, Context, enter
from penstock.worker.outcomes import describe, raised, returned

_CHUNK = 65_536
_PR_SET_PDEATHSIG = 1


class ParentConnection:
    """The child's end of the socket."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._frames = Frames()
        self._sending = threading.Lock()
        self._requesting = threading.Lock()
        self._owner = os.getpid()

    def send(self, message: FromChild) -> None:
        """Send a message, from any thread; block until the system has accepted it."""
        if os.getpid() != self._owner:
            os._exit(1)  # a fork that returned from its handler: only the original may answer
        with self._sending:
            self._socket.sendall(framed(message))

    def request(self, request: Request) -> Reply:
        """Send a request and wait for the reply; raise `PenstockError` if it failed."""
        with self._requesting:
            self.send(request)
            reply = self._next()
        if not isinstance(reply, Reply):
            raise ConnectionError("the worker is gone")
        if reply.error is not None:
            raise PenstockError(reply.error)
        return reply

    def receive(self) -> Job | None:
        """Wait for the next job to run; return None if there are no more."""
        message = self._next()
        return message.job if isinstance(message, Start) else None

    def _next(self) -> ToChild | None:
        data = b""
        while True:
            for body in self._frames.feed(data):
                message: ToChild = decode_to_child(body)
                return message
            if not (data := self._socket.recv(_CHUNK)):
                return None


class RemoteReporter:
    """Sends the reports of a run to the worker; implements `Reporter`."""

    def __init__(self, penstock: Penstock, connection: ParentConnection) -> None:
        self._penstock = penstock
        self._connection = connection

    def now(self) -> datetime:
        """Return the time, by the clock of the app."""
        return from_micros(self._penstock.clock())

    def report_progress(self, _job: Job, progress: Progress) -> None:
        """Send the progress; the worker buffers it with that of its other runs."""
        self._connection.send(ProgressReport(progress))

    def report_line(self, _job: Job, _line: Line) -> None:
        """Do nothing: the worker logs and stores the lines of its children."""

    async def save_checkpoint(self, job: Job, state: str) -> None:
        """Have the worker write a checkpoint; raise `LeaseLost` if the run has lost its job."""
        if self._connection.request(SaveCheckpoint(state)).lease_lost:
            raise LeaseLost(job.id, job.token)

    def load_checkpoint(self, _job: Job) -> object:
        """Have the worker read the job's checkpoint."""
        text = self._connection.request(LoadCheckpoint()).text
        return None if text is None else msgspec.json.decode(text)

    async def finish(self, ended: Sequence[tuple[Job, Done]], connection: Any) -> None:
        """Complete jobs here, inside the transaction; the worker finds out whether it commits."""
        self._connection.request(Finishing())
        await self._penstock.leases.finish_all(ended, connection=connection)


class JobRunner:
    """Runs jobs, and can be stopped in the middle of one."""

    def __init__(self, app: Penstock, connection: ParentConnection) -> None:
        self._app = app
        self._connection = connection
        self._context: Context | None = None
        self._stopped = False

    def run_all(self) -> None:
        """Run jobs until the worker disconnects."""
        signal.signal(signal.SIGTERM, self._stop)
        reporter = RemoteReporter(self._app, self._connection)
        while (job := self._connection.receive()) is not None:
            self._context = Context(job, reporter)
            task = self._app.tasks.get(job.task)
            outcome, last = self._run(self._context, task)
            self._context = None
            self._connection.send(ended(outcome, last=last))
            if last:
                return

    def _run(self, context: Context, task: Task[..., Any] | None) -> tuple[Outcome, bool]:
        if task is None:
            name = context.job.task
            return Failed(f"UnknownTask: the child process has no handler called {name!r}"), False
        enter(context)
        try:
            result = task.handler(**task.arguments.decode(context.job.payload))
            if task.is_async:
                result = asyncio.run(result)
            return returned(result), self._stopped
        except BaseException as error:
            if self._stopped and isinstance(error, SystemExit | asyncio.CancelledError):
                raise
            # After a failed allocation the process may be in any state.
            return raised(error, task), self._stopped or isinstance(error, MemoryError)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # only once: cleaning up is not interrupted again
        if self._context is None:
            _die_of(number)
        else:
            self._stopped = True
            self._context.cancelled = True
            sys.exit(128 + number)


class LogForwarder(logging.Handler):
    """Sends log lines to the worker, whose logging is configured."""

    def __init__(self, connection: ParentConnection, level: int) -> None:
        super().__init__(level)
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        """Send one line."""
        try:
            text = printable(self.format(record))
            self._connection.send(LogLine(record.name, record.levelno, text))
        except Exception:  # noqa: BLE001 - logging does not fail a job
            self.handleError(record)


def main() -> None:
    """Run as a child process, as the last command-line argument describes."""
    boot = msgspec.json.decode(sys.argv[-1], type=Boot)
    end = socket.socket(fileno=boot.fd)
    end.set_inheritable(False)
    end.settimeout(None)
    _die_with(boot.parent)
    connection = ParentConnection(end)
    try:
        if boot.memory is not None:
            _limit_memory(boot.memory)
        if not faulthandler.is_enabled():
            faulthandler.enable()
        app = import_app(boot.app)
    except BaseException as error:  # noqa: BLE001 - the worker reports it
        connection.send(ImportFailed(printable(describe(error))))
        sys.exit(1)
    _forward_logs(connection, boot.log_level)
    try:
        connection.send(Ready(sorted(app.tasks)))
        JobRunner(app, connection).run_all()
    except SystemExit:
        _die_of(signal.SIGTERM)
    except OSError:  # the worker is gone
        sys.exit(1)


def _forward_logs(connection: ParentConnection, level: int) -> None:
    """Log where the worker logs, unless importing the app has configured logging."""
    own = logging.getLogger(TASK_LOGGER)
    # The worker keeps lines from INFO on with the job, whatever it prints.
    own.setLevel(min(level, logging.INFO))
    own.addHandler(LogForwarder(connection, own.level))
    own.propagate = False
    if not logging.root.handlers:
        logging.root.setLevel(level)
        logging.root.addHandler(LogForwarder(connection, level))
        logging.captureWarnings(capture=True)


def _die_with(parent: int) -> None:
    """Have the system kill this process when the worker ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def _limit_memory(limit: int) -> None:
    """Make allocations beyond the limit fail.

    On Linux, RLIMIT_DATA counts memory that is written to; RLIMIT_AS would also count what is only
    mapped, such as libraries and the arenas that each thread reserves.
    """
    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    resource.setrlimit(kind, (limit, limit))


def _die_of(number: int) -> None:
    """Die of a signal that was caught."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
