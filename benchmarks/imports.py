"""How long imports take, as multiples of an empty start: `python -m benchmarks.imports`.

Processor time of the child processes, which other work on the machine changes less than the time
that passes. All of them find their modules compiled, whatever the caller's environment says about
that. Kept beside the figures of the suites.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import median

from benchmarks import machine
from benchmarks.cli import KEPT, ON_DISK
from benchmarks.report import SCHEMA

COMMAND = "python -m benchmarks.imports"
ROUNDS = 15
STARTS: Mapping[str, Sequence[str]] = {
    "empty": ("-c", "pass"),
    "penstock": ("-c", "import penstock"),
    "enqueuer": ("-c", "from penstock import Penstock"),
    "cli": ("-c", "import penstock.cli.main"),
    "command": ("-m", "penstock", "jobs", "--help"),
}
MOST = {"penstock": 5.0, "enqueuer": 7.0, "cli": 9.0, "command": 9.0}
"""How many times an empty start each may take, on a machine that is otherwise idle.

The package and the command import the rest when it is used, so two more starts use some of it.
"""


def main() -> int:
    """Measure, print and keep; 1 if one takes too long."""
    runs: dict[str, list[float]] = {name: [] for name in STARTS}
    with tempfile.TemporaryDirectory() as compiled:
        for arguments in STARTS.values():
            _processor_time(arguments, compiled)
        for _ in range(ROUNDS):  # in turn, so that all of them meet the same load
            for name, arguments in STARTS.items():
                runs[name].append(_processor_time(arguments, compiled))
    times = {name: min(found) for name, found in runs.items()}  # the least disturbed
    multiples = {name: times[name] / times["empty"] for name in MOST}
    for name, multiple in multiples.items():
        print(f"{name}: {multiple:.1f} times an empty start ({times[name] * 1000:.0f} ms)")
    document = json.loads(KEPT.read_text("utf-8"))
    if document["schema"] != SCHEMA:
        raise ValueError(f"{KEPT} has another schema than {SCHEMA}")
    document["runs"][COMMAND] = _run(runs, multiples)
    document["runs"] = dict(sorted(document["runs"].items()))
    KEPT.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return int(any(multiples[name] > most for name, most in MOST.items()))


def _processor_time(arguments: Sequence[str], compiled: str) -> float:
    """Seconds of processor time that an interpreter takes from start to end."""
    settings = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": compiled}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **settings},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _run(
    runs: Mapping[str, Sequence[float]], multiples: Mapping[str, float]
) -> Mapping[str, object]:
    figures = {
        f"{name}.milliseconds": {"median": median(found) * 1000, "runs": [1000 * t for t in found]}
        for name, found in runs.items()
    }
    figures |= {f"{name}.multiple": {"median": m, "runs": [m]} for name, m in multiples.items()}
    return {
        "suite": "imports",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": dict(machine.describe(ON_DISK)),
        "versions": dict(machine.versions(["penstock"])),
        "load": {"rounds": ROUNDS, "jobs": 0},
        "ours": "penstock",
        "titles": {"penstock": "penstock"},
        "figures": {"penstock": figures},
        "bars": [],
        "left_out": [],
        "failures": [],
    }


if __name__ == "__main__":
    sys.exit(main())
