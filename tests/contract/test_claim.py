from datetime import timedelta

import pytest

from penstock.core.lifecycle import Done, Failed, Snoozed, State, Waiting
from penstock.core.queue import Queue, QueueSettings
from penstock.core.store import Store
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    ids,
    look,
    new,
    settle,
    take,
    take_one,
    totals,
)


async def test_claimed_job_is_running_with_a_deadline(store: Store, clock: ManualClock) -> None:
    asked = await add_one(store, lease=timedelta(minutes=5))
    clock.advance(SECOND)
    job = await take_one(store, worker="w1")
    assert job.id == asked.id
    assert (job.state, job.waiting, job.attempt, job.worker) == (State.RUNNING, None, 1, "w1")
    assert (job.started_at, job.expires_at) == (clock.now, clock.now + timedelta(minutes=5))
    assert (job.enqueued_at, job.run_at) == (asked.enqueued_at, asked.run_at)
    assert (job.lease.job_id, job.lease.token, job.lease.worker) == (job.id, job.token, "w1")
    assert job == await look(store, job)


async def test_highest_priority_goes_first_then_earliest_due_then_lowest_id(
    store: Store, clock: ManualClock
) -> None:
    jobs = await add(
        store,
        new(priority=5),
        new(priority=5),
        new(priority=0, run_at=clock.now - HOUR),
        new(priority=10),
        new(priority=5, run_at=clock.now - SECOND),
        new(priority=10, run_at=clock.now - SECOND),
    )
    assert ids(await take(store)) == [jobs[place].id for place in (5, 3, 4, 0, 1, 2)]


async def test_order_spans_queues_and_calls(store: Store, clock: ManualClock) -> None:
    jobs = [
        await add_one(store, queue=queue, priority=priority)
        for queue, priority in [("a", 1), ("b", 2), ("a", 3), ("b", 1), ("c", 2)]
    ]
    order = [jobs[place].id for place in (2, 1, 4, 0, 3)]
    assert ids(await take(store, limit=2)) == order[:2]
    assert ids(await take(store, limit=2)) == order[2:4]
    assert ids(await take(store, limit=2)) == order[4:]


async def test_job_put_back_is_ordered_by_its_new_due_time(
    store: Store, clock: ManualClock
) -> None:
    first, second = await add(store, new(), new())
    clock.advance(SECOND)
    await settle(store, await take_one(store), Snoozed())
    assert ids(await take(store)) == [second.id, first.id]


@pytest.mark.parametrize("limit", [0, 1, 3])
async def test_no_more_than_the_limit_are_given(store: Store, limit: int) -> None:
    await add(store, *[new()] * 5)
    assert len(await take(store, limit=limit)) == limit


async def test_no_job_is_given_twice(store: Store) -> None:
    added = await add(store, *[new()] * 5)
    assert ids(await take(store, limit=3) + await take(store, limit=3)) == ids(added)
    assert await take(store) == []


async def test_scheduled_job_is_given_when_it_falls_due(store: Store, clock: ManualClock) -> None:
    job = await add_one(store, delay=HOUR)
    clock.advance(HOUR - timedelta(microseconds=1))
    assert await take(store) == []
    clock.advance(timedelta(microseconds=1))
    assert ids(await take(store)) == [job.id]


async def test_many_jobs_falling_due_at_once_are_all_given(
    store: Store, clock: ManualClock
) -> None:
    jobs = await add(store, *[new(delay=HOUR)] * 1500)
    clock.advance(HOUR)
    given: list[int] = []
    while batch := await take(store, limit=400):
        given += ids(batch)
    assert given == ids(jobs)


async def test_tokens_only_grow_in_the_whole_store(store: Store, clock: ManualClock) -> None:
    await add(store, *[new(queue="a")] * 3, *[new(queue="b")] * 3)
    tokens = [job.token for job in await take(store, queues=("b",))]
    tokens += [job.token for job in await take(store, queues=("a",), limit=1)]
    again = await settle(store, await take_one(store), Failed("no"))
    assert again.token > max(tokens)
    tokens.append(again.token)
    clock.advance(HOUR)
    tokens += [job.token for job in await take(store)]
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 7


async def test_token_is_the_id_of_the_claims_log_entry(store: Store) -> None:
    await add(store, new(), new())
    for job in await take(store):
        assert (await store.log(job.id))[-1].id == job.token == job.version


async def test_each_claim_uses_an_attempt(store: Store, clock: ManualClock) -> None:
    await add_one(store)
    await settle(store, await take_one(store), Failed("no"))
    clock.advance(HOUR)
    assert (await take_one(store)).attempt == 2


# Queues


async def test_only_jobs_of_the_named_queues_are_given(store: Store) -> None:
    a, b, c = await add(store, new(queue="a"), new(queue="b"), new(queue="c"))
    assert ids(await take(store, queues=("c", "a", "c"))) == [a.id, c.id]
    assert await take(store, queues=("nowhere",)) == []
    assert await take(store, queues=()) == []
    assert ids(await take(store)) == [b.id]


async def test_queues_can_be_left_out(store: Store) -> None:
    a, b, c = await add(store, new(queue="a"), new(queue="b", tags=("x",)), new(queue="c"))
    left = frozenset({"b", "nowhere"})
    assert ids(await take(store, except_queues=left, limit=1)) == [a.id]
    assert await take(store, except_queues=left, tags=("x",)) == []
    await store.configure(QueueSettings(name="b", concurrency=5))  # claims take another way then
    assert ids(await take(store, except_queues=left)) == [c.id]
    assert ids(await take(store, queues=("b",), except_queues=left)) == [b.id]


async def test_paused_queue_gives_nothing(store: Store) -> None:
    paused, open_one = await add(store, new(queue="a"), new(queue="b"))
    await store.configure(QueueSettings(name="a", paused=True))
    assert ids(await take(store, queues=("a", "b"))) == [open_one.id]
    assert await take(store) == []
    assert await take(store, queues=("a",)) == []
    await store.configure(QueueSettings(name="a", paused=False))
    assert ids(await take(store)) == [paused.id]


async def test_paused_queue_gives_nothing_by_tag_or_when_due(
    store: Store, clock: ManualClock
) -> None:
    await store.configure(QueueSettings(name="default", paused=True))
    await add(store, new(tags=("x",)), new(delay=SECOND))
    clock.advance(HOUR)
    assert await take(store, tags=("x",)) == []
    assert await take(store) == []


async def test_pause_with_an_end_is_over_by_itself(store: Store, clock: ManualClock) -> None:
    (held,) = await add(store, new(tags=("x",)))
    until = clock.now + HOUR
    settings = QueueSettings(name="default", paused=True, paused_until=until)
    paused = await store.configure(settings)
    assert (paused.paused, paused.paused_until) == (True, until)
    clock.advance(HOUR - SECOND)
    assert await store.queues() == [paused]
    assert await take(store) == []
    assert await store.ready_tags("default") == []
    clock.advance(SECOND)
    assert await store.queues() == [Queue(name="default")]
    assert await store.ready_tags("default") == ["x"]
    assert ids(await take(store, tags=("x",))) == [held.id]


@pytest.mark.parametrize("concurrency", [None, 5])
async def test_pause_that_is_renewed_ends_later(
    store: Store, clock: ManualClock, concurrency: int | None
) -> None:
    await store.configure(QueueSettings(name="default", concurrency=concurrency))
    (held,) = await add(store, new())
    for _ in range(3):
        until = clock.now + HOUR
        await store.configure(QueueSettings(name="default", paused=True, paused_until=until))
        clock.advance(HOUR - SECOND)
        assert await take(store) == []
    clock.advance(SECOND)
    assert ids(await take(store)) == [held.id]


async def test_resume_ends_a_pause_with_an_end(store: Store, clock: ManualClock) -> None:
    (held,) = await add(store, new())
    until = clock.now + HOUR
    await store.configure(QueueSettings(name="default", paused=True, paused_until=until))
    resumed = await store.configure(QueueSettings(name="default", paused=False))
    assert resumed == Queue(name="default")
    assert ids(await take(store)) == [held.id]


async def test_pause_without_an_end_takes_the_place_of_one_with_an_end(
    store: Store, clock: ManualClock
) -> None:
    await add(store, new())
    until = clock.now + HOUR
    await store.configure(QueueSettings(name="default", paused=True, paused_until=until))
    assert (await store.configure(QueueSettings(name="default", paused=True))).paused_until is None
    clock.advance(2 * HOUR)
    assert await take(store) == []


async def test_pause_with_an_end_leaves_one_without_alone(store: Store, clock: ManualClock) -> None:
    await add(store, new())
    await store.configure(QueueSettings(name="default", paused=True))
    settings = QueueSettings(name="default", paused=True, paused_until=clock.now + HOUR)
    assert await store.configure(settings) == Queue(name="default", paused=True)
    clock.advance(2 * HOUR)
    assert await take(store) == []


async def test_setting_a_limit_keeps_a_pause_and_its_end(store: Store, clock: ManualClock) -> None:
    until = clock.now + HOUR
    paused = QueueSettings(name="default", paused=True, paused_until=until)
    await store.configure(paused)
    limited = await store.configure(QueueSettings(name="default", max_pending=5))
    assert (limited.paused, limited.paused_until) == (True, until)
    clock.advance(HOUR)
    limited = await store.configure(QueueSettings(name="default", max_pending=6))
    assert limited == Queue(name="default", max_pending=6)


async def test_paused_queue_takes_jobs_and_lets_running_ones_end(store: Store) -> None:
    await add_one(store)
    running = await take_one(store)
    await store.configure(QueueSettings(name="default", paused=True))
    await add_one(store)
    assert (await settle(store, running, Done())).state is State.DONE


async def test_paused_queue_holds_what_is_put_back(store: Store, clock: ManualClock) -> None:
    await add_one(store)
    running = await take_one(store)
    await store.configure(QueueSettings(name="default", paused=True))
    back = await settle(store, running, Snoozed())
    assert (back.state, back.waiting) == (State.PENDING, Waiting.READY)
    assert await take(store) == []


# Tags


async def test_any_of_the_tags_is_enough(store: Store) -> None:
    jobs = await add(store, new(tags=("x",)), new(tags=("y", "z")), new(tags=("w",)), new())
    assert ids(await take(store, tags=("x", "z"))) == ids(jobs[:2])


async def test_tags_are_exact_tokens(store: Store) -> None:
    odd = ["x", "X", "xy", "x,y", "x y", "", "%", "ü", '"x"', "[]", "x\\"]
    jobs = await add(store, *(new(tags=(tag,)) for tag in odd))
    for tag, job in zip(odd, jobs, strict=True):
        assert ids(await take(store, tags=(tag,))) == [job.id]


async def test_claim_without_tags_gives_tagged_jobs_too(store: Store) -> None:
    tagged, plain = await add(store, new(tags=("x",)), new())
    assert ids(await take(store)) == [tagged.id, plain.id]


async def test_job_that_fits_several_tags_is_given_once(store: Store) -> None:
    jobs = await add(store, *[new(tags=("x", "y"))] * 3)
    assert ids(await take(store, limit=2, tags=("x", "y", "x"))) == ids(jobs[:2])
    assert ids(await take(store, tags=("y", "x"))) == ids(jobs[2:])


async def test_repeated_tag_of_a_job_counts_once(store: Store) -> None:
    job = await add_one(store, tags=("x", "x"))
    assert ids(await take(store, tags=("x",))) == [job.id]


async def test_claim_by_tags_keeps_the_order_across_queues_and_tags(store: Store) -> None:
    jobs = await add(
        store,
        new(queue="a", tags=("x",), priority=1),
        new(queue="b", tags=("y",), priority=3),
        new(queue="b", tags=("x", "y"), priority=2),
        new(queue="c", tags=("x",), priority=9),
        new(queue="a", priority=9),
    )
    given = await take(store, queues=("a", "b"), tags=("x", "y"))
    assert ids(given) == [jobs[place].id for place in (1, 2, 0)]


async def test_job_put_back_is_found_by_its_tags_again(store: Store, clock: ManualClock) -> None:
    job = await add_one(store, tags=("x",))
    await settle(store, await take_one(store), Failed("no"))
    assert await take(store, tags=("x",)) == []
    clock.advance(HOUR)
    assert ids(await take(store, tags=("x",))) == [job.id]


async def test_blocked_and_scheduled_jobs_are_not_given_by_tag(
    store: Store, clock: ManualClock
) -> None:
    _, blocked, scheduled = await add(
        store, new(key="k"), new(key="k", tags=("x",)), new(delay=HOUR, tags=("x",))
    )
    assert await take(store, tags=("x",)) == []
    await settle(store, await take_one(store), Done())
    assert ids(await take(store, tags=("x",))) == [blocked.id]
    clock.advance(HOUR)
    assert ids(await take(store, tags=("x",))) == [scheduled.id]


async def test_claim_finds_the_one_job_that_fell_due_behind_very_many(
    store: Store, clock: ManualClock
) -> None:
    *_, last = await add(
        store, *[new(queue="a", delay=SECOND)] * 2100, new(queue="b", delay=2 * SECOND)
    )
    clock.advance(3 * SECOND)
    assert ids(await take(store, queues=("b",))) == [last.id]
    assert sum((await totals(store)).values()) == 2101
