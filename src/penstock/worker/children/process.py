"""One child process, as its worker sees it."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys

import msgspec

from penstock.core.errors import LeaseLost
from penstock.core.lifecycle import Failed, Outcome
from penstock.engine.penstock import Penstock
from penstock.engine.task import Isolation
from penstock.worker.children.app_import import AppLocation
from penstock.worker.children.guard import ProcessGuard
from penstock.worker.children.messages import (
    Boot,
    Ended,
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
    decode_from_child,
    framed,
    printable,
)
from penstock.worker.context import TASK_LOGGER, Context

_log = logging.getLogger(__name__)

_CHUNK = 262_144
# Importing an app may take long, but not for ever.
_LONGEST_START = 120.0
LAST_WAIT = 5.0
"""Seconds that the system may take to end a process that was killed."""

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[-2]); "
    "from penstock.worker.children.main import main; main()"
)
_HINTS = {
    "SIGKILL": " (out of memory?)",
    "SIGSEGV": " (a crash in native code)",
    "SIGBUS": " (a crash in native code)",
    "SIGABRT": " (native code gave up)",
}


class ChildFailed(Exception):
    """A child process could not start; the message says why."""

    def __init__(self, why: str) -> None:
        super().__init__(f"a child process could not start: {why}")


class ChildProcess:
    """A child process that runs one job at a time. Use it from the event loop's thread only."""

    def __init__(
        self,
        penstock: Penstock,
        app: AppLocation,
        isolation: Isolation,
        guard: ProcessGuard,
        grace: float,
    ) -> None:
        """Start the process; raise `ChildFailed`. It gets `grace` seconds to stop by itself."""
        self.jobs = 0
        """How many jobs it has been given."""
        self.usable = True
        """Whether it can be given another job."""
        self._penstock = penstock
        self._runtime = penstock.runtime
        self._guard = guard
        self._grace = grace
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._context: Context | None = None
        self._import_error: str | None = None
        self._kill_timer: asyncio.TimerHandle | None = None
        self._replying: asyncio.Task[None] | None = None
        self._answer: asyncio.Future[Ready | Ended | None] = self._loop.create_future()
        self.exited: asyncio.Future[None] = self._loop.create_future()
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(0)
        try:
            with theirs:
                self._process = self._start(app, isolation, theirs.fileno())
        except OSError as error:
            self._socket.close()
            raise ChildFailed(str(error)) from error
        self._guard.add(self.pid)
        self._loop.add_reader(self._socket, self._read)
        self._exit_watch = self._runtime.background(self._watch_exit, "penstock-child")
        self._exit_watch.wake()

    @property
    def pid(self) -> int:
        """The ID of the process, and of its process group."""
        return self._process.pid

    async def ready(self) -> list[str]:
        """Wait until the app is imported and return its tasks; raise `ChildFailed`."""
        await asyncio.wait({self._answer}, timeout=_LONGEST_START)
        if not self._answer.done():
            raise ChildFailed(f"importing the app took longer than {_LONGEST_START:g} s")
        answer = self._answer.result()
        if isinstance(answer, Ready):
            return answer.tasks
        raise ChildFailed(self._import_error or self._exit_status())

    async def run(self, context: Context) -> Outcome:
        """Run a job; if the process dies, the outcome says so. If cancelled, `stop` the process."""
        self.jobs += 1
        self._context = context
        self._answer = answer = self._loop.create_future()
        if self.exited.done():
            answer.set_result(None)
        with contextlib.suppress(OSError):  # it is dying, and its exit will be the answer
            await self._loop.sock_sendall(self._socket, framed(Start(context.job)))
        await asyncio.wait({answer})
        return self._outcome()

    async def stop(self) -> Outcome | None:
        """End its whole process group; return the outcome if it reported one in time."""
        self.usable = False
        try:
            self._runtime.signal_group(self._process, signal.SIGTERM)
            await asyncio.wait({self.exited}, timeout=self._grace)
        finally:
            self.kill()
        await asyncio.wait({self.exited}, timeout=LAST_WAIT)
        return self._outcome() if self._answer.done() else None

    def retire(self) -> None:
        """Let the process exit by itself, and kill it if it does not."""
        self.usable = False
        if self._kill_timer is None and not self.exited.done():
            self._disconnect()
            self._kill_timer = self._loop.call_later(self._grace, self.kill)

    def kill(self) -> None:
        """Kill its whole process group."""
        self.usable = False
        # Until `_exited` reaps it, its process ID is not reused.
        self._runtime.signal_group(self._process, signal.SIGKILL)

    def join(self) -> None:
        """Kill it and wait for its exit without the event loop."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LAST_WAIT)
            self._exit_watch.close()
        self._disconnect()

    def _start(self, app: AppLocation, isolation: Isolation, fd: int) -> "subprocess.Popen[bytes]":
        # In the event loop's thread: where a child dies with its parent, it dies with that thread.
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001
        log_level = logging.getLogger(TASK_LOGGER).getEffectiveLevel()
        boot = Boot(app, fd, os.getpid(), isolation.memory, log_level)
        path, settings = json.dumps(sys.path), msgspec.json.encode(boot).decode()
        return self._runtime.spawn(
            [sys.executable, *flags, "-c", _PROGRAM, path, settings],
            stdin=subprocess.DEVNULL,
            pass_fds=[fd],
            start_new_session=True,
        )

    # Messages from the child

    def _read(self) -> None:
        try:
            data = self._socket.recv(_CHUNK)
            for body in self._frames.feed(data):
                self._receive(decode_from_child(body))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        except ValueError as error:
            _log.error(
                "killing child process %d, which sent a corrupt message: %s", self.pid, error
            )
            self.kill()
            data = b""
        if not data:
            self._loop.remove_reader(self._socket)

    def _receive(self, message: FromChild) -> None:
        match message:
            case LogLine():
                self._log_line(message)
            case ProgressReport(progress):
                if self._context is not None:
                    self._context.reporter.report_progress(self._context.job, progress)
            case SaveCheckpoint() | LoadCheckpoint() | Finishing():
                self._replying = self._loop.create_task(self._reply(message))
            case ImportFailed():
                self._import_error = message.error
            case _:
                if isinstance(message, Ended) and message.last:
                    self.usable = False
                if not self._answer.done():
                    self._answer.set_result(message)

    def _log_line(self, line: LogLine) -> None:
        if self._context is not None and line.logger == TASK_LOGGER:
            self._context.logger.log(line.level, "%s", line.text)
        else:
            logging.getLogger(line.logger).log(line.level, "%s", line.text)

    async def _reply(self, request: Request) -> None:
        try:
            reply = await self._perform(request)
        except LeaseLost:
            reply = Reply(lease_lost=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, the handler gets it
            reply = Reply(error=printable(f"{type(error).__name__}: {error}"))
        with contextlib.suppress(OSError):  # the child has exited meanwhile
            await self._loop.sock_sendall(self._socket, framed(reply))

    async def _perform(self, request: Request) -> Reply:
        context = self._context
        if context is None:
            return Reply(error="no job is running in this child process")
        match request:
            case SaveCheckpoint(state):
                await context.reporter.save_checkpoint(context.job, state)
            case LoadCheckpoint():
                return Reply(await self._penstock.store.checkpoint(context.job.id))
            case Finishing():
                context.finishing = True
        return Reply()

    def _outcome(self) -> Outcome:
        answer = self._answer.result()
        if isinstance(answer, Ended):
            return answer.outcome
        return Failed(self._exit_status())

    # Its exit

    def _watch_exit(self) -> None:
        """In the background: wait for the exit, but leave the reaping to `_exited`."""
        self._runtime.wait_for_exit(self._process)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and `join` was called
            self._loop.call_soon_threadsafe(self._exited)

    def _exited(self) -> None:
        while self._socket.fileno() >= 0 and not self._answer.done():
            received = self._frames.received
            self._read()
            if self._frames.received == received:
                break
        self.kill()  # the processes it left behind
        self._guard.remove(self.pid)
        self._process.wait()
        self._exit_watch.close()
        self._disconnect()
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        if not self._answer.done():
            self._answer.set_result(None)
        self.exited.set_result(None)

    def _disconnect(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _exit_status(self) -> str:
        status = self._process.returncode
        if status is None or status >= 0:
            return f"the child process exited with status {status}"
        try:
            number = signal.Signals(-status)
        except ValueError:
            return f"the child process was killed by signal {-status}"
        return f"the child process was killed by {number.name}{_HINTS.get(number.name, '')}"
