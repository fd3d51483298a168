"""Runs a suite: every run in a fresh process and place, contenders taking turns."""

from collections.abc import Callable, Sequence

from benchmarks import processes
from benchmarks.contenders import Contender
from benchmarks.places import Fresh
from benchmarks.results import Results
from benchmarks.scenarios import Figures, Load, Scenario

Progress = Callable[[str], None]


def run(
    contenders: Sequence[Contender],
    scenarios: Sequence[Scenario],
    load: Load,
    fresh: Fresh,
    progress: Progress,
) -> Results:
    """Measure round by round, so that a slow minute of the machine hits all contenders alike.

    A run that fails is reported and not repeated; the others go on.
    """
    results = Results()
    for scenario in scenarios:
        turns = [contender for contender in contenders if _meet(contender, scenario)]
        for turn in range(load.rounds if scenario.interleaves else 1):
            for contender in tuple(turns):
                progress(f"{scenario.name}, round {turn + 1}: {contender.title}")
                figures = _measure(contender, scenario, load, fresh, results)
                if figures is None:
                    turns.remove(contender)
                else:
                    results.add(contender.name, scenario.name, figures)
    return results


def _meet(contender: Contender, scenario: Scenario) -> bool:
    """Whether both want to have to do with each other."""
    return (not scenario.contenders or contender.name in scenario.contenders) and (
        not contender.scenarios or scenario.name in contender.scenarios
    )


def _measure(
    contender: Contender, scenario: Scenario, load: Load, fresh: Fresh, results: Results
) -> Figures | None:
    with fresh() as place:
        try:
            return processes.run(scenario.measure, contender, place, load)
        except Exception as error:  # noqa: BLE001 - whatever a contender raises, the rest goes on
            results.failures.append(f"{scenario.name}, {contender.title}: {error!r}")
            return None
