"""What is measured: each scenario is a function that runs in a fresh process and folder."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import usage
from benchmarks.contenders import Contender

Figures = Mapping[str, float]

USED = {
    "job_cpu": "processor time a job, µs",
    "job_bytes": "bytes written a job",
    "peak": "memory, MB",
}
"""What `Stopwatch.figures` adds to a rate, and how the report calls it."""


@dataclass(frozen=True, slots=True)
class Load:
    """How much to measure."""

    jobs: int = 20_000
    rounds: int = 3
    backlog: int = 1_000_000
    claims: int = 300
    samples: int = 300
    idle_seconds: float = 5.0
    limit_seconds: float = 8.0
    """Jobs added one by one are measured for at most so long."""
    drain_seconds: float = 30.0
    """Drains are measured for at most so long."""
    held_seconds: float = 60.0
    """How long a transaction of others stays open."""
    soak_jobs: int = 10_000_000
    soak_minutes: float = 60.0
    """How long a transaction of others stays open in a soak."""


Measure = Callable[[Contender, Path, Load], Figures | None]
"""None: the contender cannot do that."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named measurement; its figures are reported as `name.figure`."""

    name: str
    measure: Measure
    contenders: Sequence[str] = ()
    """Empty for all."""
    interleaves: bool = True
    """False when one run already alternates between what it compares."""


@dataclass(slots=True)
class Stopwatch:
    """What the body of `timed` took: seconds, processor time, memory and bytes written."""

    seconds: float = 0.0
    cpu: float = 0.0
    memory: float = 0.0
    written: float | None = None

    def figures(self, jobs: int) -> Figures:
        """Return the rate of so many jobs and what each of them took: see `USED`."""
        found = {
            "rate": jobs / self.seconds,
            "job_cpu": self.cpu / jobs * 1e6,
            "peak": self.memory / 1e6,
        }
        if self.written is not None:
            found["job_bytes"] = self.written / jobs
        return found


@contextmanager
def timed(place: Path | None = None, *, process: int | None = None) -> Iterator[Stopwatch]:
    """Time the body, on a disk that has nothing left to write from before it.

    Processor time and bytes are those of this process and of the children that ended in the body,
    or of another `process`; memory is the highest so far. In a `place` with a database on a server,
    the bytes are those of its write-ahead log.
    """
    os.sync()
    watch = Stopwatch()
    before = usage.of(place, process)
    start = time.perf_counter()
    yield watch
    watch.seconds = time.perf_counter() - start
    after = usage.of(place, process)
    watch.cpu = after.cpu - before.cpu
    watch.memory = after.memory
    if before.written is not None and after.written is not None:
        watch.written = after.written - before.written


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of them stays below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
