"""At most so many at a time, at most so many starts within a time, whatever workers do."""

import asyncio
from datetime import timedelta

import pytest

from penstock.core.job import Job
from penstock.core.lifecycle import Done, Expired, Failed, Waiting, cancel
from penstock.core.limits import Limit
from penstock.core.queue import QueueSettings
from penstock.core.store import Store
from penstock.runtime import Runtime
from penstock.stores import open_store
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    ids,
    look,
    move,
    new,
    settle,
    take,
    take_one,
)
from tests.environment import SOON

LONG = 60.0


async def limit_queue(store: Store, name: str = "default", **limits: object) -> None:
    await store.configure(QueueSettings(name=name, **limits))  # type: ignore[arg-type] # options as data


async def limit_task(store: Store, n: int | None, name: str = "t") -> None:
    await store.limit(Limit(kind="task", name=name, concurrency=n))


async def limit_throttle(store: Store, n: int | None, prefix: str = "") -> None:
    await store.limit(Limit(kind="throttle", name=prefix, concurrency=n))


async def held(store: Store, job: Job) -> list[tuple[str, str, int, int]]:
    found = await store.held(job)
    return [(one.kind, one.name, one.taken, one.limit) for one in found]


# The three kinds of places


async def hold_by(store: Store, kind: str, n: int) -> dict[str, str]:
    """Limit what jobs with the answer's options may run; the options."""
    if kind == "queue":
        await limit_queue(store, "q", concurrency=n)
        return {"queue": "q"}
    if kind == "task":
        await limit_task(store, n, "slow")
        return {"task": "slow"}
    await limit_throttle(store, n, "customer-")
    return {"throttle": "customer-7"}


KINDS = pytest.mark.parametrize("kind", ["queue", "task", "throttle"])


@KINDS
async def test_no_more_than_the_limit_run(store: Store, kind: str) -> None:
    options = await hold_by(store, kind, 2)
    jobs = await add(store, *[new(**options)] * 5)
    first = await take(store)
    assert ids(first) == ids(jobs[:2])
    assert await take(store) == []
    await settle(store, first[0], Done())
    assert ids(await take(store)) == [jobs[2].id]
    assert await take(store) == []


@KINDS
async def test_others_are_not_held_up(store: Store, kind: str) -> None:
    options = await hold_by(store, kind, 1)
    limited = await add(store, *[new(priority=9, **options)] * 3)
    [free] = await add(store, new(queue="other", task="other", throttle="else"))
    assert ids(await take(store)) == [limited[0].id, free.id]


@KINDS
@pytest.mark.parametrize("end", ["failed", "expired", "cancelled"])
async def test_place_is_free_however_a_run_ends(
    store: Store, clock: ManualClock, kind: str, end: str
) -> None:
    options = await hold_by(store, kind, 1)
    jobs = await add(store, *[new(**options)] * 2)
    running = await take_one(store)
    if end == "failed":
        await settle(store, running, Failed("no"))
    elif end == "expired":
        clock.advance(HOUR)
        assert await take(store) == []
        [late] = await store.expired(9)
        await settle(store, late, Expired())
    else:
        running = await move(store, running, cancel(running))
        await settle(store, running, Failed("stopped"))
    taken = await take(store)
    assert len(taken) == 1
    assert taken[0].id in ids(jobs)


@KINDS
async def test_limit_spans_claims_of_one_call_and_workers(store: Store, kind: str) -> None:
    options = await hold_by(store, kind, 3)
    await add(store, *[new(**options)] * 9)
    taken = await asyncio.gather(*(take(store, 2, f"w{n}") for n in range(4)))
    assert sum(map(len, taken)) == 3


@KINDS
async def test_order_among_those_that_may_run_is_kept(store: Store, kind: str) -> None:
    options = await hold_by(store, kind, 1)
    jobs = await add(
        store,
        new(priority=3, **options),
        new(priority=9, **options),
        new(priority=3, **options),
        new(priority=5, **options),
    )
    order = []
    while batch := await take(store):
        [job] = batch
        order.append(job.id)
        await settle(store, job, Done())
    assert order == [jobs[n].id for n in (1, 3, 0, 2)]


@KINDS
async def test_raised_and_lifted_limit_lets_more_run(store: Store, kind: str) -> None:
    options = await hold_by(store, kind, 1)
    await add(store, *[new(**options)] * 9)
    assert len(await take(store)) == 1
    assert await take(store) == []
    await hold_by(store, kind, 3)
    assert len(await take(store)) == 2
    if kind == "queue":
        await limit_queue(store, "q", concurrency=None)
    elif kind == "task":
        await limit_task(store, None, "slow")
    else:
        await limit_throttle(store, 99, "customer-")
    assert len(await take(store)) == 6


@KINDS
async def test_lowered_limit_takes_nothing_away(store: Store, kind: str) -> None:
    options = await hold_by(store, kind, 3)
    await add(store, *[new(**options)] * 9)
    running = await take(store)
    await hold_by(store, kind, 1)
    for job in running[:2]:
        await settle(store, job, Done())
        assert await take(store) == []
    await settle(store, running[2], Done())
    assert len(await take(store)) == 1


@KINDS
async def test_claim_by_tag_obeys_the_limit(store: Store, kind: str) -> None:
    options = await hold_by(store, kind, 2)
    await add(store, *[new(tags=("x", "y"), **options)] * 5)
    first = await take(store, tags=("x", "y"))
    assert len(first) == 2
    assert await take(store, tags=("y",)) == []
    assert await take(store) == []
    await settle(store, first[0], Done())
    assert len(await take(store, tags=("y",))) == 1
    assert await take(store) == []


@KINDS
async def test_held_jobs_are_found_by_tag_when_there_is_room(store: Store, kind: str) -> None:
    """Also those that a claim without tags has met and held."""
    options = await hold_by(store, kind, 1)
    jobs = await add(store, *[new(tags=("x",), **options)] * 3)
    running = await take_one(store)
    assert await take(store) == []
    await settle(store, running, Done())
    assert ids(await take(store, tags=("x",))) == [jobs[1].id]


@KINDS
async def test_keys_and_limits_hold_together(store: Store, kind: str) -> None:
    options = await hold_by(store, kind, 2)
    jobs = await add(store, *[new(key="k", **options)] * 2, *[new(**options)] * 2)
    running = await take(store)
    assert ids(running) == [jobs[0].id, jobs[2].id]
    await settle(store, running[0], Done())
    assert ids(await take(store)) == [jobs[1].id]


@KINDS
async def test_held_job_can_be_cancelled_and_counts_as_pending(store: Store, kind: str) -> None:
    options = await hold_by(store, kind, 1)
    _, waiting, last = await add(store, *[new(**options)] * 3)
    running = await take_one(store)
    assert await take(store) == []
    found = await look(store, waiting)
    assert found.waiting is Waiting.READY
    assert (await store.backlog())[0] == 3
    await move(store, found, cancel(found))
    await settle(store, running, Done())
    assert ids(await take(store)) == [last.id]


@KINDS
async def test_many_held_jobs_do_not_hide_what_may_run(store: Store, kind: str) -> None:
    options = await hold_by(store, kind, 1)
    await add(store, *[new(priority=9, **options)] * 2_500)
    [free] = await add(store, new(queue="other", task="other"))
    assert len(await take(store, 1)) == 1
    found: list[Job] = []
    for _ in range(5):  # each claim puts a part of the held ones aside
        found += await take(store)
    assert ids(found) == [free.id]


@pytest.mark.parametrize("kind", ["task", "throttle"])
async def test_job_that_a_worker_of_another_queue_meets_is_not_starved(
    store: Store, kind: str
) -> None:
    """A place that is free is not kept for the job that is first, if nobody asks for it."""
    options = await hold_by(store, kind, 1)
    await add(store, *[new(queue="a", priority=9, **options)] * 3, new(queue="b", **options))
    running = await take_one(store, queues=("a",))
    assert await take(store) == []
    await settle(store, running, Done())
    [job] = await take(store, queues=("b",))
    assert job.queue == "b"


@pytest.mark.usefixtures("quiet")
async def test_looking_at_held_jobs_wakes_nobody(store: Store) -> None:
    await limit_task(store, 1)
    await add(store, *[new()] * 5)
    await take(store)
    assert await take(store) == []
    seen = await store.wait(-1, 0)
    for _ in range(3):
        assert await take(store) == []
    assert await store.wait(seen, 0) == seen


# Throttles


async def test_throttle_allows_one_job_by_default(store: Store) -> None:
    jobs = await add(store, *[new(throttle="a")] * 2, *[new(throttle="b")] * 2, new())
    assert jobs[0].throttle == "a"
    taken = await take(store)
    assert ids(taken) == [jobs[0].id, jobs[2].id, jobs[4].id]
    assert [job.throttle for job in taken] == ["a", "b", None]


async def test_longest_prefix_counts(store: Store) -> None:
    await limit_throttle(store, 4, "")
    await limit_throttle(store, 3, "customer-")
    await limit_throttle(store, 2, "customer-7")
    for throttle in ("customer-7", "customer-71", "customer-8", "x"):
        await add(store, *[new(throttle=throttle)] * 9)
    taken = [job.throttle for job in await take(store, 100)]
    counts = {throttle: taken.count(throttle) for throttle in set(taken)}
    assert counts == {"customer-7": 2, "customer-71": 2, "customer-8": 3, "x": 4}


async def test_throttle_spans_queues_and_tasks(store: Store) -> None:
    await add(store, *[new(queue=q, task=q, throttle="a") for q in ("q", "r", "s")])
    assert len(await take(store)) == 1


async def test_limits_are_listed_and_removed(store: Store) -> None:
    await limit_throttle(store, 4, "x:")
    await limit_task(store, 2)
    await limit_task(store, 3)
    await limit_task(store, 1, "other")
    await limit_task(store, None, "other")
    await limit_task(store, None, "never set")
    await store.limit(Limit(kind="reserved", name="events", concurrency=0))
    assert [(one.kind, one.name, one.concurrency) for one in await store.limits()] == [
        ("reserved", "events", 0),
        ("task", "t", 3),
        ("throttle", "x:", 4),
    ]


async def test_all_limits_have_to_agree(store: Store) -> None:
    await limit_queue(store, "q", concurrency=3)
    await limit_task(store, 2)
    jobs = await add(
        store,
        new(queue="q", throttle="a"),
        new(queue="q", throttle="a"),
        new(queue="q", throttle="b"),
        new(queue="q", throttle="c"),
        new(queue="q", task="free"),
        new(queue="q", task="free"),
    )
    assert ids(await take(store)) == [jobs[n].id for n in (0, 2, 4)]


# Rates


async def test_no_more_start_within_the_window(store: Store, clock: ManualClock) -> None:
    await limit_queue(store, rate=(3, 10 * SECOND))
    await add(store, *[new()] * 20)
    assert len(await take(store, 1)) == 1
    clock.advance(4 * SECOND)
    assert len(await take(store)) == 2
    assert await take(store) == []
    clock.advance(6 * SECOND - timedelta(microseconds=1))
    assert await take(store) == []
    clock.advance(timedelta(microseconds=1))
    assert len(await take(store)) == 1  # the first one has left the window
    clock.advance(4 * SECOND)
    assert len(await take(store)) == 2


async def test_rate_counts_starts_not_running_jobs(store: Store, clock: ManualClock) -> None:
    await limit_queue(store, rate=(2, 10 * SECOND))
    await add(store, *[new()] * 6)
    for job in await take(store):
        await settle(store, job, Done())
    assert await take(store) == []
    clock.advance(10 * SECOND)
    assert len(await take(store)) == 2


async def test_never_more_than_the_rate_in_any_window(store: Store, clock: ManualClock) -> None:
    """Also with many starts close together, which are remembered as one."""
    n, window = 50, 10 * SECOND
    await limit_queue(store, rate=(n, window))
    await add(store, *[new()] * 400)
    starts = []
    for step in range(600):
        clock.advance(timedelta(milliseconds=37 + step % 13))
        starts += [clock.now for _ in await take(store, 1 + step % 3)]
    assert len(starts) > 2 * n
    for start in starts:
        assert sum(start <= other < start + window for other in starts) <= n
    # And not much less: the window is longer by a hundredth at most.
    span = (starts[-1] - starts[0]) / window
    assert len(starts) >= n * (span / 1.02 - 1)


async def test_rate_of_one_queue_leaves_others_alone(store: Store) -> None:
    await limit_queue(store, "q", rate=(1, HOUR))
    await add(store, *[new(queue="q")] * 3, *[new(queue="r")] * 3)
    assert [job.queue for job in await take(store)] == ["q", "r", "r", "r"]


async def test_rate_is_raised_and_lifted(store: Store) -> None:
    await limit_queue(store, rate=(1, HOUR))
    await add(store, *[new()] * 9)
    assert len(await take(store)) == 1
    await limit_queue(store, rate=(3, HOUR))
    assert len(await take(store)) == 2
    await limit_queue(store, rate=None)
    assert len(await take(store)) == 6


async def test_clock_that_is_set_back_does_not_stop_a_queue(
    store: Store, clock: ManualClock
) -> None:
    await limit_queue(store, rate=(1, SECOND))
    await add(store, *[new()] * 3)
    await take(store)
    clock.advance(-HOUR)
    clock.advance(SECOND)
    assert len(await take(store)) == 1


async def test_wait_ends_when_the_rate_allows_the_next(store: Store, clock: ManualClock) -> None:
    brief = timedelta(milliseconds=20)
    await limit_queue(store, rate=(1, brief))
    await add(store, *[new()] * 3)
    await take_one(store)
    seen = await store.wait(-1, 0)
    task = asyncio.create_task(store.wait(seen, LONG))
    for _ in range(20):
        await asyncio.sleep(0)
    clock.advance(brief)
    async with asyncio.timeout(SOON):
        await task
    assert len(await take(store)) == 1


@pytest.mark.usefixtures("quiet")
async def test_wait_ends_at_once_but_once_when_the_rate_has_allowed_the_next(
    store: Store, clock: ManualClock
) -> None:
    """It may have done so between the claim and the wait; but nobody may be free to take it."""
    await limit_queue(store, rate=(1, SECOND))
    await add(store, *[new()] * 3)
    await take_one(store)
    seen = await store.wait(-1, 0)
    clock.advance(SECOND)
    async with asyncio.timeout(SOON):
        seen = await store.wait(seen, LONG)
    assert await store.wait(seen, 0) == seen
    task = asyncio.create_task(store.wait(seen, LONG))
    done, _ = await asyncio.wait([task], timeout=0.05)
    assert not done
    task.cancel()


@pytest.mark.usefixtures("quiet")
async def test_claim_that_uses_up_a_rate_ends_the_wait_of_others(store: Store) -> None:
    """They have to ask anew when the next may start."""
    await limit_queue(store, rate=(2, HOUR))
    await add(store, *[new()] * 3)
    seen = await store.wait(-1, 0)
    await take(store)
    assert await store.wait(seen, 0) != seen


# What is said about it


async def test_limits_that_hold_a_job_are_named(store: Store, clock: ManualClock) -> None:
    await limit_queue(store, "q", concurrency=1, rate=(1, HOUR))
    await limit_task(store, 1)
    jobs = await add(store, *[new(queue="q", throttle="a")] * 2)
    assert await held(store, jobs[1]) == []
    await take(store)
    assert sorted(await held(store, jobs[1])) == [
        ("queue", "q", 1, 1),
        ("rate", "q", 1, 1),
        ("task", "t", 1, 1),
        ("throttle", "a", 1, 1),
    ]
    [until] = [one.until for one in await store.held(jobs[1]) if one.kind == "rate"]
    assert until == clock.now + HOUR
    [other] = await add(store, new(task="other"))
    assert await held(store, other) == []


async def test_settings_are_kept_apart(store: Store) -> None:
    await limit_queue(store, "q", concurrency=5)
    await limit_queue(store, "q", rate=(100, SECOND))
    await limit_queue(store, "q", promote_after=HOUR)
    await limit_queue(store, "q", max_pending=7)
    [queue] = await store.queues()
    assert (queue.concurrency, queue.rate, queue.promote_after, queue.max_pending) == (
        5,
        (100, SECOND),
        HOUR,
        7,
    )
    await limit_queue(store, "q", concurrency=None, rate=None, promote_after=None)
    [queue] = await store.queues()
    assert (queue.concurrency, queue.rate, queue.promote_after, queue.max_pending) == (
        None,
        None,
        None,
        7,
    )


# Other processes


async def test_limits_and_starts_outlive_the_process(shared_url: str, clock: ManualClock) -> None:
    one = open_store(shared_url, runtime=Runtime(clock))
    await limit_queue(one, "rated", rate=(2, HOUR))
    await limit_task(one, 1, "slow")
    await add(one, *[new(queue="rated")] * 5, *[new(task="slow")] * 2, *[new(throttle="a")] * 2)
    assert len(await take(one)) == 4
    await one.close()
    other = open_store(shared_url, runtime=Runtime(clock))
    assert await take(other) == []
    assert len(await other.limits()) == 1
    clock.advance(HOUR)
    assert [job.queue for job in await take(other)] == ["rated"] * 2
    await other.close()


async def test_stores_on_one_file_share_the_places(shared_url: str, clock: ManualClock) -> None:
    one, other = (
        open_store(shared_url, runtime=Runtime(clock)),
        open_store(shared_url, runtime=Runtime(clock)),
    )
    await limit_task(one, 3)
    await add(one, *[new()] * 9)
    first = await take(one, 2)
    assert len(await take(other)) == 1
    await settle(other, first[0], Done())
    assert len(await take(other)) == 1
    assert await take(one) == []
    await one.close()
    await other.close()


async def test_add_one_with_throttle_is_read_back(store: Store) -> None:
    job = await add_one(store, throttle="ü-7")
    assert (await look(store, job)) == job


async def test_claim_finds_the_one_job_behind_very_many_that_are_held(store: Store) -> None:
    await add(store, *[new(throttle="x", priority=6) for _ in range(2100)], new(priority=1))
    assert len(await take(store, limit=1)) == 1
    [last] = await take(store, limit=1)
    assert last.throttle is None
    assert await take(store) == []
