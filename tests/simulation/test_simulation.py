"""Simulated worlds: every seed keeps all promises, and tells the same story every time."""

import gc
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import tiers
from tests.simulation.found import Found
from tests.simulation.machines import MACHINES
from tests.simulation.scenario import play

ROOT = Path(__file__).parents[2]
SEEDS = {"memory": 100, "sqlite": 100, "journal": 60, "servers": 30, "moving": 20}
MORE = 10
"""With `--all`, so many times as many."""
PARTS = 8
"""The seeds of a scenario are played in so many tests, which processes of a run share."""


@pytest.mark.every_store
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("scenario", MACHINES)
def test_all_promises_hold(scenario: str, part: int) -> None:
    seeds = tiers.amount(SEEDS[scenario], MORE * SEEDS[scenario], "PENSTOCK_SIMULATION_SEEDS")
    failed = {}
    for seed in range(part, seeds, PARTS):
        if violations := play(scenario, seed).violations:
            failed[seed] = violations
    assert failed == {}, f"tell the story: ./dev simulate --scenario {scenario} --seed N --trace"


@pytest.mark.every_store
@pytest.mark.parametrize("scenario", MACHINES)
def test_seed_tells_the_same_story_every_time(scenario: str) -> None:
    first, second, other = play(scenario, 3), play(scenario, 3), play(scenario, 4)
    assert first.trace == second.trace
    assert first.fingerprint == second.fingerprint != other.fingerprint


def test_each_tier_plays_as_many_seeds_as_the_guide_says() -> None:
    quick, everything = played_seeds(), played_seeds("--all")
    assert sum(quick.values()) >= 300
    assert quick["sqlite"] >= 100
    assert quick["servers"] >= 30
    assert MORE * sum(everything.values()) >= 3000
    assert quick == everything, "the tiers differ in how many seeds a part plays, not in parts"


def played_seeds(*options: str) -> Counter[str]:
    """How many seeds of each scenario the tests play that are collected with these options."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    listed = subprocess.run(
        [*command, *options, __file__],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found: Counter[str] = Counter()
    for scenario, part in re.findall(r"test_all_promises_hold\[(\w+)-(\d+)\]", listed):
        found[scenario] += len(range(int(part), SEEDS[scenario], PARTS))
    return found


@pytest.mark.parametrize("path", Found.all(), ids=lambda path: path.stem)
def test_what_was_found_stays_mended(path: Path) -> None:
    found = Found.read(path)
    for seed in range(found.seed, found.seed + 10):
        assert play(found.scenario, seed, found.plan).violations == []


@pytest.mark.parametrize("path", Found.all(), ids=lambda path: path.stem)
def test_what_was_found_comes_back_without_its_mending(path: Path) -> None:
    """If not, other changes have led past the bug: keep the plan of another seed."""
    broken = Found.read(path).broken
    assert broken is not None
    options = ["--broken", broken, "--plan", str(path), "--seeds", "100", "--until-failure"]
    played = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (played.returncode, "promise" in played.stdout) == (1, True), played.stdout


def test_real_process_forks_unharmed_by_stores_of_a_world_that_has_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gc.disable()  # so that these stores still exist
    try:
        play("sqlite", 3)
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    finally:
        gc.enable()
    assert caplog.messages == []
