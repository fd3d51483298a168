"""What a run found: every figure of every run, and the medians the report speaks of."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.scenarios import Figures


@dataclass(frozen=True, slots=True)
class Circumstances:
    """How a run was made: with which command, when, where, and on which versions."""

    command: str
    at: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]


@dataclass(slots=True)
class Results:
    """Figures by contender and `scenario.figure`; the median answers for all runs."""

    runs: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    failures: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, contender: str, scenario: str, figures: Figures) -> None:
        """Note one run."""
        for figure, value in figures.items():
            self.runs[contender][f"{scenario}.{figure}"].append(value)

    def get(self, contender: str, figure: str) -> float | None:
        """The median, or None when it was not measured."""
        values = self.all(contender, figure)
        return median(values) if values else None

    def all(self, contender: str, figure: str) -> Sequence[float]:
        """Run by run; empty when it was not measured."""
        return self.runs.get(contender, {}).get(figure, ())
