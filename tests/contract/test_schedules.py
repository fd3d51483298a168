"""Schedules: each run is enqueued once, with its audit, however many processes try."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.core.errors import QueueFull
from penstock.core.job import NewJob, Scope
from penstock.core.lifecycle import Done, Event, Waiting
from penstock.core.queue import QueueSettings
from penstock.core.schedule import Due, Missed, Rhythm, Schedule, plan
from penstock.core.store import Store
from penstock.runtime import Runtime
from penstock.stores import open_store
from tests.contract.support import (
    HOUR,
    SECOND,
    STEADY,
    ManualClock,
    add,
    add_one,
    drive,
    everything,
    history,
    ids,
    new,
    settle,
    take_one,
    totals,
)
from tests.environment import SOON

START = datetime(2030, 1, 1, tzinfo=UTC)
HOURLY = Rhythm(every=HOUR)


def hourly(name: str = "s", **fields: Any) -> Schedule:
    """A schedule whose first run is planned in an hour."""
    job = fields.pop("job", NewJob(task="t", payload="{}"))
    return Schedule(**{"name": name, "job": job, "rhythm": HOURLY, "next": START + HOUR, **fields})


async def put(store: Store, schedule: Schedule) -> Schedule:
    written = await store.put_schedule(schedule)
    assert written is not None
    return written


async def due(store: Store, limit: int = 100) -> Due:
    return await store.due(["t"], ["s"], limit)


async def fire(store: Store, schedule: Schedule, now: datetime) -> Any:
    return await store.fire(plan(schedule, now), actor="w")


async def test_schedule_comes_back_as_it_was_written(store: Store) -> None:
    job = NewJob(
        task="t",
        payload='{"n":1}',
        queue="q",
        priority=7,
        key="k",
        dedupe="d",
        scope=Scope.PENDING,
        tags=("a", "b"),
        retry=STEADY,
        timeout=SECOND,
        lease=HOUR,
        correlation="c",
        tenant="m",
    )
    schedules = [
        hourly("a", job=job, missed=Missed.ALL, overlap=False, declared=True, last=START),
        hourly("b", rhythm=Rhythm(cron="*/5 * * * *", timezone="Europe/Berlin"), paused=True),
        hourly("c", next=None),
    ]
    written = [await put(store, schedule) for schedule in schedules]
    assert [replace(found, version=0) for found in written] == schedules
    assert await store.schedules() == written
    assert await store.schedules(["b", "nobody", "a"]) == written[:2]


async def test_plain_job_comes_back_with_the_very_defaults(store: Store) -> None:
    """Stores tell defaults by identity where that is cheaper."""
    await put(store, hourly())
    [found] = await store.schedules()
    assert found.job == NewJob(task="t", payload="{}")
    assert found.job.retry is NewJob(task="t", payload="{}").retry
    assert found.job.lease is NewJob(task="t", payload="{}").lease


async def test_write_on_another_version_is_refused(store: Store) -> None:
    first = await put(store, hourly())
    assert await store.put_schedule(hourly(paused=True)) is None
    second = await put(store, replace(first, paused=True))
    assert second.version > first.version
    assert await store.put_schedule(first) is None
    assert await store.schedules() == [second]


async def test_write_about_a_schedule_that_is_gone_is_refused(store: Store) -> None:
    schedule = await put(store, hourly())
    assert await store.drop_schedule("s")
    assert not await store.drop_schedule("s")
    assert await store.put_schedule(schedule) is None
    assert await store.schedules() == []


async def test_version_is_not_given_again_when_a_name_comes_back(
    store: Store, clock: ManualClock
) -> None:
    former = await put(store, hourly())
    await store.drop_schedule("s")
    again = await put(store, hourly())
    assert again.version > former.version
    clock.advance(HOUR)
    assert await fire(store, former, clock.now) is None
    assert await fire(store, again, clock.now) is not None


async def test_due_are_those_whose_time_has_come_longest_due_first(
    store: Store, clock: ManualClock
) -> None:
    for name, hours in (("a", 2), ("b", 1), ("c", 3), ("d", 4)):
        await put(store, hourly(name, next=START + hours * HOUR))
    assert await due(store) == Due(now=START, schedules=[], next=START + HOUR)
    clock.advance(3 * HOUR)
    found = await due(store)
    assert [schedule.name for schedule in found.schedules] == ["b", "a", "c"]
    assert (found.now, found.next) == (clock.now, START + 4 * HOUR)
    assert [schedule.name for schedule in (await due(store, limit=1)).schedules] == ["b"]


async def test_paused_ended_and_unknown_schedules_are_not_due(
    store: Store, clock: ManualClock
) -> None:
    await put(store, hourly("paused", paused=True))
    await put(store, hourly("ended", next=None))
    await put(store, hourly("elsewhere", job=NewJob(task="another", payload="{}")))
    await put(store, hourly("not in the code any more", declared=True))
    assert (await due(store)).next is None
    clock.advance(HOUR)
    assert (await due(store)).schedules == []
    await put(store, hourly("s", declared=True))
    assert [schedule.name for schedule in (await due(store)).schedules] == ["s"]


async def test_firing_adds_the_job_and_sets_the_next_run(store: Store, clock: ManualClock) -> None:
    schedule = await put(store, hourly(job=NewJob(task="t", payload='{"n":1}', queue="q")))
    clock.advance(HOUR + SECOND)
    [job] = await fire(store, schedule, clock.now)
    assert (job.task, job.payload, job.queue) == ("t", '{"n":1}', "q")
    assert (job.run_at, job.enqueued_at) == (START + HOUR, clock.now)
    assert job.correlation == "s@2030-01-01T01:00:00Z"
    [stored] = await store.schedules()
    assert (stored.next, stored.last, stored.last_job) == (START + 2 * HOUR, START + HOUR, job.id)
    assert await everything(store) == [job]
    assert await totals(store) == {("q", job.state, Waiting.READY): 1}
    assert (await take_one(store)).id == job.id


async def test_log_says_which_schedule_enqueued_a_job(store: Store, clock: ManualClock) -> None:
    schedule = await put(store, hourly(missed=Missed.ALL))
    clock.advance(2 * HOUR)
    first, second = await fire(store, schedule, clock.now)
    await add_one(store)
    [entry] = await history(store, first)
    assert (entry.event, entry.actor, entry.at) == (Event.ENQUEUED, "w", clock.now)
    assert entry.reason == "schedule s, planned for 2030-01-01 01:00:00 UTC"
    [entry] = await history(store, second)
    assert entry.reason == "schedule s, planned for 2030-01-01 02:00:00 UTC"
    assert [entry.reason for entry in await store.log()][2:] == [None]


async def test_run_is_fired_once_however_many_try(store: Store, clock: ManualClock) -> None:
    schedule = await put(store, hourly())
    clock.advance(HOUR)
    firing = plan(schedule, clock.now)
    answers = await asyncio.gather(*(store.fire(firing, actor=f"w{n}") for n in range(20)))
    assert len([jobs for jobs in answers if jobs is not None]) == 1
    assert len(await everything(store)) == 1


@pytest.mark.parametrize("change", ["pause", "redefine", "drop", "clock"])
async def test_nothing_is_fired_when_the_schedule_is_another_meanwhile(
    store: Store, clock: ManualClock, change: str
) -> None:
    schedule = await put(store, hourly())
    clock.advance(HOUR)
    firing = plan(schedule, clock.now)
    if change == "pause":
        await put(store, replace(schedule, paused=True))
    elif change == "redefine":
        await put(store, replace(schedule, job=NewJob(task="t", payload='{"new":1}')))
    elif change == "drop":
        await store.drop_schedule("s")
    else:
        clock.advance(-SECOND)
    before = await store.schedules()
    assert await store.fire(firing, actor="w") is None
    assert await store.schedules() == before
    assert await everything(store) == []
    assert await store.log() == []


async def test_full_queue_leaves_the_schedule_due(store: Store, clock: ManualClock) -> None:
    schedule = await put(store, hourly())
    other = await put(store, hourly("other", job=NewJob(task="t", payload="{}", queue="q")))
    await store.configure(QueueSettings(name="default", max_pending=0))
    clock.advance(HOUR)
    answers: Any = await asyncio.gather(
        fire(store, schedule, clock.now), fire(store, other, clock.now), return_exceptions=True
    )
    assert isinstance(answers[0], QueueFull)
    assert len(answers[1]) == 1
    assert (await due(store)).schedules == [schedule]
    await store.configure(QueueSettings(name="default", max_pending=1))
    assert len(await fire(store, schedule, clock.now)) == 1


async def test_run_without_jobs_only_moves_the_schedule_on(
    store: Store, clock: ManualClock
) -> None:
    schedule = await put(store, hourly(missed=Missed.SKIP))
    clock.advance(HOUR + 2 * timedelta(minutes=1))
    assert await fire(store, schedule, clock.now) == []
    [stored] = await store.schedules()
    assert (stored.next, stored.last, stored.last_job) == (START + 2 * HOUR, None, None)


async def test_run_is_skipped_without_overlap_while_another_is_unfinished(
    store: Store, clock: ManualClock
) -> None:
    schedule = await put(store, hourly(overlap=False))
    clock.advance(HOUR)
    [first] = await fire(store, schedule, clock.now)
    running = await take_one(store)
    clock.advance(HOUR)
    [schedule] = await store.schedules()
    [hit] = await fire(store, schedule, clock.now)
    assert (hit.id, hit.duplicate) == (first.id, True)
    [schedule] = await store.schedules()
    assert (schedule.last, schedule.last_job) == (START + HOUR, first.id)
    assert schedule.next == START + 3 * HOUR
    await settle(store, running, Done())
    clock.advance(HOUR)
    [third] = await fire(store, schedule, clock.now)
    assert not third.duplicate
    assert [entry.reason is None for entry in await history(store, third)] == [False]


async def test_key_of_the_job_is_obeyed(store: Store, clock: ManualClock) -> None:
    await add(store, new(key="k"))
    schedule = await put(store, hourly(job=NewJob(task="t", payload="{}", key="k")))
    clock.advance(HOUR)
    [job] = await fire(store, schedule, clock.now)
    assert job.waiting is Waiting.BLOCKED


async def test_fired_jobs_and_new_schedules_end_a_wait(store: Store, clock: ManualClock) -> None:
    seen = await store.wait(-1, 0)
    schedule = await put(store, hourly())
    async with asyncio.timeout(SOON):
        assert (later := await store.wait(seen, 60)) != seen
    clock.advance(HOUR)
    await fire(store, schedule, clock.now)
    async with asyncio.timeout(SOON):
        assert await store.wait(later, 60) != later


def test_verbs_work_without_event_loop(store: Store, clock: ManualClock) -> None:
    schedule = drive(put(store, hourly()))
    clock.advance(HOUR)
    assert drive(due(store)).schedules == [schedule]
    [job] = drive(fire(store, schedule, clock.now))
    assert ids(drive(everything(store))) == [job.id]
    assert drive(store.drop_schedule("s"))


async def test_schedules_are_there_when_the_store_is_opened_again(
    lasting_url: str, clock: ManualClock
) -> None:
    store = open_store(lasting_url, runtime=Runtime(clock))
    await put(store, hourly())
    clock.advance(HOUR)
    [schedule] = await store.schedules()
    await fire(store, schedule, clock.now)
    before = await store.schedules()
    await store.close()
    store = open_store(lasting_url, runtime=Runtime(clock))
    assert await store.schedules() == before
    await store.close()
