"""The runtime of a simulated process: its threads are lanes of the scheduler."""

import asyncio
import random
from asyncio import events
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

from penstock.forks import Forks
from penstock.runtime import Background, Files, Runtime, Step
from penstock.testing.simulation.scheduler import Lane, Scheduler, SimulatedLoop

P = ParamSpec("P")
T = TypeVar("T")

START = 1_893_456_000_000_000
"""The wall clock of a world when it begins: the year 2030, in microseconds since 1970."""
_RETRY_PAUSE = 1.0
# The threads of `asyncio.to_thread`.
_THREADS = 4


class WallClock:
    """The clock of a simulated machine: it can jump, and run too fast or too slow."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._since = 0.0
        self._micros = START
        self._rate = 1.0

    def __call__(self) -> int:
        """Return microseconds since 1970."""
        return self._micros + int((self._scheduler.now - self._since) * self._rate * 1e6)

    def jump(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        self._rebase(self() + int(seconds * 1e6))

    def drift(self, rate: float) -> None:
        """Run at this rate from now on; 1 is right."""
        self._rebase(self())
        self._rate = rate

    def _rebase(self, micros: int) -> None:
        self._since, self._micros = self._scheduler.now, micros


class SimulatedBackground(Background):
    """Background work whose steps are callbacks of a lane of its own."""

    def __init__(self, runtime: "SimulatedRuntime", step: Step, name: str) -> None:
        self._runtime = runtime
        self._step = step
        self._name = name
        self._lane = runtime.new_lane(name)
        self._pending: asyncio.Handle | None = None
        self._is_timer = False
        self._paused = self._closed = False

    def wake(self) -> None:
        """Run the step soon."""
        if self._closed or (self._pending is not None and not self._is_timer):
            return
        self._run_after(None)

    def close(self) -> None:
        """Never run the step again."""
        self._closed = True
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None

    def pause(self, deadline: float) -> bool:  # noqa: ARG002 - as the original
        """Run no step until `resume`."""
        self._paused = True
        return True

    def resume(self) -> None:
        """Undo `pause`."""
        self._paused = False
        self.wake()

    def _run_after(self, pause: float | None) -> None:
        if self._pending is not None:
            self._pending.cancel()
        self._is_timer = pause is not None
        self._pending = self._runtime.call(self._lane, self._run_step, pause)

    def _run_step(self) -> None:
        self._pending = None
        if self._is_at_rest():
            return
        self._runtime.blocked_for = 0.0
        try:
            pause = self._step()
        except Exception as error:  # noqa: BLE001 - a thread survives whatever happens
            self._runtime.report(f"background work {self._name} failed: {error!r}")
            pause = _RETRY_PAUSE
        if pause is not None:
            self._continue(pause + self._runtime.blocked_for)

    def _continue(self, pause: float) -> None:
        """Run the step again after a pause, unless it was woken or ended meanwhile."""
        if self._pending is None and not self._is_at_rest():
            self._run_after(pause)

    def _is_at_rest(self) -> bool:
        return self._closed or self._paused


class SimulatedExecutor(Executor):
    """An executor whose threads are lanes: calls end in any order."""

    def __init__(self, runtime: "SimulatedRuntime", threads: int, name: str) -> None:
        self._runtime = runtime
        self._lanes = [runtime.new_lane(f"{name}-{n}") for n in range(min(threads, 4))]
        for lane in self._lanes:
            lane.pooled = True
        self._next = 0

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `concurrent.futures.Executor`."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                answer = call(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - raised where it is awaited
                future.set_exception(error)
            else:
                future.set_result(answer)

        lane = self._lanes[self._next % len(self._lanes)]
        self._next += 1
        self._runtime.call(lane, run, None)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as the original
        """Run what was submitted, if `wait` says so."""
        for lane in self._lanes:
            while wait and lane.ready:
                _outside_loop(lane.ready.popleft()._run)
            if cancel_futures:
                lane.ready.clear()


class SimulatedRuntime(Runtime):
    """The runtime of one simulated process."""

    def __init__(
        self,
        scheduler: Scheduler,
        loop: SimulatedLoop,
        clock: WallClock,
        *,
        number: int,
        seed: int,
        files: Files | None = None,
    ) -> None:
        super().__init__(clock)
        self._scheduler = scheduler
        self._loop = loop
        self.lanes = [loop.lane]
        self.errors: list[str] = []
        self.blocked_for = 0.0
        """How long the present step would have waited for something, in seconds."""
        self.monotonic = loop.time
        self.sleep = self._sleep
        self.file_time = lambda: clock() * 1000
        self.random = random.Random(f"process {seed} {number}")
        self.host = lambda: "simulated"
        # One for all: they share the memory of one real process, as threads do.
        self.process_id = lambda: 1
        self.forks = Forks()  # the real process forks without it: its connections may be gone
        if files is not None:
            self.files = files
        loop.make_threads = lambda: self.executor(_THREADS, "thread")

    def new_lane(self, name: str) -> Lane:
        """Return the lane of a new thread."""
        lane = Lane(f"{self._loop.lane.name}/{name}")
        lane.stopped, lane.closed = self._loop.lane.stopped, self._loop.lane.closed
        if not lane.closed:
            self._scheduler.add(lane)
            self.lanes.append(lane)
        return lane

    def call(
        self, lane: Lane, callback: Callable[[], object], pause: float | None
    ) -> asyncio.Handle:
        """Call a function in a lane: at once, or after a pause."""
        handle = asyncio.Handle(callback, (), self._loop)
        if not lane.closed and pause is None:
            lane.ready.append(handle)
        elif not lane.closed:
            self._scheduler.schedule(self._scheduler.now + (pause or 0.0), lane, handle)
        return handle

    def background(self, step: Step, name: str) -> Background:
        """See `Runtime.background`."""
        return SimulatedBackground(self, step, name)

    def executor(self, threads: int, name: str) -> Executor:
        """See `Runtime.executor`."""
        return SimulatedExecutor(self, threads, name)

    def report(self, error: str) -> None:
        """Keep an error that nobody else is told."""
        self.errors.append(error)

    def _sleep(self, seconds: float) -> None:
        """Advance the time of the whole world: nobody else runs meanwhile."""
        self._scheduler.now += seconds


def _outside_loop(call: Callable[[], object]) -> None:
    """Call a function as if it ran in a thread, where no event loop runs."""
    before = events._get_running_loop()
    events._set_running_loop(None)
    try:
        call()
    finally:
        events._set_running_loop(before)
