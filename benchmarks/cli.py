"""The command line: `python -m benchmarks [SUITE] [options]`."""

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeVar

from rich.console import Console

from benchmarks import machine, report, runner, suites
from benchmarks.contenders.http import BEFORE, earlier_folder
from benchmarks.results import Circumstances
from benchmarks.scenarios import Load

QUICK = Load(
    jobs=2_000,
    rounds=1,
    backlog=50_000,
    claims=50,
    samples=50,
    idle_seconds=1.0,
    limit_seconds=2.0,
    drain_seconds=5.0,
    held_seconds=3.0,
    soak_jobs=20_000,
    soak_minutes=0.1,
)

ON_DISK = Path("/var/tmp")  # noqa: S108 - kept on disk where /tmp is often memory; files get random names


KEPT = Path("benchmarks/results.json")
"""The newest figures of each command, which the documentation draws its charts from."""


class Named(Protocol):
    """Anything picked by name on the command line."""

    @property
    def name(self) -> str:
        """As typed."""


N = TypeVar("N", bound=Named)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report; 1 when a run failed, 2 for bad arguments."""
    parser = _make_parser()
    options = parser.parse_args(argv)
    suite = suites.load_suite(options.suite)
    load = _make_load(options, suite.load)
    folder: Path = options.folder
    if (kind := machine.filesystem(folder)) in machine.IN_MEMORY:
        parser.error(f"{folder} is in memory ({kind}), where durable costs nothing; use --folder")
    contenders = _pick(parser, suite.contenders, options.only)
    scenarios = _pick(parser, suite.scenarios, options.scenario)
    present = [contender for contender in contenders if contender.is_there]
    packages = dict.fromkeys(c.package for c in present if c.package)
    with Console(stderr=True).status("") as status, suite.ground(folder) as fresh:
        with fresh() as place:
            circumstances = Circumstances(
                _command(sys.argv[1:] if argv is None else argv),
                datetime.now(UTC).isoformat(timespec="seconds"),
                machine.describe(folder),
                {**machine.versions(packages), **suite.about(place)},
            )
        results = runner.run(present, scenarios, load, fresh, status.update)
    results.left_out += [f"{c.title}: {c.missing}" for c in contenders if not c.is_there]
    report.show(Console(), suite, results, circumstances, load)
    if options.json and not options.quick:
        report.keep(options.json, suite, results, circumstances, load)
    return 1 if results.failures else 0


def _command(arguments: Sequence[str]) -> str:
    """Return the command of a run, without what does not change its figures.

    A tree that is measured beside this one is named by its commit, as a folder next to this one.
    """
    left = list(arguments)
    for option in ("--json", "--folder"):
        if option in left:
            place = left.index(option)
            del left[place : place + 2]
    command = shlex.join(["./dev", "bench", *left])
    return f"{BEFORE}={earlier_folder()} {command}" if BEFORE in os.environ else command


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", nargs="?", choices=sorted(suites.NAMES), default="embedded")
    parser.add_argument("--jobs", type=_positive, metavar="N", help="jobs per run")
    parser.add_argument("--rounds", type=_positive, metavar="N", help="runs per figure")
    parser.add_argument("--backlog", type=_positive, metavar="N", help="jobs in the large store")
    parser.add_argument("--quick", action="store_true", help="small and once: is all in order?")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="contenders")
    parser.add_argument("--scenario", nargs="+", metavar="NAME", help="scenarios, or their start")
    parser.add_argument("--minutes", type=float, metavar="N", help="of a soak, at least")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        default=KEPT,
        help="keep all figures here, unless --quick [default: %(default)s]",
    )
    default = ON_DISK if ON_DISK.is_dir() else Path(tempfile.gettempdir())
    parser.add_argument("--folder", type=Path, default=default, help="a folder on a real disk")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _make_load(options: argparse.Namespace, usual: Load) -> Load:
    load = QUICK if options.quick else usual
    wanted = {
        "jobs": options.jobs,
        "rounds": options.rounds,
        "backlog": options.backlog,
        "soak_jobs": options.jobs,
        "soak_minutes": options.minutes,
    }
    return replace(load, **{name: value for name, value in wanted.items() if value is not None})


def _pick(
    parser: argparse.ArgumentParser, things: Sequence[N], names: Sequence[str] | None
) -> list[N]:
    """Those with these names; a name that is no one's picks all that begin with it."""
    if names is None:
        return list(things)
    picked: set[str] = set()
    for name in names:
        exact = {thing.name for thing in things if thing.name == name}
        found = exact or {thing.name for thing in things if thing.name.startswith(name)}
        if not found:
            parser.error(f"no {name!r}; there are {', '.join(thing.name for thing in things)}")
        picked |= found
    return [thing for thing in things if thing.name in picked]
