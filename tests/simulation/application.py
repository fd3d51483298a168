"""The program that simulated processes run: it records what it asks for and what it does."""

import asyncio
import itertools
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from penstock.core.errors import Cancel, Snooze
from penstock.core.job import Job, NewJob, Scope
from penstock.core.retry import RetryPolicy
from penstock.testing.simulation.world import Process, World
from penstock.worker.context import context
from tests.crash.recording import (
    Effect,
    Event,
    Note,
    RecordedLeases,
    RecordedPenstock,
    RecordedQueues,
    recorded_run,
)
from tests.simulation.plan import JobSpec, Order

LEASE = timedelta(seconds=8)
# One is shorter than a lease, and one is longer.
_DURATIONS = {"slow": 1.0, "steady": 6.0, "long": 20.0}
PAUSE = timedelta(seconds=0.5)


class Hopeless(Exception):
    """An error that no further attempt can mend."""


class History:
    """What all clients of a world noted; it survives them."""

    def __init__(self, world: World) -> None:
        self.events: list[Event] = []
        self._world = world

    def recorder(self, process: Process) -> "WorldRecorder":
        return WorldRecorder(self._world, process, self.events)


class WorldRecorder:
    """Notes the events of one process, as long as it lives."""

    def __init__(self, world: World, process: Process, events: list[Event]) -> None:
        self.client = process.name
        self.calls = itertools.count()
        self._world = world
        self._process = process
        self._events = events

    def tell(self, text: str) -> None:
        """Add something to the story that is no event."""
        self._world.tell(f"{self.client}: {text}")

    def note(self, kind: type[Note], **facts: Any) -> None:
        if not self._process.alive:
            return
        at, wall = int(self._world.now * 1e9), self._world.clock() * 1000
        event: Any = kind(client=self.client, at=at, wall=wall, **facts)
        self._events.append(event)
        told = ", ".join(f"{name} {_short(value)}" for name, value in facts.items())
        self._world.tell(f"{self.client}: {kind.__name__.lower()} {told}")


class WorldFence:
    """Something outside of the queue that refuses tokens lower than the highest it saw."""

    def __init__(self) -> None:
        self._highest: dict[int, int] = {}

    def act(self, job: Job, recorder: WorldRecorder) -> None:
        applied = self._highest.get(job.id, 0) <= job.token
        if applied:
            self._highest[job.id] = job.token
        recorder.note(Effect, job=job.id, token=job.token, applied=applied)


class Program(RecordedPenstock):
    """The tasks of a simulated process. `die` ends the process."""

    recorder: WorldRecorder

    def __init__(
        self,
        url: str,
        recorder: WorldRecorder,
        fence: WorldFence,
        die: Callable[[], object],
        **options: Any,
    ) -> None:
        super().__init__(url, recorder, **options)
        self.recorder = recorder
        self.leases = RecordedLeases(self, recorder)
        self.queues = RecordedQueues(self, recorder)
        self._fence = fence
        self._die = die
        self._marks = itertools.count(1)
        self.task("work", self.work, permanent=(Hopeless,))
        self.task("plain", self.plain, permanent=(Hopeless,))

    async def work(self, mark: str, does: list[str]) -> str:
        job = context().job
        with recorded_run(job, self.recorder, self._fence):
            _act(await self.begin(does, job.attempt), job)
        return mark

    async def begin(self, does: list[str], attempt: int) -> str:
        """Take the time of this attempt, and return what it does; it may end the process."""
        deed = does[min(attempt, len(does)) - 1]
        await asyncio.sleep(_DURATIONS.get(deed, 0.0))
        if deed == "die":
            self._die()
            await asyncio.Event().wait()
        return deed

    def plain(self, mark: str, does: list[str]) -> str:
        job = context().job
        with recorded_run(job, self.recorder, self._fence):
            _act(does[min(job.attempt, len(does)) - 1], job)
        return mark

    def new(self, spec: JobSpec) -> NewJob:
        options = dict(spec.options)
        retry = RetryPolicy(attempts=options.pop("attempts"), delay=PAUSE, factor=1)
        if "delay" in options:
            options["delay"] = timedelta(seconds=options["delay"])
        if "scope" in options:
            options["scope"] = Scope(options["scope"])
        task = self.tasks[spec.task].using(lease=LEASE, retry=retry, **options)
        return task.new(mark=self.mark(), does=spec.does)

    def mark(self) -> str:
        return f"{self.recorder.client}/{next(self._marks)}"

    async def send(self, order: Order) -> None:
        """Enqueue the jobs of an order."""
        await self.enqueue_many([self.new(spec) for spec in order.jobs])


def _act(deed: str, job: Job) -> None:
    match deed:
        case "fail":
            raise RuntimeError("as it was told")
        case "permanent":
            raise Hopeless
        case "cancel":
            raise Cancel
        case "snooze" if random.Random(job.token).random() < 0.5:
            raise Snooze(PAUSE)


def _short(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_short(item) for item in value)
    return str(getattr(value, "mark", value))
