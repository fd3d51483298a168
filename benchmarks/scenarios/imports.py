"""How long imports take, as multiples of an empty start of Python (penstock only).

Processor time of the child processes, which other work on the machine changes less than the time
that passes.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.contenders import Contender
from benchmarks.scenarios import Figures, Load, Scenario

STARTS: Mapping[str, str] = {
    "empty": "pass",
    "penstock": "import penstock",
    "cli": "import penstock.cli.main",
}
TURNS = 15


def imports(contender: Contender, folder: Path, load: Load) -> Figures:  # noqa: ARG001 - no store
    """The least disturbed of 15 starts each, in turn, so that all of them meet the same load.

    Modules are compiled before, as they are where a package is installed.
    """
    variables = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder)}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    for code in STARTS.values():
        _processor_time(code, variables)
    seconds: dict[str, list[float]] = {name: [] for name in STARTS}
    for _ in range(TURNS):
        for name, code in STARTS.items():
            seconds[name].append(_processor_time(code, variables))
    least = {name: min(found) for name, found in seconds.items()}
    return {
        **{f"{name}_ms": 1000 * one for name, one in least.items()},
        **{f"{name}_times": one / least["empty"] for name, one in least.items() if name != "empty"},
    }


def _processor_time(code: str, variables: Mapping[str, str]) -> float:
    """Seconds of processor time that an interpreter takes from start to end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, env=variables)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


SCENARIOS = (Scenario("imports", imports),)
