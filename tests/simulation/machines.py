"""The machines of simulated worlds: where jobs are kept, and what can go wrong there."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from penstock.core.store import Store
from penstock.stores import open_store
from penstock.testing.simulation.world import Process, World
from tests.simulation.disk import Disk, ProcessFiles
from tests.simulation.network import Network
from tests.simulation.plan import Fault
from tests.simulation.sqlite import Driver

SERVERS = ("server0", "server1")
DISK_FAULTS = (
    "die-at-disk",
    "fail-write",
    "fail-sync",
    "fail-sync-then-crash",
    "fail-sync-drops",
    "full",
    "crash",
    "crash-at-disk",
)
NETWORK_FAULTS = ("cut", "duplicate", "delay", "partition", "kill-server")
PROCESS_FAULTS = ("kill", "kill-producer", "stop", "jump", "drift")


class Striker(Protocol):
    """What kills processes, and starts others in their place."""

    def kill(self, process: Process) -> None: ...

    def cut_power(self) -> None: ...

    def later(self, seconds: float, call: Callable[[], object]) -> None: ...


class Machine:
    """The machine that all processes of a world share; by itself, one without a disk."""

    faults: ClassVar[Sequence[str]] = PROCESS_FAULTS
    own_faults: ClassVar[Sequence[str]] = ()
    is_shared: ClassVar[bool] = True
    """Whether several processes can open the store."""
    events_share: ClassVar[float] = 0.0
    """How many of the orders are events, which need a server."""
    url: str
    network: Network | None = None

    def __init__(self, world: World) -> None:
        self.world = world

    def files(self) -> ProcessFiles | None:
        """The files as a new process sees them."""
        return None

    def attach(self, process: Process) -> None:
        """Let a new process use the machine."""

    def open(self, url: str, **options: Any) -> Store:
        """Open the store."""
        return open_store(url, **options)

    def without_folder(self, text: str) -> str:
        """A text without the name of the folder, which is another one every time."""
        return text

    def strike(self, fault: Fault, processes: Sequence[Process], striker: Striker) -> None:
        """Let something go wrong with the disk."""

    def lose_power(self) -> None:
        """Lose what was not synced; all processes are dead."""

    def heal(self) -> None:
        """From now on, nothing goes wrong any more."""

    def close(self) -> None:
        """Remove everything."""


class MemoryMachine(Machine):
    """One store in memory, which survives the processes that use it."""

    url = "memory://"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._store = open_store(self.url, runtime=world.process("store").runtime)

    def open(self, url: str, **options: Any) -> Store:
        return self._store


class DiskMachine(Machine):
    """A machine whose disk fails, fills up, and loses what was not synced."""

    faults: ClassVar[Sequence[str]] = (*PROCESS_FAULTS, *DISK_FAULTS)
    own_faults: ClassVar[Sequence[str]] = DISK_FAULTS

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.disk = Disk(world)

    def files(self) -> ProcessFiles:
        return ProcessFiles(self.disk)

    def attach(self, process: Process) -> None:
        files = process.runtime.files
        assert isinstance(files, ProcessFiles)
        files.belong_to(process)

    def strike(self, fault: Fault, processes: Sequence[Process], striker: Striker) -> None:
        alive = [process for process in processes if process.alive]
        if fault.kind == "full":
            self.disk.is_full = True
            striker.later(fault.amount, self._free)
        elif alive:
            self.disk.die, self.disk.cut = striker.kill, striker.cut_power
            self.disk.later = striker.later
            whose = None if "crash" in fault.kind else alive[fault.target % len(alive)]
            self.disk.strike(fault.kind, whose, int(fault.amount))

    def without_folder(self, text: str) -> str:
        return text.replace(str(self.disk.folder), "/disk")

    def _free(self) -> None:
        self.disk.is_full = False

    def lose_power(self) -> None:
        self.disk.lose_power()

    def heal(self) -> None:
        self.disk.heal()

    def close(self) -> None:
        self.disk.close()


class SqliteMachine(DiskMachine):
    """Processes that share a SQLite file."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.url = f"sqlite:///{self.disk.folder}/jobs.db"

    def attach(self, process: Process) -> None:
        super().attach(process)
        driver: Any = Driver(self.disk, process)
        process.runtime.sqlite = driver.connect

    def lose_power(self) -> None:
        for shared in self.disk.folder.glob("*.db-shm"):
            shared.unlink()
        super().lose_power()


class ServerMachine(SqliteMachine):
    """A machine with two servers and some workers; producers and a worker are on another one."""

    faults: ClassVar[Sequence[str]] = (*DiskMachine.faults, *NETWORK_FAULTS)
    own_faults: ClassVar[Sequence[str]] = NETWORK_FAULTS
    events_share = 0.4

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.network: Network = Network(world)

    def strike(self, fault: Fault, processes: Sequence[Process], striker: Striker) -> None:
        server = SERVERS[fault.target % len(SERVERS)]
        if fault.kind not in NETWORK_FAULTS:
            super().strike(fault, processes, striker)
        else:
            self.network.strike(fault.kind, server, fault.amount)

    def heal(self) -> None:
        super().heal()
        self.network.heal()


class MovingMachine(SqliteMachine):
    """A machine with two SQLite files, and a process that moves all from one to the other."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.target = f"sqlite:///{self.disk.folder}/target.db"


class JournalMachine(DiskMachine):
    """One process with everything in it, and its journal."""

    is_shared = False

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.url = f"journal:///{self.disk.folder}/jobs"


MACHINES: dict[str, type[Machine]] = {
    "memory": MemoryMachine,
    "sqlite": SqliteMachine,
    "journal": JournalMachine,
    "servers": ServerMachine,
    "moving": MovingMachine,
}
