"""Plays one seed: builds the world, carries out its plan, and judges what came of it."""

import asyncio
import contextlib
import gc
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from penstock.core.errors import PenstockError, QueueFull, ServerUnreachable, StoreUnavailable
from penstock.core.query import JobQuery
from penstock.testing.simulation.runtime import WallClock
from penstock.testing.simulation.world import Deadlock, Process, World
from penstock.worker.worker import Worker
from tests.crash.history import Stored, Violation, read_all
from tests.crash.recording import DOUBT, Trouble
from tests.simulation import moving
from tests.simulation import plan as plans
from tests.simulation.application import History, Program, WorldFence
from tests.simulation.cron import Schedules
from tests.simulation.judge import judge
from tests.simulation.machines import MACHINES, SERVERS, Machine, MovingMachine
from tests.simulation.plan import Event, Fault, Order, Steer
from tests.simulation.servers import RemoteProgram, quiet, serve

T = TypeVar("T")

SETTLING = 400.0
"""Within so many virtual seconds after the last fault, every job must be final."""
_START = 120.0
_LOOK_EVERY = 2.0
_RESTART = 1.0
_CLIENTS = ("producer", "worker2", "network")
"""Places on another machine, if there are servers."""


class Result(NamedTuple):
    """What came of one seed."""

    seed: int
    scenario: str
    plan: Sequence[Event]
    violations: list[Violation]
    trace: list[tuple[float, str]]
    fingerprint: int
    steps: int
    jobs: int


def make_plan(scenario: str, seed: int, faults: Sequence[str] = ()) -> list[Event]:
    """Return the plan of a seed, with faults of these kinds, or of all kinds."""
    if MACHINES[scenario] is MovingMachine:
        return moving.make(seed, faults)
    machine = MACHINES[scenario]
    return plans.make(
        seed,
        faults or machine.faults,
        faults or machine.own_faults,
        events_share=machine.events_share,
    )


def play(scenario: str, seed: int, plan: Sequence[Event] | None = None) -> Result:
    """Play a seed; with a `plan`, play that in place of the one that the seed makes."""
    result = _play(scenario, seed, make_plan(scenario, seed) if plan is None else plan)
    if scenario == "servers":
        # Asynchronous generators, unlike coroutines, cannot be ended while they wait. Those of
        # servers that died would be reported when Python collects them.
        with quiet():
            gc.collect()
    return result


def _play(scenario: str, seed: int, plan: Sequence[Event]) -> Result:
    world = World(seed)
    with (
        _logged(world),
        contextlib.closing(MACHINES[scenario](world)) as machine,
        _closing(world),
    ):
        played: _Play | moving.Moving
        if isinstance(machine, MovingMachine):
            played = moving.Moving(world, machine, plan)
        else:
            played = _Play(world, machine, plan)
        violations = played.run()
        jobs = played.jobs
        trace = [(at, machine.without_folder(text)) for at, text in world.trace]
    end = world.scheduler
    return Result(seed, scenario, plan, violations, trace, end.fingerprint, end.steps, jobs)


class _Play:
    """One world, its processes, and what befalls them.

    Processes have places, such as `worker0`: when one dies, another takes its place. On a machine
    whose store belongs to one process, all places are in it.
    """

    def __init__(self, world: World, machine: Machine, plan: Sequence[Event]) -> None:
        self.world = world
        self.machine = machine
        self.plan = plan
        self.history = History(world)
        self.fence = WorldFence()
        self.schedules = Schedules()
        self.stored: Stored | None = None
        self.disturbed: set[str] = set()
        self.nemesis = world.process("nemesis")
        self.other_clock = WallClock(world.scheduler)
        self._lives: dict[str, int] = {}
        self._places: dict[str, Process] = {}
        self._owned: Program | None = None
        self._orders: dict[int, list[Order]] = {}

    @property
    def jobs(self) -> int:
        """How many jobs the store has at the end."""
        return len(self.stored.jobs) if self.stored else 0

    def run(self) -> list[Violation]:
        try:
            self._start_all()
            over = self.nemesis.start(self._carry_out())
            self.world.wait(over, limit=plans.DURATION * 20)
            self._recover()
            self._visit(self.schedules.pause)
            self._visit(self._settled)
            self.stored = self._visit(read_all)
        except (TimeoutError, Deadlock, PenstockError) as error:
            return [Violation(4, f"{type(error).__name__}: {error}")]
        found = judge(self.plan, self.history.events, self.stored, self.disturbed)
        return [*found, *self.schedules.judge(self.stored), *self._errors()]

    def _errors(self) -> Iterator[Violation]:
        for process in self.world.processes:
            for error in process.loop.errors:
                text = f"{process.name}: {error.get('message')}: {error.get('exception')!r}"
                yield Violation(0, text)
            for report in process.runtime.errors:
                yield Violation(0, f"{process.name}: {report}")

    # Processes

    def _process(self, name: str) -> Process:
        life = self._lives[name] = self._lives.get(name, 0) + 1
        if self._is_elsewhere(name):
            process = self.world.process(f"{name}.{life}")
            process.runtime.clock = self.other_clock
        else:
            process = self.world.process(f"{name}.{life}", self.machine.files())
            self.machine.attach(process)
        return process

    def _is_elsewhere(self, name: str) -> bool:
        """Whether a place is on another machine than the store, and reaches it over HTTP."""
        return self.machine.network is not None and name.startswith(_CLIENTS)

    def _program(self, process: Process) -> Program:
        options: dict[str, Any] = {
            "die": lambda: self.nemesis.loop.call_soon(self.kill, process, _RESTART),
            "runtime": process.runtime,
            "opener": self.machine.open,
        }
        recorder = self.history.recorder(process)
        if self.machine.network is not None and self._is_elsewhere(process.name):
            transport = self.machine.network.transport(process, SERVERS)
            return RemoteProgram(
                self.machine.url, recorder, self.fence, transport=transport, **options
            )
        return Program(self.machine.url, recorder, self.fence, **options)

    def _visitor(self, name: str) -> tuple[Process, Program]:
        """A process that comes for a moment; if the store belongs to one process, that one."""
        if not self.machine.is_shared:
            self.world.run(lambda: self._owned is not None, limit=SETTLING)
            assert self._owned is not None
            return self._places["owner"], self._owned
        process = self._process(name)
        return process, self._program(process)

    def _visit(self, act: Callable[[Program], Coroutine[Any, Any, T]]) -> T:
        """Let a visitor do something, again if it dies meanwhile."""
        while True:
            process, app = self._visitor("observer")
            task = process.start(act(app))
            if self._wait(task, process):
                return task.result()

    def _wait(self, task: "asyncio.Task[Any]", process: Process) -> bool:
        """Wait until a task has ended; return False if its process has died before."""
        if not self.world.run(lambda: task.done() or not process.alive, limit=SETTLING * 3):
            raise TimeoutError(f"{task.get_name()} has not ended")
        return task.done()

    def _start_all(self) -> None:
        for n in range(plans.PRODUCERS):
            self._orders[n] = [
                event for event in self.plan if isinstance(event, Order) and event.producer == n
            ]
        if not self.machine.is_shared:
            self._start("owner")
            return
        setup = self._process("setup")
        app = self._program(setup)
        self.world.wait(setup.start(self._prepare(app)), limit=_START)
        self.world.wait(setup.start(app.close()), limit=_START)
        self.world.kill(setup)
        for server in SERVERS if self.machine.network is not None else ():
            self._start(server)
        for n in range(plans.PRODUCERS):
            self._start(f"producer{n}")
        for n in range(plans.WORKERS):
            self._start(f"worker{n}")

    def _start(self, place: str) -> None:
        process = self._places[place] = self._process(place)
        if place == "owner":
            process.start(self._own(process))
        elif place.startswith("server"):
            process.start(self._serve(place, process))
        elif self._is_elsewhere(place) and place.startswith("worker"):
            self.disturbed.add(process.name)  # what it was given may be lost on the way
            process.start(self._handle_events(self._program(process)))
        elif place.startswith("worker"):
            process.start(self._work(self._program(process)))
        else:
            process.start(self._produce(self._program(process), int(place[-1])))

    async def _prepare(self, app: Program) -> None:
        await app.limits.queue("limited", 4)
        await self.schedules.put(app)

    async def _own(self, process: Process) -> None:
        """Do everything in one process."""
        app = self._program(process)
        while True:
            try:
                await self._prepare(app)
                break
            except PenstockError as error:
                self.world.tell(f"{process.name}: cannot begin: {error}")
                await asyncio.sleep(_RESTART)
        self._owned = app
        producing = [self._produce(app, n) for n in range(plans.PRODUCERS)]
        await asyncio.gather(self._work(app), *producing)

    async def _serve(self, place: str, process: Process) -> None:
        assert self.machine.network is not None
        url, opener = self.machine.url, self.machine.open
        await serve(self.world, self.machine.network, place, process, url, opener=opener)

    async def _handle_events(self, app: Program) -> None:
        assert isinstance(app, RemoteProgram)
        await app.handle_events()

    async def _work(self, app: Program) -> None:
        while True:
            try:
                await Worker(app, name=app.recorder.client, concurrency=3).run()
            except PenstockError as error:  # a supervisor starts it again
                self.world.tell(f"{app.recorder.client}: ended by {error}")
                await asyncio.sleep(_RESTART)

    async def _produce(self, app: Program, n: int) -> None:
        orders = self._orders[n]
        while orders:
            await asyncio.sleep(max(0.0, orders[0].at - self.world.now))
            order = orders.pop(0)  # one that was asked for is not asked for again
            try:
                await app.send(order)
            except (QueueFull, StoreUnavailable, ServerUnreachable):
                pass
            except PenstockError as error:
                if DOUBT not in str(error):
                    app.recorder.note(Trouble, error=f"{type(error).__name__}: {error}")

    # Faults

    async def _carry_out(self) -> None:
        for event in self.plan:
            if isinstance(event, Order):
                continue
            await asyncio.sleep(max(0.0, event.at - self.world.now))
            if isinstance(event, Steer):
                self._steer(event)
            else:
                self.world.tell(f"-- {event.kind} {event.target} {event.amount:g}")
                self._strike(event)
        while any(self._orders.values()):  # noqa: ASYNC110 - virtual time costs nothing
            await asyncio.sleep(1)

    def _strike(self, fault: Fault) -> None:
        worker = self._at("worker", fault.target % plans.WORKERS)
        producer = self._at("producer", fault.target % plans.PRODUCERS)
        match fault.kind:
            case "kill":
                self.kill(worker, fault.amount)
            case "kill-producer":
                self.kill(producer, fault.amount)
            case "stop":
                target = worker if fault.target % 4 else producer
                self.disturbed.add(target.name)
                self.world.stop(target)
                self.later(fault.amount, lambda: self.world.resume(target))
            case "kill-server":
                self.kill(self._places[SERVERS[fault.target % len(SERVERS)]], fault.amount)
            case "jump":
                self._clock(fault).jump(fault.amount)
            case "drift":
                self._clock(fault).drift(fault.amount)
                self.later(10.0, lambda: self._clock(fault).drift(1.0))
            case "crash":
                self.cut_power()
            case _:
                places = self._places.items()
                here = [process for place, process in places if not self._is_elsewhere(place)]
                self.machine.strike(fault, here, self)

    def _clock(self, fault: Fault) -> WallClock:
        """The clock of one of the machines."""
        elsewhere = self.machine.network is not None and fault.target % 3 == 0
        return self.other_clock if elsewhere else self.world.clock

    def _at(self, place: str, n: int) -> Process:
        return self._places[f"{place}{n}" if self.machine.is_shared else "owner"]

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Do something after so many seconds, whoever has died until then."""
        self.nemesis.loop.call_later(seconds, call)

    def kill(self, process: Process, pause: float = _RESTART) -> None:
        """Kill a process; after a pause, another one takes its place."""
        if not process.alive:
            return
        self.world.tell(f"-- {process.name} dies")
        self.disturbed.add(process.name)
        self.world.kill(process)
        for place, one in self._places.items():
            if one is process:
                self._owned = None
                self.later(pause, lambda place=place: self._start(place))  # type: ignore[misc] # bound early

    def cut_power(self) -> None:
        """The machine loses its power, and what its disk has not synced."""
        self.world.tell("-- the machine crashes")
        for process in list(self.world.processes):
            if process is not self.nemesis and not self._is_elsewhere(process.name):
                self.kill(process)
        self.world.after_callback(self.machine.lose_power)

    def _recover(self) -> None:
        """The faults end: whatever is left of them is undone."""
        self.world.tell("-- the faults end")
        self.machine.heal()
        for clock in (self.world.clock, self.other_clock):
            clock.drift(1.0)
        for process in list(self.world.processes):
            self.world.resume(process)
        if any(isinstance(event, Steer) and event.kind == "pause" for event in self.plan):
            operator, app = self._visitor("operator")  # the one who paused may have died
            operator.start(self._resume(app))

    # People

    def _steer(self, event: Steer) -> None:
        if not self.machine.is_shared and self._owned is None:
            return  # nobody can reach the store
        operator, app = self._visitor("operator")
        act = self._pause(app, event.amount) if event.kind == "pause" else self._cancel(app)
        operator.start(act)

    async def _pause(self, app: Program, seconds: float) -> None:
        with contextlib.suppress(PenstockError):
            await app.queues.pause("valve")
        await asyncio.sleep(seconds)
        await self._resume(app)

    async def _resume(self, app: Program) -> None:
        while True:
            with contextlib.suppress(PenstockError):
                await app.queues.resume("valve")
                return
            await asyncio.sleep(1)

    async def _cancel(self, app: Program) -> None:
        with contextlib.suppress(PenstockError):
            for job in await app.find(JobQuery(limit=2)):
                await app.cancel(job.id)

    # The end

    async def _settled(self, app: Program) -> None:
        """Return when every job is final, or when it has taken too long."""
        deadline = self.world.now + SETTLING
        while self.world.now < deadline:
            counts = await app.count()
            if not any(n for (_, state, _), n in counts.items() if not state.final):
                return
            await asyncio.sleep(_LOOK_EVERY)


@contextlib.contextmanager
def _closing(world: World) -> Iterator[None]:
    try:
        yield
    finally:
        with quiet():
            world.close()


@contextlib.contextmanager
def _logged(world: World) -> Iterator[None]:
    """Tell what is logged, in place of printing it."""
    logger = logging.getLogger("penstock")
    teller = _Teller(world)
    before = logger.propagate, logger.level
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    logger.addHandler(teller)
    try:
        yield
    finally:
        logger.removeHandler(teller)
        logger.propagate, logger.level = before


class _Teller(logging.Handler):
    """Adds what is logged to the story of a world."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.tell(f"  log: {record.getMessage()}")
