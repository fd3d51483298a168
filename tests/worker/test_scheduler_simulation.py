"""Weeks of schedules on one store, fired by many programs at once: each planned run exactly once.

`tests.core.cron_reference` computes what should have run; it shares no code with Penstock or the
library that reads cron expressions.
"""

import asyncio
import contextlib
import os
import random
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock import Job, JobQuery, Penstock
from penstock.jobs import Event
from tests.contract.support import ManualClock
from tests.core.cron_reference import Reference
from tests.worker import scheduler_program
from tests.worker.scheduler_program import TIMES, SharedClock, program

APPS = 5
PATIENCE = 60
"""Seconds for five processes to start on a busy machine."""
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SEASONS = [
    pytest.param(datetime(2030, 3, 7, 1, 7, tzinfo=UTC), id="spring"),
    pytest.param(datetime(2030, 10, 3, 1, 7, tzinfo=UTC), id="autumn"),
]
"""Within four and a half weeks from there, the clocks of all three zones change."""
WEEKS = timedelta(days=32)


def reference(name: str, since: datetime, until: datetime) -> list[datetime]:
    return Reference(*TIMES[name]).runs(since, until)


async def jobs_of(app: Penstock, name: str) -> list[Job]:
    return await app.find(JobQuery(task=name, newest_first=False, limit=100_000))


def expected(
    missed: str, planned: Sequence[datetime], begin: datetime, looks: Sequence[datetime]
) -> list[datetime]:
    """Return the runs that a policy fires if the schedules are looked at at these times."""
    found: list[datetime] = []
    done = bisect_right(planned, begin)
    for look in looks:
        due = planned[done : bisect_right(planned, look)]
        done += len(due)
        if missed == "all":
            found += due
        elif due and (missed == "once" or look - due[-1] <= MINUTE):
            found.append(due[-1])
    return found


def next_step(chance: random.Random, now: datetime) -> datetime:
    """Advance by minutes, mostly; now and then let the clock jump far ahead or back."""
    match chance.randrange(30):
        case 0:
            return now + chance.uniform(1, 2) * DAY
        case 1 | 2:
            return now - chance.uniform(0, 5) * HOUR
        case 3 | 4:
            return (now + HOUR).replace(minute=0, second=0, microsecond=0)  # exactly on time
    return now + chance.uniform(0, 120) * MINUTE


@pytest.mark.parametrize("start", SEASONS)
@pytest.mark.parametrize("missed", ["all", "once", "skip"])
async def test_five_programs_over_weeks_with_jumping_clocks_and_restarts(
    tmp_path: Path, clock: ManualClock, start: datetime, missed: str
) -> None:
    chance = random.Random(f"{start}{missed}")
    url = f"sqlite:///{tmp_path}/jobs.db"
    clock.now = start
    apps = [program(url, clock, missed) for _ in range(APPS)]
    await asyncio.gather(*(app.schedules.register() for app in apps))
    looks: list[datetime] = []
    while clock.now < start + WEEKS:
        clock.now = next_step(chance, clock.now)
        if chance.random() < 0.05:  # everything is down for a while
            clock.now += chance.uniform(0, 12) * HOUR
        if chance.random() < 0.2:
            place = chance.randrange(APPS)
            await apps[place].close()
            apps[place] = program(url, clock, missed)
            await apps[place].schedules.register()
        await asyncio.gather(*(app.schedules.fire_due() for app in chance.sample(apps, 3)))
        looks.append(clock.now)
    found = {name: [job.run_at for job in await jobs_of(apps[0], name)] for name in TIMES}
    entries = [entry for entry in await apps[0].log(limit=100_000) if entry.reason]
    for app in apps:
        await app.close()
    for name in TIMES:
        planned = reference(name, start, max(looks))
        assert found[name] == expected(missed, planned, start, looks), name
    assert len(entries) == sum(map(len, found.values()))
    assert {entry.event for entry in entries} == {Event.ENQUEUED}


# With real processes


@contextlib.contextmanager
def processes(*arguments: str) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Run five programs inside the block; any may be killed and replaced."""
    running = [start_one(*arguments) for _ in range(APPS)]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def start_one(*arguments: str) -> "subprocess.Popen[bytes]":
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    command = [sys.executable, str(Path(scheduler_program.__file__)), *arguments]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


async def test_five_processes_that_are_killed_fire_each_run_once(tmp_path: Path) -> None:
    chance = random.Random(5)
    url, path = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "clock"
    clock = SharedClock(path)
    start = datetime(2030, 10, 20, 1, 7, tzinfo=UTC)
    clock.set(start)
    app = program(url, clock)
    await app.schedules.register()

    async def catch_up() -> None:
        async with asyncio.timeout(PATIENCE):
            while any(  # noqa: ASYNC110 - it happens in other processes
                s.next is None or s.next <= clock.now for s in await app.schedules.list()
            ):
                await asyncio.sleep(0.01)

    with processes(url, str(path)) as running:
        for step in range(60):
            clock.set(clock.now + chance.uniform(0, 12) * HOUR)
            if step % 12 == 6:
                place = chance.randrange(APPS)
                running[place].kill()
                running[place].wait()
                running[place] = start_one(url, str(path))
            if step % 3:  # otherwise the clock moves while they fire
                await catch_up()
        await catch_up()
    actors = {entry.actor for entry in await app.log(limit=100_000)}
    for name in TIMES:
        # If a job ran again because its lease expired, run_at is that of its last attempt.
        found = sorted(f"{job.correlation}" for job in await jobs_of(app, name))
        planned = reference(name, start, clock.now)
        assert found == [f"{name}@{run:%Y-%m-%dT%H:%M:%SZ}" for run in planned], name
    assert len(actors) > 1, "only one process has done anything"
    await app.close()
