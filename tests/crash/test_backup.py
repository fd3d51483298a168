"""Restores to many moments of a run, with processes that are killed all the time.

Backups are written by `penstock backup`, in processes of their own that are killed as well. What
was acknowledged before a backup began is in it, its store keeps all promises, no token and no id
is ever assigned twice, and workers from before are refused.
"""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock import JobQuery, LeaseLost, Penstock, run_sync
from penstock.core.job import JobId
from penstock.engine.migration import migrate
from penstock.leases import Done, Lease
from tests import tiers
from tests.crash.processes import Child, Zygote, until
from tests.crash.recording import Claimed, Told, read_history, store_url
from tests.crash.support import assert_promises_kept, drain

BACKUPS = tiers.amount(12, 60, "PENSTOCK_CRASH_ROUNDS")
CAST = ("producer", "plain_producer", "worker", "worker")
COMMAND = (sys.executable, "-m", "penstock.cli.main")


class Moment(NamedTuple):
    """A backup, and when it began by the clock of the history."""

    path: Path
    began: int


@pytest.mark.timeout(1100)
def test_every_moment_can_be_restored(zygote: Zygote, folder: Path) -> None:
    rng = random.Random(5)
    moments = record(rng, zygote, folder)
    drain(zygote, folder)
    assert_promises_kept(folder)
    history = read_history(folder)
    told = [
        (note.at, job_id)
        for note in history
        if isinstance(note, Told)
        for job_id, duplicate in note.jobs
        if not duplicate
    ]
    held = [run for note in history if isinstance(note, Claimed) for run in note.runs]
    highest = max(token for _, token in held)
    last_id = max(job_id for _, job_id in told)
    stored: list[int] = []
    for n, moment in enumerate(moments):
        target = folder / f"restored-{n}.db"
        with opened(target) as app:
            cut = run_sync(app.archive.restore(moment.path)).cut
            assert run_sync(app.archive.verify()).problems == []
            ids = ids_of(app)
            lost = {job_id for at, job_id in told if at < moment.began} - ids
            assert lost == set(), f"moment {n}: {sorted(lost)[:5]} were acknowledged"
            stored.append(len(ids))
            assert cut.floor > max(highest, last_id)
            refuse(app, [run for run in held if run[0] in ids])
            highest = max(highest, work(app))
            last_id = max(last_id, run_sync(app.enqueue("t")).id)
    assert stored == sorted(stored)
    assert stored[0] < stored[-1]


def record(rng: random.Random, zygote: Zygote, folder: Path) -> list[Moment]:
    """Let clients work, kill them, and back up meanwhile."""

    def start(role: str) -> Child:
        return zygote.start(role, folder, seed=rng.getrandbits(32))

    actors = [start(role) for role in CAST]
    until((folder / "jobs.db").exists, "nobody creates the store")
    moments: list[Moment] = []
    attempts = 0
    while len(moments) < BACKUPS:
        target, began = folder / f"{attempts}.bak", time.monotonic_ns()
        attempts += 1
        backup = subprocess.Popen(
            [*COMMAND, "backup", str(target), "--store", store_url(folder)],
            stderr=subprocess.PIPE,
        )
        if attempts % 4 == 0:  # killed somewhere; there is a whole backup, or none
            time.sleep(rng.uniform(0, 0.6))
            backup.kill()
        n = rng.randrange(len(CAST))
        actors[n].signal(signal.SIGKILL)
        actors[n].die()
        actors[n] = start(CAST[n])
        _, said = backup.communicate()
        if target.exists():
            moments.append(Moment(target, began))
        else:
            assert backup.returncode == -signal.SIGKILL, said.decode()
    for actor in actors:
        actor.kill()
        actor.die()
    return moments


@contextmanager
def opened(path: Path) -> Iterator[Penstock]:
    app = Penstock(f"sqlite:///{path}")
    app.task("t", lambda: None)
    try:
        yield app
    finally:
        run_sync(app.close())


def ids_of(app: Penstock) -> set[int]:
    return set(run_sync(app.store.find_ids(JobQuery(limit=1_000_000))))


def refuse(app: Penstock, runs: list[tuple[int, int]]) -> None:
    """Workers from before the restore come back with what they hold."""
    for job_id, token in runs[-20:]:
        with pytest.raises(LeaseLost):
            run_sync(app.leases.settle([(Lease(JobId(job_id), token, "w"), Done())]))


def work(app: Penstock) -> int:
    """Run some jobs; return the highest token."""
    run_sync(app.enqueue("t"))
    jobs = run_sync(app.leases.claim(worker="w", limit=5))
    run_sync(app.leases.settle([(job, Done()) for job in jobs]))
    return max(job.token for job in jobs)


def test_tokens_grow_from_restore_to_restore_and_move(folder: Path) -> None:
    """Through restores of restored stores, of older backups, in place, and moves."""
    tokens: list[int] = []
    with opened(folder / "a.db") as app:
        tokens.append(work(app))
        run_sync(app.archive.backup(folder / "a.bak"))
        tokens.append(work(app))
    for n in range(3):
        with opened(folder / f"b{n}.db") as app:
            run_sync(app.archive.restore(folder / "a.bak"))  # always the same
            tokens.append(work(app))
            run_sync(app.archive.backup(folder / f"b{n}.bak"))
    with opened(folder / "b2.db") as app:
        run_sync(app.archive.restore(folder / "b0.bak", replace=True))  # an older one
        tokens.append(work(app))
        run_sync(app.archive.restored_in_place())
        tokens.append(work(app))
        run_sync(app.store.deregister(["w"]))
        with opened(folder / "moved.db") as other:
            run_sync(migrate(app, other))
            tokens.append(work(other))
            run_sync(other.archive.backup(folder / "moved.bak"))
            tokens.append(work(other))
    with opened(folder / "again.db") as app:
        run_sync(app.archive.restore(folder / "moved.bak"))
        tokens.append(work(app))
        assert run_sync(app.archive.verify()).problems == []
    assert tokens == sorted(set(tokens))
    assert max(tokens) < 2**53


@pytest.mark.parametrize("seed", range(tiers.amount(6, 40, "PENSTOCK_CRASH_ROUNDS")))
def test_a_killed_restore_leaves_the_store_or_the_restored_one(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    with opened(folder / "jobs.db") as app:
        for _ in range(200):
            run_sync(app.enqueue("t"))
        run_sync(app.archive.backup(folder / "jobs.bak"))
        for _ in range(50):
            run_sync(app.enqueue("t"))
        restore = subprocess.Popen(
            [
                *COMMAND, "restore", str(folder / "jobs.bak"), "--replace", "--yes",
                "--store", f"sqlite:///{folder}/jobs.db",
            ],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(rng.uniform(0.2, 0.8))
        restore.kill()
        restore.wait()
        found = run_sync(app.archive.verify())
        assert found.problems == []
        assert found.jobs in (200, 250)
        assert run_sync(app.enqueue("t")).id > 250
