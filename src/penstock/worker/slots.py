"""The slots of a worker: long-lived asyncio tasks, each of which runs one job at a time.

A handler that never waits costs no task switch: its slot takes the next job at once. A further slot
wakes only while jobs wait, in case the handler of the first one waits for something.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from penstock.core.lifecycle import Failed, Outcome
from penstock.engine.penstock import Penstock
from penstock.engine.tracing import note_outcome, tracing_run
from penstock.worker.children.pool import ChildPool
from penstock.worker.outcomes import describe
from penstock.worker.run import Run

_log = logging.getLogger(__name__)


class Slots:
    """Runs jobs, as many at a time as there are slots.

    Plain functions run in `threads`, tasks with isolation in `children`. `ended` is called with
    every run and its outcome, and returns whether the slot should give way to other asyncio tasks.
    """

    def __init__(
        self,
        penstock: Penstock,
        threads: Executor,
        children: ChildPool,
        ended: Callable[[Run, Outcome], bool],
    ) -> None:
        self.closed = False
        self._tasks = penstock.tasks
        self._threads = threads
        self._children = children
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._monotonic = penstock.runtime.monotonic
        self._waiting: deque[Run] = deque()
        self._slots: set[asyncio.Task[None]] = set()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._waking = False

    def open(self, number: int, group: asyncio.TaskGroup) -> None:
        """Open this many slots, as tasks of the group."""
        self._group = group
        for _ in range(number):
            self._open_one()

    def add(self, runs: Iterable[Run]) -> None:
        """Run these in the order given, as slots become free."""
        self._waiting.extend(runs)
        self._wake_one()

    def take_waiting(self) -> list[Run]:
        """Remove and return the runs that no slot has begun."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def close(self) -> None:
        """Cancel all slots."""
        self.closed = True
        for slot in self._slots:
            slot.cancel()

    def _open_one(self) -> None:
        slot = self._group.create_task(self._run())
        self._slots.add(slot)
        slot.add_done_callback(self._replace)

    def _replace(self, slot: asyncio.Task[None]) -> None:
        self._slots.discard(slot)
        if not self.closed:
            _log.error("a slot was cancelled by the handler that it ran; opening another")
            with contextlib.suppress(RuntimeError):  # the group is shutting down
                self._open_one()

    async def _run(self) -> None:
        slot = asyncio.current_task()
        while not self.closed:
            self._waking = False
            while self._waiting:
                run = self._waiting.popleft()
                if self._waiting and not self._waking:
                    # If this handler waits for something, another slot takes the next job.
                    self._wake_one()
                began = self._monotonic()
                try:
                    task = self._tasks[run.job.task]
                    with tracing_run(run.job) as span:
                        if task.isolation is None:
                            outcome = await run.execute(task, self._threads, slot)
                        else:
                            outcome = await run.execute_in_child(
                                task, task.isolation, self._children, slot
                            )
                        note_outcome(span, outcome)
                except asyncio.CancelledError as error:  # a handler may cancel the task it runs in
                    self._ended(run, Failed(describe(error)))
                    raise
                except Exception as error:  # noqa: BLE001 - a slot survives whatever happens
                    _log.exception("running job %d failed unexpectedly", run.job.id)
                    outcome = Failed(describe(error))
                run.seconds = self._monotonic() - began
                if self._ended(run, outcome):
                    await asyncio.sleep(0)
            if not self.closed:
                idle = self._loop.create_future()
                self._idle.append(idle)
                await idle

    def _wake_one(self) -> None:
        while self._idle:
            idle = self._idle.popleft()
            if not idle.done():
                idle.set_result(None)
                self._waking = True
                return
