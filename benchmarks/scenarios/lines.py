"""How fast the lines of a few keys are worked off (penstock only)."""

from pathlib import Path

from benchmarks.contenders import Contender, make_payload
from benchmarks.contenders.penstock import PenstockQueue, open_ours
from benchmarks.scenarios import Figures, Load, Scenario
from benchmarks.scenarios.throughput import drain_rate
from penstock import run_sync

_CHUNK = 1_000
_WARM_UP = 1_000


def lines(contender: Contender, folder: Path, load: Load) -> Figures:
    """Drains jobs of one key, of ten keys, and without keys; `share` is the first in the last."""
    rates = {}
    for name, keys in (("warm", 1), ("plain", 0), ("one", 1), ("ten", 10)):
        queue = open_ours(contender, folder, name)
        jobs = _WARM_UP if name == "warm" else load.jobs
        fill(queue, jobs, keys)
        queue.rest()
        rates[name] = drain_rate(queue, jobs)
    del rates["warm"]
    return {**rates, "share": rates["one"] / rates["plain"]}


def fill(queue: PenstockQueue, jobs: int, keys: int = 0) -> None:
    """Add so many jobs, in portions; with so many keys in turn, or with none."""
    for start in range(0, jobs, _CHUNK):
        new = [
            (queue.task.using(key=f"key-{n % keys}") if keys else queue.task).new(
                make_payload(str(n))
            )
            for n in range(start, min(start + _CHUNK, jobs))
        ]
        run_sync(queue.app.enqueue_many(new))


SCENARIOS = (Scenario("lines", lines, ("penstock",)),)
