"""A new job in the place of a pending one of its key."""

import asyncio

import pytest

from penstock.core.errors import Overtaken, QueueFull
from penstock.core.job import QueueSettings, Tail
from penstock.core.lifecycle import Event, State, Waiting
from penstock.core.store import Store
from tests.contract.support import add_one, history, ids, look, new, take, take_one, totals


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


async def test_a_job_that_is_stored_at_the_same_time_is_the_newest(store: Store) -> None:
    old = await add_one(store, key="k")
    plain, superseding = await asyncio.gather(
        store.add([new(key="k")], actor="p"),
        store.add([new(key="k")], actor="p", tail=Tail(job=old, replaces=True)),
        return_exceptions=True,
    )
    assert not isinstance(plain, BaseException)
    assert isinstance(superseding, Overtaken)
    assert await look(store, old) == old
