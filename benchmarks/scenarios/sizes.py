"""How much a job takes on disk (penstock only); a busy machine does not change that."""

from pathlib import Path

from benchmarks.contenders import Contender
from benchmarks.contenders.penstock import PenstockQueue, open_ours
from benchmarks.scenarios import Figures, Load, Scenario
from benchmarks.scenarios.lines import fill
from benchmarks.scenarios.throughput import drain_rate
from penstock import run_sync


def sizes(contender: Contender, folder: Path, load: Load) -> Figures:
    """Bytes of an empty store, of a waiting job, and of a finished one with its log."""
    queue = open_ours(contender, folder)
    run_sync(queue.app.count())
    empty = _size(queue)
    fill(queue, load.jobs)
    waiting = _size(queue)
    drain_rate(open_ours(contender, folder), load.jobs)
    done = queue.size()
    return {
        "empty": empty,
        "waiting": (waiting - empty) / load.jobs,
        "done": (done - empty) / load.jobs,
    }


def _size(queue: PenstockQueue) -> float:
    """The size with everything in one file; a store opens again at the next call."""
    queue.close()
    return queue.size()


SCENARIOS = (Scenario("sizes", sizes, interleaves=False),)
