from datetime import timedelta

import pytest

from penstock.core.key_line import LONGEST_LINE
from penstock.core.lifecycle import (
    Cancelled,
    Done,
    Expired,
    Failed,
    Outcome,
    Snoozed,
    State,
    Waiting,
    advance,
    cancel,
    reset,
)
from penstock.core.queue import QueueSettings
from penstock.core.store import Store
from penstock.core.transition import Change
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


async def waiting(store: Store, *jobs: object) -> list[Waiting | None]:
    found = await store.get([job.id for job in jobs])  # type: ignore[attr-defined] # they are jobs
    return [job.waiting for job in found]


async def test_only_the_head_of_a_key_is_visible(store: Store) -> None:
    jobs = await add(store, new(key="k"), new(key="k"), new(key="k"))
    assert [job.waiting for job in jobs] == [Waiting.READY, Waiting.BLOCKED, Waiting.BLOCKED]
    assert jobs == await store.get([job.id for job in jobs])
    later = await add_one(store, key="k")
    assert later.waiting is Waiting.BLOCKED
    assert ids(await take(store)) == [jobs[0].id]


async def test_keys_do_not_hold_up_each_other(store: Store) -> None:
    jobs = await add(store, new(key="a"), new(key="b"), new(key="a"), new(), new(key=""))
    assert ids(await take(store)) == [jobs[place].id for place in (0, 1, 3, 4)]


async def test_job_added_behind_a_running_one_is_blocked(store: Store) -> None:
    await add_one(store, key="k")
    await take_one(store)
    assert (await add_one(store, key="k")).waiting is Waiting.BLOCKED
    assert await take(store) == []


@pytest.mark.parametrize("outcome", [Done(), Failed("no", permanent=True), Cancelled()])
async def test_end_of_the_head_makes_the_next_visible(store: Store, outcome: Outcome) -> None:
    jobs = await add(store, new(key="k"), new(key="k"), new(key="k"))
    head = await take_one(store)
    assert await waiting(store, *jobs) == [None, Waiting.BLOCKED, Waiting.BLOCKED]
    await settle(store, head, outcome)
    assert await waiting(store, *jobs) == [None, Waiting.READY, Waiting.BLOCKED]
    assert ids(await take(store)) == [jobs[1].id]


@pytest.mark.parametrize("outcome", [Failed("no"), Snoozed(10 * SECOND), Expired()])
async def test_head_put_back_runs_before_the_others(
    store: Store, clock: ManualClock, outcome: Outcome
) -> None:
    head, second = await add(store, new(key="k"), new(key="k"))
    running = await take_one(store)
    clock.advance(HOUR)
    await settle(store, running, outcome)
    if not isinstance(outcome, Expired):
        assert await waiting(store, head, second) == [Waiting.SCHEDULED, Waiting.BLOCKED]
        assert await take(store) == []
    clock.advance(10 * SECOND)
    assert ids(await take(store)) == [head.id]
    assert await take(store) == []


async def test_priority_does_not_break_the_order_of_a_key(store: Store) -> None:
    jobs = await add(store, new(key="k", priority=0), new(key="k", priority=10), new(priority=5))
    assert ids(await take(store)) == [jobs[2].id, jobs[0].id]
    await settle(store, (await store.get([jobs[0].id]))[0], Done())
    assert ids(await take(store)) == [jobs[1].id]


async def test_scheduled_head_holds_up_jobs_that_are_due(store: Store, clock: ManualClock) -> None:
    head, second = await add(store, new(key="k", delay=HOUR), new(key="k"))
    assert (head.waiting, second.waiting) == (Waiting.SCHEDULED, Waiting.BLOCKED)
    assert await take(store) == []
    clock.advance(HOUR)
    assert ids(await take(store)) == [head.id]


async def test_blocked_job_that_becomes_head_before_its_time_is_scheduled(
    store: Store, clock: ManualClock
) -> None:
    _, second = await add(store, new(key="k"), new(key="k", delay=HOUR))
    assert second.waiting is Waiting.BLOCKED
    await settle(store, await take_one(store), Done())
    assert (await look(store, second)).waiting is Waiting.SCHEDULED
    clock.advance(HOUR)
    assert ids(await take(store)) == [second.id]


async def test_blocked_job_that_becomes_head_after_its_time_is_ready(
    store: Store, clock: ManualClock
) -> None:
    _, second = await add(store, new(key="k"), new(key="k", delay=SECOND))
    head = await take_one(store)
    clock.advance(HOUR)
    await settle(store, head, Done())
    assert (await look(store, second)).waiting is Waiting.READY


async def test_cancelled_head_makes_the_next_visible(store: Store) -> None:
    head, second = await add(store, new(key="k", delay=HOUR), new(key="k"))
    await move(store, head, cancel(head))
    assert (await look(store, second)).waiting is Waiting.READY
    assert ids(await take(store)) == [second.id]


async def test_cancelled_job_in_the_middle_is_passed_over(store: Store) -> None:
    first, middle, last = await add(store, new(key="k"), new(key="k"), new(key="k"))
    await move(store, middle, cancel(middle))
    assert await waiting(store, first, last) == [Waiting.READY, Waiting.BLOCKED]
    await settle(store, await take_one(store), Done())
    assert ids(await take(store)) == [last.id]


async def test_cancel_request_does_not_free_the_key(store: Store) -> None:
    _, second = await add(store, new(key="k"), new(key="k"))
    running = await take_one(store)
    await move(store, running, cancel(running))
    assert (await look(store, second)).waiting is Waiting.BLOCKED


async def test_keys_are_global_across_queues(store: Store) -> None:
    first, second = await add(store, new(queue="a", key="k"), new(queue="b", key="k"))
    assert await take(store, queues=("b",)) == []
    await settle(store, await take_one(store), Done())
    assert ids(await take(store, queues=("b",))) == [second.id]
    assert first.id < second.id


async def test_paused_queue_of_the_head_holds_up_the_key(store: Store) -> None:
    await add(store, new(queue="a", key="k"), new(queue="b", key="k"))
    await store.configure(QueueSettings(name="a", paused=True))
    assert await take(store) == []


async def test_reset_of_an_old_job_blocks_the_visible_one_again(store: Store) -> None:
    old, young = await add(store, new(key="k", tags=("x",)), new(key="k", tags=("x",)))
    failed = await settle(store, await take_one(store), Failed("no", permanent=True))
    assert (await look(store, young)).waiting is Waiting.READY
    back = await move(store, failed, reset(failed))
    assert back.waiting is Waiting.READY
    assert (await look(store, young)).waiting is Waiting.BLOCKED
    assert ids(await take(store, tags=("x",))) == [old.id]
    assert await take(store, tags=("x",)) == []


async def test_reset_of_an_old_job_blocks_a_scheduled_head(
    store: Store, clock: ManualClock
) -> None:
    old, young = await add(store, new(key="k"), new(key="k", delay=SECOND))
    failed = await settle(store, await take_one(store), Failed("no", permanent=True))
    await move(store, failed, reset(failed))
    assert (await look(store, young)).waiting is Waiting.BLOCKED
    clock.advance(HOUR)
    assert ids(await take(store)) == [old.id]
    assert await take(store) == []


async def test_reset_job_waits_for_a_younger_one_that_runs(store: Store) -> None:
    old, young, youngest = await add(store, new(key="k"), new(key="k"), new(key="k"))
    failed = await settle(store, await take_one(store), Failed("no", permanent=True))
    running = await take_one(store)
    back = await move(store, failed, reset(failed))
    assert back.waiting is Waiting.BLOCKED
    assert await take(store) == []
    await settle(store, running, Done())
    assert await waiting(store, old, youngest) == [Waiting.READY, Waiting.BLOCKED]
    assert ids(await take(store)) == [old.id]
    assert running.id == young.id


async def test_reset_of_the_running_head_keeps_its_place(store: Store) -> None:
    await add(store, new(key="k"), new(key="k"))
    (head,) = await take(store)
    back = await move(store, head, reset(head, forced=True))
    assert (back.waiting, back.attempt, back.worker) == (Waiting.READY, 0, None)
    (again,) = await take(store)
    assert (again.id, again.token > head.token) == (head.id, True)
    assert await take(store) == []


async def test_reset_of_a_young_job_leaves_the_head_alone(store: Store) -> None:
    head, young = await add(store, new(key="k"), new(key="k"))
    ended = await move(store, young, cancel(young))
    back = await move(store, ended, reset(ended))
    assert await waiting(store, head, back) == [Waiting.READY, Waiting.BLOCKED]


async def test_reset_of_a_scheduled_head_makes_it_ready(store: Store) -> None:
    head, _ = await add(store, new(key="k", delay=HOUR), new(key="k"))
    assert (await move(store, head, reset(head))).waiting is Waiting.READY
    assert ids(await take(store)) == [head.id]


async def test_moves_of_one_call_leave_one_head(store: Store) -> None:
    jobs = await add(store, *[new(key="k")] * 4)
    running = await take_one(store)
    moved = await store.transition(
        [
            Change(jobs[1], cancel(jobs[1])),
            Change(running, advance(running, Failed("no"))),
            Change(jobs[2], cancel(jobs[2])),
        ],
        actor="w",
    )
    assert [job.state for job in moved if job] == [
        State.CANCELLED,
        State.PENDING,
        State.CANCELLED,
    ]
    assert moved[1] is not None
    assert moved[1].waiting is Waiting.SCHEDULED
    assert (await look(store, jobs[3])).waiting is Waiting.BLOCKED


async def test_key_runs_one_at_a_time_in_enqueue_order_whatever_happens(
    store: Store, clock: ManualClock
) -> None:
    jobs = await add(store, *(new(key="k", priority=n % 3, queue=f"q{n % 2}") for n in range(12)))
    outcomes: list[Outcome] = [Done(), Failed("no"), Snoozed(SECOND), Expired(), Failed("no")]
    ended: list[int] = []
    for turn in range(100):
        given = await take(store)
        assert len(given) <= 1
        clock.advance(HOUR)
        for job in given:
            after = await settle(store, job, outcomes[turn % len(outcomes)])
            ended += [job.id] if after.state.final else []
        clock.advance(timedelta(seconds=11))
    assert ended == ids(jobs)


# Listing keys


async def test_keys_of_unfinished_jobs_are_listed_by_name(store: Store) -> None:
    assert await store.keys(None, 10) == []
    jobs = await add(
        store,
        new(key="b"),
        new(key="a/ö", delay=HOUR),
        new(key="c"),
        *[new(key="b")] * 2,
        new(),
        new(key="gone"),
    )
    await move(store, jobs[6], cancel(jobs[6]))
    assert [(line.key, line.first, line.length) for line in await store.keys(None, 10)] == [
        ("a/ö", jobs[1].id, 1),
        ("b", jobs[0].id, 3),
        ("c", jobs[2].id, 1),
    ]
    assert [line.key for line in await store.keys(None, 2)] == ["a/ö", "b"]
    assert [line.key for line in await store.keys("b", 2)] == ["c"]
    assert await store.keys("c", 2) == []


async def test_key_is_held_by_the_job_that_runs_before_older_ones(store: Store) -> None:
    older, newer = await add(store, new(key="k"), new(key="k"))
    await move(store, older, cancel(older))
    await take_one(store)
    await move(store, await look(store, older), reset(await look(store, older)))
    (line,) = await store.keys(None, 1)
    assert (line.first, line.length) == (newer.id, 2)


async def test_head_of_a_key_that_waits_for_another_job_is_first(store: Store) -> None:
    [needed] = await add(store, new())
    first, _ = await add(store, new(key="k", after=(needed.id,)), new(key="k"))
    (line,) = await store.keys(None, 1)
    assert (line.first, line.length) == (first.id, 2)


async def test_long_line_of_a_key_is_counted_so_far(store: Store) -> None:
    await add(store, *[new(key="k")] * (LONGEST_LINE + 5))
    (line,) = await store.keys(None, 1)
    assert line.length == LONGEST_LINE
