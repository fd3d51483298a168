"""The scheduler of a worker."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    JobQuery,
    Penstock,
    State,
    StoreUnavailable,
    context,
)
from penstock.core.schedule import Due, Schedule
from tests.contract.support import HOUR, SECOND, ManualClock
from tests.worker.support import eventually, soon, work_off, working

OFTEN = timedelta(milliseconds=5)
START = datetime(2030, 1, 1, tzinfo=UTC)


async def nothing() -> None:
    pass


# With a worker


async def test_periodic_task_runs_at_its_times(app: Penstock, clock: ManualClock) -> None:
    seen: list[datetime] = []

    @app.task(cron="30 4 * * *", timezone="Europe/Berlin")
    async def nightly() -> None:
        seen.append(context().job.run_at)

    await app.schedules.register()
    async with working(app, sweep=OFTEN):
        for day in range(3):
            clock.now = START + timedelta(days=day, hours=3, minutes=30)
            await eventually(lambda n=day + 1: _ended(app, seen, n))  # type: ignore[misc] # bound at once
    assert seen == [START + timedelta(days=day, hours=3, minutes=30) for day in range(3)]


async def test_worker_that_runs_until_empty_fires_what_is_due_first(
    app: Penstock, clock: ManualClock
) -> None:
    app.task("t", nothing, every=HOUR)
    await work_off(app)
    assert await app.find() == []
    clock.advance(HOUR)
    await work_off(app)
    assert [job.state for job in await app.find()] == [State.DONE]


async def test_worker_wakes_in_time_for_the_next_run(url: str) -> None:
    """Well before its next sweep, on the clock of the machine."""
    app, ran = Penstock(url), asyncio.Event()

    @app.task(every=SECOND)
    async def tick() -> None:
        ran.set()

    async with working(app, sweep=60 * SECOND):
        await soon(ran)
    await app.close()


async def test_waiting_worker_looks_once_per_sweep(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if a run is due but cannot be fired, or belongs to another program."""
    looks = 0
    due = app.store.due

    async def counted(*args: Any) -> Due:
        nonlocal looks
        looks += 1
        return await due(*args)

    app.task("t", nothing, every=HOUR)
    await app.schedules.register()
    monkeypatch.setattr(app.store, "due", counted)
    async with working(app, sweep=60 * SECOND):
        for _ in range(100):
            await asyncio.sleep(0)
        await app.enqueue("t")
        await eventually(lambda: _done(app, 1))
    assert looks <= 2  # once to register, once to fire


async def test_schedules_are_fired_again_after_the_store_did_not_answer(
    app: Penstock,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    put, failures = app.store.put_schedule, iter([StoreUnavailable("the disk is full")])

    async def failing(schedule: Schedule) -> Schedule | None:
        for failure in failures:
            raise failure
        return await put(schedule)

    monkeypatch.setattr(app.store, "put_schedule", failing)
    app.task("t", nothing, every=HOUR)
    with caplog.at_level(logging.WARNING):
        async with working(app, sweep=OFTEN):
            await eventually(lambda: _stored(app, 1))
            clock.advance(HOUR)
            await eventually(lambda: _done(app, 1))
    assert "the disk is full" in caplog.text


async def test_schedule_that_left_the_code_does_not_fire_and_is_logged(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    former = Penstock(url, clock=clock)
    former.task("gone", nothing, every=HOUR)
    former.task("plain now", nothing, every=HOUR)
    await former.schedules.register()
    await former.close()
    app = Penstock(url, clock=clock)
    app.task("plain now", nothing)
    app.task("new", nothing, every=HOUR)
    with caplog.at_level(logging.WARNING):
        await work_off(app)
        clock.advance(HOUR)
        await work_off(app)
    assert [job.task for job in await app.find()] == ["new"]
    assert {s.name: s.known for s in await app.schedules.list()} == {
        "gone": False,
        "new": True,
        "plain now": False,
    }
    assert "schedule gone is no longer in the code" in caplog.text
    assert "schedule plain now is no longer in the code" in caplog.text
    await app.schedules.remove("gone")
    await app.schedules.remove("plain now")
    assert [s.name for s in await app.schedules.list()] == ["new"]
    await app.close()


async def _ended(app: Penstock, seen: list[datetime], n: int) -> bool:
    """Whether so many have run and the last is settled, so that time may jump past its lease."""
    running = JobQuery(states=frozenset({State.RUNNING}))
    return len(seen) == n and not await app.find(running)


async def _done(app: Penstock, n: int) -> bool:
    return [job.state for job in await app.find()].count(State.DONE) == n


async def _stored(app: Penstock, n: int) -> bool:
    return len(await app.schedules.list()) == n
