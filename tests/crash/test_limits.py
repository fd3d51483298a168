"""Eight processes under every kind of limit, killed at random: never one too many, none stuck."""

import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from penstock.core.lifecycle import Event
from tests import tiers
from tests.crash.client import LEASE
from tests.crash.history import read_store
from tests.crash.limiting import QUEUES, RATES, TASKS, check_limits, places, set_limits
from tests.crash.processes import Child, Zygote, until
from tests.crash.recording import is_postgres, read_history
from tests.crash.support import assert_promises_kept, client, drain

# On a file, and on PostgreSQL.
KILLS = [
    tiers.amount(30, 60, "PENSTOCK_CRASH_ROUNDS"),
    tiers.amount(20, 20, "PENSTOCK_CRASH_ROUNDS"),
]
CAST = ("throng", "throng", *["worker"] * 6)


@pytest.mark.timeout(1100 + KILLS[0])
@pytest.mark.parametrize(
    ("folder", "seed"), [("sqlite", 1), ("sqlite", 2), ("postgres", 1)], indirect=["folder"]
)
def test_no_limit_is_passed_and_nothing_is_stuck(seed: int, zygote: Zygote, folder: Path) -> None:
    with client(folder) as app:
        set_limits(app)
    play(random.Random(seed), zygote, folder)
    drain(zygote, folder)
    assert_promises_kept(folder, f"seed {seed}")
    stored = read_store(folder)
    assert check_limits(read_history(folder), stored) == []
    assert limits_were_met(folder)
    assert any(entry.event is Event.EXPIRED for entry in stored.log)


@pytest.mark.parametrize(
    ("broken", "place"),
    [
        (None, None),
        ("counts no queues", "queue narrow runs"),
        ("counts no tasks", "task plain runs"),
        ("counts no throttles", "throttle one-1 runs"),
        ("remembers no starts", "queue rated started"),
    ],
)
def test_checker_names_the_limit_that_is_passed(
    broken: str | None, place: str | None, zygote: Zygote, folder: Path
) -> None:
    zygote.start("overdraw", folder, broken=broken).succeed()
    found = check_limits(read_history(folder), read_store(folder))
    assert {text for _, text in found if place is None or not text.startswith(place)} == set()
    assert bool(found) is (place is not None)


def play(rng: random.Random, zygote: Zygote, folder: Path) -> None:
    def start(role: str) -> Child:
        return zygote.start(role, folder, seed=rng.getrandbits(32))

    actors = [start(role) for role in CAST]
    for _ in range(KILLS[is_postgres(folder)]):
        time.sleep(rng.uniform(0, 0.1))
        n = rng.randrange(len(CAST))
        if rng.random() < 0.05:  # it wakes up when its lease is long over
            actors[n].signal(signal.SIGSTOP)
            time.sleep(1.5 * LEASE.total_seconds())
            actors[n].signal(signal.SIGCONT)
        actors[n].kill()
        actors[n].die()
        actors[n] = start(CAST[n])
    until(lambda: limits_were_met(folder), "too little happens", pause=0.1)
    for actor in actors:
        actor.kill()


def limits_were_met(folder: Path) -> bool:
    """Whether every limit was reached: else a test shows nothing."""
    stored = read_store(folder)
    running: Counter[str] = Counter()
    full: set[str] = set()
    for entry in stored.log:
        if entry.job_id not in stored.jobs:  # it came while this was read
            break
        for place, limit in places(stored.jobs[entry.job_id]):
            running[place] += entry.event is Event.CLAIMED
            if running[place] == limit:
                full.add(place)
            running[place] -= entry.token is not None and entry.state.value != "running"
    wanted = {f"queue {name}" for name in QUEUES} | {f"task {name}" for name in TASKS}
    wanted |= {"throttle one-1", "throttle pair-2"}
    claims = Counter(job.queue for job in stored.jobs.values() if job.attempt)
    return wanted <= full and all(claims[queue] > n for queue, (n, _) in RATES.items())
