"""Counters of many queues: bounded in number, never falling; sums of all queues are kept."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from penstock.core.lifecycle import Done, Event, State, Waiting
from penstock.core.queue import QueueQuery, QueueSettings
from penstock.core.statistics import NAMED_QUEUES, OTHER_QUEUES, TOGETHER, Interval
from penstock.core.store import Store
from penstock.stores import open_store
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    new,
    settle,
    take_one,
)

LONG_AGO = datetime(1990, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


async def digest(store: Store) -> None:
    while await store.roll_up(1000):
        pass


async def enqueued(store: Store) -> dict[str, int]:
    """How many jobs were enqueued, by the name that they are counted under."""
    await digest(store)
    return {one.queue: one.counts[Event.ENQUEUED] for one in await store.counters()}


async def test_queues_beyond_the_limit_are_counted_together(store: Store) -> None:
    await store.series(2)
    await add(store, *(new(queue=name) for name in "abcd"))
    assert await enqueued(store) == {"a": 1, "b": 1, TOGETHER: 2}
    await add(store, *(new(queue=name) for name in "abcd"))
    assert await enqueued(store) == {"a": 2, "b": 2, TOGETHER: 4}
    assert await store.series() == ["a", "b"]


async def test_room_for_more_begins_new_counters_and_takes_none_back(store: Store) -> None:
    await store.series(1)
    await add(store, new(queue="a"), new(queue="b"))
    assert await enqueued(store) == {"a": 1, TOGETHER: 1}
    assert await store.series(3) == ["a", "b"]
    await add(store, new(queue="a"), new(queue="b"))
    # What was counted for it before stays where it is: sums over all are exact, and none falls.
    assert await enqueued(store) == {"a": 2, "b": 1, TOGETHER: 1}
    assert await store.series(1) == ["a", "b"]
    await add(store, new(queue="b"), new(queue="c"))
    assert await enqueued(store) == {"a": 2, "b": 2, TOGETHER: 2}


async def test_configured_queue_gets_its_series_when_asked_for(store: Store) -> None:
    await store.configure(QueueSettings(name="later", paused=True))
    assert await store.series() == ["later"]


async def test_queue_that_is_called_like_the_others_is_one_of_them(store: Store) -> None:
    await add(store, new(queue=OTHER_QUEUES), new(queue="a"))
    assert await enqueued(store) == {"a": 1, TOGETHER: 1}
    assert await store.series() == ["a"]


async def test_number_of_counters_is_bounded_without_a_setting(store: Store) -> None:
    await add(store, *(new(queue=f"q{n:03}") for n in range(NAMED_QUEUES + 5)))
    counted = await enqueued(store)
    assert len(counted) == NAMED_QUEUES + 1
    assert counted[TOGETHER] == 5


async def test_limit_and_series_outlive_the_store(lasting_url: str) -> None:
    store = open_store(lasting_url)
    await store.series(1)
    await add(store, new(queue="b"))
    assert await enqueued(store) == {"b": 1}
    await store.close()
    store = open_store(lasting_url)
    await add(store, new(queue="a"), new(queue="b"))
    assert await enqueued(store) == {"b": 2, TOGETHER: 1}
    await store.close()


async def test_history_of_all_queues_together_and_of_some(store: Store, clock: ManualClock) -> None:
    for name in "abc":
        await add(store, *[new(queue=name)] * 2)
        clock.advance(MINUTE)
    await digest(store)

    async def asked(queue: str | tuple[str, ...] | None, step: timedelta) -> list[Interval]:
        return await store.intervals(LONG_AGO, None, queue, step)

    assert [one.queue for one in await asked(None, HOUR * 24 * 365)] == ["a", "b", "c"]
    assert [one.queue for one in await asked(("a", "c", "none"), MINUTE)] == ["a", "c"]
    together = await asked(TOGETHER, MINUTE)
    assert [one.queue for one in together] == [TOGETHER] * 3
    assert sum(one.counts[Event.ENQUEUED] for one in together) == 6


async def test_sum_of_all_queues_is_that_of_each(store: Store, clock: ManualClock) -> None:
    await add(store, *(new(queue=name) for name in "aabb"))
    for _ in range(3):
        clock.advance(SECOND)
        job = await take_one(store)
        clock.advance(SECOND)
        await settle(store, job, Done())
    await digest(store)
    (together,) = await store.intervals(LONG_AGO, None, TOGETHER, HOUR)
    each = await store.intervals(LONG_AGO, None, None, HOUR)
    counts: Counter[Event] = Counter()
    for one in each:
        counts.update(one.counts)
    assert together.counts == counts
    assert together.run == each[0].run + each[1].run
    assert together.wait == each[0].wait + each[1].wait


# Pages of queues, and what they have together


async def test_queues_are_listed_in_pages_by_name(store: Store) -> None:
    await add(store, *(new(queue=f"q{n}") for n in range(5)))
    await store.configure(QueueSettings(name="mail", concurrency=3))

    async def listed(query: QueueQuery) -> list[str]:
        return [queue.name for queue in await store.queues(query)]

    assert await listed(QueueQuery()) == ["mail", "q0", "q1", "q2", "q3", "q4"]
    assert await listed(QueueQuery(limit=2)) == ["mail", "q0"]
    assert await listed(QueueQuery(after="q0", limit=2)) == ["q1", "q2"]
    assert await listed(QueueQuery(after="q3", limit=2)) == ["q4"]
    assert await listed(QueueQuery(contains="a")) == ["mail"]
    assert await listed(QueueQuery(contains="%")) == []
    assert await listed(QueueQuery(names=("q3", "none", "mail"))) == ["mail", "q3"]
    assert await listed(QueueQuery(names=("q3", "q1", "mail"), after="mail", limit=1)) == ["q1"]
    assert (await store.queues(QueueQuery(names=("mail",))))[0].concurrency == 3


@pytest.mark.parametrize("names", [("b",), ("b", "none"), ()])
async def test_counts_and_ages_of_some_queues(
    store: Store, clock: ManualClock, names: tuple[str, ...]
) -> None:
    start = clock.now
    await add(store, new(queue="a"), new(queue="b"), new(queue="b", delay=HOUR))
    await add(store, new(queue="b", tenant="t"))
    counts = {("b", State.PENDING, Waiting.READY): 2, ("b", State.PENDING, Waiting.SCHEDULED): 1}
    assert await store.count(names) == (counts if "b" in names else {})
    assert await store.oldest_ready(names) == ({"b": start} if "b" in names else {})


async def test_all_queues_together_but_some(store: Store, clock: ManualClock) -> None:
    start = clock.now
    empty = await store.summary()
    assert (empty.queues, empty.counts, empty.oldest_ready) == (0, {}, None)
    await add_one(store, queue="a")
    clock.advance(SECOND)
    await add(store, new(queue="b"), new(queue="c", delay=HOUR))
    await store.configure(QueueSettings(name="c", paused=True))
    whole = await store.summary()
    assert (whole.queues, whole.paused, whole.oldest_ready) == (3, 1, start)
    assert whole.counts == {
        (State.PENDING, Waiting.READY): 2,
        (State.PENDING, Waiting.SCHEDULED): 1,
    }
    others = await store.summary(["a", "c", "none"])
    assert (others.queues, others.paused, others.oldest_ready) == (1, 0, start + SECOND)
    assert others.counts == {(State.PENDING, Waiting.READY): 1}
