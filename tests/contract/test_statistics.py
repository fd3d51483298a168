"""Sums of the log: exact, counted once, and kept as long as they should be."""

import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.job import LogId, Retention
from penstock.core.lifecycle import (
    Cancelled,
    Done,
    Event,
    Expired,
    Failed,
    Snoozed,
    State,
    advance,
    cancel,
    reprioritise,
    reset,
)
from penstock.core.restoration import Origin
from penstock.core.statistics import BOUNDS, FORGOTTEN_AT_ONCE, KEPT, Spread
from penstock.core.store import Store
from penstock.engine.penstock import Penstock, run_sync
from penstock.runtime import Runtime
from penstock.stores import open_store
from tests import tiers
from tests.contract.statistics import (
    MINUTE,
    assert_exact,
    minutes,
)
from tests.contract.support import (
    HOUR,
    SECOND,
    STEADY,
    STORES,
    ManualClock,
    add,
    add_one,
    drive,
    everything,
    look,
    move,
    new,
    settle,
    take,
    take_one,
)


async def roll_up(store: Store, limit: int = 1000) -> int:
    """Count all there is; how many entries that were."""
    counted = 0
    while portion := await store.roll_up(limit):
        counted += portion
    return counted


async def waits(store: Store) -> list[timedelta]:
    """How long the claims of the log had waited, as the sums say it: one after the other."""
    await roll_up(store)
    return [one.wait.total for one in await minutes(store) if one.wait.count]


# Random lives

spans = st.one_of(
    st.integers(0, 200_000_000),
    st.sampled_from(
        [
            (bound + late) // timedelta(microseconds=1)
            for bound in BOUNDS
            for late in (timedelta(0), timedelta(microseconds=1))
        ]
    ),
)
jobs = st.builds(
    new,
    queue=st.sampled_from("ab"),
    key=st.sampled_from([None, None, "k"]),
    delay=st.sampled_from([None, 30 * SECOND]),
    lease=st.just(90 * SECOND),
)
outcomes = st.sampled_from(
    [
        Done(),
        Failed("no"),
        Failed("no", permanent=True),
        Snoozed(5 * SECOND),
        Cancelled(),
        Expired(),
    ]
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(jobs, min_size=1, max_size=4)),
        st.tuples(st.just("claim"), st.integers(1, 4)),
        st.tuples(st.just("settle"), st.integers(0, 9), outcomes),
        st.tuples(
            st.just("steer"), st.integers(0, 9), st.sampled_from(["cancel", "reset", "rank"])
        ),
        st.tuples(st.just("pass"), spans),
        st.tuples(st.just("pass"), st.integers(-5_000_000, -1)),
        st.tuples(st.just("roll_up"), st.integers(0, 7)),
    ),
    min_size=5,
    max_size=40,
)


async def do(store: Store, clock: ManualClock, what: str, *how: Any) -> None:
    match what, how:
        case "add", (new_jobs,):
            await add(store, *new_jobs)
        case "claim", (limit,):
            await take(store, limit)
        case "settle", (n, outcome):
            running = [job for job in await everything(store) if job.state is State.RUNNING]
            if running:
                job = running[n % len(running)]
                if isinstance(outcome, Expired) and job.expires_at is not None:
                    clock.now = max(clock.now, job.expires_at)
                await settle(store, job, outcome)
        case "steer", (n, how_so):
            pending = [job for job in await everything(store) if job.state is State.PENDING]
            if pending:
                job = pending[n % len(pending)]
                moves = {"cancel": cancel, "reset": reset, "rank": lambda one: reprioritise(one, n)}
                await move(store, job, moves[how_so](job))
        case "pass", (micros,):
            clock.advance(timedelta(microseconds=micros))
        case "roll_up", (limit,):
            assert await store.roll_up(limit) <= limit


@pytest.mark.parametrize("name", STORES)
@settings(max_examples=tiers.amount(20, 60), deadline=None)
@given(life=steps)
def test_sums_are_what_the_log_says(name: str, life: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        clock = ManualClock()
        store = open_store(STORES[name](Path(folder)), runtime=Runtime(clock))
        try:
            for what, *how in life:
                drive(do(store, clock, what, *how))
            drive(roll_up(store, limit=7))
            drive(assert_exact(store))
        finally:
            drive(store.close())


# Portions


async def test_portion_is_counted_once_and_in_order(store: Store) -> None:
    await add(store, *[new()] * 5)
    assert [await store.roll_up(2) for _ in range(4)] == [2, 2, 1, 0]
    [counters] = await store.counters()
    assert counters.counts == {Event.ENQUEUED: 5}
    await take(store, limit=2)
    assert await roll_up(store) == 2
    await assert_exact(store)


async def test_nothing_is_counted_before_there_is_anything(store: Store) -> None:
    assert await store.roll_up(10) == 0
    assert await minutes(store) == []
    assert await store.counters() == []


async def test_gaps_in_the_log_are_passed(store: Store, clock: ManualClock) -> None:
    await add(store, *[new()] * 30)
    for job in await take(store, limit=29):
        await settle(store, job, Done())
    clock.advance(SECOND)
    await store.prune(Retention(finished=timedelta(0)), 100)
    await add_one(store, queue="later")
    assert await roll_up(store, limit=3) == 2
    assert [one.queue for one in await store.counters()] == ["default", "later"]


# What is counted, and for how long


async def test_sums_outlive_their_jobs(store: Store, clock: ManualClock) -> None:
    await add(store, *[new()] * 3)
    for job in await take(store):
        await settle(store, job, Done())
    await roll_up(store)
    before = await minutes(store), await store.counters()
    clock.advance(SECOND)
    assert await store.prune(Retention(finished=timedelta(0)), 10) == 3
    assert await roll_up(store) == 0
    assert (await minutes(store), await store.counters()) == before


async def test_jobs_that_are_removed_uncounted_vanish(store: Store) -> None:
    await add_one(store)
    done = await settle(store, await take_one(store), Done())
    await store.delete([done])
    assert await roll_up(store) == 0
    assert await store.counters() == []


async def test_what_happened_elsewhere_is_not_counted(store: Store) -> None:
    await add(store, *[new()] * 2)
    done = await settle(store, await take_one(store), Done())
    await roll_up(store)
    records = await store.records([done.id])
    await store.delete([done])
    assert None not in await store.restore(records, origin=Origin(source=77), actor="admin")
    [counters] = await store.counters()
    assert await roll_up(store, limit=1) == 4  # the three of the old log are passed
    [after] = await store.counters()
    assert after.counts == {**counters.counts, Event.RESTORED: 1}
    assert (after.wait, after.run) == (counters.wait, counters.run)


async def test_imported_job_is_counted_from_now_on(store: Store, clock: ManualClock) -> None:
    job = await add_one(store)
    records = await store.records([job.id])
    await store.restore(records, origin=Origin(source=1, last_log=LogId(1000)), actor="admin")
    clock.advance(SECOND)
    await take(store)
    await roll_up(store)
    [counters] = await store.counters()
    assert counters.counts == {Event.ENQUEUED: 1, Event.CLAIMED: 2, Event.RESTORED: 1}


async def test_minutes_are_forgotten_and_counters_are_not(store: Store, clock: ManualClock) -> None:
    first = clock.now
    await add_one(store, queue="old")
    await roll_up(store)
    clock.advance(KEPT)
    await add_one(store, queue="new")
    await roll_up(store)
    assert [(one.at, one.queue) for one in await minutes(store)] == [
        (first, "old"),
        (clock.now, "new"),
    ]
    clock.advance(MINUTE)
    assert await store.roll_up(10) == 0
    assert [one.queue for one in await minutes(store)] == ["new"]
    assert [one.queue for one in await store.counters()] == ["new", "old"]


async def test_forgetting_goes_by_portions(store: Store, clock: ManualClock) -> None:
    await add(store, *[new(queue=f"q{n}") for n in range(FORGOTTEN_AT_ONCE + 5)])
    await roll_up(store, limit=10_000)
    clock.advance(KEPT + MINUTE)
    await store.roll_up(1)  # the sum of all queues is one of those that go
    assert len(await minutes(store)) == 6
    await store.roll_up(1)
    assert await minutes(store) == []


# Asking


async def test_steps_are_whole_multiples_of_themselves(store: Store, clock: ManualClock) -> None:
    start = clock.now
    for _ in range(4):
        await add(store, new(queue="a"), new(queue="b"))
        clock.advance(3 * MINUTE)
    await roll_up(store)
    asked = [
        (one.at - start, one.queue, one.counts)
        for one in await minutes(store, step=5 * MINUTE, queue="a")
    ]
    assert asked == [
        (0 * MINUTE, "a", {Event.ENQUEUED: 2}),
        (5 * MINUTE, "a", {Event.ENQUEUED: 2}),
    ]
    both = await minutes(store, step=HOUR)
    assert [(one.queue, one.counts[Event.ENQUEUED]) for one in both] == [("a", 4), ("b", 4)]


async def test_requested_time_includes_its_first_minute_and_not_its_last(
    store: Store, clock: ManualClock
) -> None:
    start = clock.now
    for _ in range(4):
        await add_one(store)
        clock.advance(MINUTE)
    await roll_up(store)

    async def found(since: timedelta, until: timedelta) -> list[int]:
        asked = await minutes(store, since=start + since, until=start + until)
        return [(one.at - start) // MINUTE for one in asked]

    assert await found(MINUTE, 3 * MINUTE) == [1, 2]
    assert await found(MINUTE + SECOND, 3 * MINUTE + SECOND) == [2, 3]
    assert await found(3 * MINUTE, MINUTE) == []


# How long a job has waited


async def test_wait_begins_when_the_job_is_enqueued(store: Store, clock: ManualClock) -> None:
    await add_one(store, run_at=clock.now - HOUR)
    clock.advance(2 * SECOND)
    await take(store)
    assert await waits(store) == [2 * SECOND]


async def test_wait_begins_when_a_later_job_is_due(store: Store, clock: ManualClock) -> None:
    await add_one(store, delay=HOUR)
    clock.advance(HOUR + 3 * SECOND)
    await take(store)
    assert await waits(store) == [3 * SECOND]


async def test_wait_of_another_attempt_begins_when_it_is_due(
    store: Store, clock: ManualClock
) -> None:
    await add_one(store)
    clock.advance(SECOND)
    await settle(store, await take_one(store), Failed("no"))
    clock.advance(STEADY.delay + 2 * MINUTE)
    await take(store)
    clock.advance(SECOND)
    assert await waits(store) == [SECOND, 2 * MINUTE]


async def test_wait_of_a_reset_job_begins_with_the_reset(store: Store, clock: ManualClock) -> None:
    job = await add_one(store)
    ended = await move(store, job, cancel(job))
    clock.advance(HOUR)
    await move(store, ended, reset(ended))
    clock.advance(SECOND)
    await take(store)
    assert await waits(store) == [SECOND]


async def test_waiting_for_a_key_counts(store: Store, clock: ManualClock) -> None:
    await add(store, new(key="k"), new(key="k"))
    first = await take_one(store)
    clock.advance(HOUR)
    await settle(store, first, Done())
    await take(store)
    assert await waits(store) == [timedelta(0), HOUR]


async def test_wait_is_what_it_was_however_late_it_is_counted(
    store: Store, clock: ManualClock
) -> None:
    await add_one(store, delay=HOUR)
    clock.advance(HOUR + SECOND)
    running = await take_one(store)
    back = await settle(store, running, Failed("no"))
    assert back.run_at > running.run_at
    assert await waits(store) == [SECOND]


async def test_clock_that_jumps_back_makes_no_negative_time(
    store: Store, clock: ManualClock
) -> None:
    await add_one(store)
    clock.advance(-SECOND)
    job = await take_one(store)
    clock.advance(-SECOND)
    await settle(store, await look(store, job), Done())
    await roll_up(store)
    [counters] = await store.counters()
    nothing = Spread(1, timedelta(0), (1, *(0 for _ in BOUNDS)))
    assert (counters.wait, counters.run) == (nothing, nothing)


async def test_cancelling_what_does_not_run_is_not_timed(store: Store, clock: ManualClock) -> None:
    job = await add_one(store)
    await move(store, job, cancel(job))
    await add_one(store)
    running = await take_one(store)
    clock.advance(SECOND)
    await move(store, running, advance(running, Cancelled()))
    await roll_up(store)
    [counters] = await store.counters()
    assert counters.counts[Event.CANCELLED] == 2
    assert (counters.run.count, counters.run.total) == (1, SECOND)


# More than one


def test_second_to_write_a_portion_writes_nothing(shared_url: str, clock: ManualClock) -> None:
    one, other = (open_store(shared_url, runtime=Runtime(clock)) for _ in range(2))
    drive(add(one, *[new()] * 5))
    assert (drive(one.roll_up(10)), drive(other.roll_up(10))) == (5, 0)
    drive(assert_exact(other))
    for store in (one, other):
        drive(store.close())


DIGESTING = """
import sys
from penstock.engine.penstock import Penstock, run_sync
app = Penstock(sys.argv[1])
_ = app.store
print("here", flush=True)
sys.stdin.readline()
counted = last = 0
while not last:
    last = run_sync(app.count()).get(("last", "pending", "ready"), 0)
    while portion := run_sync(app.store.roll_up(7)):
        counted += portion
run_sync(app.close())
print(counted)
"""


def test_processes_that_roll_up_at_once_count_each_entry_once(shared_url: str) -> None:
    app = Penstock(shared_url)
    _ = app.store
    command = [sys.executable, "-c", DIGESTING, shared_url]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for n in range(100):
        run_sync(app.enqueue_many([new(queue=f"q{n % 3}")] * 5))
        for job in run_sync(app.leases.claim(worker="w", limit=4)):
            run_sync(app.leases.settle([(job, Done())]))
    run_sync(app.enqueue_many([new(queue="last")]))
    answers = [int(process.communicate(timeout=60)[0]) for process in processes]
    left = drive(roll_up(app.store))
    assert sum(answers) + left == len(run_sync(app.log(limit=10_000)))
    drive(assert_exact(app.store))
    run_sync(app.close())
