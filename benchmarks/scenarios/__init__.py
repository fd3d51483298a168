"""What is measured: each scenario is a function that runs in a fresh process and folder."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import Contender

Figures = Mapping[str, float]


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
    """Seconds spent in the body of `timed`."""

    seconds: float = 0.0


@contextmanager
def timed() -> Iterator[Stopwatch]:
    """Time the body, on a disk that has nothing left to write from before it."""
    os.sync()
    watch = Stopwatch()
    start = time.perf_counter()
    yield watch
    watch.seconds = time.perf_counter() - start


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of them stays below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
