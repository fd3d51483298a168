"""How soon an idle worker starts a job of another process, and what its idling costs."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks import processes
from benchmarks.contenders import Contender, Payload, ServingQueue, make_payload
from benchmarks.scenarios import Figures, Load, Scenario, percentile
from benchmarks.tally import Tally

GAP_SECONDS = 0.02
WARM_UP = 10


@dataclass(slots=True)
class Clocks:
    """Read in the handler: how late each job is, and the CPU time this process has used by then."""

    wanted: int
    seen: Tally
    late: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def read(self, payload: Payload) -> bool:
        """Handle a job."""
        # CLOCK_MONOTONIC counts the same in every process of a machine.
        now = time.monotonic_ns()
        self.late.append((now - int(payload["mark"])) / 1e6)
        self.wall.append(now / 1e9)
        self.cpu.append(time.process_time())
        self.seen.numbers[0] += 1
        return len(self.late) < self.wanted


def pickup(contender: Contender, folder: Path, load: Load) -> Figures | None:
    """Jobs 20 ms apart, after a pause in which the worker has nothing to do."""
    queue = contender.open(folder)
    if not isinstance(queue, ServingQueue):
        queue.close()
        return None
    seen = Tally(folder / "seen")
    with processes.started(_serve, contender, folder, WARM_UP + load.samples) as answer:
        for n in range(WARM_UP + load.samples):
            if n == WARM_UP:  # on a busy machine the worker may still be starting
                seen.wait_for(WARM_UP, unless=answer.done)
            time.sleep(load.idle_seconds if n == WARM_UP else GAP_SECONDS)
            queue.enqueue(make_payload(str(time.monotonic_ns())))
        late, wall, cpu = answer.result()
    queue.close()
    late = late[WARM_UP:]
    idle_cpu, idle_wall = (readings[WARM_UP] - readings[WARM_UP - 1] for readings in (cpu, wall))
    return {"p50": median(late), "p99": percentile(late, 0.99), "idle": 100 * idle_cpu / idle_wall}


def _serve(contender: Contender, folder: Path, wanted: int) -> tuple[list[float], ...]:
    """The worker process."""
    queue = contender.open(folder)
    clocks = Clocks(wanted, Tally(folder / "seen"))
    if isinstance(queue, ServingQueue):
        queue.serve(clocks.read)
    queue.close()
    return clocks.late, clocks.wall, clocks.cpu


SCENARIOS = (Scenario("pickup", pickup),)
