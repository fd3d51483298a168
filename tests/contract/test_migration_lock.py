"""A locked store: no job comes in, starts or changes there, whichever process asks."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.core.errors import StoreError, StoreMoved, StoreUnavailable
from penstock.core.job import Claim, JobId, NewJob, Retention
from penstock.core.lifecycle import Done, Failed, cancel
from penstock.core.limits import Limit
from penstock.core.migration_lock import MigrationLock, MigrationPhase
from penstock.core.progress import LINES_KEPT, Line, Progress, Report, Reported
from penstock.core.query import JobQuery
from penstock.core.queue import QueueSettings
from penstock.core.restoration import Origin
from penstock.core.schedule import Firing, Rhythm, Schedule
from penstock.core.store import Store
from penstock.core.tokens import Access, Token
from penstock.core.transition import Change
from penstock.core.workers import WorkerInfo
from penstock.runtime import Runtime
from penstock.stores import open_store
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    drive,
    everything,
    ids,
    look,
    new,
    settle,
    take,
    take_one,
    totals,
)

ELSEWHERE = Origin(source=77)
LEAVING = MigrationLock(phase=MigrationPhase.LEAVING, peer=77, place="sqlite:///elsewhere.db")
LEFT = replace(LEAVING, phase=MigrationPhase.LEFT)
ARRIVING = replace(LEAVING, phase=MigrationPhase.ARRIVING)

Write = Callable[[Store], Coroutine[Any, Any, Any]]
SCHEDULE = Schedule(
    name="s", job=NewJob(task="t", payload="{}"), rhythm=Rhythm(every=HOUR), version=1
)


async def change(store: Store) -> None:
    [job] = await store.find(JobQuery(limit=1))
    await store.transition([Change(job, cancel(job))], actor="admin")


async def fire(store: Store) -> None:
    [schedule] = await store.schedules()
    await store.fire(Firing(schedule=schedule, jobs=(schedule.job,), next=None), actor="cron")


async def take_over(store: Store) -> None:
    [record] = await store.records([(await everything(store))[0].id])
    await store.restore([record], origin=ELSEWHERE, actor="a")


async def add_token(store: Store) -> None:
    [token] = await store.tokens()
    await store.add_token(replace(token, name="another"))


async def put_schedule(store: Store) -> None:
    [schedule] = await store.schedules()
    await store.put_schedule(schedule)


ABOUT_JOBS: dict[str, Write] = {
    "add": lambda store: add_one(store, queue="unknown"),
    "add with a reason": lambda store: store.add([new()], actor="p", reason="because"),
    "claim": lambda store: store.claim(Claim(worker="w", limit=1)),
    "transition": change,
    "fire": fire,
}
LASTING: dict[str, Write] = {
    "restore": take_over,
    "configure": lambda store: store.configure(QueueSettings(name="default", paused=True)),
    "limit": lambda store: store.limit(Limit(kind="task", name="t", concurrency=1)),
    "put_schedule": put_schedule,
    "add_token": add_token,
}
ALLOWED: dict[str, Write] = {
    "find": lambda store: store.find(JobQuery()),
    "remove a limit": lambda store: store.limit(Limit(kind="task", name="t", concurrency=None)),
    "prune": lambda store: store.prune(Retention(), 10),
    "digest": lambda store: store.roll_up(10),
    "greet": lambda store: store.heartbeat([]),
    "drop_token": lambda store: store.drop_token("ci"),
    "drop_schedule": lambda store: store.drop_schedule("s"),
}


async def fill(store: Store, clock: ManualClock) -> None:
    await add(store, *[new()] * 2)
    await store.put_schedule(replace(SCHEDULE, version=0, next=clock.now))
    token = Token(name="ci", digest="d", scopes=frozenset({Access.READ}), created_at=clock.now)
    await store.add_token(token)
    await store.heartbeat([WorkerInfo(name="w", seen_at=clock.now)])


async def seen(store: Store) -> list[Any]:
    """All that a refused write could have changed."""
    return [
        await everything(store),
        await store.log(),
        await store.queues(),
        await store.limits(),
        await store.schedules(),
        await store.tokens(),
        await totals(store),
    ]


@pytest.mark.parametrize("lock", [LEAVING, LEFT, ARRIVING], ids=lambda lock: lock.phase)
@pytest.mark.parametrize("verb", ABOUT_JOBS)
async def test_no_job_comes_starts_or_changes(
    verb: str, lock: MigrationLock, store: Store, clock: ManualClock
) -> None:
    await fill(store, clock)
    assert await store.set_migration_lock(lock, expected=None)
    before = await seen(store)
    expected: type[StoreError] = StoreUnavailable if lock is ARRIVING else StoreMoved
    with pytest.raises(expected, match=r"sqlite:///elsewhere\.db; nothing was changed") as caught:
        await ABOUT_JOBS[verb](store)
    assert type(caught.value) is expected
    assert await seen(store) == before
    assert await store.set_migration_lock(None, expected=lock)
    await ABOUT_JOBS[verb](store)
    assert await seen(store) != before


@pytest.mark.parametrize("lock", [LEAVING, LEFT], ids=lambda lock: lock.phase)
@pytest.mark.parametrize("verb", LASTING)
async def test_nothing_is_written_that_would_stay_behind(
    verb: str, lock: MigrationLock, store: Store, clock: ManualClock
) -> None:
    await fill(store, clock)
    assert await store.set_migration_lock(lock, expected=None)
    before = await seen(store)
    with pytest.raises(StoreMoved):
        await LASTING[verb](store)
    assert await seen(store) == before
    assert await store.set_migration_lock(ARRIVING, expected=lock)
    await LASTING[verb](store)
    assert await seen(store) != before


@pytest.mark.parametrize("lock", [LEAVING, LEFT, ARRIVING], ids=lambda lock: lock.phase)
@pytest.mark.parametrize("verb", ALLOWED)
async def test_everything_else_works_in_a_locked_store(
    verb: str, lock: MigrationLock, store: Store, clock: ManualClock
) -> None:
    await fill(store, clock)
    assert await store.set_migration_lock(lock, expected=None)
    await ALLOWED[verb](store)


async def test_lock_is_changed_only_if_its_value_is_known(store: Store) -> None:
    assert await store.migration_lock() is None
    assert not await store.set_migration_lock(LEFT, expected=LEAVING)
    assert await store.migration_lock() is None
    assert await store.set_migration_lock(LEAVING, expected=None)
    assert not await store.set_migration_lock(ARRIVING, expected=None)
    assert not await store.set_migration_lock(LEFT, expected=replace(LEAVING, peer=78))
    assert await store.migration_lock() == LEAVING
    assert await store.set_migration_lock(LEFT, expected=LEAVING)
    assert await store.migration_lock() == LEFT
    assert await store.set_migration_lock(None, expected=LEFT)
    assert await store.migration_lock() is None


def test_lock_holds_for_open_stores_and_for_those_opened_later(
    shared_url: str, clock: ManualClock
) -> None:
    first, second = (
        open_store(shared_url, runtime=Runtime(clock)),
        open_store(shared_url, runtime=Runtime(clock)),
    )
    drive(add_one(first))
    assert drive(second.set_migration_lock(LEAVING, expected=None))
    third = open_store(shared_url, runtime=Runtime(clock))
    for store in (first, second, third):
        with pytest.raises(StoreMoved):
            drive(add_one(store))
        with pytest.raises(StoreMoved):
            drive(take(store))
        drive(store.close())


async def test_only_where_jobs_have_left_unfinished_ones_can_be_removed(
    store: Store, clock: ManualClock
) -> None:
    first, *_ = await add(
        store,
        new(tags=("a", "b"), tenant="x"),
        new(tags=("a",), priority=9, throttle="host"),
        new(key="k"),
        new(key="k"),
        new(dedupe="d"),
        new(run_at=clock.now + HOUR),
    )
    await add(store, new(after=(first.id,), tags=("c",)))
    await settle(store, await take_one(store), Failed("again"))
    jobs = await everything(store)
    assert await store.delete(jobs) == []
    for lock, was in ((LEAVING, None), (ARRIVING, LEAVING)):
        assert await store.set_migration_lock(lock, expected=was)
        assert await store.delete(jobs) == []
    assert await store.set_migration_lock(LEFT, expected=ARRIVING)
    stale = [replace(job, version=job.version - 1) for job in jobs]
    assert await store.delete(stale) == []
    assert await store.delete(jobs) == ids(jobs)
    assert (await everything(store), await store.log()) == ([], [])
    assert (await totals(store), (await store.backlog())[0]) == ({}, 0)
    assert await store.set_migration_lock(None, expected=LEFT)
    assert await store.ready_tags("default") == []
    assert await store.oldest_ready() == {}
    clock.advance(2 * HOUR)
    assert await take(store) == []
    # What they held is free, and nothing waits for them.
    again = await add(store, new(dedupe="d"), new(key="k"), new(tags=("a",), throttle="host"))
    assert ids(again) == [8, 9, 10]
    assert ids(await take(store)) == [8, 9, 10]


# What else a move needs


async def test_places_of_jobs_that_were_taken_over(store: Store) -> None:
    mine, gone, other = await add(store, *[new()] * 3)
    records = await store.records([mine.id, gone.id])
    taken = await store.restore(records, origin=ELSEWHERE, actor="a")
    assert [job and job.id for job in taken] == [4, 5]
    assert await store.restored_ids(77, [mine.id, gone.id, mine.id]) == {1: 4, 2: 5}
    assert await store.restored_ids(77, [other.id]) == await store.restored_ids(78, [mine.id]) == {}
    own = (await store.origin()).source
    assert await store.restored_ids(own, [mine.id, other.id, JobId(99)]) == {1: 1, 3: 3}
    await settle(store, await take_one(store), Done())
    jobs = [job for job in await take(store) if job.id == 5]
    await store.delete([await settle(store, jobs[0], Done())])
    assert await store.restored_ids(77, [gone.id]) == {2: 5}


async def test_reports_come_along(store: Store, clock: ManualClock) -> None:
    await add(store, *[new()] * 4)
    said = Progress(2.5, 10, "Straße", clock.now, clock.now, 1)
    logged = tuple(Line(0, clock.now, "INFO", f"line {n}", 1) for n in range(LINES_KEPT + 5))
    for job, note in zip(
        await take(store, limit=3),
        ({"progress": said, "lines": logged}, {"state": "[1]"}, {"state": "[2]"}),
        strict=True,
    ):
        assert await store.report([Report(lease=job.lease, **note)]) == [True]  # type: ignore[arg-type] # options as data
    first, second, done, silent = await everything(store)
    await settle(store, done, Done())
    await settle(store, second, Failed("again"))
    found = await store.reported([first.id, second.id, done.id, silent.id, JobId(99)])
    lines = tuple(await store.lines(first.id))
    assert [line.id for line in lines][:: LINES_KEPT - 1] == [6, LINES_KEPT + 5]
    assert found[first.id] == Reported(progress=said, lines=lines)
    assert found[second.id] == Reported(checkpoint="[1]")
    assert found.get(done.id, Reported()) == Reported()
    assert silent.id not in found

    records = await store.records([second.id, done.id])
    kept = replace(found[second.id], progress=said, lines=lines)
    reports = {second.id: kept}
    taken, _ = await store.restore(records, origin=ELSEWHERE, actor="a", reported=reports)
    assert taken is not None
    assert await store.reported([taken.id]) == {taken.id: kept}
    assert await store.checkpoint(taken.id) == "[1]"
    assert await store.progress([taken.id]) == {taken.id: said}
    assert tuple(await store.lines(taken.id)) == lines
    # Those that were taken over before keep what they have said since.
    other = {second.id: Reported(checkpoint="[9]")}
    assert await store.restore(records[:1], origin=ELSEWHERE, actor="a", reported=other) == [None]
    assert await store.checkpoint(taken.id) == "[1]"
    # They go on from there, and are let go of as any others.
    clock.advance(60 * SECOND)
    [job] = [one for one in await take(store) if one.id == taken.id]
    line = Line(0, clock.now, "INFO", "more", 2)
    await store.report([Report(lease=job.lease, lines=(line,))])
    assert (await store.lines(taken.id))[-1] == replace(line, id=LINES_KEPT + 6)
    await settle(store, job, Done())
    assert await store.checkpoint(taken.id) is None
    assert (await look(store, taken)).state.final
