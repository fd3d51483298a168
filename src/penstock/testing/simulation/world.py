"""A simulated world: processes that run, stop and die, on one machine whose clock can jump."""

import asyncio
import contextlib
import ctypes
import sys
from asyncio import events
from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime
from typing import Any, TypeVar

from penstock.core.times import from_micros
from penstock.runtime import Files
from penstock.testing.simulation.runtime import START, SimulatedRuntime, WallClock
from penstock.testing.simulation.scheduler import Scheduler, SimulatedLoop

T = TypeVar("T")

_MOST_WAITS = 100
_OWN = ("penstock.engine.", "penstock.stores.", "penstock.worker.", "asyncio.")


class Deadlock(Exception):
    """Nothing in the world can ever happen again, but something is awaited."""


class Process:
    """A simulated process: one event loop, its threads, and what it does."""

    def __init__(self, world: "World", name: str, number: int, files: Files | None) -> None:
        self.name = name
        self.loop = SimulatedLoop(world.scheduler, name)
        self.runtime = SimulatedRuntime(
            world.scheduler, self.loop, world.clock, number=number, seed=world.seed, files=files
        )
        self.alive = True
        self.stopped = False
        self.at_end: list[Callable[[], object]] = []
        """What the operating system does when the process ends, however it ends."""

    def start(self, main: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a coroutine in the process."""
        return self.loop.create_task(main)


class World:
    """Processes that share one machine, and a seed that decides everything in it.

    `trace` keeps what happened, as pairs of the virtual time and a text.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.clock = WallClock(self.scheduler)
        self.processes: list[Process] = []
        self.trace: list[tuple[float, str]] = []
        self._dead: list[Process] = []
        self._ending: list[Callable[[], object]] = []
        self._number = 0

    @property
    def start(self) -> datetime:
        """The wall clock when the world began."""
        return from_micros(START)

    @property
    def now(self) -> float:
        """The virtual time, in seconds since the world began."""
        return self.scheduler.now

    def tell(self, text: str) -> None:
        """Add a line to the story of this world."""
        self.trace.append((self.now, text))

    def process(self, name: str, files: Files | None = None) -> Process:
        """Start a process that does nothing yet."""
        self._number += 1
        process = Process(self, name, self._number, files)
        self.processes.append(process)
        return process

    def kill(self, process: Process) -> None:
        """End a process at once: when the callback under way returns, none of it runs again."""
        if not process.alive:
            return
        process.alive = False
        self.processes.remove(process)
        self._dead.append(process)
        for lane in process.runtime.lanes:
            self.scheduler.remove(lane)
        self._ending += process.at_end

    def stop(self, process: Process) -> None:
        """Let a process stand still, as SIGSTOP does."""
        self._set_stopped(process, stopped=True)

    def resume(self, process: Process) -> None:
        """Let a stopped process go on, as SIGCONT does."""
        self._set_stopped(process, stopped=False)

    def run(self, until: Callable[[], bool], *, limit: float) -> bool:
        """Let time pass until something holds; return False if it does not within `limit` seconds.

        Raises `Deadlock` if nothing can happen any more.
        """
        end = self.now + limit
        step = self.scheduler.step
        while not until():
            if self._ending:
                self._clean_up()
            if self.now > end:
                return False
            if not step():
                raise Deadlock("nothing is left to do, and something is awaited")
        return True

    def wait(self, task: "asyncio.Task[T]", *, limit: float) -> T:
        """Let time pass until a task has ended; return its result, or raise `TimeoutError`."""
        if not self.run(task.done, limit=limit):
            raise TimeoutError(f"{task.get_name()} has not ended after {limit} virtual seconds")
        return task.result()

    def close(self, *, bury: bool = False) -> None:
        """End all processes, and what they would have done.

        With `bury`, handlers of processes that were killed run nothing any more, not even a
        `finally`: their coroutines stay as they are, for ever. Otherwise they are closed, which
        frees their memory.
        """
        buried = list(self._dead) if bury else []
        for process in list(self.processes):
            self.kill(process)
        self._clean_up()
        for process in self._dead:
            # What their ends await is asked of their own loop, which does nothing any more.
            with _silence(), _inside(process.loop):
                for task in process.loop.tasks:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    if process in buried and _is_foreign(task.get_coro()):
                        # Never collected, not even at exit: that would close the coroutine.
                        ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))
                    else:
                        _end(task.get_coro())
                process.loop.tasks.clear()
                process.loop.close()
        self.scheduler.close()

    def after_callback(self, call: Callable[[], object]) -> None:
        """Call this when the callback under way has returned, and the dead are cleaned up."""
        self._ending.append(call)

    def _clean_up(self) -> None:
        with _inside(None):
            while self._ending:
                self._ending.pop(0)()

    def _set_stopped(self, process: Process, *, stopped: bool) -> None:
        process.stopped = stopped
        for lane in process.runtime.lanes:
            lane.stopped = stopped


def _end(coroutine: Any) -> None:
    """End a coroutine, also one that waits for something while it is ended."""
    for _ in range(_MOST_WAITS):
        with contextlib.suppress(BaseException):
            coroutine.close()
        if coroutine.cr_frame is None:
            return


def _is_foreign(coroutine: Any) -> bool:
    """Return whether a suspended coroutine runs code that is not of a worker: of a handler."""
    while coroutine is not None and getattr(coroutine, "cr_frame", None) is not None:
        if not coroutine.cr_frame.f_globals["__name__"].startswith(_OWN):
            return True
        coroutine = coroutine.cr_await
    return False


@contextlib.contextmanager
def _inside(loop: asyncio.AbstractEventLoop | None) -> Iterator[None]:
    """Let this be the running loop, or none."""
    before = events._get_running_loop()
    events._set_running_loop(loop)
    try:
        yield
    finally:
        events._set_running_loop(before)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Report nothing about coroutines that were ended in the middle."""
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = before
