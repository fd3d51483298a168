"""Found by simulation on SQLite, here without chance: a refused commit stays away after a crash."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.job import NewJob
from penstock.engine.penstock import Penstock, run_sync
from penstock.testing.simulation.world import World
from tests.crash.recording import DOUBT
from tests.simulation.machines import SqliteMachine

JOB = NewJob(task="t", payload="{}")


def stored_after_crash(machine: SqliteMachine, folder: Path) -> int:
    """How many jobs another machine finds in a copy of the files."""
    for name in ("jobs.db", "jobs.db-wal"):
        shutil.copy(machine.disk.folder / name, folder)
    app = Penstock(f"sqlite:///{folder}/jobs.db")
    try:
        return sum(run_sync(app.count()).values())
    finally:
        run_sync(app.close())


@pytest.mark.parametrize("tags", [(), ("red",)], ids=["plain", "tagged"])
@pytest.mark.parametrize("failures", [1, 2])
def test_caller_learns_what_became_of_a_commit_whose_sync_failed(
    failures: int, tags: tuple[str, ...], tmp_path: Path
) -> None:
    job = NewJob(task="t", payload="{}", tags=tags)
    world = World(1)
    with closing(SqliteMachine(world)) as machine, closing(world):
        process = world.process("p", machine.files())
        machine.attach(process)
        app = Penstock(machine.url, runtime=process.runtime)
        run_sync(app.enqueue_many([JOB]))
        for n in range(failures):
            machine.disk.strike("fail-sync", process, n + 1)
        with pytest.raises(StoreError) as refused:
            run_sync(app.enqueue_many([job]))
        if failures == 1:
            assert isinstance(refused.value, StoreUnavailable)
            assert stored_after_crash(machine, tmp_path) == 1
        else:
            assert DOUBT in str(refused.value)
