import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from penstock import ConfigurationError, Job, Penstock, State, run_sync
from penstock.runtime import system_clock
from penstock.testing import Clock
from penstock.worker import worker as worker_module
from tests.contract.support import HOUR, SECOND
from tests.worker.support import eventually, soon, working

NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)


def test_begins_now_and_stands_still() -> None:
    before = system_clock()
    clock = Clock()
    assert before <= clock() <= system_clock()
    assert clock() == clock()


def test_moves_when_told() -> None:
    clock = Clock(NEW_YEAR)
    assert clock.now == NEW_YEAR
    assert clock.advance(HOUR) == NEW_YEAR + HOUR
    clock.set(NEW_YEAR - HOUR)
    assert clock.now == NEW_YEAR - HOUR


def test_shows_another_instant_inside_a_block() -> None:
    clock = Clock(NEW_YEAR)
    with clock.showing(NEW_YEAR - HOUR):
        assert clock.now == NEW_YEAR - HOUR
    assert clock.now == NEW_YEAR


def test_does_not_advance_backwards() -> None:
    with pytest.raises(ConfigurationError, match="use set"):
        Clock().advance(-SECOND)


def test_takes_no_instant_without_a_zone() -> None:
    with pytest.raises(ConfigurationError, match="time zone"):
        Clock(datetime(2030, 1, 1))  # noqa: DTZ001 - the point
    with pytest.raises(ConfigurationError, match="time zone"):
        Clock().set(datetime(2030, 1, 1))  # noqa: DTZ001 - the point


def test_a_move_makes_scheduled_jobs_ready(app: Penstock, time: Clock) -> None:
    task = app.task("t", lambda: None)
    run_sync(task.using(delay=HOUR).enqueue())
    assert run_sync(app.leases.claim(worker="w")) == []
    time.advance(HOUR)
    assert len(run_sync(app.leases.claim(worker="w"))) == 1


@pytest.fixture
def only_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself a worker does not look again, as long as a test may last."""
    monkeypatch.setattr(worker_module, "_LOOK_AGAIN", 3600)


@pytest.mark.usefixtures("only_moves")
@pytest.mark.parametrize("jump", ["advance", "set"])
async def test_a_move_wakes_a_worker_that_waits(app: Penstock, time: Clock, jump: str) -> None:
    ran = asyncio.Event()

    @app.task
    async def note() -> None:
        ran.set()

    job = await note.using(delay=HOUR).enqueue()
    async with working(app):
        await waits(app)
        if jump == "set":
            time.set(time.now + HOUR)
        else:
            time.advance(HOUR)
        await soon(ran)
        await eventually(lambda: is_done(app, job))


async def is_done(app: Penstock, job: Job) -> bool:
    return (await app.get(job.id)).state is State.DONE


async def waits(app: Penstock) -> None:
    """Let the worker come to rest: it has looked at the store and found nothing."""
    for _ in range(20):
        await app.count()
        await asyncio.sleep(0)


@pytest.mark.usefixtures("only_moves")
async def test_a_move_in_a_thread_wakes_too(app: Penstock, time: Clock) -> None:
    ran = asyncio.Event()

    @app.task
    async def note() -> None:
        ran.set()

    await note.using(delay=timedelta(days=400)).enqueue()
    async with working(app):
        await waits(app)
        await asyncio.to_thread(time.advance, timedelta(days=400))
        await soon(ran)


def test_a_closed_store_is_no_hindrance(app: Penstock, time: Clock) -> None:
    _ = app.store
    run_sync(app.close())
    before = time.now
    assert time.advance(HOUR) == before + HOUR
