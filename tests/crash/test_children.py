"""Child processes are killed, and so are workers with children.

Every kill costs a new interpreter, a fifth of a second. More of them:
`PENSTOCK_CHILD_KILLS=1000 ./dev test tests/crash/test_children.py`
"""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.core.job import Job, LogEntry
from penstock.core.lifecycle import Event, State
from penstock.core.query import JobQuery
from penstock.engine.penstock import Penstock, run_sync
from penstock.worker.worker import Worker
from tests import tiers
from tests.contract.support import descriptors
from tests.crash import families
from tests.crash.processes import ROOT, until
from tests.environment import SOON
from tests.worker.support import child_processes

KILLS = tiers.amount(20, 60, "PENSTOCK_CHILD_KILLS")


@pytest.fixture
def app(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Penstock]:
    monkeypatch.setattr(families.app.connection, "url", f"sqlite:///{folder}/jobs.db")
    yield families.app
    run_sync(families.app.close())


def command(pid: int) -> str:
    """What it runs; nothing for one that has ended, a zombie or none."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def serving() -> list[int]:
    return [pid for pid in child_processes() if "penstock.worker.children.main" in command(pid)]


class Killer:
    """Kills children of this process at random moments, so many in all."""

    def __init__(self, rng: random.Random, kills: int) -> None:
        self._rng = rng
        self.left = kills
        self.killed: set[int] = set()

    async def run(self, folder: Path) -> None:
        async with asyncio.timeout(SOON):  # a worker that cannot begin would tell so
            while not (folder / "notes").exists():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
        while self.left:
            await asyncio.sleep(self._rng.uniform(0, 0.1))
            alive = [pid for pid in serving() if pid not in self.killed]
            if self._rng.random() < 0.8:  # else also those that have just been started
                alive = sorted(set(alive) & {pid for _, _, pid, _ in noted(folder)})
            if alive:
                victim = self._rng.choice(alive)
                os.kill(victim, signal.SIGKILL)
                self.killed.add(victim)
                self.left -= 1


async def keep_busy(app: Penstock, folder: Path, killer: Killer) -> None:
    """Enough jobs of both kinds, as long as there is killing."""
    while killer.left:
        counts = await app.count()
        if sum(n for (_, state, _), n in counts.items() if not state.final) < 20:
            jobs = [families.work.new(str(folder)) for _ in range(10)]
            await app.enqueue_many([*jobs, families.companion.new(str(folder))])
        await asyncio.sleep(0.01)


@pytest.mark.timeout(1100 + KILLS)
async def test_children_killed_at_random_lose_no_job_and_harm_no_other(
    app: Penstock, folder: Path
) -> None:
    others, opened = child_processes(), descriptors()
    killer = Killer(random.Random(1), KILLS)
    worker = Worker(app, concurrency=4, kill_after=timedelta(seconds=1))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(worker.run())
        async with asyncio.TaskGroup() as busy:
            busy.create_task(killer.run(folder))
            busy.create_task(keep_busy(app, folder, killer))
        assert (await app.queues.drain(timeout=timedelta(seconds=60))).status == "drained"
        worker.stop()
        await running
    histories = await whole_log(app)
    jobs = [job async for job in all_jobs(app)]
    ended = runs_that("ended", folder)
    assert len(jobs) > KILLS / 10
    for job in jobs:
        check(job, histories[job.id], ended)
    failures = [entry for log in histories.values() for entry in log if entry.event is Event.FAILED]
    assert len(runs_that("began", folder) - ended) <= len(failures) <= KILLS
    assert runs_that("began", folder) - ended, "none was killed in the middle of its job"
    await app.close()
    assert child_processes() == others
    assert descriptors() <= opened


def check(job: Job, log: list[LogEntry], ended: set[tuple[int, int]]) -> None:
    """Done by a run that ended, or failed by as many killed runs as it may have."""
    events = Counter(entry.event for entry in log)
    assert events[Event.EXPIRED] == events[Event.REFUSED] == 0, log
    assert events[Event.CLAIMED] == events[Event.FAILED] + events[Event.DONE], log
    if job.task == "companion":
        assert (job.state, job.attempt) == (State.DONE, 1)
    if job.state is State.DONE:
        assert (job.id, job.token) in ended
    else:
        assert (job.state, events[Event.FAILED]) == (State.FAILED, job.retry.attempts)
    for entry in log:
        if entry.event is Event.FAILED:
            assert "the child process was killed by SIGKILL" in (entry.error or ""), entry


async def whole_log(app: Penstock) -> dict[int, list[LogEntry]]:
    histories: dict[int, list[LogEntry]] = {}
    after = 0
    while entries := await app.log(after=after):
        for entry in entries:
            histories.setdefault(entry.job_id, []).append(entry)
        after = entries[-1].id
    return histories


async def all_jobs(app: Penstock) -> AsyncIterator[Job]:
    after = None
    while jobs := await app.find(JobQuery(after=after, newest_first=False, limit=1000)):
        for job in jobs:
            yield job
        after = jobs[-1].id


def noted(folder: Path) -> list[tuple[int, int, int, str]]:
    """Job, token, process and what it said, of every note."""
    lines = [line.split() for line in (folder / "notes").read_text().splitlines()]
    return [(int(job), int(token), int(pid), said) for job, token, pid, said in lines]


def runs_that(said: str, folder: Path) -> set[tuple[int, int]]:
    return {(job, token) for job, token, _, what in noted(folder) if what == said}


@pytest.fixture
def worker(app: Penstock, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker in a process of its own, with a child that has started processes."""
    run_sync(families.father.enqueue(str(folder)))
    started = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.crash.families", str(folder)], cwd=ROOT
    )
    with started:
        try:
            until((folder / "family").exists, "the child did not begin")
            yield started
        finally:
            started.kill()
    for pid in filter(command, family(folder)):
        os.kill(pid, signal.SIGKILL)


def family(folder: Path) -> list[int]:
    return [int(pid) for pid in (folder / "family").read_text().split()]


def guard_of(worker: "subprocess.Popen[bytes]") -> int:
    (guard,) = [pid for pid in child_processes(worker.pid) if "killpg" in command(pid)]
    return guard


def test_nothing_outlives_a_killed_worker(worker: "subprocess.Popen[bytes]", folder: Path) -> None:
    guard = guard_of(worker)
    worker.kill()
    worker.wait()
    until(lambda: not any(map(command, family(folder))), "a child or a grandchild lives on")
    until(lambda: not command(guard), "the guard process lives on")


def test_child_dies_with_its_worker_even_without_a_guard(
    worker: "subprocess.Popen[bytes]", folder: Path
) -> None:
    child, *_ = family(folder)
    os.kill(guard_of(worker), signal.SIGKILL)
    worker.kill()
    worker.wait()
    until(lambda: not command(child), "the child lives on")


def test_family_dies_with_a_worker_that_is_stopped_and_killed(
    worker: "subprocess.Popen[bytes]", folder: Path
) -> None:
    """Stopped, it can do nothing by itself any more."""
    worker.send_signal(signal.SIGSTOP)
    worker.kill()
    worker.wait()
    until(lambda: not any(map(command, family(folder))), "a child or a grandchild lives on")
