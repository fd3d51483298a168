"""The command `./dev simulate`: plays seeds, tells which fail, and tells the story of one."""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.simulation.found import Found
from tests.simulation.machines import MACHINES
from tests.simulation.plan import Event
from tests.simulation.scenario import Result, make_plan, play
from tests.simulation.shrinking import shrink

_SEEDS = 100


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    try:
        failed = _play_all(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(1 if failed else 0)


def _play_all(options: argparse.Namespace) -> int:
    """Play all seeds, and return how many failed."""
    failed = played = 0
    begun = time.monotonic()
    scenarios = [options.scenario] if options.scenario else list(MACHINES)
    if options.broken:
        from tests.simulation.mutations import BROKEN

        broken = BROKEN[options.broken]
        broken.plant()
        scenarios = [options.scenario or broken.scenario]
        options.fault = options.fault or broken.fault
    kept: list[Event] | None = None
    if options.plan:
        found = Found.read(options.plan)
        scenarios, kept = [found.scenario], found.plan
        options.seed = found.seed if options.seed is None else options.seed
    for scenario, seed in _rounds(scenarios, options):
        kinds = options.fault.split(",") if options.fault else []
        result = play(scenario, seed, kept or make_plan(scenario, seed, kinds))
        played += 1
        if result.violations:
            failed += 1
            _clear()
            print(f"{scenario} seed {seed}: {_first(result)}")
            if options.shrink:
                result = shrink(result, _progress)
                _clear()
                print(f"  shrunk to {len(result.plan)} events: {_first(result)}")
                for event in result.plan:
                    print(f"    {event}")
            if options.keep:
                Found.of(result, options.keep, options.broken).write()
        if options.trace:
            _tell(result)
        if result.violations and options.until_failure:
            break
        rate = played / (time.monotonic() - begun)
        _progress(f"{played} seeds played, {failed} failed, {rate:.1f} a second")
    _clear()
    print(f"{played} seeds played, {failed} failed, {time.monotonic() - begun:.0f} s")
    return failed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, help="how many, for each scenario; else 100")
    parser.add_argument("--seed", type=int, help="play this one, or begin with it")
    parser.add_argument("--scenario", choices=list(MACHINES), help="play only this one")
    parser.add_argument("--until-failure", action="store_true", help="stop at the first failure")
    parser.add_argument("--trace", action="store_true", help="tell the story of every seed")
    parser.add_argument("--shrink", action="store_true", help="make the plans of failures short")
    parser.add_argument("--fault", help="let only faults of these kinds occur, such as kill,stop")
    parser.add_argument("--plan", type=Path, help="play a plan of tests/simulation/found")
    parser.add_argument("--keep", help="keep the plan of a failure there, under this name")
    parser.add_argument("--broken", help="plant a bug of tests/simulation/mutations.py before")
    return parser


def _rounds(scenarios: list[str], options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Scenarios take turns. A single seed is played once, unless it is to be a beginning."""
    first, seeds = options.seed or 0, options.seeds
    if seeds is None and options.until_failure:
        seeds = sys.maxsize
    elif seeds is None:
        seeds = _SEEDS if options.seed is None else 1
    for seed in range(first, first + seeds):
        for scenario in scenarios:
            yield scenario, seed


def _first(result: Result) -> str:
    violation = result.violations[0]
    more = f" (and {len(result.violations) - 1} more)" if len(result.violations) > 1 else ""
    return f"promise {violation.promise}: {violation.text}{more}"


def _tell(result: Result) -> None:
    for at, text in result.trace:
        print(f"{at:10.4f}  {text}")
    for violation in result.violations:
        print(f"  violates promise {violation.promise}: {violation.text}")


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
