"""Rates, sizes and memory at the end of millions of jobs against those at the beginning."""

from benchmarks import postgres
from benchmarks.contenders import Contender
from benchmarks.scenarios import soak
from benchmarks.suites import Bar, Column, Suite, at, none

_RATIO = "{:.2f}x"
_TITLES = {
    "enqueue": "enqueue in thousands, jobs/s",
    "drain": "drain, jobs/s",
    "size": "on disk, MB",
    "memory": "memory, MB",
}
_LESS = ("size", "memory")
_PHASES = {"first": "at the beginning", "held": "a transaction held open", "last": "at the end"}

SUITE = Suite(
    name="soak",
    ours="penstock",
    contenders=(
        Contender(
            "penstock", "penstock", "benchmarks.contenders.penstock:PenstockQueue", "penstock"
        ),
    ),
    scenarios=soak.SCENARIOS,
    columns=(),
    details=tuple(
        column
        for scenario in soak.SCENARIOS
        for column in (
            Column(f"{scenario.name}: jobs", f"{scenario.name}.jobs"),
            Column(f"{scenario.name}: minutes", f"{scenario.name}.minutes", "{:,.1f}"),
            *(
                Column(
                    f"{scenario.name}: {_TITLES[name]}, {title}",
                    f"{scenario.name}.{name}_{phase}",
                )
                for name in soak.MEASURED
                for phase, title in _PHASES.items()
            ),
        )
    ),
    bars=tuple(
        Bar(
            f"{scenario.name}: {_TITLES[name].partition(',')[0]}, end against beginning",
            f"{scenario.name}.{name}_ratio",
            at(1.1 if name in _LESS else 0.9),
            none,
            _RATIO,
            less_is_better=name in _LESS,
        )
        for scenario in soak.SCENARIOS
        for name in soak.MEASURED
    ),
    ground=postgres.databases,
    about=postgres.about,
)
