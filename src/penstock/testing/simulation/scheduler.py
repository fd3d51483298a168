"""The scheduler: one seed decides which thread of which simulated process runs next.

Every simulated process has an event loop of its own, and its background threads are lanes beside
it. Callbacks of one lane run in the order in which they were requested, as in asyncio; lanes take
turns by chance. Time is virtual: it advances a little with every callback, and jumps to the next
timer when nothing else is to be done.
"""

import asyncio
import heapq
import itertools
import random
from asyncio import events
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# A callback takes up to this long, in seconds.
_LONGEST_CALLBACK = 0.000_2


class Lane:
    """The callbacks of one thread, which run one after the other.

    `loop` is the event loop that runs in the thread, if any; `pooled` says that the thread is one
    of an executor.
    """

    __slots__ = ("closed", "loop", "name", "pooled", "ready", "stopped")

    def __init__(self, name: str, loop: "SimulatedLoop | None" = None) -> None:
        self.name = name
        self.loop = loop
        self.pooled = False
        self.ready: deque[asyncio.Handle] = deque()
        self.stopped = False
        self.closed = False


class Scheduler:
    """Virtual time, and the order in which callbacks run."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.steps = 0
        self.fingerprint = 0
        """A number that is equal for equal schedules."""
        self.observe: Callable[[Lane, asyncio.Handle], object] | None = None
        """Called after every callback, with its lane."""
        self._random = random.Random(f"schedule {seed}")
        self._timers: list[tuple[float, int, Lane, asyncio.Handle]] = []
        self._numbers = itertools.count()
        self._lanes: list[Lane] = []

    def add(self, lane: Lane) -> None:
        """Let a lane take part."""
        self._lanes.append(lane)

    def remove(self, lane: Lane) -> None:
        """End a lane; what it had to do is dropped."""
        lane.closed = True
        lane.ready.clear()
        self._lanes.remove(lane)

    def close(self) -> None:
        """Forget everything that was to be done."""
        self.observe = None
        self._timers.clear()
        self._lanes.clear()

    def schedule(self, when: float, lane: Lane, handle: asyncio.Handle) -> None:
        """Run a callback at this time."""
        heapq.heappush(self._timers, (when, next(self._numbers), lane, handle))

    def step(self) -> bool:
        """Run one callback; return False if there is nothing to do, and never will be."""
        self._fire_due()
        runnable = [lane for lane in self._lanes if lane.ready and not lane.stopped]
        if not runnable:
            if not self._timers:
                return False
            self.now = max(self.now, self._timers[0][0])
            return True
        number = int(self._random.random() * len(runnable))
        self.now += self._random.random() * _LONGEST_CALLBACK
        self.steps += 1
        self.fingerprint = hash((self.fingerprint, number, len(runnable)))
        self._run(runnable[number])
        return True

    def _fire_due(self) -> None:
        while self._timers and self._timers[0][0] <= self.now:
            _, _, lane, handle = heapq.heappop(self._timers)
            if not lane.closed and not handle.cancelled():
                lane.ready.append(handle)

    def _run(self, lane: Lane) -> None:
        handle = lane.ready.popleft()
        if handle.cancelled():
            return
        before = events._get_running_loop()
        events._set_running_loop(lane.loop)
        try:
            handle._run()
        finally:
            events._set_running_loop(before)
        if self.observe is not None:
            self.observe(lane, handle)


class _Numbered:
    """Hashes by a number, so that the order of sets does not depend on addresses."""

    _number: int

    def __hash__(self) -> int:
        return self._number


class SimulatedFuture(_Numbered, asyncio.Future[Any]):
    """A future that sets keep in a repeatable order."""


class SimulatedTask(_Numbered, asyncio.Task[Any]):
    """A task that sets keep in a repeatable order."""

    def __init__(self, number: int, *args: Any, **options: Any) -> None:
        self._number = number
        super().__init__(*args, **options)


class SimulatedLoop(asyncio.BaseEventLoop):
    """The event loop of one simulated process."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        super().__init__()
        self.lane = Lane(name, self)
        self.errors: list[dict[str, Any]] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.make_threads: Callable[[], Executor]
        """Returns an executor of simulated threads; for `asyncio.to_thread`."""
        self._threads: Executor | None = None
        self._scheduler = scheduler
        self._numbers = itertools.count()
        scheduler.add(self.lane)
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Return the virtual time."""
        return self._scheduler.now

    def create_future(self) -> asyncio.Future[Any]:
        """See `asyncio.AbstractEventLoop`."""
        future = SimulatedFuture(loop=self)
        future._number = next(self._numbers)
        return future

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """See `asyncio.AbstractEventLoop`."""
        handle = asyncio.Handle(callback, args, self, context)
        if not self.lane.closed:
            self.lane.ready.append(handle)
        return handle

    # Only one thread is real.
    call_soon_threadsafe = call_soon

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """See `asyncio.AbstractEventLoop`."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.lane.closed:
            self._scheduler.schedule(when, self.lane, timer)
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """See `asyncio.AbstractEventLoop`."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Call a function in a simulated thread, also if the executor has real ones."""
        if executor is None or isinstance(executor, ThreadPoolExecutor):
            executor = self._threads = self._threads or self.make_threads()
        return asyncio.wrap_future(executor.submit(func, *args), loop=self)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep the error of a callback, or of a task that nobody awaited."""
        if not self.lane.closed:
            self.errors.append(context)

    def get_debug(self) -> bool:
        """Return False: debug mode measures real time."""
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: cancelled timers are skipped."""

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Task[Any]:
        task = SimulatedTask(next(self._numbers), coroutine, loop=loop, **options)
        self.tasks.append(task)
        return task
