"""Schedules: registering, firing and pausing them."""

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import (
    ConfigurationError,
    InvalidJob,
    Job,
    JobQuery,
    NewJob,
    Penstock,
    context,
    run_sync,
)
from penstock.core.errors import ScheduleNotFound
from penstock.core.schedule import Missed, Rhythm, Schedule
from tests.contract.support import HOUR, ManualClock
from tests.worker.support import work_off

MINUTE = timedelta(minutes=1)
START = datetime(2030, 1, 1, tzinfo=UTC)


async def nothing() -> None:
    pass


async def one(app: Penstock, name: str = "t") -> Schedule:
    [schedule] = [schedule for schedule in await app.schedules.list() if schedule.name == name]
    return schedule


async def planned(app: Penstock) -> list[datetime]:
    """The planned times of all runs so far, in the order they were enqueued."""
    return [job.run_at for job in reversed(await app.find())]


# Registration


async def test_task_that_is_periodic_can_be_enqueued_too(app: Penstock) -> None:
    task = app.task("t", nothing, every=HOUR, queue="q")
    job = await task.enqueue()
    assert (job.queue, job.correlation) == ("q", None)


async def test_unchanged_schedule_keeps_its_next_run(app: Penstock, clock: ManualClock) -> None:
    task = app.task("t", nothing)
    first = await app.schedules.put("s", task, every=HOUR)
    clock.advance(HOUR / 2)
    assert await app.schedules.put("s", task, every=HOUR) == first
    other = await app.schedules.put("s", task.using(queue="q").new(), every=HOUR, missed="all")
    assert (other.next, other.job.queue, other.missed) == (first.next, "q", Missed.ALL)


async def test_changed_rhythm_takes_effect_from_now(app: Penstock, clock: ManualClock) -> None:
    task = app.task("t", nothing)
    await app.schedules.put("s", task, every=HOUR)
    clock.advance(HOUR)
    await app.schedules.fire_due()
    changed = await app.schedules.put("s", task, cron="0 12 * * *")
    assert (changed.next, changed.last) == (START + 12 * HOUR, START + HOUR)
    zone = await app.schedules.put("s", task, cron="0 12 * * *", timezone="Europe/Berlin")
    assert zone.next == START + 11 * HOUR


async def test_changed_schedule_stays_paused(app: Penstock) -> None:
    task = app.task("t", nothing)
    await app.schedules.put("s", task, every=HOUR)
    await app.schedules.pause("s")
    assert (await app.schedules.put("s", task, every=2 * HOUR)).paused


async def test_job_with_arguments_is_scheduled_under_its_own_name(
    app: Penstock, clock: ManualClock
) -> None:
    async def report(region: str) -> str:
        return region

    task = app.task("report", report)
    await app.schedules.put("eu", task.new("eu"), every=HOUR)
    await app.schedules.put("us", task.new("us"), every=HOUR)
    clock.advance(HOUR)
    await work_off(app)
    assert {job.returned for job in await app.find()} == {"eu", "us"}


async def test_schedules_in_words(app: Penstock) -> None:
    app.task("a", nothing, cron="0 4 * * MON-FRI", timezone="Europe/Berlin")
    app.task("b", nothing, every=timedelta(minutes=90))
    await app.schedules.register()
    a, b = await app.schedules.list()
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
        ({"cron": "L/2 * * * *"}, "is invalid"),
        ({"cron": "0 0 30 2 *"}, "Bad day-of-month"),
        ({"cron": "0 0 */15 2 MON#5"}, "never matches a date"),
        ({"cron": "@sometimes"}, "needs five fields"),
        ({"cron": 5}, "cron must be text"),
        ({"cron": "* * * * *", "timezone": "Europe/Atlantis"}, "no time zone 'Europe/Atlantis'"),
        ({"cron": "* * * * *", "timezone": "../etc/passwd"}, "no time zone"),
        ({"cron": "* * * * *", "timezone": "Europe"}, "no time zone"),
        ({"cron": "* * * * *", "timezone": ""}, "no time zone"),
        ({"cron": "* * * * *", "timezone": 1}, "no time zone"),
        ({"cron": "* * * * *", "every": HOUR}, "either cron or every"),
        ({"timezone": "UTC"}, "either cron or every"),
        ({"missed": "all"}, "either cron or every"),
        ({"every": HOUR, "timezone": "UTC"}, "timezone needs cron"),
        ({"every": timedelta(milliseconds=1)}, "from 1 second"),
        ({"every": -HOUR}, "from 1 second"),
        ({"every": 60}, "from 1 second"),
        ({"every": HOUR, "missed": "never"}, "once, all, skip"),
        ({"every": HOUR, "overlap": "no"}, "True or False"),
        ({"every": HOUR, "delay": HOUR}, "neither delay nor run_at"),
        ({"every": HOUR, "run_at": START}, "neither delay nor run_at"),
    ],
)
def test_wrong_recurrence_is_refused_at_registration(
    app: Penstock, recurrence: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        app.task("t", nothing, **recurrence)
    assert app.tasks == {}
    assert run_sync(app.schedules.register()) == []
    assert run_sync(app.schedules.list()) == []


def test_periodic_task_must_not_need_arguments(app: Penstock) -> None:
    with pytest.raises(ConfigurationError, match="give them defaults, or call schedule"):
        app.task("t", lambda n: n, every=HOUR)
    app.task("u", lambda n=1: n, every=HOUR)


def test_only_a_job_can_be_scheduled(app: Penstock) -> None:
    with pytest.raises(ConfigurationError, match="give a task"):
        run_sync(app.schedules.put("s", "t", every=HOUR))  # type: ignore[arg-type] # is what is refused
    with pytest.raises(InvalidJob, match="args is not JSON"):
        run_sync(app.schedules.put("s", NewJob(task="t", payload="["), every=HOUR))
    with pytest.raises(InvalidJob, match="name of a schedule"):
        run_sync(app.schedules.put("", NewJob(task="t", payload="{}"), every=HOUR))
    with pytest.raises(ConfigurationError, match="no option when"):
        run_sync(app.schedules.put("s", NewJob(task="t", payload="{}"), when=1))  # type: ignore[call-arg] # is what is refused


# Firing


@pytest.mark.parametrize(
    ("missed", "minutes"),
    [("once", [600]), ("all", range(60, 601, 60)), ("skip", [])],
)
async def test_missed_runs(app: Penstock, clock: ManualClock, missed: Any, minutes: Any) -> None:
    app.task("t", nothing, every=HOUR, missed=missed)
    await app.schedules.register()
    clock.advance(10 * HOUR + 2 * MINUTE)
    await app.schedules.fire_due()
    assert await planned(app) == [START + n * MINUTE for n in minutes]
    clock.advance(HOUR - 2 * MINUTE)
    await app.schedules.fire_due()
    assert (await planned(app))[len(minutes) :] == [START + 11 * HOUR]


async def test_skip_fires_a_run_that_is_slightly_late(app: Penstock, clock: ManualClock) -> None:
    app.task("t", nothing, every=HOUR, missed="skip")
    await app.schedules.register()
    clock.advance(3 * HOUR + MINUTE)
    await app.schedules.fire_due()
    assert await planned(app) == [START + 3 * HOUR]


async def test_catching_up_is_bounded(
    app: Penstock, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    app.task("t", nothing, cron="* * * * *", missed="all")
    await app.schedules.register()
    clock.advance(timedelta(days=3650))
    with caplog.at_level(logging.WARNING):
        await app.schedules.fire_due()
    jobs = await _all(app)
    assert [job.run_at for job in jobs] == [clock.now - n * MINUTE for n in range(999, -1, -1)]
    assert "were missed, 1000 of them made up for" in caplog.text


async def test_more_schedules_than_a_batch_are_all_fired(app: Penstock, clock: ManualClock) -> None:
    task = app.task("t", nothing)
    for n in range(250):
        await app.schedules.put(f"s{n}", task, every=HOUR)
    clock.advance(HOUR)
    assert await app.schedules.fire_due() == HOUR
    assert len(await _all(app)) == 250


async def test_full_queue_does_not_keep_others_from_being_fired(
    app: Penstock, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    app.task("t", nothing, every=HOUR, queue="full")
    app.task("u", nothing, every=HOUR)
    await app.schedules.register()
    await app.limits.queue("full", 0)
    clock.advance(HOUR)
    with caplog.at_level(logging.WARNING):
        await app.schedules.fire_due()
    assert [job.task for job in await app.find()] == ["u"]
    assert "schedule t: queue 'full' is full" in caplog.text
    await app.limits.queue("full", None)
    await app.schedules.fire_due()
    assert {job.task for job in await app.find()} == {"t", "u"}


async def test_schedules_that_stay_due_do_not_starve_others(
    app: Penstock, clock: ManualClock
) -> None:
    task = app.task("t", nothing)
    for n in range(150):
        await app.schedules.put(f"stuck{n}", task.using(queue="full").new(), every=HOUR)
    await app.limits.queue("full", 0)
    clock.advance(MINUTE)
    await app.schedules.put("fine", task, every=HOUR)
    clock.advance(HOUR)
    await app.schedules.fire_due()
    assert [job.queue for job in await app.find()] == ["default"]


async def test_schedule_that_cannot_be_read_here_does_not_stop_others(
    app: Penstock, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    job = app.task("t", nothing).new()
    strange = Rhythm(cron="0 0 * * *", timezone="Mars/Olympus")
    unread = Rhythm(cron="0 0 * * MON~FRI")
    await app.store.put_schedule(Schedule(name="a", job=job, rhythm=strange, next=START))
    await app.store.put_schedule(Schedule(name="b", job=job, rhythm=unread, next=START))
    await app.schedules.put("c", job, every=HOUR)
    clock.advance(HOUR)
    await app.schedules.fire_due()
    [run] = await app.find()
    assert run.correlation == "c@2030-01-01T01:00:00Z"
    await app.schedules.fire_due()
    assert caplog.text.count("schedule a: it cannot be fired here") == 1
    assert caplog.text.count("schedule b: it cannot be fired here") == 1
    assert [s.spec for s in await app.schedules.list()][1:] == ["0 0 * * MON~FRI", "Every hour"]


async def test_run_without_overlap_is_skipped_while_the_previous_is_unfinished(
    app: Penstock, clock: ManualClock
) -> None:
    app.task("t", nothing, every=HOUR, overlap=False)
    await app.schedules.register()
    for _ in range(3):
        clock.advance(HOUR)
        await app.schedules.fire_due()
    assert await planned(app) == [START + HOUR]
    await work_off(app)
    clock.advance(HOUR)
    await app.schedules.fire_due()
    assert await planned(app) == [START + HOUR, START + 4 * HOUR]


async def test_own_dedupe_key_of_a_job_is_kept(app: Penstock, clock: ManualClock) -> None:
    app.task("t", nothing, every=HOUR, overlap=False, dedupe="mine", correlation="c")
    await app.schedules.register()
    clock.advance(HOUR)
    await app.schedules.fire_due()
    [job] = await app.find()
    assert (job.dedupe, job.correlation) == ("mine", "c")


async def test_planned_time_outlives_a_retry(app: Penstock, clock: ManualClock) -> None:
    seen: list[str | None] = []

    @app.task("t", every=HOUR)
    async def failing() -> None:
        seen.append(context().job.correlation)
        raise ValueError

    await app.schedules.register()
    clock.advance(HOUR)
    await work_off(app)
    clock.advance(MINUTE)
    await work_off(app)
    assert seen == ["t@2030-01-01T01:00:00Z"] * 2


# Running now, pausing and removing


async def test_run_now_does_not_change_the_rhythm(app: Penstock, clock: ManualClock) -> None:
    app.task("t", nothing, every=HOUR)
    await app.schedules.register()
    before = await one(app)
    clock.advance(MINUTE)
    job = await app.schedules.run_now("t")
    assert (job.run_at, job.task) == (clock.now, "t")
    assert await one(app) == before


async def test_log_names_who_ran_a_schedule_now(app: Penstock) -> None:
    task = app.task("t", lambda: None)
    await app.schedules.put("nightly", task, every=HOUR, overlap=False)
    job = await app.schedules.run_now("nightly")
    [entry] = await app.log(job.id)
    assert entry.reason == f"schedule nightly, run now by {app.connection.actor}"
    assert (await app.schedules.run_now("nightly")).duplicate
    [again] = await app.log(job.id)
    assert again == entry


async def test_run_now_during_an_unfinished_run_returns_that_one(
    app: Penstock, clock: ManualClock
) -> None:
    app.task("t", nothing, every=HOUR, overlap=False)
    await app.schedules.register()
    clock.advance(HOUR)
    await app.schedules.fire_due()
    [job] = await app.find()
    again = await app.schedules.run_now("t")
    assert (again.id, again.duplicate) == (job.id, True)


async def test_paused_schedule_fires_nothing_and_continues_after_the_pause(
    app: Penstock, clock: ManualClock
) -> None:
    app.task("t", nothing, every=HOUR, missed="all")
    await app.schedules.register()
    assert (await app.schedules.pause("t")).paused
    clock.advance(5 * HOUR + MINUTE)
    assert await app.schedules.fire_due() is None
    resumed = await app.schedules.resume("t")
    assert (resumed.paused, resumed.next) == (False, START + 6 * HOUR)
    await app.schedules.fire_due()
    assert await app.find() == []
    clock.advance(HOUR)
    await app.schedules.fire_due()
    assert await planned(app) == [START + 6 * HOUR]


async def test_short_pause_changes_nothing(app: Penstock, clock: ManualClock) -> None:
    app.task("t", nothing, every=HOUR)
    await app.schedules.register()
    await app.schedules.pause("t")
    clock.advance(MINUTE)
    assert (await app.schedules.resume("t")).next == START + HOUR


async def test_resuming_a_schedule_that_is_not_paused_loses_no_missed_run(
    app: Penstock, clock: ManualClock
) -> None:
    app.task("t", nothing, every=HOUR)
    await app.schedules.register()
    before = await one(app)
    clock.advance(HOUR)
    assert await app.schedules.resume("t") == before
    await app.schedules.fire_due()
    assert await planned(app) == [START + HOUR]


async def test_unknown_schedule_is_an_error(app: Penstock) -> None:
    for call in (
        app.schedules.remove,
        app.schedules.run_now,
        app.schedules.pause,
        app.schedules.resume,
    ):
        with pytest.raises(ScheduleNotFound, match="no schedule 'nope'"):
            await call("nope")


async def _all(app: Penstock) -> list[Job]:
    return await app.find(JobQuery(newest_first=False, limit=10_000))
