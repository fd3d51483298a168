"""A whole worker on a simulated runtime: no thread, no real time, the same history every time."""

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from datetime import timedelta
from typing import ParamSpec, TypeVar

import pytest

from penstock import Penstock, RetryPolicy, State, Worker, context
from penstock.jobs import LogEntry
from penstock.runtime import Background, Runtime, Step
from tests.contract.support import SECOND

P = ParamSpec("P")
T = TypeVar("T")

YEAR_2030 = 1_893_456_000_000_000
LEASE = 30 * SECOND
MINUTE = timedelta(minutes=1)


def outside_loop(call: Callable[[], T]) -> T:
    """Call a function as if it ran in a thread, where no event loop runs."""
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        return call()
    finally:
        asyncio._set_running_loop(loop)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer whenever nothing else is to be done."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined] # as of the base class
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class LoopBackground(Background):
    """Background work whose steps are callbacks of the event loop."""

    def __init__(self, loop: VirtualLoop, step: Step, name: str) -> None:
        super().__init__(step, name)
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        self._run_after(0.0)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _run_after(self, pause: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed:
            self._timer = self._loop.call_later(pause, self._run_step)

    def _run_step(self) -> None:
        pause = outside_loop(self._step)
        if pause is not None:
            self._run_after(pause)


class InlineExecutor(Executor):
    """Calls functions at once, where they are submitted."""

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        future.set_result(outside_loop(lambda: call(*args, **kwargs)))
        return future


class SimulatedRuntime(Runtime):
    """A runtime in which everything happens in the event loop, by its time."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(lambda: YEAR_2030 + int(loop.now * 1_000_000))
        self.monotonic = loop.time
        self.random = random.Random(7)
        self.steps: list[str] = []
        self._event_loop = loop

    def background(self, step: Step, name: str) -> Background:
        def counted() -> float | None:
            self.steps.append(name)
            return step()

        return LoopBackground(self._event_loop, counted, name)

    def executor(self, threads: int, name: str) -> Executor:
        return InlineExecutor()


async def history(runtime: SimulatedRuntime) -> list[LogEntry]:
    """Let a worker run jobs of all kinds; return the log of the store."""
    app = Penstock("memory://", runtime=runtime)

    @app.task(lease=LEASE)
    async def long() -> None:
        for n in range(100):
            context().progress(n, 100)
            await asyncio.sleep(1)

    @app.task(retry=RetryPolicy(attempts=2, delay=10 * MINUTE, jitter=0))
    def plain() -> str:
        context().logger.info("attempt %d", context().attempt)
        if context().state is None:
            context().checkpoint("begun")
            raise ValueError("the first time")
        return f"{context().state} and done"

    @app.task(lease=LEASE, timeout=10 * SECOND, retry=RetryPolicy(attempts=1))
    async def endless() -> None:
        await asyncio.Event().wait()

    @app.task(every=5 * MINUTE)
    async def periodic() -> None: ...

    jobs = [await task.enqueue() for task in (long, plain, endless)]
    lost = await periodic.using(queue="lost", lease=LEASE).enqueue()
    await app.leases.claim(worker="killed", queues=["lost"])
    worker = Worker(app, name="w", sweep=SECOND)
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(19 * 60)
    worker.stop()
    await running
    states = [(await app.get(job.id)).state for job in (*jobs, lost)]
    assert states == [State.DONE, State.DONE, State.FAILED, State.DONE]
    assert (await app.get(jobs[1].id)).returned == "begun and done"
    assert [line.text for line in await app.lines(jobs[1].id)] == ["attempt 1", "attempt 2"]
    progress = await app.progress(jobs[0].id)
    assert progress is not None
    assert progress.done == 99
    entries = await app.log(limit=1000)
    await app.close()
    return entries


def simulate() -> tuple[list[LogEntry], list[str]]:
    loop = VirtualLoop()
    runtime = SimulatedRuntime(loop)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(history(runtime)), runtime.steps


def test_worker_runs_without_threads_and_repeats_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise AssertionError(f"a real thread was started: {thread.name}")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    entries, steps = simulate()
    events = [(entry.event.value, entry.job_id) for entry in entries]
    assert [event for event, _ in events].count("expired") == 1
    assert [event for event, job in events if job == 1] == ["enqueued", "claimed", "done"]
    assert len({job for _, job in events}) == 4 + 3, "the schedule fired three times"
    renewals = steps.count("penstock-leases")
    assert 100 / 10 <= renewals <= 100 / 10 + 10, "a third of the lease after the other"
    assert steps.count("penstock-progress") > 100, "once a second"
    again, _ = simulate()
    assert again == entries
