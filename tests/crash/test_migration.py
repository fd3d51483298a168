"""Kill -9 of a process that moves a queue: at named points, and at random."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.core.errors import StoreMoved, StoreUnavailable
from penstock.core.lifecycle import State
from penstock.core.migration_lock import MigrationPhase
from penstock.core.queue import QueueSettings
from penstock.core.store import Store
from penstock.engine.penstock import run_sync
from penstock.stores import open_store
from tests.contract.support import SHARED, STORES, add, add_one, drive, everything, new
from tests.crash.migrating import ran_in
from tests.crash.processes import Zygote
from tests.moving import assert_moved, fill

NAMED = [
    f"at {when} {what}"
    for what in (
        "target.set_migration_lock 1",
        "source.set_migration_lock 1",
        "target.restore 1",
        "target.restore 4",
        "target.configure 1",
        "target.limit 2",
        "target.add_token 1",
        "target.put_schedule 1",
        "source.set_migration_lock 2",
        "target.set_migration_lock 2",
    )
    for when in ("before", "after")
]
# What a SQLite file is written by; the first ones make and fill the target.
STATEMENTS = [
    f"{when} {what}"
    for what in ("COMMIT 4", "COMMIT 7", "restore_log 9", "add_restored_id 20", "restore_line 1")
    for when in ("before", "after")
]
ALIKE = pytest.mark.repeats("each store is the source of one other pair and the target of another")
PAIRS = [
    pytest.param((source, target), id=f"{source}-{target}", marks=ALIKE if source == target else ())
    for source in SHARED
    for target in SHARED
]


class Move:
    """Two stores of which one has all there is, and processes that move it."""

    def __init__(self, urls: dict[str, str], zygote: Zygote, folder: Path) -> None:
        self.urls = urls
        self.zygote = zygote
        self.folder = folder
        self.source = open_store(urls["source"])
        drive(fill(self.source, datetime.now(UTC)))
        drive(add(self.source, *[new()] * 30))
        self._target: Store | None = None

    @property
    def target(self) -> Store:
        """The other store, opened when a process has made it."""
        self._target = self._target or open_store(self.urls["target"])
        return self._target

    def kill(self, point: str) -> bool:
        """Whether a mover died at this point, and did not come to its end before."""
        child = self.zygote.start("mover", self.folder, point=point, **self.urls)
        if child.wait() == 0:
            return False
        child.die()
        return True

    def finish(self) -> None:
        """Let a mover come to its end."""
        self.zygote.start("mover", self.folder, **self.urls).succeed()

    def close(self) -> None:
        drive(self.source.close())
        if self._target is not None:
            drive(self._target.close())


@pytest.fixture(params=PAIRS)
def move(
    request: pytest.FixtureRequest, zygote: Zygote, folder: Path, tmp_path: Path
) -> Iterator[Move]:
    urls = {}
    for name, kind in zip(("source", "target"), request.param, strict=True):
        (tmp_path / name).mkdir()
        urls[name] = STORES[kind](tmp_path / name)
    moving = Move(urls, zygote, folder)
    yield moving
    moving.close()


def assert_held(move: Move) -> None:
    """Between a kill and the next try, a job can start in one store at most, and none is lost."""
    locks = [drive(store.migration_lock()) for store in (move.source, move.target)]
    if locks[0] is None:
        assert drive(everything(move.target)) == []
        return
    with pytest.raises(StoreMoved):
        drive(add_one(move.source))
    if locks[1] is None:
        assert locks[0].phase is MigrationPhase.LEFT
    else:
        with pytest.raises(StoreUnavailable):
            drive(add_one(move.target))


def assert_over(move: Move) -> None:
    drive(assert_moved(move.source, move.target))
    assert [
        lock and lock.phase
        for lock in map(drive, (move.source.migration_lock(), move.target.migration_lock()))
    ] == [
        MigrationPhase.LEFT,
        None,
    ]


@pytest.mark.parametrize("point", NAMED)
def test_mover_dies_at(point: str, move: Move) -> None:
    assert move.kill(point)
    assert_held(move)
    move.finish()
    assert_over(move)


@pytest.mark.parametrize("point", STATEMENTS)
def test_mover_dies_at_statement(point: str, zygote: Zygote, tmp_path: Path) -> None:
    urls = {name: f"sqlite:///{tmp_path}/{name}.db" for name in ("source", "target")}
    move = Move(urls, zygote, tmp_path)
    assert move.kill(point)
    assert_held(move)
    move.finish()
    assert_over(move)
    move.close()


@pytest.mark.parametrize("seed", range(4))
def test_mover_dies_again_and_again(seed: int, move: Move) -> None:
    rng = random.Random(seed)
    kills = 0
    while kills < 12 and move.kill(f"during * {rng.randrange(60, 900)}"):
        kills += 1
        assert_held(move)
    assert kills
    move.finish()
    assert_over(move)


def test_worker_runs_each_job_once_where_it_went(move: Move) -> None:
    assert move.kill("at after target.restore 3")
    move.finish()
    assert_over(move)
    pending = [job for job in drive(everything(move.target)) if job.state is State.PENDING]
    for queue in drive(move.target.queues()):
        settings = QueueSettings(name=queue.name, paused=False, rate=None)
        run_sync(move.target.configure(settings))
    for schedule in drive(move.target.schedules()):  # it would enqueue more
        drive(move.target.drop_schedule(schedule.name))
    move.zygote.start("finisher", move.folder, **move.urls).succeed()
    ran = ran_in(move.folder)
    assert sorted(job_id for job_id, _ in ran) == [job.id for job in pending]
    for key, numbers in (("k0", [0, 2, 4]), ("k1", [1, 3, 5])):
        line = {job.id for job in pending if job.key == key}
        assert [n for job_id, n in ran if job_id in line] == numbers
    assert drive(move.target.backlog())[0] == 0
