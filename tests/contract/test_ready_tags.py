"""Which tags a claim would find jobs for."""

from typing import Any

import pytest

from penstock.core.lifecycle import Done, Failed, Snoozed, reprioritise
from penstock.core.limits import Limit
from penstock.core.queue import QueueSettings
from penstock.core.store import Store
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    ids,
    move,
    new,
    settle,
    take,
    take_one,
)
from tests.environment import SOON

DAY = 24 * HOUR


async def tags(store: Store, queue: str = "default", **options: Any) -> list[str]:
    return await store.ready_tags(queue, **options)


async def test_tags_of_ready_jobs_come_once_each_by_name(store: Store) -> None:
    assert await tags(store) == []
    await add(store, new(tags=("b", "ü", "a")), new(), *[new(tags=("b",))] * 3, new(tags=("B",)))
    await add(store, new(queue="other", tags=("c",)))
    assert await tags(store) == ["B", "a", "b", "ü"]
    assert await tags(store, "other") == ["c"]
    assert await tags(store, "unknown") == []


async def test_no_more_than_the_limit_are_answered(store: Store) -> None:
    await add(store, *(new(tags=(f"{n:02}",)) for n in range(20)))
    assert await tags(store, limit=3) == ["00", "01", "02"]
    assert len(await tags(store, limit=20)) == len(await tags(store)) == 20
    assert await tags(store, limit=0) == []


async def test_some_tags_alone_are_looked_for(store: Store) -> None:
    await add(store, *(new(tags=(f"{n:02}",)) for n in range(20)))
    await add(store, new(queue="other", tags=("c",)))
    assert await tags(store, among=["17", "c", "03", "17", "x"]) == ["03", "17"]
    assert await tags(store, among=["17", "03"], limit=1) == ["03"]
    assert await tags(store, among=[]) == []
    await store.configure(QueueSettings(name="default", paused=True))
    assert await tags(store, among=["17"]) == []


async def test_only_what_a_claim_could_take_counts(store: Store) -> None:
    first = await add_one(store, tags=("head",), key="k", priority=9)
    await add(
        store,
        new(tags=("behind",), key="k"),
        new(tags=("later",), delay=HOUR),
        new(tags=("waiting",), after=(first.id,)),
    )
    assert await tags(store) == ["head"]
    running = await take_one(store)
    assert await tags(store) == []
    again = await settle(store, running, Snoozed())
    assert await tags(store) == ["head"]
    await move(store, again, reprioritise(again, 1))
    assert await tags(store) == ["head"]
    await settle(store, await take_one(store), Done())
    assert await tags(store) == ["behind", "waiting"]


async def test_tag_goes_with_the_last_of_its_jobs(store: Store) -> None:
    await add(store, new(tags=("a", "b")), new(tags=("a",)))
    await take_one(store)
    assert await tags(store) == ["a"]
    await take_one(store)
    assert await tags(store) == []


async def test_jobs_with_a_tenant_count(store: Store) -> None:
    await add_one(store, tags=("a",), tenant="t")
    assert await tags(store) == ["a"]


async def test_paused_queue_has_none(store: Store) -> None:
    await add(store, new(tags=("a",)), new(tags=("b",), queue="other"))
    await store.configure(QueueSettings(name="default", paused=True))
    assert await tags(store) == []
    assert await tags(store, "other") == ["b"]
    await store.configure(QueueSettings(name="default", paused=False))
    assert await tags(store) == ["a"]


@pytest.mark.parametrize("retried", [False, True])
async def test_job_that_has_fallen_due_counts(
    store: Store, clock: ManualClock, retried: bool
) -> None:
    await add_one(store, tags=("a",), delay=None if retried else 10 * SECOND)
    if retried:
        await settle(store, await take_one(store), Failed("no"))
    clock.advance(9 * SECOND)
    assert await tags(store) == []
    clock.advance(SECOND)
    assert await tags(store) == ["a"]
    assert len(await take(store, tags=("a",))) == 1


async def test_waiter_for_a_due_job_is_woken_and_finds_its_tag(
    store: Store, clock: ManualClock
) -> None:
    await add_one(store, tags=("a",), delay=HOUR)
    seen = await store.wait(0, 0)
    clock.advance(HOUR)
    assert await store.wait(seen, SOON) != seen
    assert await tags(store) == ["a"]


async def test_however_many_fall_due_at_once_all_count(store: Store, clock: ManualClock) -> None:
    await add(store, *[new(tags=("a",), delay=HOUR)] * 2100, new(tags=("z",), delay=HOUR + SECOND))
    clock.advance(DAY)
    assert await tags(store) == ["a", "z"]


async def test_queue_at_its_concurrency_has_none_until_a_job_ends(store: Store) -> None:
    await store.configure(QueueSettings(name="default", concurrency=1))
    await add(store, *[new(tags=("a",))] * 2)
    assert await tags(store) == ["a"]
    job = await take_one(store)
    assert await tags(store) == []
    assert await take(store, tags=("a",)) == []
    await settle(store, job, Done())
    assert await tags(store) == ["a"]


async def test_queue_at_its_rate_has_none_until_the_next_may_start(
    store: Store, clock: ManualClock
) -> None:
    await store.configure(QueueSettings(name="default", rate=(1, 10 * SECOND)))
    await add(store, *[new(tags=("a",))] * 2)
    await take_one(store)
    assert await tags(store) == []
    assert await take(store, tags=("a",)) == []
    clock.advance(10 * SECOND)
    assert await tags(store) == ["a"]


async def test_job_that_was_held_once_is_not_forgotten(store: Store) -> None:
    """A claim without tags may have put it apart; one by tag takes it when there is a place."""
    await store.limit(Limit(kind="task", name="t", concurrency=1))
    held = await add(store, new(priority=9), new(tags=("a",)))
    running = await take_one(store)
    assert await take(store) == []
    await settle(store, running, Done())
    assert await tags(store) == ["a"]
    assert ids(await take(store, tags=("a",))) == [held[1].id]
