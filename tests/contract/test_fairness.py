"""Tenants take turns; waiting raises a priority."""

from datetime import timedelta

import pytest

from penstock.core.job import Job
from penstock.core.lifecycle import Done, Snoozed
from penstock.core.limits import Limit
from penstock.core.queue import QueueSettings
from penstock.core.store import Store
from penstock.runtime import Runtime
from penstock.stores import open_store
from tests import tiers
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    ids,
    new,
    settle,
    take,
    take_one,
)

MINUTE = timedelta(minutes=1)


async def order(store: Store, limit: int = 1) -> list[str | None]:
    """The tenants that are given jobs, in order, by claims of so many."""
    given: list[str | None] = []
    while batch := await take(store, limit):
        given += [job.tenant for job in batch]
    return given


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_tenants_take_turns(store: Store, limit: int) -> None:
    await add(store, *[new(tenant="a")] * 4, *[new(tenant="b")] * 2, new(tenant="c"))
    assert await order(store, limit) == ["a", "b", "c", "a", "b", "a", "a"]


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_jobs_without_tenant_are_one_tenant(store: Store, limit: int) -> None:
    await add(store, *[new()] * 3, *[new(tenant="a")] * 3, *[new(tenant="b")] * 2)
    assert await order(store, limit) == ["a", "b", None, "a", "b", None, "a", None]


async def test_jobs_of_one_tenant_keep_their_order(store: Store, clock: ManualClock) -> None:
    jobs = await add(
        store,
        new(tenant="a"),
        new(tenant="a", run_at=clock.now - SECOND),
        new(tenant="a", priority=6),
        new(tenant="a"),
    )
    assert ids(await take(store)) == [jobs[n].id for n in (2, 1, 0, 3)]


async def test_priority_comes_before_turns(store: Store) -> None:
    await add(store, *[new(tenant="a", priority=9)] * 3, *[new(tenant="b")] * 2, new(tenant="a"))
    assert await order(store) == ["a", "a", "a", "a", "b", "b"]


async def test_turns_of_one_priority_do_not_disturb_those_of_another(store: Store) -> None:
    """A tenant that is always served at a higher one must not cost others their turns below."""
    await add(store, *[new(tenant=tenant) for tenant in "abc"] * 3)
    given = []
    for _ in range(6):
        await add_one(store, tenant="b", priority=9)
        given += [job.tenant for job in await take(store, 2) if job.priority == 5]
    assert sorted(given) == ["a", "a", "b", "b", "c", "c"]  # type: ignore[type-var] # all are texts


async def test_turns_are_those_of_a_queue(store: Store) -> None:
    await add(store, *[new(queue="q", tenant=tenant) for tenant in "aabb"])
    await add(store, *[new(queue="r", tenant=tenant) for tenant in "aabb"])
    given = [(await take_one(store, queues=(queue,))).tenant for queue in "qrqrqrqr"]
    assert given == ["a", "a", "b", "b", "a", "a", "b", "b"]


async def test_whose_turn_it_is_outlives_the_process(lasting_url: str, clock: ManualClock) -> None:
    for turn in "abcabc":
        store = open_store(lasting_url, runtime=Runtime(clock))
        if turn == "a":
            await add(store, *[new(tenant=tenant) for tenant in "aabbcc"])
        assert (await take_one(store)).tenant == turn
        await store.close()


async def test_more_tenants_than_are_looked_at_together_all_get_their_turn(store: Store) -> None:
    names = [f"tenant-{n:03}" for n in range(70)]
    await add(store, *[new(tenant=name) for name in names for _ in range(2)])
    assert await order(store, 9) == names * 2


async def test_job_put_back_waits_for_its_tenants_next_turn(
    store: Store, clock: ManualClock
) -> None:
    await add(store, *[new(tenant=tenant) for tenant in "aabb"])
    await settle(store, await take_one(store), Snoozed())
    assert await order(store) == ["b", "a", "b", "a"]


async def test_paused_queue_gives_nothing_to_tenants(store: Store) -> None:
    await add_one(store, tenant="a")
    await store.configure(QueueSettings(name="default", paused=True))
    assert await take(store) == []


@pytest.mark.parametrize("tags", [("x",), ("x", "y")])
async def test_claims_by_tag_let_tenants_take_turns(store: Store, tags: tuple[str, ...]) -> None:
    large = await add(store, *[new(tenant="a", tags=tags)] * 4)
    small, plain, other = await add(
        store, new(tenant="b", tags=("x",)), new(tags=("x",)), new(tenant="c", tags=("z",))
    )
    assert ids(await take(store, limit=3, tags=tags)) == [large[0].id, small.id, plain.id]
    late = await add_one(store, tenant="c", tags=("x",))
    assert ids(await take(store, limit=2, tags=tags)) == [large[1].id, late.id]
    assert ids(await take(store, limit=9, tags=tags)) == [large[2].id, large[3].id]
    assert ids(await take(store)) == [other.id]


async def test_turns_are_shared_by_claims_with_and_without_tags(store: Store) -> None:
    jobs = await add(store, *[new(tenant=name, tags=("x",)) for name in "aabb"])
    order = [await take_one(store, tags=("x",)), await take_one(store), await take_one(store)]
    assert ids(order) == [jobs[0].id, jobs[2].id, jobs[1].id]


@pytest.mark.parametrize("promoted", [False, True])
async def test_tenants_of_held_jobs_are_met_by_tag(store: Store, promoted: bool) -> None:
    if promoted:
        await store.configure(QueueSettings(name="default", promote_after=HOUR))
    jobs = await add(store, *[new(tenant="a", throttle="t", tags=("x",))] * 2)
    first = await take_one(store)
    assert await take(store) == []  # the other stands apart now
    await settle(store, first, Done())
    assert ids(await take(store, tags=("x",))) == [jobs[1].id]


async def test_jobs_of_tenants_count_in_the_backlog_and_the_totals(store: Store) -> None:
    await add(store, *[new(tenant="a")] * 2, new(tenant="b"), new())
    assert (await store.backlog())[0] == 4
    assert (await store.backlog("default"))[0] == 4
    assert sum((await store.count()).values()) == 4


async def test_keys_hold_among_tenants(store: Store) -> None:
    jobs = await add(store, *[new(tenant=tenant, key="k") for tenant in "abc"])
    given = []
    while batch := await take(store):
        [job] = batch
        given.append(job.id)
        await settle(store, job, Done())
    assert given == ids(jobs)


# A large tenant and a small one


BACKLOG = tiers.amount(10_000, 30_000)


async def flood(store: Store, tenant: str, n: int = BACKLOG) -> None:
    """Fill a queue, a page of jobs at a time."""
    for _ in range(n // 10_000):
        await add(store, *[new(tenant=tenant)] * 10_000)


async def claims_until(store: Store, job: Job, limit: int) -> int:
    """After how many claimed jobs this one was given."""
    given = 0
    while True:
        batch = await take(store, limit)
        if job.id in ids(batch):
            return given + ids(batch).index(job.id) + 1
        assert batch
        given += len(batch)


@pytest.mark.parametrize("late", ["aa", "zz", None])
async def test_backlog_of_one_tenant_delays_anothers_job_by_one_turn(
    store: Store, late: str | None
) -> None:
    """On an idle queue it is the first that is given; here it is the second at the latest."""
    await flood(store, "large")
    for limit in (1, 10, 1):
        job = await add_one(store, tenant=late)
        assert await claims_until(store, job, limit) <= 2


async def test_with_many_tenants_each_waits_for_one_turn_of_the_others(store: Store) -> None:
    await flood(store, "large", 10_000)
    await add(store, *[new(tenant=f"t{n}") for n in range(20) for _ in range(5)])
    job = await add_one(store, tenant="late")
    assert await claims_until(store, job, 3) <= 22


@pytest.mark.parametrize("kind", ["task", "throttle"])
async def test_shares_are_fair_where_a_limit_holds_both(store: Store, kind: str) -> None:
    """Those that are held wait by tenant, not in one line."""
    await store.limit(Limit(kind="task", name="t", concurrency=1))
    throttle = "one" if kind == "throttle" else None
    await add(store, *[new(tenant="large", throttle=throttle)] * 3_000)
    running = await take_one(store)
    for _ in range(4):
        assert await take(store) == []
    small = await add_one(store, tenant="small", throttle=throttle)
    assert await take(store) == []
    given = []
    for _ in range(3):
        await settle(store, running, Done())
        [running] = await take(store)
        given.append(running.id)
    assert small.id in given[:2]


# Ages


async def test_waiting_raises_the_priority(store: Store, clock: ManualClock) -> None:
    await store.configure(QueueSettings(name="default", promote_after=10 * MINUTE))
    old = await add_one(store, priority=3)
    clock.advance(20 * MINUTE)
    jobs = await add(store, new(priority=6), new(priority=5), new(priority=4))
    assert ids(await take(store)) == [jobs[0].id, old.id, jobs[1].id, jobs[2].id]


async def test_priority_rises_at_the_full_time_only(store: Store, clock: ManualClock) -> None:
    await store.configure(QueueSettings(name="default", promote_after=10 * MINUTE))
    old, older = await add(store, new(priority=4), new(priority=4, run_at=clock.now - SECOND))
    clock.advance(10 * MINUTE - SECOND)
    fresh = await add_one(store, priority=5)
    assert ids(await take(store)) == [older.id, fresh.id, old.id]


async def test_priority_rises_once_at_each_of_several_ages(
    store: Store, clock: ManualClock
) -> None:
    await store.configure(QueueSettings(name="default", promote_after=(5 * MINUTE, 15 * MINUTE)))
    [queue] = await store.queues()
    assert queue.promote_after == (5 * MINUTE, 15 * MINUTE)
    ages = [5 * MINUTE - SECOND, 5 * MINUTE, 15 * MINUTE - SECOND, 15 * MINUTE, HOUR]
    waited = await add(store, *[new(priority=4, run_at=clock.now - age) for age in ages])
    fresh = await add(store, *[new(priority=n, run_at=clock.now) for n in (4, 5, 6)])
    none, one, still_one, two, no_more = ids(waited)
    expected = [no_more, two, fresh[2].id, still_one, one, fresh[1].id, none, fresh[0].id]
    assert ids(await take(store)) == expected


async def test_one_age_in_a_list_raises_once(store: Store, clock: ManualClock) -> None:
    await store.configure(QueueSettings(name="default", promote_after=(MINUTE,)))
    assert (await store.queues())[0].promote_after == (MINUTE,)
    old = await add_one(store, priority=4, run_at=clock.now - HOUR)
    fresh = await add_one(store, priority=6)
    assert ids(await take(store)) == [fresh.id, old.id]


async def test_priority_rises_to_ten_at_most(store: Store, clock: ManualClock) -> None:
    await store.configure(QueueSettings(name="default", promote_after=MINUTE))
    first, second = await add(
        store,
        new(priority=0, run_at=clock.now - 2 * HOUR),
        new(priority=9, run_at=clock.now - HOUR),
    )
    top = await add_one(store, priority=10)
    assert ids(await take(store)) == [first.id, second.id, top.id]


async def test_time_before_a_job_is_due_does_not_count(store: Store, clock: ManualClock) -> None:
    await store.configure(QueueSettings(name="default", promote_after=MINUTE))
    later = await add_one(store, priority=4, delay=HOUR)
    clock.advance(HOUR)
    fresh = await add_one(store, priority=5)
    assert ids(await take(store)) == [fresh.id, later.id]


async def test_nothing_is_promoted_by_default(store: Store, clock: ManualClock) -> None:
    await store.configure(QueueSettings(name="aged", promote_after=MINUTE))
    old = await add_one(store, priority=4)
    clock.advance(HOUR)
    fresh = await add_one(store, priority=5)
    assert ids(await take(store)) == [fresh.id, old.id]


async def test_promoted_jobs_are_found_by_tag(store: Store, clock: ManualClock) -> None:
    await store.configure(QueueSettings(name="default", promote_after=MINUTE))
    old = await add_one(store, priority=4, tags=("x", "y"))
    clock.advance(2 * MINUTE)
    fresh = await add_one(store, priority=5, tags=("y",))
    assert ids(await take(store, tags=("x", "y"))) == [old.id, fresh.id]


async def test_priority_of_a_promoted_job_is_kept(store: Store, clock: ManualClock) -> None:
    await store.configure(QueueSettings(name="default", promote_after=MINUTE))
    await add_one(store, priority=4)
    clock.advance(HOUR)
    assert (await take_one(store)).priority == 4


async def test_tenants_take_turns_among_what_ages_have_made_equal(
    store: Store, clock: ManualClock
) -> None:
    await store.configure(QueueSettings(name="default", promote_after=MINUTE))
    await add(store, *[new(tenant="a", priority=4)] * 2, new(tenant="b", priority=3))
    clock.advance(MINUTE)
    await add(store, new(tenant="b", priority=5), new(tenant="c", priority=4), new(priority=9))
    assert await order(store) == [None, "a", "b", "a", "b", "c"]


async def test_promoted_and_held(store: Store, clock: ManualClock) -> None:
    """What a limit holds grows old as well."""
    await store.configure(QueueSettings(name="default", promote_after=MINUTE))
    await store.limit(Limit(kind="task", name="t", concurrency=1))
    first, low = await add(store, new(), new(priority=3))
    running = await take_one(store)
    assert running.id == first.id
    assert await take(store) == []
    clock.advance(3 * MINUTE)
    high = await add_one(store, priority=5)
    assert await take(store) == []
    await settle(store, running, Done())
    [running] = await take(store)
    assert running.id == low.id
    await settle(store, running, Done())
    assert ids(await take(store)) == [high.id]
