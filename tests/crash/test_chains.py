"""Jobs that wait for others or replace others, under kill -9: none early, lost or stuck."""

import random
import signal
import time
from pathlib import Path

import pytest

from penstock.core.lifecycle import FINAL
from tests import tiers
from tests.crash.chaining import BROKEN, check_chains, read_edges
from tests.crash.history import Violation, read_store
from tests.crash.processes import Child, Zygote, until
from tests.crash.recording import read_history
from tests.crash.support import assert_promises_kept, drain

KILLS = tiers.amount(25, 60, "PENSTOCK_CRASH_ROUNDS")
CAST = ("weaver", "weaver", "worker", "worker")
CAUGHT = {
    "starts what waits": 3,
    "ignores failures": 3,
    "runs the superseded": 3,
    "forgets who waits": 1,
}


@pytest.mark.timeout(1100 + KILLS)
@pytest.mark.parametrize(
    ("folder", "seed"), [("sqlite", 1), ("sqlite", 2), ("postgres", 1)], indirect=["folder"]
)
def test_nothing_begins_early_and_the_superseded_never_run(
    seed: int, zygote: Zygote, folder: Path
) -> None:
    play(random.Random(seed), zygote, folder)
    drain(zygote, folder)
    assert_promises_kept(folder, f"seed {seed}")
    assert violations(folder) == []
    assert is_much(folder)


def is_much(folder: Path) -> bool:
    """Whether jobs have come to every end, and many have waited: else a test shows little."""
    stored = read_store(folder)
    ends = {job.state for job in stored.jobs.values()}
    return ends >= FINAL and len(read_edges(folder, stored)) > KILLS


@pytest.mark.parametrize(("broken", "promise"), [(None, None), *CAUGHT.items()])
def test_checker_sees_what_is_broken(
    broken: str | None, promise: int | None, zygote: Zygote, folder: Path
) -> None:
    zygote.start("unravel", folder, broken=broken).succeed()
    found = {violation.promise for violation in violations(folder)}
    assert promise in found if promise else not found


def test_every_variant_is_tried() -> None:
    assert CAUGHT.keys() == BROKEN.keys()


def violations(folder: Path) -> list[Violation]:
    stored = read_store(folder)
    return check_chains(read_history(folder), stored, read_edges(folder, stored))


def play(rng: random.Random, zygote: Zygote, folder: Path) -> None:
    def start(role: str) -> Child:
        return zygote.start(role, folder, seed=rng.getrandbits(32))

    actors = [start(role) for role in CAST]
    kills = 0
    while kills < KILLS:
        time.sleep(rng.uniform(0.01, 0.08))
        everybody = list(range(len(CAST)))
        fallen = everybody if rng.random() < 0.15 else [rng.choice(everybody)]
        for n in fallen:
            actors[n].signal(signal.SIGKILL)
        for n in fallen:
            actors[n].die()
            actors[n] = start(CAST[n])
        kills += len(fallen)
    until(lambda: is_much(folder), "too little happens", pause=0.1)
    for actor in actors:
        actor.kill()
        actor.die()
