"""Runs the tasks of an app in a simulated world, where workers die and stand still."""

import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from penstock.core.errors import ConfigurationError
from penstock.core.job import Job, LogEntry, NewJob
from penstock.core.lifecycle import State
from penstock.core.query import JobQuery
from penstock.engine.penstock import Penstock
from penstock.stores import open_store
from penstock.testing.simulation.world import Process, World
from penstock.worker.worker import Worker

T = TypeVar("T")

_MEMORY = "memory://"
# Within so many callbacks after a handler was seen to run, its worker is struck.
_STEPS = 60
_RESTART = 1.0
_LOOK_EVERY, _LOOK_AT_LAST_EVERY = 0.05, 10.0
_DAY = 86_400.0
# The share of faults that are kills; at the others, a worker stands still.
_KILLS = 0.7
_RUNNING = frozenset({State.RUNNING})


class Simulation(NamedTuple):
    """What came of a simulated run: the jobs at its end, their log, and its story."""

    seed: int
    jobs: list[Job]
    log: list[LogEntry]
    trace: list[tuple[float, str]]

    @property
    def story(self) -> str:
        """What happened at which virtual time, a line for each event."""
        return "\n".join(f"{at:10.4f}  {text}" for at, text in self.trace)


def simulate(
    app: Penstock,
    jobs: Sequence[NewJob],
    *,
    seed: int,
    workers: int = 2,
    faults: int = 3,
    within: timedelta = timedelta(days=1),
) -> Simulation:
    """Run jobs of an app to their end, in a world that one seed decides; not a coroutine.

    The jobs are stored in memory and run by simulated workers, on virtual time: an hour takes about
    a second. Up to `faults` times, while a handler runs, its worker is killed between two
    steps, or stands still for longer than its lease; then the job runs again, which must be safe.
    The same seed plays the same story every time. Raises `TimeoutError` if a job is not final
    `within` this virtual time.

    Call this outside an event loop. Handlers should not use real files, threads or networks: these
    do not follow the virtual time.
    """
    if workers < 1 or faults < 0:
        raise ConfigurationError("a simulation needs at least 1 worker and no less than 0 faults")
    with closing(World(seed)) as world, _moved_into(world, app) as home:
        trial = _Trial(world, home, app, workers)
        world.wait(home.start(app.enqueue_many(jobs)), limit=_DAY)
        trial.run(faults, within.total_seconds())
        found = world.wait(
            home.start(app.find(JobQuery(newest_first=False, limit=10_000))), limit=_DAY
        )
        log = world.wait(home.start(app.log(limit=100_000)), limit=_DAY)
    return Simulation(seed, found, log, trial.trace(log))


@contextmanager
def _moved_into(world: World, app: Penstock) -> Iterator[Process]:
    """Let an app use a store in a world, inside the block."""
    home = world.process("app")
    store = open_store(_MEMORY, runtime=home.runtime)
    with app.connection.elsewhere(_MEMORY, store, world.clock):
        app.connection.runtime = home.runtime
        yield home


class _Trial:
    def __init__(self, world: World, home: Process, app: Penstock, workers: int) -> None:
        self._world = world
        self._home = home
        self._app = app
        self._random = random.Random(f"faults {world.seed}")
        self._lives = 0
        self._workers = [self._start() for _ in range(workers)]

    def _start(self) -> Process:
        """Start a process with a worker that knows the tasks of the app."""
        self._lives += 1
        process = self._world.process(f"worker-{self._lives}")
        store = self._app.store
        own = Penstock(
            _MEMORY, actor=process.name, runtime=process.runtime, opener=lambda *_, **__: store
        )
        own.tasks = self._app.tasks
        process.start(Worker(own, name=process.name, concurrency=4).run())
        return process

    def run(self, faults: int, limit: float) -> None:
        """Let the workers run, strike them, and wait until every job is final."""
        end = self._world.now + limit
        for _ in range(faults):
            while not self._held():
                if not self._wait(end):
                    return
            for _ in range(self._random.randrange(_STEPS)):
                self._world.scheduler.step()
            if held := self._held():
                self._strike(*self._random.choice(held))
        while self._wait(end):
            pass

    def _wait(self, end: float) -> bool:
        """Let some time pass; return False if all jobs are final."""
        world = self._world
        if world.now > end:
            raise TimeoutError(f"seed {world.seed}: jobs have not ended after {end:g} s")
        # Rarely after a long time, as jobs that are due in hours need not be looked for often.
        soon = world.now + max(_LOOK_EVERY, min(world.now / 10, _LOOK_AT_LAST_EVERY))
        world.run(lambda: world.now >= soon, limit=_DAY)
        counts = self._ask(self._app.count())
        return any(n for (_, state, _), n in counts.items() if not state.final)

    def _held(self) -> list[tuple[Job, Process]]:
        """The running jobs, with the processes that run them now."""
        running = {one.name: one for one in self._workers if one.alive and not one.stopped}
        found = self._ask(self._app.find(JobQuery(states=_RUNNING, limit=100)))
        return [(job, running[job.worker]) for job in found if job.worker in running]

    def _ask(self, call: Coroutine[Any, Any, T]) -> T:
        return self._world.wait(self._home.start(call), limit=_DAY)

    def _strike(self, job: Job, process: Process) -> None:
        """Kill a worker that holds a job, or let it stand still for longer than its lease."""
        world, n = self._world, self._workers.index(process)
        if self._random.random() < _KILLS:
            world.tell(f"{process.name} is killed while it runs job {job.id} ({job.task})")
            world.kill(process)
            self._later(_RESTART, lambda: self._restart(n))
        else:
            world.tell(f"{process.name} stands still while it runs job {job.id} ({job.task})")
            world.stop(process)
            self._later(job.lease_time.total_seconds() * 1.5, lambda: self._resume(process))

    def _restart(self, n: int) -> None:
        self._workers[n] = self._start()
        self._world.tell(f"{self._workers[n].name} takes its place")

    def _resume(self, process: Process) -> None:
        self._world.tell(f"{process.name} continues")
        self._world.resume(process)

    def _later(self, seconds: float, call: Callable[[], object]) -> None:
        self._home.loop.call_later(seconds, call)

    def trace(self, log: Sequence[LogEntry]) -> list[tuple[float, str]]:
        """The faults, and what the log says of the jobs, in the order of time."""
        start = self._world.start
        told = [
            (
                (entry.at - start).total_seconds(),
                f"{entry.actor}: job {entry.job_id} {_said(entry)}",
            )
            for entry in log
        ]
        return sorted([*self._world.trace, *told], key=_time)


def _time(line: tuple[float, str]) -> float:
    return line[0]


def _said(entry: Any) -> str:
    error = f" ({entry.error.splitlines()[-1]})" if entry.error else ""
    return f"{entry.event.value}{error}"
