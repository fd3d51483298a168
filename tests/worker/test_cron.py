import asyncio
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    ConfigurationError,
    InvalidJob,
    Job,
    JobQuery,
    NewJob,
    Penstock,
    State,
    StoreUnavailable,
    context,
    run_sync,
)
from penstock.core.errors import ScheduleNotFound
from penstock.core.schedule import Due, Missed, Rhythm, Schedule
from tests.contract.support import HOUR, SECOND, ManualClock
from tests.worker.support import eventually, soon, work_off, working

OFTEN = timedelta(milliseconds=5)
MINUTE = timedelta(minutes=1)
START = datetime(2030, 1, 1, tzinfo=UTC)


async def nothing() -> None:
    pass


async def one(app: Penstock, name: str = "t") -> Schedule:
    [schedule] = [schedule for schedule in await app.schedules() if schedule.name == name]
    return schedule


async def planned(app: Penstock) -> list[datetime]:
    """The planned times of all runs so far, in the order they were enqueued."""
    return [job.run_at for job in reversed(await app.find())]


async def count(app: Penstock, n: int) -> bool:
    return len(await app.find()) == n


# Through a worker


async def done(app: Penstock) -> int:
    return len(await app.find(JobQuery(states=frozenset({State.DONE}))))


async def test_periodic_task_runs_at_its_times(app: Penstock, clock: ManualClock) -> None:
    seen: list[datetime] = []

    @app.task(cron="30 4 * * *", timezone="Europe/Berlin")
    async def nightly() -> None:
        seen.append(context().job.run_at)

    await app.register_schedules()
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
    """Far within its sweep, on the machine's clock."""
    app, ran = Penstock(url), asyncio.Event()

    @app.task(every=SECOND)
    async def tick() -> None:
        ran.set()

    async with working(app, sweep=60 * SECOND):
        await soon(ran)
    await app.close()


async def test_worker_that_waits_looks_once_per_sweep(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is due but cannot be fired, or one of another program, is no reason to hurry."""
    looks = 0
    due = app.store.due

    async def counted(*args: Any) -> Due:
        nonlocal looks
        looks += 1
        return await due(*args)

    app.task("t", nothing, every=HOUR)
    await app.register_schedules()
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


async def test_schedule_that_left_the_code_rests_and_is_reported(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    former = Penstock(url, clock=clock)
    former.task("gone", nothing, every=HOUR)
    former.task("plain now", nothing, every=HOUR)
    await former.register_schedules()
    await former.close()
    app = Penstock(url, clock=clock)
    app.task("plain now", nothing)
    app.task("new", nothing, every=HOUR)
    with caplog.at_level(logging.WARNING):
        await work_off(app)
        clock.advance(HOUR)
        await work_off(app)
    assert [job.task for job in await app.find()] == ["new"]
    assert {s.name: s.known for s in await app.schedules()} == {
        "gone": False,
        "new": True,
        "plain now": False,
    }
    assert "schedule gone is not in the code any more" in caplog.text
    assert "schedule plain now is not in the code any more" in caplog.text
    await app.unschedule("gone")
    await app.unschedule("plain now")
    assert [s.name for s in await app.schedules()] == ["new"]
    await app.close()


# What is registered


async def test_task_that_is_periodic_can_be_enqueued_too(app: Penstock) -> None:
    task = app.task("t", nothing, every=HOUR, queue="q")
    job = await task.enqueue()
    assert (job.queue, job.correlation) == ("q", None)


async def test_unchanged_schedule_keeps_its_next_run(app: Penstock, clock: ManualClock) -> None:
    task = app.task("t", nothing)
    first = await app.schedule("s", task, every=HOUR)
    clock.advance(HOUR / 2)
    assert await app.schedule("s", task, every=HOUR) == first
    other = await app.schedule("s", task.using(queue="q").new(), every=HOUR, missed="all")
    assert (other.next, other.job.queue, other.missed) == (first.next, "q", Missed.ALL)


async def test_changed_rhythm_takes_effect_from_now(app: Penstock, clock: ManualClock) -> None:
    task = app.task("t", nothing)
    await app.schedule("s", task, every=HOUR)
    clock.advance(HOUR)
    await app.fire_due()
    changed = await app.schedule("s", task, cron="0 12 * * *")
    assert (changed.next, changed.last) == (START + 12 * HOUR, START + HOUR)
    zone = await app.schedule("s", task, cron="0 12 * * *", timezone="Europe/Berlin")
    assert zone.next == START + 11 * HOUR


async def test_changed_schedule_stays_paused(app: Penstock) -> None:
    task = app.task("t", nothing)
    await app.schedule("s", task, every=HOUR)
    await app.pause_schedule("s")
    assert (await app.schedule("s", task, every=2 * HOUR)).paused


async def test_job_with_arguments_is_scheduled_under_its_own_name(
    app: Penstock, clock: ManualClock
) -> None:
    async def report(region: str) -> str:
        return region

    task = app.task("report", report)
    await app.schedule("eu", task.new("eu"), every=HOUR)
    await app.schedule("us", task.new("us"), every=HOUR)
    clock.advance(HOUR)
    await work_off(app)
    assert {job.returned for job in await app.find()} == {"eu", "us"}


async def test_schedules_in_words(app: Penstock) -> None:
    app.task("a", nothing, cron="0 4 * * MON-FRI", timezone="Europe/Berlin")
    app.task("b", nothing, every=timedelta(minutes=90))
    await app.register_schedules()
    a, b = await app.schedules()
    assert (a.name, a.task, a.timezone) == ("a", "a", "Europe/Berlin")
    assert a.spec == "At 04:00 on Monday through Friday"
    assert (b.spec, b.timezone, b.paused) == ("Every 90 minutes", "UTC", False)
    assert (b.next, b.last, b.last_job) == (START + timedelta(minutes=90), None, None)


@pytest.mark.parametrize(
    ("recurrence", "message"),
    [
        ({"cron": "* * * *"}, "needs five fields"),
        ({"cron": "0 * * * * *"}, "needs five fields"),
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"cron": "L/2 * * * *"}, "is not understood"),
        ({"cron": "0 0 30 2 *"}, "Bad day-of-month"),
        ({"cron": "0 0 */15 2 MON#5"}, "never comes"),
        ({"cron": "@sometimes"}, "needs five fields"),
        ({"cron": 5}, "cron is text"),
        ({"cron": "* * * * *", "timezone": "Europe/Atlantis"}, "no time zone 'Europe/Atlantis'"),
        ({"cron": "* * * * *", "timezone": "../etc/passwd"}, "no time zone"),
        ({"cron": "* * * * *", "timezone": "Europe"}, "no time zone"),
        ({"cron": "* * * * *", "timezone": ""}, "no time zone"),
        ({"cron": "* * * * *", "timezone": 1}, "no time zone"),
        ({"cron": "* * * * *", "every": HOUR}, "either cron or every"),
        ({"timezone": "UTC"}, "either cron or every"),
        ({"missed": "all"}, "either cron or every"),
        ({"every": HOUR, "timezone": "UTC"}, "a timezone belongs to cron"),
        ({"every": timedelta(milliseconds=1)}, "from 1 second"),
        ({"every": -HOUR}, "from 1 second"),
        ({"every": 60}, "from 1 second"),
        ({"every": HOUR, "missed": "never"}, "once, all, skip"),
        ({"every": HOUR, "overlap": "no"}, "True or False"),
        ({"every": HOUR, "delay": HOUR}, "no delay and no run_at"),
        ({"every": HOUR, "run_at": START}, "no delay and no run_at"),
    ],
)
def test_wrong_recurrence_is_refused_at_registration(
    app: Penstock, recurrence: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        app.task("t", nothing, **recurrence)
    assert app.tasks == {}
    assert run_sync(app.register_schedules()) == []
    assert run_sync(app.schedules()) == []


def test_periodic_task_needs_no_arguments(app: Penstock) -> None:
    with pytest.raises(ConfigurationError, match="give them defaults, or call schedule"):
        app.task("t", lambda n: n, every=HOUR)
    app.task("u", lambda n=1: n, every=HOUR)


def test_what_is_scheduled_is_a_job(app: Penstock) -> None:
    with pytest.raises(ConfigurationError, match="give a task"):
        run_sync(app.schedule("s", "t", every=HOUR))  # type: ignore[arg-type] # is what is refused
    with pytest.raises(InvalidJob, match="args is not JSON"):
        run_sync(app.schedule("s", NewJob(task="t", payload="["), every=HOUR))
    with pytest.raises(InvalidJob, match="name of a schedule"):
        run_sync(app.schedule("", NewJob(task="t", payload="{}"), every=HOUR))
    with pytest.raises(ConfigurationError, match="no option when"):
        run_sync(app.schedule("s", NewJob(task="t", payload="{}"), when=1))  # type: ignore[call-arg] # is what is refused


# What is fired


@pytest.mark.parametrize(
    ("missed", "minutes"),
    [("once", [600]), ("all", range(60, 601, 60)), ("skip", [])],
)
async def test_runs_that_nobody_was_there_for(
    app: Penstock, clock: ManualClock, missed: Any, minutes: Any
) -> None:
    app.task("t", nothing, every=HOUR, missed=missed)
    await app.register_schedules()
    clock.advance(10 * HOUR + 2 * MINUTE)
    await app.fire_due()
    assert await planned(app) == [START + n * MINUTE for n in minutes]
    clock.advance(HOUR - 2 * MINUTE)
    await app.fire_due()
    assert (await planned(app))[len(minutes) :] == [START + 11 * HOUR]


async def test_skip_leaves_a_run_that_is_hardly_late(app: Penstock, clock: ManualClock) -> None:
    app.task("t", nothing, every=HOUR, missed="skip")
    await app.register_schedules()
    clock.advance(3 * HOUR + MINUTE)
    await app.fire_due()
    assert await planned(app) == [START + 3 * HOUR]


async def test_catching_up_is_bounded(
    app: Penstock, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    app.task("t", nothing, cron="* * * * *", missed="all")
    await app.register_schedules()
    clock.advance(timedelta(days=3650))
    with caplog.at_level(logging.WARNING):
        await app.fire_due()
    jobs = await _all(app)
    assert [job.run_at for job in jobs] == [clock.now - n * MINUTE for n in range(999, -1, -1)]
    assert "were missed, 1000 of them made up for" in caplog.text


async def test_more_schedules_than_a_portion_are_all_fired(
    app: Penstock, clock: ManualClock
) -> None:
    task = app.task("t", nothing)
    for n in range(250):
        await app.schedule(f"s{n}", task, every=HOUR)
    clock.advance(HOUR)
    assert await app.fire_due() == HOUR
    assert len(await _all(app)) == 250


async def test_full_queue_does_not_keep_others_from_being_fired(
    app: Penstock, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    app.task("t", nothing, every=HOUR, queue="full")
    app.task("u", nothing, every=HOUR)
    await app.register_schedules()
    await app.limit("full", 0)
    clock.advance(HOUR)
    with caplog.at_level(logging.WARNING):
        await app.fire_due()
    assert [job.task for job in await app.find()] == ["u"]
    assert "schedule t: queue 'full' is full" in caplog.text
    await app.limit("full", None)
    await app.fire_due()
    assert {job.task for job in await app.find()} == {"t", "u"}


async def test_schedules_that_stay_due_do_not_starve_others(
    app: Penstock, clock: ManualClock
) -> None:
    task = app.task("t", nothing)
    for n in range(150):
        await app.schedule(f"stuck{n}", task.using(queue="full").new(), every=HOUR)
    await app.limit("full", 0)
    clock.advance(MINUTE)
    await app.schedule("fine", task, every=HOUR)
    clock.advance(HOUR)
    await app.fire_due()
    assert [job.queue for job in await app.find()] == ["default"]


async def test_schedule_that_cannot_be_read_here_does_not_stop_others(
    app: Penstock, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    job = app.task("t", nothing).new()
    strange = Rhythm(cron="0 0 * * *", timezone="Mars/Olympus")
    unread = Rhythm(cron="0 0 * * MON~FRI")
    await app.store.put_schedule(Schedule(name="a", job=job, rhythm=strange, next=START))
    await app.store.put_schedule(Schedule(name="b", job=job, rhythm=unread, next=START))
    await app.schedule("c", job, every=HOUR)
    clock.advance(HOUR)
    await app.fire_due()
    [run] = await app.find()
    assert run.correlation == "c@2030-01-01T01:00:00Z"
    await app.fire_due()
    assert caplog.text.count("schedule a: it cannot be fired here") == 1
    assert caplog.text.count("schedule b: it cannot be fired here") == 1
    assert [s.spec for s in await app.schedules()][1:] == ["0 0 * * MON~FRI", "Every hour"]


async def test_run_is_left_out_while_the_previous_is_unfinished_without_overlap(
    app: Penstock, clock: ManualClock
) -> None:
    app.task("t", nothing, every=HOUR, overlap=False)
    await app.register_schedules()
    for _ in range(3):
        clock.advance(HOUR)
        await app.fire_due()
    assert await planned(app) == [START + HOUR]
    await work_off(app)
    clock.advance(HOUR)
    await app.fire_due()
    assert await planned(app) == [START + HOUR, START + 4 * HOUR]


async def test_own_dedupe_key_of_a_job_is_kept(app: Penstock, clock: ManualClock) -> None:
    app.task("t", nothing, every=HOUR, overlap=False, dedupe="mine", correlation="c")
    await app.register_schedules()
    clock.advance(HOUR)
    await app.fire_due()
    [job] = await app.find()
    assert (job.dedupe, job.correlation) == ("mine", "c")


async def test_planned_time_outlives_a_retry(app: Penstock, clock: ManualClock) -> None:
    seen: list[str | None] = []

    @app.task("t", every=HOUR)
    async def failing() -> None:
        seen.append(context().job.correlation)
        raise ValueError

    await app.register_schedules()
    clock.advance(HOUR)
    await work_off(app)
    clock.advance(MINUTE)
    await work_off(app)
    assert seen == ["t@2030-01-01T01:00:00Z"] * 2


# Steering


async def test_run_now_leaves_the_rhythm(app: Penstock, clock: ManualClock) -> None:
    app.task("t", nothing, every=HOUR)
    await app.register_schedules()
    before = await one(app)
    clock.advance(MINUTE)
    job = await app.run_now("t")
    assert (job.run_at, job.task) == (clock.now, "t")
    assert await one(app) == before


async def test_log_says_who_ran_it_now(app: Penstock) -> None:
    task = app.task("t", lambda: None)
    await app.schedule("nightly", task, every=HOUR, overlap=False)
    job = await app.run_now("nightly")
    [entry] = await app.log(job.id)
    assert entry.reason == f"schedule nightly, run now by {app.actor}"
    assert (await app.run_now("nightly")).duplicate
    [again] = await app.log(job.id)
    assert again == entry


async def test_run_now_beside_an_unfinished_run_returns_that_one(
    app: Penstock, clock: ManualClock
) -> None:
    app.task("t", nothing, every=HOUR, overlap=False)
    await app.register_schedules()
    clock.advance(HOUR)
    await app.fire_due()
    [job] = await app.find()
    again = await app.run_now("t")
    assert (again.id, again.duplicate) == (job.id, True)


async def test_paused_schedule_fires_nothing_and_goes_on_behind_the_pause(
    app: Penstock, clock: ManualClock
) -> None:
    app.task("t", nothing, every=HOUR, missed="all")
    await app.register_schedules()
    assert (await app.pause_schedule("t")).paused
    clock.advance(5 * HOUR + MINUTE)
    assert await app.fire_due() is None
    resumed = await app.resume_schedule("t")
    assert (resumed.paused, resumed.next) == (False, START + 6 * HOUR)
    await app.fire_due()
    assert await app.find() == []
    clock.advance(HOUR)
    await app.fire_due()
    assert await planned(app) == [START + 6 * HOUR]


async def test_short_pause_changes_nothing(app: Penstock, clock: ManualClock) -> None:
    app.task("t", nothing, every=HOUR)
    await app.register_schedules()
    await app.pause_schedule("t")
    clock.advance(MINUTE)
    assert (await app.resume_schedule("t")).next == START + HOUR


async def test_resuming_what_is_not_paused_loses_no_missed_run(
    app: Penstock, clock: ManualClock
) -> None:
    app.task("t", nothing, every=HOUR)
    await app.register_schedules()
    before = await one(app)
    clock.advance(HOUR)
    assert await app.resume_schedule("t") == before
    await app.fire_due()
    assert await planned(app) == [START + HOUR]


async def test_unknown_schedule_is_an_error(app: Penstock) -> None:
    for call in (app.unschedule, app.run_now, app.pause_schedule, app.resume_schedule):
        with pytest.raises(ScheduleNotFound, match="no schedule 'nope'"):
            await call("nope")


async def _ended(app: Penstock, seen: list[datetime], n: int) -> bool:
    """So many have run, and the worker has settled the last: time may jump past its lease."""
    running = JobQuery(states=frozenset({State.RUNNING}))
    return len(seen) == n and not await app.find(running)


async def _done(app: Penstock, n: int) -> bool:
    return [job.state for job in await app.find()].count(State.DONE) == n


async def _stored(app: Penstock, n: int) -> bool:
    return len(await app.schedules()) == n


async def _all(app: Penstock) -> list[Job]:
    return await app.find(JobQuery(newest_first=False, limit=10_000))
