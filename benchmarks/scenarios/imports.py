"""How long imports take, as multiples of an empty start of Python (penstock only).

Processor time of the child processes, which other work on the machine changes less than the time
that passes.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.contenders import Contender
from benchmarks.scenarios import Figures, Load, Scenario

STARTS: Mapping[str, Sequence[str]] = {
    "empty": ("-c", "pass"),
    "penstock": ("-c", "import penstock"),
    "enqueuer": ("-c", "from penstock import Penstock"),
    "cli": ("-c", "import penstock.cli.main"),
    "command": ("-m", "penstock", "jobs", "--help"),
}
"""The package and the command import the rest when it is used: two more starts use some of it."""
TURNS = 15


def imports(contender: Contender, folder: Path, load: Load) -> Figures:  # noqa: ARG001 - no store
    """The least disturbed of 15 starts each, in turn, so that all of them meet the same load.

    Modules are compiled before, as they are where a package is installed.
    """
    variables = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder)}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    for arguments in STARTS.values():
        _processor_time(arguments, variables)
    seconds: dict[str, list[float]] = {name: [] for name in STARTS}
    for _ in range(TURNS):
        for name, arguments in STARTS.items():
            seconds[name].append(_processor_time(arguments, variables))
    least = {name: min(found) for name, found in seconds.items()}
    return {
        **{f"{name}_ms": 1000 * one for name, one in least.items()},
        **{f"{name}_times": one / least["empty"] for name, one in least.items() if name != "empty"},
    }


def _processor_time(arguments: Sequence[str], variables: Mapping[str, str]) -> float:
    """Seconds of processor time that an interpreter takes from start to end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *arguments]
    subprocess.run(command, check=True, env=variables, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


SCENARIOS = (Scenario("imports", imports),)
