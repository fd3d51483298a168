"""How long it takes to import the package and the command, beside an empty start of Python."""

from benchmarks.contenders import Contender
from benchmarks.scenarios.imports import SCENARIOS, STARTS
from benchmarks.suites import Bar, Column, Suite, at, none

_MOST = {"penstock": 5, "enqueuer": 7, "cli": 9, "command": 9}


def _title(name: str) -> str:
    """What a start does: code, or a command."""
    _, *rest = STARTS[name]
    return " ".join(rest)


SUITE = Suite(
    name="imports",
    ours="penstock",
    contenders=(
        Contender(
            "penstock", "penstock", "benchmarks.contenders.penstock:PenstockQueue", "penstock"
        ),
    ),
    scenarios=SCENARIOS,
    columns=(),
    details=tuple(
        Column(f"{_title(name)}, processor time, ms", f"imports.{name}_ms", "{:.1f}")
        for name in STARTS
    ),
    bars=tuple(
        Bar(
            f"{_title(name)}, against an empty start",
            f"imports.{name}_times",
            at(most),
            none,
            "{:.1f} times",
            less_is_better=True,
        )
        for name, most in _MOST.items()
    ),
)
