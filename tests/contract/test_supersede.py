"""A new job in the place of a pending one of its key."""

import asyncio
from typing import Any

import pytest

from penstock.core.errors import Overtaken, QueueFull, TransitionRefused
from penstock.core.job import Job, JobId, LogId, OnFailure, Scope
from penstock.core.lifecycle import (
    Done,
    Event,
    Failed,
    State,
    Waiting,
    advance,
    cancel,
    reset,
    supersede,
)
from penstock.core.queue import QueueSettings
from penstock.core.restoration import Origin
from penstock.core.store import Store
from penstock.core.superseding import Tail
from penstock.core.transition import Change
from tests.contract.support import (
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


async def test_new_job_takes_the_place_of_the_pending_one(store: Store) -> None:
    old = await add_one(store, key="k")
    [newer] = await store.add(
        [new(key="k", supersede=True)], actor="p", tail=Tail(job=old, replaces=True)
    )
    assert newer.waiting is Waiting.READY
    assert (await look(store, old)).state is State.SUPERSEDED
    *_, entry = await history(store, old)
    assert (entry.event, entry.actor) == (Event.SUPERSEDED, "p")
    assert entry.reason == f"superseded by job {newer.id}"
    assert ids(await take(store)) == [newer.id]


async def test_new_job_waits_behind_the_running_one(store: Store) -> None:
    await add_one(store, key="k")
    await take_one(store)
    old = await add_one(store, key="k")
    [newer] = await store.add(
        [new(key="k", supersede=True)], actor="p", tail=Tail(job=old, replaces=True)
    )
    assert newer.waiting is Waiting.BLOCKED
    assert (await look(store, old)).state is State.SUPERSEDED


async def test_nothing_is_stored_when_the_pending_one_was_claimed_meanwhile(store: Store) -> None:
    old = await add_one(store, key="k")
    await take_one(store)
    with pytest.raises(Overtaken):
        await store.add([new(key="k")], actor="p", tail=Tail(job=old, replaces=True))
    assert await totals(store) == {("default", State.RUNNING, None): 1}


async def test_nothing_is_stored_when_there_is_a_newer_one(store: Store) -> None:
    old = await add_one(store, key="k")
    await add_one(store, key="k")
    with pytest.raises(Overtaken):
        await store.add([new(key="k")], actor="p", tail=Tail(job=old, replaces=True))
    with pytest.raises(Overtaken):
        await store.add([new(key="k")], actor="p", tail=Tail(job=None))
    assert sum((await totals(store)).values()) == 2


async def test_first_of_a_key_is_stored_if_there_is_none(store: Store) -> None:
    [job] = await store.add([new(key="k")], actor="p", tail=Tail(job=None))
    assert job.waiting is Waiting.READY


async def test_both_are_kept_where_the_tail_is_not_replaced(store: Store) -> None:
    old = await add_one(store, key="k")
    [newer] = await store.add([new(key="k")], actor="p", tail=Tail(job=old))
    assert newer.waiting is Waiting.BLOCKED
    assert (await look(store, old)).waiting is Waiting.READY


async def test_one_that_is_a_duplicate_replaces_nothing(store: Store) -> None:
    old = await add_one(store, key="k", dedupe="d")
    [answer] = await store.add(
        [new(key="k", dedupe="d")], actor="p", tail=Tail(job=old, replaces=True)
    )
    assert (answer.id, answer.duplicate) == (old.id, True)
    assert await look(store, old) == old
    assert ids(await take(store)) == [old.id]


async def test_a_full_queue_takes_one_in_the_place_of_another(store: Store) -> None:
    old = await add_one(store, key="k")
    await store.configure(QueueSettings(name="default", max_pending=1))
    [newer] = await store.add([new(key="k")], actor="p", tail=Tail(job=old, replaces=True))
    with pytest.raises(QueueFull):
        await store.add([new(key="k")], actor="p", tail=Tail(job=newer))
    with pytest.raises(QueueFull):
        await add_one(store)
    assert ids(await take(store)) == [newer.id]


async def test_dependent_of_a_replaced_job_takes_no_more_room_than_before(store: Store) -> None:
    old = await add_one(store, key="k")
    await add_one(store, after=(old.id,))
    await store.configure(QueueSettings(name="default", max_pending=2))
    [newer] = await store.add([new(key="k")], actor="p", tail=Tail(job=old, replaces=True))
    assert (await look(store, old)).state is State.SUPERSEDED
    assert newer.state is State.PENDING


async def test_a_job_that_is_stored_at_the_same_time_is_the_newest(store: Store) -> None:
    old = await add_one(store, key="k")
    calls = (
        store.add([new(key="k")], actor="p"),
        store.add([new(key="k")], actor="p", tail=Tail(job=old, replaces=True)),
    )
    both: list[object] = await asyncio.gather(*calls, return_exceptions=True)
    plain, superseding = both
    assert not isinstance(plain, BaseException)
    assert isinstance(superseding, Overtaken)
    assert await look(store, old) == old


async def replace_by(store: Store, old: Job, **options: Any) -> Job:
    """A new job in the place of the pending one."""
    tail = Tail(job=await look(store, old), replaces=True)
    [newer] = await store.add([new(key=old.key, **options)], actor="p", tail=tail)
    return newer


async def needed_by(store: Store, job: Job) -> list[int]:
    """What a job still waits for."""
    edges = await store.edges([job.id])
    return [one.needed for one in edges if one.job_id == job.id and not one.resolved]


async def test_dependent_of_a_replaced_job_waits_for_its_successor(store: Store) -> None:
    old = await add_one(store, key="k")
    waiting = await add_one(store, after=(old.id,))
    newest = await replace_by(store, await replace_by(store, old))
    assert await needed_by(store, waiting) == [newest.id]
    assert (await look(store, waiting)).needs == 1
    await settle(store, await take_one(store), Done())
    assert [job.id for job in await take(store)] == [waiting.id]


@pytest.mark.parametrize("rule", OnFailure)
async def test_failing_successor_counts_for_dependents(store: Store, rule: OnFailure) -> None:
    old = await add_one(store, key="k")
    waiting = await add_one(store, after=(old.id,), on_failure=rule)
    newer = await replace_by(store, old)
    await settle(store, await take_one(store), Failed("boom", permanent=True))
    ended = await look(store, waiting)
    if rule is OnFailure.RUN:
        assert ended.waiting is Waiting.READY
    else:
        assert ended.state is State.CANCELLED
        *_, entry = await history(store, waiting)
        assert entry.reason == f"job {newer.id}, which it waits for, is failed"


async def test_successor_waits_for_what_the_replaced_one_waited_for(store: Store) -> None:
    over, first, second = await add(store, new(), new(), new())
    await settle(store, await take_one(store), Done())
    old = await add_one(store, key="k", after=(over.id, first.id), on_failure=OnFailure.RUN)
    newer = await replace_by(store, old, after=(second.id,))
    assert await needed_by(store, newer) == [first.id, second.id]
    for outcome in (Failed("boom", permanent=True), Done()):
        assert (await look(store, newer)).waiting is Waiting.BLOCKED
        await settle(store, await take_one(store), outcome)
    assert [job.id for job in await take(store)] == [newer.id]


async def test_successor_keeps_its_own_rule_for_what_both_wait_for(store: Store) -> None:
    first = await add_one(store)
    old = await add_one(store, key="k", after=(first.id,), on_failure=OnFailure.RUN)
    newer = await replace_by(store, old, after=(first.id,), on_failure=OnFailure.CANCEL)
    assert (await look(store, newer)).needs == 1
    await settle(store, await take_one(store), Failed("boom", permanent=True))
    assert (await look(store, newer)).state is State.CANCELLED


@pytest.mark.parametrize("between", [False, True])
async def test_none_waits_for_a_successor_that_waits_for_it(store: Store, between: bool) -> None:
    old = await add_one(store, key="k")
    waiting = await add_one(store, key="other", after=(old.id,))
    last = await add_one(store, key="other") if between else waiting
    newer = await replace_by(store, old, after=(last.id,))
    assert (await look(store, waiting)).waiting is Waiting.READY
    for job in dict.fromkeys([waiting.id, last.id, newer.id]):
        [taken] = await take(store)
        assert taken.id == job
        await settle(store, taken, Done())


async def test_successor_that_cannot_run_ends_its_dependents(store: Store) -> None:
    broken = await add_one(store)
    await settle(store, await take_one(store), Failed("boom", permanent=True))
    old = await add_one(store, key="k")
    waiting = await add_one(store, after=(old.id,))
    newer = await replace_by(store, old, after=(broken.id,))
    assert newer.state is State.CANCELLED
    assert (await look(store, waiting)).state is State.CANCELLED


async def test_undone_job_lets_those_go_on_that_wait_for_it(store: Store) -> None:
    old = await add_one(store, key="k")
    waiting = await add_one(store, after=(old.id,))
    await move(store, await look(store, old), supersede(old, None))
    assert (await look(store, waiting)).waiting is Waiting.READY


async def test_dependent_of_a_superseded_run_waits_for_its_successor(store: Store) -> None:
    old = await add_one(store, dedupe="d", scope=Scope.PENDING)
    running = await take_one(store)
    waiting = await add_one(store, after=(old.id,))
    newer = await add_one(store, dedupe="d", scope=Scope.PENDING)
    both = await add_one(store, after=(old.id, newer.id))
    assert (await settle(store, running, Failed("boom"))).state is State.SUPERSEDED
    for job in (waiting, both):
        assert await needed_by(store, job) == [newer.id]
        assert (await look(store, job)).needs == 1
    await settle(store, await take_one(store), Done())
    assert ids(await take(store)) == [waiting.id, both.id]


async def test_run_that_gives_way_frees_the_one_that_it_gives_way_to(store: Store) -> None:
    old = await add_one(store, dedupe="d", scope=Scope.PENDING)
    running = await take_one(store)
    newer = await add_one(store, dedupe="d", scope=Scope.PENDING, after=(old.id,))
    await settle(store, running, Failed("boom"))
    assert (await look(store, newer)).waiting is Waiting.READY


async def test_both_end_in_one_call_and_dependents_are_released(store: Store) -> None:
    old = await add_one(store, dedupe="d", scope=Scope.PENDING)
    running = await take_one(store)
    waiting = await add_one(store, after=(old.id,))
    newer = await add_one(store, dedupe="d", scope=Scope.PENDING)
    moves = [Change(running, advance(running, Failed("boom"))), Change(newer, cancel(newer))]
    await store.transition(moves, actor="w")
    assert (await look(store, waiting)).state is State.CANCELLED


async def test_cancelled_job_does_not_return_before_what_it_waits_for(store: Store) -> None:
    old = await add_one(store, key="k")
    between = await add_one(store, after=(old.id,))
    cancelled = await add_one(store, key="k", after=(between.id,))
    await move(store, cancelled, cancel(cancelled))
    newer = await replace_by(store, old)
    cancelled = await look(store, cancelled)
    with pytest.raises(TransitionRefused, match=f"waits for job {newer.id}, which comes after"):
        await move(store, cancelled, reset(cancelled))
    assert ids(await take(store)) == [newer.id]


async def test_successor_keeps_waiting_jobs_waiting_in_another_store(store: Store) -> None:
    old = await add_one(store, key="k")
    waiting = await add_one(store, after=(old.id,))
    newer = await replace_by(store, old)
    records = await store.records([waiting.id, newer.id])
    origin = Origin(source=7, last_job=JobId(100), last_log=LogId(100))
    [first, second] = await store.restore(records, origin=origin, actor="me")
    assert first is not None
    assert second is not None
    assert await needed_by(store, first) == [second.id]
    assert (first.waiting, first.needs) == (Waiting.BLOCKED, 1)


@pytest.mark.parametrize("rule", OnFailure)
async def test_one_that_has_ended_meanwhile_is_not_waited_for(
    store: Store, rule: OnFailure
) -> None:
    old = await add_one(store, key="k")
    waiting = await add_one(store, after=(old.id,), on_failure=rule)
    newer = await replace_by(store, old)
    [early] = await store.records([waiting.id])
    await move(store, newer, cancel(newer))
    [late] = await store.records([newer.id])
    origin = Origin(source=7, last_job=JobId(100), last_log=LogId(100))
    [first, _] = await store.restore([early, late], origin=origin, actor="me")
    assert first is not None
    assert first.needs == 0
    expected = State.CANCELLED if rule is OnFailure.CANCEL else State.PENDING
    assert (await look(store, first)).state is expected
    assert (await look(store, first)).waiting is not Waiting.BLOCKED


async def test_one_that_is_not_taken_over_is_not_waited_for(store: Store) -> None:
    old = await add_one(store, key="k")
    waiting = await add_one(store, after=(old.id,))
    newer = await replace_by(store, old, dedupe="d")
    records = await store.records([waiting.id, newer.id])
    origin = Origin(source=7, last_job=JobId(100), last_log=LogId(100))
    [first, second] = await store.restore(records, origin=origin, actor="me")
    assert second is None  # its dedupe key is held here
    assert first is not None
    assert (first.waiting, first.needs) == (Waiting.READY, 0)
