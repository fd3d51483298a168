"""The scenario `moving`: a process moves a queue from one SQLite file to another.

It is struck and started again until the move has ended; then both files are compared.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from penstock.core.errors import PenstockError
from penstock.core.migration_lock import MigrationPhase
from penstock.core.store import Store
from penstock.engine import migration
from penstock.engine.penstock import Penstock
from penstock.testing.simulation.world import Deadlock, Process, World
from tests.contract.support import add, everything, new
from tests.crash.history import Violation
from tests.moving import assert_moved, fill
from tests.simulation.machines import MovingMachine
from tests.simulation.plan import Event, Fault

T = TypeVar("T")

_KINDS = (
    "kill",
    "die-at-disk",
    "crash-at-disk",
    "fail-write",
    "fail-sync",
    "fail-sync-then-crash",
    "fail-sync-drops",
    "full",
)
_TIMED = {"kill", "full"}
_MOST_LIVES = 7
_PORTION = 5
_JOBS = 30
_LIMIT = 600.0
_PAUSE = 1.0


def make(seed: int, kinds: Sequence[str] = ()) -> list[Event]:
    """The plan of a seed: what befalls the mover in each of its lives, which `at` counts."""
    rng = random.Random(f"moving {seed}")
    found: list[Event] = []
    for life in range(rng.randint(1, _MOST_LIVES)):
        kind = rng.choice(kinds or _KINDS)
        most = rng.choice([5, 20, 60, 150])  # calls of the disk
        amount = rng.uniform(0, 0.3) if kind in _TIMED else rng.randint(1, most)
        found.append(Fault(float(life), kind, 0, amount))
    return found


class Moving:
    """One world, and the lives of the process in it that moves the queue."""

    def __init__(self, world: World, machine: MovingMachine, plan: Sequence[Event]) -> None:
        self._world = world
        self._machine = machine
        self._plan = plan
        self._nemesis = world.process("nemesis")
        self.jobs = 0

    def run(self) -> list[Violation]:
        with _small_portions():
            return self._run()

    def _run(self) -> list[Violation]:
        try:
            self._finish(self._process("setup"), self._fill)
            for life, fault in enumerate(self._plan):
                assert isinstance(fault, Fault)
                self._live(life, fault)
            self._machine.heal()
            self._finish(self._process("mover.last"), self._move)
            return self._finish(self._process("observer"), self._compare)
        except (TimeoutError, Deadlock, PenstockError) as error:
            return [Violation(4, f"{type(error).__name__}: {error}")]

    def _live(self, life: int, fault: Fault) -> None:
        """Move until the process dies, an error ends it, or all is moved."""
        process = self._process(f"mover.{life}")
        self._world.tell(f"-- {fault.kind} {fault.amount:g}")
        if fault.kind == "kill":
            self.later(fault.amount, lambda: self.kill(process))
        else:
            self._machine.strike(fault, [process], self)
        task = process.start(self._move(process))
        self._world.run(lambda: task.done() or not process.alive, limit=_LIMIT)
        if task.done() and (error := task.exception()) is not None:
            self._world.tell(f"{process.name}: {error}")
            if not isinstance(error, PenstockError):
                raise error
        self.kill(process)
        pause = self._nemesis.start(asyncio.sleep(_PAUSE))
        self._world.wait(pause, limit=_LIMIT)  # what is to happen later happens meanwhile

    # Faults

    def kill(self, process: Process) -> None:
        """See `Striker`."""
        self._world.kill(process)

    def cut_power(self) -> None:
        """See `Striker`."""
        self._world.tell("-- the machine crashes")
        for process in list(self._world.processes):
            if process is not self._nemesis:
                self.kill(process)
        self._world.after_callback(self._machine.lose_power)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """See `Striker`."""
        self._nemesis.loop.call_later(seconds, call)

    # What processes do

    def _process(self, name: str) -> Process:
        process = self._world.process(name, self._machine.files())
        self._machine.attach(process)
        return process

    def _finish(self, process: Process, act: Callable[[Process], Coroutine[Any, Any, T]]) -> T:
        """Let a process do something, undisturbed."""
        found = self._world.wait(process.start(act(process)), limit=_LIMIT)
        self.kill(process)
        return found

    def _opened(self, process: Process) -> list[Penstock]:
        urls = (self._machine.url, self._machine.target)
        return [Penstock(url, actor=process.name, runtime=process.runtime) for url in urls]

    async def _fill(self, process: Process) -> None:
        source, _ = self._opened(process)
        await fill(source.store, self._world.start)
        await add(source.store, *[new()] * _JOBS)
        await source.close()

    async def _move(self, process: Process) -> None:
        source, target = self._opened(process)
        moved = await migration.migrate(source, target)
        self._world.tell(f"{process.name}: moved {moved.moved} of {moved.jobs} jobs")

    async def _compare(self, process: Process) -> list[Violation]:
        source, target = [app.store for app in self._opened(process)]
        self.jobs = len(await everything(target))
        return [violation async for violation in _differences(source, target)]


async def _differences(source: Store, target: Store) -> AsyncIterator[Violation]:
    lock = await source.migration_lock()
    if lock is None or lock.phase is not MigrationPhase.LEFT:
        yield Violation(1, f"the source is not left: {lock}")
    if await target.migration_lock() is not None:
        yield Violation(4, "the target is still locked")
    try:
        await assert_moved(source, target)
    except AssertionError as error:
        yield Violation(1, f"the stores differ: {error}")


@contextlib.contextmanager
def _small_portions() -> Iterator[None]:
    """Move few jobs at a time, so that there is much to interrupt."""
    patched: Any = migration
    before, patched.PORTION = patched.PORTION, _PORTION
    try:
        yield
    finally:
        patched.PORTION = before
