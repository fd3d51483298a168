"""Jobs that wait for others."""

import asyncio

import pytest

from penstock.core.errors import JobNotFound
from penstock.core.job import JobId, OnFailure, Retention
from penstock.core.lifecycle import (
    Done,
    Event,
    Failed,
    State,
    Waiting,
    advance,
    cancel,
    reprioritise,
    reset,
)
from penstock.core.query import JobQuery
from penstock.core.queue import QueueSettings
from penstock.core.store import Store
from penstock.core.transition import Change
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    history,
    ids,
    look,
    move,
    new,
    settle,
    take,
    take_one,
    totals,
)

BROKEN = Failed("boom", permanent=True)


async def test_job_waits_for_another_until_it_is_done(store: Store) -> None:
    first = await add_one(store)
    second = await add_one(store, after=(first.id,))
    assert (second.waiting, second.needs) == (Waiting.BLOCKED, 1)
    assert ids(await take(store)) == [first.id]
    await settle(store, await look(store, first), Done())
    assert (await look(store, second)).waiting is Waiting.READY
    assert ids(await take(store)) == [second.id]


async def test_chain_in_one_call_runs_in_order(store: Store) -> None:
    jobs = await add(store, new(), new(follows=(0,)), new(follows=(1,)))
    for job in jobs:
        [given] = await take(store)
        assert given.id == job.id
        await settle(store, given, Done())
    assert await take(store) == []


async def test_fan_in_waits_for_all(store: Store) -> None:
    *parts, last = await add(store, new(), new(), new(), new(follows=(0, 1, 2)))
    assert last.needs == 3
    given = await take(store)
    assert ids(given) == ids(parts)
    for left, part in zip((2, 1, 0), given, strict=True):
        assert (await look(store, last)).waiting is Waiting.BLOCKED
        await settle(store, part, Done())
        assert (await look(store, last)).needs == left
    assert ids(await take(store)) == [last.id]


async def test_fan_out_lets_all_go(store: Store) -> None:
    first, *rest = await add(store, new(), *[new(follows=(0,))] * 3)
    await settle(store, await take_one(store), Done())
    assert ids(await take(store)) == ids(rest)
    assert first.id not in ids(rest)


async def test_retry_of_the_first_keeps_the_second_waiting(store: Store) -> None:
    _, second = await add(store, new(), new(follows=(0,)))
    await settle(store, await take_one(store), Failed("for now"))
    assert (await look(store, second)).waiting is Waiting.BLOCKED


async def test_failure_cancels_those_behind_with_the_reason(store: Store) -> None:
    first, second, third = await add(store, new(), new(follows=(0,)), new(follows=(1,)))
    await settle(store, await take_one(store), BROKEN)
    for job, needed in ((second, first), (third, second)):
        now = await look(store, job)
        assert now.state is State.CANCELLED
        *_, entry = await history(store, job)
        assert (entry.event, entry.actor) == (Event.CANCELLED, "w")
        assert entry.reason is not None
        assert f"job {needed.id}" in entry.reason


async def test_job_may_run_whatever_became_of_the_one_before(store: Store) -> None:
    _, second = await add(store, new(), new(follows=(0,), on_failure=OnFailure.RUN))
    await settle(store, await take_one(store), BROKEN)
    assert ids(await take(store)) == [second.id]


async def test_cancelling_the_first_cancels_the_rest(store: Store) -> None:
    first, second = await add(store, new(), new(follows=(0,)))
    await move(store, first, cancel(first), actor="me")
    assert (await look(store, second)).state is State.CANCELLED


async def test_one_failure_of_many_is_enough(store: Store) -> None:
    *_, last = await add(store, new(), new(), new(follows=(0, 1)))
    one, other = await take(store)
    await settle(store, one, BROKEN)
    assert (await look(store, last)).state is State.CANCELLED
    await settle(store, other, Done())
    assert (await look(store, last)).state is State.CANCELLED


async def test_job_after_one_that_is_done_is_ready(store: Store) -> None:
    first = await add_one(store)
    await settle(store, await take_one(store), Done())
    assert (await add_one(store, after=(first.id,))).waiting is Waiting.READY


async def test_job_after_one_that_failed_is_cancelled_at_once(store: Store) -> None:
    first = await add_one(store)
    await settle(store, await take_one(store), BROKEN)
    late = await add_one(store, after=(first.id,))
    assert late.state is State.CANCELLED
    assert [entry.event for entry in await history(store, late)] == [
        Event.ENQUEUED,
        Event.CANCELLED,
    ]
    assert (await add_one(store, after=(first.id,), on_failure=OnFailure.RUN)).waiting is (
        Waiting.READY
    )


async def test_unknown_job_to_wait_for_is_refused_and_nothing_stored(store: Store) -> None:
    with pytest.raises(JobNotFound, match="no job 99"):
        await add(store, new(), new(after=(JobId(99),)))
    assert await totals(store) == {}


async def test_delay_counts_after_the_wait(store: Store, clock: ManualClock) -> None:
    _, second = await add(store, new(), new(follows=(0,), delay=HOUR))
    await settle(store, await take_one(store), Done())
    assert (await look(store, second)).waiting is Waiting.SCHEDULED
    clock.advance(HOUR)
    assert ids(await take(store)) == [second.id]


async def test_order_of_a_key_holds_for_jobs_that_wait(store: Store) -> None:
    first = await add_one(store)
    head, behind = await add(store, new(key="k", after=(first.id,)), new(key="k"))
    assert ids(await take(store)) == [first.id]
    await settle(store, await look(store, first), Done())
    assert ids(await take(store)) == [head.id]
    await settle(store, await look(store, head), Done())
    assert ids(await take(store)) == [behind.id]


async def test_abandoned_head_of_a_key_makes_way(store: Store) -> None:
    await add_one(store)
    _, behind = await add(store, new(key="k", after=(JobId(1),)), new(key="k"))
    await settle(store, await take_one(store), BROKEN)
    assert ids(await take(store)) == [behind.id]


async def test_abandoned_job_can_be_retried(store: Store) -> None:
    one, other = await add(store, new(), new())
    last = await add_one(store, after=(one.id, other.id))
    first, second = await take(store)
    await settle(store, first, BROKEN)
    again = await move(store, last := await look(store, last), reset(last), actor="me")
    assert (again.waiting, again.needs) == (Waiting.BLOCKED, 1)
    await settle(store, second, Done())
    assert ids(await take(store)) == [last.id]


async def test_needed_job_that_runs_again_frees_once(store: Store) -> None:
    one, other = await add(store, new(), new())
    last = await add_one(store, after=(one.id, other.id), on_failure=OnFailure.RUN)
    first, _ = await take(store)
    failed = await settle(store, first, BROKEN)
    await move(store, failed, reset(failed), actor="me")
    [again] = await take(store)
    await settle(store, again, Done())
    assert (await look(store, last)).needs == 1


async def test_edges_show_which_job_waits_for_which(store: Store) -> None:
    first, second, third = await add(store, new(), new(follows=(0,)), new(follows=(0, 1)))
    await settle(store, await take_one(store), Done())
    found = [(edge.needed, edge.job_id, edge.resolved) for edge in await store.edges([second.id])]
    assert found == [(first.id, second.id, True), (second.id, third.id, False)]
    assert await store.edges([JobId(99)]) == []


async def test_edges_go_with_the_jobs(store: Store, clock: ManualClock) -> None:
    first, second = await add(store, new(), new(follows=(0,)))
    await settle(store, await take_one(store), Done())
    clock.advance(2 * SECOND)
    assert await store.prune(Retention(finished=SECOND), 10) == 1
    assert await store.edges([first.id, second.id]) == []
    assert ids(await take(store)) == [second.id]


async def test_long_chain_falls_at_once(store: Store) -> None:
    n = 2_000
    jobs = await add(store, new(), *[new(follows=(place,)) for place in range(n)])
    await settle(store, await take_one(store), BROKEN)
    assert (await totals(store))[jobs[0].queue, State.CANCELLED, None] == n


async def test_limit_counts_jobs_that_wait_for_others(store: Store) -> None:
    await store.configure(QueueSettings(name="default", max_pending=2))
    first, second = await add(store, new(), new(follows=(0,)))
    assert (await store.backlog())[0] == 2
    assert await totals(store) == {
        ("default", State.PENDING, Waiting.READY): 1,
        ("default", State.PENDING, Waiting.BLOCKED): 1,
    }
    assert first.id < second.id


# Batches and children


async def test_tally_counts_a_batch(store: Store) -> None:
    await add(store, *[new(correlation="c")] * 3, new(correlation="d"), new())
    await settle(store, (await take(store, limit=1))[0], Done())
    assert await store.tally(JobQuery(correlation="c")) == {State.DONE: 1, State.PENDING: 2}
    assert await store.tally(JobQuery(correlation="x")) == {}


async def test_tally_counts_children(store: Store) -> None:
    parent = await add_one(store)
    await add(store, *[new(parent=parent.id)] * 2)
    assert await store.tally(JobQuery(parent=parent.id)) == {State.PENDING: 2}


@pytest.mark.parametrize("meanwhile", ["reset", "reprioritise"])
@pytest.mark.parametrize("together", [True, False])
async def test_one_that_is_moved_when_what_it_needs_fails_is_cancelled(
    store: Store, meanwhile: str, together: bool
) -> None:
    """In one call, and by several callers at the same time."""
    jobs = await add(store, new(), new(follows=(0,)), new(follows=(1,)))
    running = await take_one(store)
    changes = [
        Change(job, reset(job) if meanwhile == "reset" else reprioritise(job, 7))
        for job in jobs[1:]
    ]
    changes.append(Change(running, advance(running, BROKEN)))
    if together:
        answers = await store.transition(changes, actor="w")
        assert answers == await store.get([change.job.id for change in changes])
    else:
        await asyncio.gather(*(store.transition([change], actor="w") for change in changes))
    for job in jobs[1:]:
        assert (await look(store, job)).state is State.CANCELLED
        assert [entry.event for entry in await history(store, job)] == [
            Event.ENQUEUED,
            Event.RESET if meanwhile == "reset" else Event.REPRIORITISED,
            Event.CANCELLED,
        ]
    assert await take(store) == []
    assert sum((await totals(store)).values()) == 3


async def test_answer_tells_what_a_job_still_needs(store: Store) -> None:
    _, second = await add(store, new(), new(follows=(0,)))
    running = await take_one(store)
    changes = [Change(second, reset(second)), Change(running, advance(running, Done()))]
    [answer, _] = await store.transition(changes, actor="w")
    assert answer == await look(store, second)
    assert answer is not None
    assert (answer.needs, answer.waiting) == (0, Waiting.READY)
