"""Simulated worlds are worth their name: they find every planted bug, within some seeds."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.variants import VARIANTS
from tests.simulation.mutations import BROKEN, MUTATIONS

SEEDS = 100
"""So many seeds are enough for every bug."""
FIRST = ("renews_no_lease", "compares_no_versions", "stores_a_batch_in_pieces", "syncs_no_record")
"""Those of the first tier: each is found at once, in another part."""


def some(name: str) -> object:
    if name in FIRST:
        return name
    return pytest.param(name, marks=pytest.mark.repeats("that planted bugs are found"))


@pytest.mark.parametrize("name", [some(name) for name in BROKEN])
def test_planted_bug_is_found(name: str) -> None:
    command = ["--broken", name, "--seeds", str(SEEDS), "--until-failure"]
    played = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *command],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert played.returncode == 1, played.stdout + played.stderr
    assert "promise" in played.stdout, played.stdout + played.stderr


def test_every_kept_variant_is_planted() -> None:
    assert set(VARIANTS) <= set(BROKEN)
    assert len(MUTATIONS) >= 10
