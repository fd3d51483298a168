"""Suites: who is compared, in what, and which bars it has to clear."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path

from benchmarks.contenders import Contender
from benchmarks.places import Ground, folders
from benchmarks.results import Results
from benchmarks.scenarios import Load, Scenario

NAMES: Mapping[str, str] = {
    "django": "benchmarks.suites.django",
    "django-postgres": "benchmarks.suites.django_postgres",
    "embedded": "benchmarks.suites.embedded",
    "entries": "benchmarks.suites.entries",
    "http": "benchmarks.suites.http",
    "imports": "benchmarks.suites.imports",
    "indexing": "benchmarks.suites.indexing",
    "ingest": "benchmarks.suites.ingest",
    "lists": "benchmarks.suites.lists",
    "names": "benchmarks.suites.names",
    "notebooks": "benchmarks.suites.notebooks",
    "peers": "benchmarks.suites.peers",
    "postgres": "benchmarks.suites.postgres",
    "sizes": "benchmarks.suites.sizes",
    "soak": "benchmarks.suites.soak",
}
"""The module of each suite; it defines SUITE."""

USUAL = Load()

Limit = Callable[[Results], float | None]
"""Where a bar lies: fixed, or relative to what others reached in the same run."""


class Verdict(Enum):
    """How a bar was met."""

    AIM = "aim reached"
    SHORT = "short of the aim"
    MISSED = "floor missed"
    UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True)
class Column:
    """A figure that all contenders are compared in."""

    title: str
    figure: str
    format: str = "{:,.0f}"
    less_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure of ours with a floor it must reach and an aim it should."""

    title: str
    figure: str
    floor: Limit
    aim: Limit
    format: str = "{:,.0f}/s"
    less_is_better: bool = False

    def judge(self, results: Results, ours: str) -> Verdict:
        """Compare; a floor or an aim that is not known does not count."""
        measured, floor, aim = (
            results.get(ours, self.figure),
            self.floor(results),
            self.aim(results),
        )
        if measured is None or (floor is None and aim is None):
            return Verdict.UNKNOWN
        if floor is not None and not self._reaches(measured, floor):
            return Verdict.MISSED
        if aim is not None and not self._reaches(measured, aim):
            return Verdict.SHORT
        return Verdict.AIM

    def _reaches(self, measured: float, limit: float) -> bool:
        return measured <= limit if self.less_is_better else measured >= limit


@dataclass(frozen=True, slots=True)
class Suite:
    """One comparison."""

    name: str
    ours: str
    contenders: Sequence[Contender]
    scenarios: Sequence[Scenario]
    columns: Sequence[Column]
    details: Sequence[Column]
    """Figures only we have."""
    bars: Sequence[Bar]
    ground: Ground = folders
    about: Callable[[Path], Mapping[str, str]] = lambda _: {}
    """What else to know of the places that runs have."""
    load: Load = USUAL
    """How much to measure, unless the command line says otherwise."""


def load_suite(name: str) -> Suite:
    """Import a suite by name; the others' libraries stay unloaded."""
    suite = import_module(NAMES[name]).SUITE
    if not isinstance(suite, Suite):
        raise TypeError(f"{NAMES[name]}.SUITE is not a Suite")
    return suite


def at(value: float) -> Limit:
    """A fixed limit."""
    return lambda _: value


def none(_: Results) -> None:
    """No limit."""


def best_of(figure: str, shares: Mapping[str, float]) -> Limit:
    """The highest of the contenders' figures, each times its share; all must be there."""

    def limit(results: Results) -> float | None:
        reached = [
            share * value
            for name, share in shares.items()
            if (value := results.get(name, figure)) is not None
        ]
        return max(reached) if len(reached) == len(shares) else None

    return limit
