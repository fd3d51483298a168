"""Kill -9 of the process that has a journal: at every call to the system, and at random."""

import random
import time
from pathlib import Path

import pytest

from penstock.engine.penstock import run_sync
from tests import tiers
from tests.crash.processes import Zygote
from tests.crash.recording import Refused, read_history
from tests.crash.support import assert_promises_kept, client, finish_by_hand

KILLS = tiers.amount(15, 40, "PENSTOCK_CRASH_ROUNDS")
journal = pytest.mark.parametrize("folder", ["journal"], indirect=True)


def fresh(folder: Path, name: str) -> Path:
    """Another folder with a journal of its own."""
    made = folder / name
    made.mkdir()
    (made / "url").write_text(f"journal:///{made}/jobs")
    return made


@pytest.mark.parametrize(
    ("when", "what"), [("before", "*"), ("amid", "pwrite"), ("after", "fdatasync")]
)
def test_process_dies_at_every_call(when: str, what: str, zygote: Zygote, tmp_path: Path) -> None:
    unharmed = fresh(tmp_path, "unharmed")
    zygote.start("short_script", unharmed).succeed()
    calls, commits = map(int, (unharmed / "passed").read_text().split())
    assert calls > 60 < 6 * commits
    names = [path.name for path in (unharmed / "jobs").iterdir()]
    assert any(name.startswith("snapshot-") for name in names), names
    died = 0
    for n in range(1, calls + 1):
        folder = fresh(tmp_path, str(n))
        script = zygote.start("short_script", folder, point=f"{when} {what} {n}")
        if script.wait() == 0:  # there were no more of this kind
            break
        script.die()
        died += 1
        finish_by_hand(folder)
        assert_promises_kept(folder, f"{when} {what} {n}")
    assert died == calls if what == "*" else died > 20


@journal
@pytest.mark.parametrize("point", ["at claimed 1", "at handling 1", "at handled 1", "at settled 1"])
def test_worker_dies_between_two_steps(point: str, zygote: Zygote, folder: Path) -> None:
    zygote.start("script", folder, point=point).die()
    finish_by_hand(folder)
    assert_promises_kept(folder, point)


@journal
@pytest.mark.timeout(1100 + KILLS)
def test_nothing_is_lost_doubled_or_stuck(zygote: Zygote, folder: Path) -> None:
    rng = random.Random(1)
    for _ in range(KILLS):
        child = zygote.start("household", folder, seed=rng.getrandbits(32))
        time.sleep(rng.uniform(0.02, 0.3))
        child.kill()
        child.die()
    finish_by_hand(folder)
    assert_promises_kept(folder)
    with client(folder) as app:
        assert run_sync(app.leases.claim(worker="w", limit=9, tags=["red", "green", "blue"])) == []


@journal
def test_failing_writes_are_reported_and_work_continues(zygote: Zygote, folder: Path) -> None:
    zygote.start("limited_writer", folder).succeed()
    refusals = [note for note in read_history(folder) if isinstance(note, Refused)]
    assert refusals
    assert all(note.error.startswith("StoreUnavailable") for note in refusals)
    finish_by_hand(folder)
    assert_promises_kept(folder)


@journal
def test_worker_survives_failing_writes(zygote: Zygote, folder: Path) -> None:
    zygote.start("limited_worker", folder).succeed()
    assert_promises_kept(folder)
