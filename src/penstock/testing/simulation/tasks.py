"""Runs the tasks of an app in a simulated world, where workers die and stand still."""

import asyncio
import copy
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, cast

from penstock.core.errors import ConfigurationError
from penstock.core.job import Job, JobId, Lease, LogEntry, NewJob, bind
from penstock.core.store import Store
from penstock.engine.connection import acting_as
from penstock.engine.penstock import Penstock, run_sync
from penstock.engine.task import Task
from penstock.stores import open_store
from penstock.testing.execution import FOREVER
from penstock.testing.jobs import every_entry, every_job
from penstock.testing.simulation.scheduler import Lane
from penstock.testing.simulation.world import Process, World
from penstock.testing.stores import MEMORY, Proxy
from penstock.worker.context import context
from penstock.worker.worker import Worker

# Within so many steps of a run, its worker is struck: soon as a rule, as most runs have few.
_WITHIN = (6, 6, 24, 96)
_RESTART = 1.0
_LOOK_EVERY, _LOOK_AT_LAST_EVERY = 0.05, 10.0
_DAY = 86_400.0
# The share of faults that are kills; at the others, a worker stands still.
_KILLS = 0.7
_CONCURRENCY = 4


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
    A killed worker runs nothing any more, not even a `finally`. The same seed plays the same story
    every time. Ends when these jobs are final, and those that they enqueued; schedules of the app
    fire meanwhile. Raises `TimeoutError` if a job is not final `within` this virtual time.

    Call this outside an event loop. Handlers should not use real files, networks or processes:
    these do not follow the virtual time. What they call in threads runs at once, in this thread.
    """
    if workers < 1 or faults < 0:
        raise ConfigurationError("a simulation needs at least 1 worker and no less than 0 faults")
    with _trial(app, seed, workers) as trial:
        trial.enqueue(jobs)
        trial.run(faults, within.total_seconds())
        return trial.result()


def simulate_every_kill(
    app: Penstock, job: NewJob, *, seed: int = 0, within: timedelta = timedelta(days=1)
) -> Iterator[Simulation]:
    """Run a job once undisturbed, then once for each step of it, after which its worker is killed.

    Yields what came of every run, in turn: check then what the handler has done, and undo it before
    the next one. A step is what happens between two moments at which the handler waits. The first
    kill strikes before the handler has begun, and the last one when it has returned, but the job is
    not settled. Each run is a simulation of its own, as by `simulate`, with one worker and another
    one that replaces it. With the same seed, all runs begin alike. Not a coroutine.
    """
    undisturbed, steps = _follow(app, job, seed, within, kill_after=None)
    yield undisturbed
    for n in range(steps + 1):
        yield _follow(app, job, seed, within, kill_after=n)[0]


def _follow(
    app: Penstock, job: NewJob, seed: int, within: timedelta, kill_after: int | None
) -> tuple[Simulation, int]:
    with _trial(app, seed, workers=1) as trial:
        [stored] = trial.enqueue([job])
        steps = trial.follow(stored.id, kill_after, within.total_seconds())
        return trial.result(), steps


@contextmanager
def _trial(app: Penstock, seed: int, workers: int) -> Iterator["_Trial"]:
    """Let an app use a store in a new world, inside the block."""
    world = World(seed)
    home = world.process("app")
    store = _Family(open_store(MEMORY, runtime=home.runtime))
    inside = cast("Store", store)
    try:
        with (
            app.connection.elsewhere(MEMORY, inside, home.runtime, home.name),
            app.limits.afresh(),
        ):
            yield _Trial(world, home, app, store, workers)
    finally:
        world.close(bury=True)
        store.forget()


class _Family(Proxy):
    """A store that remembers the jobs of a trial, and those that they have enqueued."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.members: set[JobId] = set()

    async def add(self, jobs: Sequence[NewJob], **options: Any) -> list[Job]:
        """Store jobs; they belong to the family if the job that runs here does."""
        added = await self._store.add(jobs, **options)
        running = _running()
        if running is not None and running.id in self.members:
            self.members.update(job.id for job in added)
        return added

    def forget(self) -> None:
        """Release the store, which killed workers hold for ever."""
        self._store = cast("Store", None)


class _Hand(NamedTuple):
    """A worker, and the process that it runs in."""

    process: Process
    worker: Worker


class _Trial:
    def __init__(
        self, world: World, home: Process, app: Penstock, store: _Family, workers: int
    ) -> None:
        self._world = world
        self._home = home
        self._app = app
        self._store = store
        self._random = random.Random(f"faults {world.seed}")
        self._lives = 0
        self._followed: tuple[Process, Lease] | None = None
        self._steps = 0
        self._stopped: list[tuple[_Hand, Lease]] = []
        world.scheduler.observe = self._count
        self._hands = [self._start() for _ in range(workers)]

    def _start(self) -> _Hand:
        """Start a process with a worker that knows the tasks of the app."""
        self._lives += 1
        process = self._world.process(f"worker-{self._lives}")
        own = _same_program(self._app, process, cast("Store", self._store))
        worker = Worker(own, name=process.name, concurrency=_CONCURRENCY, retention=FOREVER)
        with acting_as(process.name):  # also for what handlers do through the app
            process.start(worker.run())
        return _Hand(process, worker)

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Job]:
        """Store the jobs whose end the trial waits for."""
        added = run_sync(self._app.enqueue_many(jobs))
        self._store.members.update(job.id for job in added)
        return added

    def run(self, faults: int, limit: float) -> None:
        """Let the workers run, strike them, and wait until every job is final."""
        end = self._world.now + limit
        while faults and (held := self._next_run(end)):
            hand, lease = held
            # Each fault has its own step, and the earliest strikes: few seeds strike nothing.
            due = min(self._random.randrange(self._random.choice(_WITHIN)) for _ in range(faults))
            if self._reaches(due, hand, lease, end):
                faults -= 1
                self._strike(hand, lease)
        self._finish(end)

    def follow(self, job_id: JobId, kill_after: int | None, limit: float) -> int:
        """Wait until every job is final; kill the worker of one after so many steps of its runs.

        Return how many steps they had until then.
        """
        end = self._world.now + limit
        steps = 0
        while held := self._next_run(end, job_id):
            hand, lease = held
            left = None if kill_after is None else kill_after - steps
            if self._reaches(left, hand, lease, end):
                steps += self._steps
                self._kill(hand, lease)
                break
            steps += self._steps
        self._finish(end)
        return steps

    def _finish(self, end: float) -> None:
        while self._check(end):
            self._wait()
        # A worker that stood still does not know yet that others have run its job.
        while self._stopped and self._world.now < end:
            self._wait()
            self._stopped = [
                (hand, lease)
                for hand, lease in self._stopped
                if hand.process.alive and (hand.process.stopped or lease in hand.worker.leases)
            ]

    def _next_run(self, end: float, job_id: JobId | None = None) -> tuple[_Hand, Lease] | None:
        """Wait for a job, or for this one, to be claimed; None if all jobs are final."""
        while self._check(end):
            if held := self._held(job_id):
                return self._random.choice(held)
            self._wait(lambda: bool(self._held(job_id)))
        return None

    def _held(self, job_id: JobId | None = None) -> list[tuple[_Hand, Lease]]:
        """The workers that run a job now, with their leases."""
        return [
            (hand, lease)
            for hand in self._hands
            if hand.process.alive and not hand.process.stopped
            for lease in hand.worker.leases
            if job_id is None or lease.job_id == job_id
        ]

    def _reaches(self, steps: int | None, hand: _Hand, lease: Lease, end: float) -> bool:
        """Let a run go on for so many steps; return False if it ends before."""
        self._followed, self._steps = (hand.process, lease), 0
        reached = self._world.run(
            lambda: self._steps == steps or lease not in hand.worker.leases,
            limit=end - self._world.now,
        )
        self._followed = None
        return reached and lease in hand.worker.leases

    def _count(self, lane: Lane, handle: asyncio.Handle) -> None:
        """Count the steps of the run that is followed: its own callbacks, and calls in threads."""
        if self._followed is None:
            return
        process, lease = self._followed
        if lane is process.loop.lane:
            job = handle._context.run(_running)  # type: ignore[attr-defined]
            self._steps += job is not None and job.token == lease.token
        elif lane.pooled:
            self._steps += lane in process.runtime.lanes

    def _check(self, end: float) -> bool:
        """Return whether a job is not final yet; raise if that takes too long."""
        world = self._world
        found = run_sync(self._app.store.get(sorted(self._store.members)))
        left = [job for job in found if not job.state.final]
        if left and world.now > end:
            raise TimeoutError(f"seed {world.seed}: jobs have not ended after {end:g} s")
        return bool(left)

    def _wait(self, until: Callable[[], bool] = lambda: False) -> None:
        """Let some time pass, at most until something holds."""
        world = self._world
        # Rarely after a long time, as jobs that are due in hours need not be looked for often.
        soon = world.now + max(_LOOK_EVERY, min(world.now / 10, _LOOK_AT_LAST_EVERY))
        world.run(lambda: world.now >= soon or until(), limit=_DAY)

    def _strike(self, hand: _Hand, lease: Lease) -> None:
        """Kill a worker that holds a job, or let it stand still for longer than its lease."""
        if self._random.random() < _KILLS:
            self._kill(hand, lease)
            return
        self._tell(hand, lease, "stands still")
        self._world.stop(hand.process)
        self._stopped.append((hand, lease))
        [job] = run_sync(self._app.store.get([lease.job_id]))
        pause = job.lease_time.total_seconds() * 1.5
        self._home.loop.call_later(pause, self._resume, hand.process)

    def _kill(self, hand: _Hand, lease: Lease) -> None:
        self._tell(hand, lease, "is killed")
        self._world.kill(hand.process)
        self._home.loop.call_later(_RESTART, self._replace, self._hands.index(hand))

    def _replace(self, n: int) -> None:
        self._hands[n] = self._start()
        self._world.tell(f"{self._hands[n].process.name} takes its place")

    def _resume(self, process: Process) -> None:
        self._world.tell(f"{process.name} continues")
        self._world.resume(process)

    def _tell(self, hand: _Hand, lease: Lease, text: str) -> None:
        [job] = run_sync(self._app.store.get([lease.job_id]))
        self._world.tell(f"{hand.process.name} {text} while it runs job {job.id} ({job.task})")

    def result(self) -> Simulation:
        """The jobs, their log, and the story: the faults and what the log says, by time."""
        jobs, log = run_sync(self._read())
        start = self._world.start
        told = [
            (
                (entry.at - start).total_seconds(),
                f"{entry.actor}: job {entry.job_id} {_said(entry)}",
            )
            for entry in log
        ]
        trace = sorted([*self._world.trace, *told], key=_time)
        return Simulation(self._world.seed, jobs, log, trace)

    async def _read(self) -> tuple[list[Job], list[LogEntry]]:
        store = self._app.store
        jobs = [job async for job in every_job(store)]
        return bind(jobs, self._app), [entry async for entry in every_entry(store)]


def _same_program(app: Penstock, process: Process, store: Store) -> Penstock:
    """Return the app as another process has it that runs the same program."""
    own = Penstock(
        MEMORY,
        actor=process.name,
        payload_limit=app.connection.payload_limit,
        runtime=process.runtime,
        opener=lambda *_, **__: store,
    )
    own.connection.secrets = app.secrets
    own.connection.results.decoders.update(app.connection.results.decoders)
    own.tasks.update({name: _without_child(task) for name, task in app.tasks.items()})
    own.schedules.declared.update(app.schedules.declared)
    own.limits.reserve(*app.limits.declared_reserved)
    for name, concurrency in app.limits.declared.items():
        own.limits.declare(name, concurrency)
    return own


def _without_child(task: Task[..., Any]) -> Task[..., Any]:
    """Return a task whose handler does not run in a child process, which would be a real one."""
    if task.isolation is None:
        return task
    simulated = copy.copy(task)
    simulated.isolation = None
    return simulated


def _running() -> Job | None:
    """The job that the caller runs; None if there is none."""
    try:
        return context().job
    except LookupError:
        return None


def _time(line: tuple[float, str]) -> float:
    return line[0]


def _said(entry: LogEntry) -> str:
    error = f" ({entry.error.splitlines()[-1]})" if entry.error else ""
    return f"{entry.event.value}{error}"
