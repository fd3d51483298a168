"""Runs a suite: every run in a fresh process and folder, contenders taking turns."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import processes
from benchmarks.contenders import Contender
from benchmarks.results import Results
from benchmarks.scenarios import Figures, Load, Scenario

Progress = Callable[[str], None]


def run(
    contenders: Sequence[Contender],
    scenarios: Sequence[Scenario],
    load: Load,
    folder: Path,
    progress: Progress,
) -> Results:
    """Measure round by round, so that a slow minute of the machine hits all contenders alike.

    A run that fails is reported and not repeated; the others go on.
    """
    results = Results()
    for scenario in scenarios:
        turns = [c for c in contenders if not scenario.contenders or c.name in scenario.contenders]
        for turn in range(load.rounds if scenario.interleaves else 1):
            for contender in tuple(turns):
                progress(f"{scenario.name}, round {turn + 1}: {contender.title}")
                figures = _measure(contender, scenario, load, folder, results)
                if figures is None:
                    turns.remove(contender)
                else:
                    results.add(contender.name, scenario.name, figures)
    return results


def _measure(
    contender: Contender, scenario: Scenario, load: Load, folder: Path, results: Results
) -> Figures | None:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=folder) as fresh:
        try:
            return processes.run(scenario.measure, contender, Path(fresh), load)
        except Exception as error:  # noqa: BLE001 - whatever a contender raises, the rest goes on
            results.failures.append(f"{scenario.name}, {contender.title}: {error!r}")
            return None
