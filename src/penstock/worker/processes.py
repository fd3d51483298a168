"""Child processes in which a worker runs handlers that it must be able to kill.

A child is a fresh interpreter that imports the app, found by its name as `penstock worker` finds
it; nothing is forked, so no lock and no open database is shared. Each leads a process group of its
own, which is killed as a whole when the child has ended, however it ended.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.core.lifecycle import Failed, Outcome
from penstock.engine import Penstock
from penstock.isolation import Isolation
from penstock.worker.context import Context
from penstock.worker.finding import find, refuse_while_importing
from penstock.worker.frames import (
    TASK_LOGGER,
    Answer,
    Ask,
    Boot,
    Ended,
    Frames,
    FromChild,
    Line,
    Ready,
    Refused,
    Said,
    Start,
    decode_from_child,
    framed,
    sayable,
)
from penstock.worker.guard import Guard

_log = logging.getLogger(__name__)

_PIECE = 262_144
# Importing an app may take long, but not for ever.
_LONGEST_START = 120.0
# A child that nobody needs gives its memory back.
_LONGEST_IDLE = timedelta(minutes=1)
# How long the system may take to end what was killed.
_LAST_WAIT = 5.0

_BEGIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[-2]); "
    "from penstock.worker.child import main; main()"
)
_HINTS = {
    "SIGKILL": " (out of memory?)",
    "SIGSEGV": " (a crash in native code)",
    "SIGBUS": " (a crash in native code)",
    "SIGABRT": " (native code gave up)",
}


Asked = Callable[[Context, Ask], Awaitable[str | None]]
"""Answers what a child asks for, in the worker, with the worker's own context of the run."""


class ChildFailed(Exception):
    """A child process could not begin; the message says why."""

    def __init__(self, why: str) -> None:
        super().__init__(f"a child process could not begin: {why}")


class Child:
    """One child process, as its worker sees it. All methods belong to the event loop's thread."""

    def __init__(self, boot: Boot, guard: Guard, grace: float, asked: Asked | None = None) -> None:
        self.served = 0
        self.usable = True
        self._guard = guard
        self._grace = grace
        self._asked = asked
        self._replying: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._context: Context | None = None
        self._refusal: str | None = None
        self._killing: asyncio.TimerHandle | None = None
        self._answer: asyncio.Future[Ready | Ended | None] = self._loop.create_future()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._end, theirs = socket.socketpair()
        self._end.settimeout(0)
        try:
            with theirs:
                self._process = _start(
                    msgspec.structs.replace(boot, fd=theirs.fileno(), parent=os.getpid())
                )
        except OSError as error:
            self._end.close()
            raise ChildFailed(str(error)) from error
        self._guard.watch(self.pid)
        self._loop.add_reader(self._end, self._read)
        threading.Thread(target=self._watch, name="penstock-child", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process, which is also its process group."""
        return self._process.pid

    async def ready(self) -> list[str]:
        """Wait until the app is imported: its tasks; raises `ChildFailed`."""
        await asyncio.wait({self._answer}, timeout=_LONGEST_START)
        if not self._answer.done():
            raise ChildFailed(f"importing the app took longer than {_LONGEST_START:g} s")
        answer = self._answer.result()
        if isinstance(answer, Ready):
            return answer.tasks
        raise ChildFailed(self._refusal or self._how_it_ended())

    async def run(self, context: Context) -> Outcome:
        """Have it run this job; should it die, that is the outcome. If cancelled, `stop` it."""
        self.served += 1
        self._context = context
        self._answer = answer = self._loop.create_future()
        if self.gone.done():
            answer.set_result(None)
        with contextlib.suppress(OSError):  # it is dying: the answer will be that
            await self._loop.sock_sendall(self._end, framed(Start(context.job)))
        await asyncio.wait({answer})
        return self._outcome()

    async def stop(self) -> Outcome | None:
        """End it with all its processes; what it still came to, if it said so in time."""
        self.usable = False
        try:
            self._signal(signal.SIGTERM)
            await asyncio.wait({self.gone}, timeout=self._grace)
        finally:
            self.kill()
        await asyncio.wait({self.gone}, timeout=_LAST_WAIT)
        return self._outcome() if self._answer.done() else None

    def retire(self) -> None:
        """Let it end by itself, and see that it does."""
        self.usable = False
        if self._killing is None and not self.gone.done():
            self._hang_up()
            self._killing = self._loop.call_later(self._grace, self.kill)

    def kill(self) -> None:
        """End it with all its processes, now."""
        self.usable = False
        self._signal(signal.SIGKILL)

    def join(self) -> None:
        """Kill it and wait, without the event loop."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WAIT)
        self._hang_up()

    # What comes from it

    def _read(self) -> None:
        try:
            data = self._end.recv(_PIECE)
            for body in self._frames.feed(data):
                self._received(decode_from_child(body))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        except ValueError as error:
            _log.error("child process %d sent nonsense and is killed: %s", self.pid, error)
            self.kill()
            data = b""
        if not data:
            self._loop.remove_reader(self._end)

    def _received(self, message: FromChild) -> None:
        match message:
            case Line():
                self._log_line(message)
            case Said(progress):
                if self._context is not None:
                    self._context.book.keep_progress(self._context.job, progress)
            case Ask():
                self._replying = self._loop.create_task(self._reply(message))
            case Refused():
                self._refusal = message.error
            case _:
                if isinstance(message, Ended) and message.last:
                    self.usable = False
                if not self._answer.done():
                    self._answer.set_result(message)

    async def _reply(self, ask: Ask) -> None:
        answer = Answer(error=f"this worker does not know what {ask.what!r} is")
        if self._asked is not None and self._context is not None:
            try:
                answer = Answer(text=await self._asked(self._context, ask))
            except Exception as error:  # noqa: BLE001 - whatever it is, the handler is told
                answer = Answer(error=sayable(f"{type(error).__name__}: {error}"))
        with contextlib.suppress(OSError):  # it has ended meanwhile
            await self._loop.sock_sendall(self._end, framed(answer))

    def _log_line(self, line: Line) -> None:
        if self._context is not None and line.logger == TASK_LOGGER:
            self._context.logger.log(line.level, "%s", line.text)
        else:
            logging.getLogger(line.logger).log(line.level, "%s", line.text)

    def _outcome(self) -> Outcome:
        answer = self._answer.result()
        if isinstance(answer, Ended):
            return answer.outcome
        return Failed(self._how_it_ended())

    def _how_it_ended(self) -> str:
        status = self._process.returncode
        if status is None or status >= 0:
            return f"the child process exited with status {status}"
        try:
            number = signal.Signals(-status)
        except ValueError:
            return f"the child process was killed by signal {-status}"
        return f"the child process was killed by {number.name}{_HINTS.get(number.name, '')}"

    # Its end

    def _watch(self) -> None:
        """In a thread: wait for its end, but leave its remains, so that its number stays its."""
        with contextlib.suppress(ChildProcessError):
            if hasattr(os, "waitid"):
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            else:  # macOS before Python 3.13
                self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: `join` has been called
            self._loop.call_soon_threadsafe(self._ended)

    def _ended(self) -> None:
        while self._end.fileno() >= 0 and not self._answer.done():
            unread = self._frames.arrived
            self._read()
            if self._frames.arrived == unread:
                break
        self.kill()  # the processes it leaves behind
        self._guard.forget(self.pid)
        self._process.wait()
        self._hang_up()
        if self._killing is not None:
            self._killing.cancel()
        if not self._answer.done():
            self._answer.set_result(None)
        self.gone.set_result(None)

    def _hang_up(self) -> None:
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end)
            self._end.close()

    def _signal(self, number: signal.Signals) -> None:
        # Until its end has been noted its remains are there, so the number is no one else's.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)


class Children:
    """The child processes of one worker, at most one for each of its slots."""

    def __init__(
        self,
        app: Penstock,
        *,
        limit: int,
        grace: timedelta,
        idle: timedelta = _LONGEST_IDLE,
        asked: Asked | None = None,
    ) -> None:
        self._app = app
        self._limit = limit
        self._grace = grace.total_seconds()
        self._longest_idle = idle.total_seconds()
        self._asked = asked
        self._all: dict[Child, Isolation] = {}
        self._idle: dict[Child, asyncio.TimerHandle] = {}
        self._boot: Boot | None = None
        self._guard = Guard()

    @property
    def longest_stop(self) -> float:
        """Seconds that stopping those that run may take; none when there are none."""
        return self._grace + 1.0 if self._all else 0.0

    async def prepare(self) -> None:
        """Start a child of each kind; raises `ConfigurationError` if that cannot work."""
        refuse_while_importing()
        tasks = {task.name: task for task in self._app.tasks.values() if task.isolation}
        if not tasks:
            return
        self._boot = find(self._app)
        try:
            kinds = {task.isolation for task in tasks.values() if task.isolation is not None}
            children = [self._open(isolation) for isolation in kinds]
            for child in children:
                _check_tasks(tasks, await child.ready())
                self.give(child)
        except ChildFailed as error:
            await self.close()
            raise ConfigurationError(str(error)) from None
        except BaseException:
            await self.close()
            raise

    async def take(self, isolation: Isolation) -> Child:
        """An idle child of this kind, or a new one; raises `ChildFailed`. `give` it back."""
        for child in reversed(self._idle):  # the newest, so that others may be let go
            if self._all.get(child) == isolation and child.usable:
                self._idle.pop(child).cancel()
                return child
        child = self._open(isolation)
        try:
            await child.ready()
        except BaseException:
            child.kill()
            raise
        return child

    def give(self, child: Child) -> None:
        """The child has done its job."""
        isolation = self._all.get(child)
        if isolation is None or not child.usable or child.served >= isolation.recycle:
            self._let_go(child)
        else:
            loop = asyncio.get_running_loop()
            self._idle[child] = loop.call_later(self._longest_idle, self._let_go, child)

    async def close(self) -> None:
        """End all of them, and leave nothing behind."""
        try:
            for child in list(self._all):
                self._let_go(child)
            if self._all:
                gone = [child.gone for child in self._all]
                await asyncio.wait(gone, timeout=self._grace + _LAST_WAIT)
        finally:
            for child in list(self._all):
                child.join()
            self._all.clear()
            self._guard.close()

    def _open(self, isolation: Isolation) -> Child:
        if self._boot is None:  # the task was registered after the worker had begun
            self._boot = find(self._app)
        if len(self._all) >= self._limit and self._idle:
            self._let_go(next(iter(self._idle)))
        boot = msgspec.structs.replace(
            self._boot,
            memory=isolation.memory,
            log_level=logging.getLogger(TASK_LOGGER).getEffectiveLevel(),
        )
        child = Child(boot, self._guard, self._grace, self._asked)
        self._all[child] = isolation
        child.gone.add_done_callback(lambda _: self._forget(child))
        return child

    def _let_go(self, child: Child) -> None:
        if timer := self._idle.pop(child, None):
            timer.cancel()
        child.retire()

    def _forget(self, child: Child) -> None:
        self._all.pop(child, None)
        if timer := self._idle.pop(child, None):
            timer.cancel()


def _start(boot: Boot) -> "subprocess.Popen[bytes]":
    # From this thread and no other: where a child dies with its parent, that is the thread.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001
    path, settings = json.dumps(sys.path), msgspec.json.encode(boot).decode()
    return subprocess.Popen(  # noqa: S603 - the program's own interpreter
        [sys.executable, *flags, "-c", _BEGIN, path, settings],
        stdin=subprocess.DEVNULL,
        pass_fds=[boot.fd],
        start_new_session=True,
    )


def _check_tasks(wanted: Iterable[str], found: Iterable[str]) -> None:
    if missing := sorted(set(wanted) - set(found)):
        raise ConfigurationError(
            f"a child process that imports the app has no task {', '.join(missing)}: a task with "
            "isolation is registered when its module is imported, not by a function that is "
            "called later"
        )
