"""Removing finished jobs by name, and taking jobs over from elsewhere."""

import pytest
from msgspec.structs import replace

from penstock.core.job import JobId, LogId, OnFailure
from penstock.core.lifecycle import (
    Cancelled,
    Done,
    Event,
    Failed,
    State,
    Waiting,
    cancel,
    reprioritise,
    reset,
)
from penstock.core.query import JobQuery
from penstock.core.restoration import Origin, Record
from penstock.core.store import Store
from penstock.core.transition import Change
from penstock.runtime import Runtime
from penstock.stores import open_store
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    drive,
    everything,
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

ELSEWHERE = Origin(source=77)


async def records(store: Store) -> list[Record]:
    return await store.records([job.id for job in await everything(store)])


# delete


async def test_finished_jobs_go_with_their_log_and_all_others_stay(store: Store) -> None:
    await add(store, *[new(tags=("x",))] * 3, new(key="k"), new(key="k"))
    first, second, running, head = await take(store)
    done = await settle(store, first, Done())
    failed = await settle(store, second, Failed("no", permanent=True))
    jobs = await everything(store)
    assert await store.delete(jobs) == [done.id, failed.id]
    left = await everything(store)
    assert ids(left) == [running.id, head.id, 5]
    assert await store.log() == sorted(
        [entry for job in left for entry in await history(store, job)], key=lambda one: one.id
    )
    assert sum((await totals(store)).values()) == 3
    assert await store.delete(jobs) == []


async def test_job_that_changed_meanwhile_is_not_deleted(store: Store) -> None:
    job = await add_one(store)
    cancelled = await move(store, job, cancel(job))
    again = await move(store, cancelled, reset(cancelled))
    last = await move(store, again, cancel(again))
    assert await store.delete([cancelled]) == []
    assert await store.delete([again]) == []
    assert await store.delete([last]) == [job.id]


async def test_ids_of_deleted_jobs_are_never_given_again(store: Store) -> None:
    job = await add_one(store)
    ended = await move(store, job, cancel(job))
    await store.delete([ended])
    fresh = await add_one(store)
    assert fresh.id > ended.id
    assert fresh.version > ended.version


# tally


async def test_tally_counts_what_find_lists(store: Store, clock: ManualClock) -> None:
    await add(store, new(tags=("x", "y")), new(queue="b"), new(key="k"), new(delay=HOUR))
    await settle(store, await take_one(store), Failed("KeyError: 'x'", permanent=True))
    clock.advance(SECOND)
    await add(store, new(tags=("x",), correlation="c", tenant="t", parent=JobId(1)))
    await settle(store, await take_one(store, queues=("b",)), Done())
    for query, n in [
        (JobQuery(), 5),
        (JobQuery(tags=("x",)), 2),
        (JobQuery(tags=("x",), states=frozenset({State.PENDING})), 1),
        (JobQuery(states=frozenset({State.FAILED, State.DONE})), 2),
        (JobQuery(queue="b"), 1),
        (JobQuery(key="k"), 1),
        (JobQuery(correlation="c", tenant="t", parent=JobId(1)), 1),
        (JobQuery(error="KeyError"), 1),
        (JobQuery(error="keyerror"), 0),
        (JobQuery(error="%"), 0),
        (JobQuery(error=""), 1),
        (JobQuery(before=clock.now), 3),
        (JobQuery(before=clock.now + SECOND), 5),
        (JobQuery(before=clock.now, states=frozenset({State.DONE})), 0),
        (JobQuery(since=clock.now), 2),
        (JobQuery(since=clock.now, states=frozenset({State.DONE})), 1),
        (JobQuery(since=clock.now, states=frozenset({State.FAILED})), 0),
        (JobQuery(since=clock.now - SECOND), 5),
        (JobQuery(since=clock.now - SECOND, before=clock.now), 3),
        (JobQuery(since=clock.now + SECOND), 0),
        (JobQuery(text="KeyError"), 1),
        (JobQuery(text=""), 5),
        (JobQuery(text="%"), 0),
    ]:
        assert sum((await store.tally(query)).values()) == n, query
        assert len(await store.find(query)) == n, query


async def test_text_is_found_in_all_that_people_gave_a_job(store: Store) -> None:
    await add(
        store,
        new(task="mail.send"),
        new(key="ada lovelace"),
        new(tags=("urgent", "größe")),
        new(tenant="acme"),
        new(payload='{"to":"grace@example.org"}'),
        new(queue="unseen"),
    )
    for text, found in [
        ("mail", [1]),
        ("lovelace", [2]),
        ("gent", [3]),
        ("größe", [3]),
        ("acme", [4]),
        ("grace@", [5]),
        ('"to":', [5]),
        ("Grace", []),
        ("unseen", []),
    ]:
        for states in (None, frozenset({State.PENDING})):
            query = JobQuery(text=text, states=states, newest_first=False)
            assert await store.find_ids(query) == found, text
            assert sum((await store.tally(query)).values()) == len(found), text
    (tagged,) = await store.find(JobQuery(text="ö", tags=("urgent",)))
    assert tagged.tags == ("urgent", "größe")


@pytest.mark.parametrize("states", [None, {State.FAILED}, {State.PENDING, State.FAILED}])
async def test_search_ends_at_the_last_id_that_is_asked_for(
    store: Store, states: set[State] | None
) -> None:
    await add(store, *[new(tags=("x",))] * 6)
    for job in await take(store, limit=6):
        await settle(store, job, Failed("no", permanent=True))
    wanted = None if states is None else frozenset(states)
    for tags in ((), ("x",)):
        query = JobQuery(states=wanted, tags=tags)
        down = replace(query, after=JobId(6), until=JobId(3))
        assert await store.find_ids(down) == [5, 4, 3]
        assert ids(await store.find(down)) == [5, 4, 3]
        up = replace(query, after=JobId(2), until=JobId(5), newest_first=False)
        assert await store.find_ids(up) == [3, 4, 5]
        assert await store.find_ids(replace(up, limit=2)) == [3, 4]
        assert sum((await store.tally(up)).values()) == 6  # on all pages


# reprioritise


async def test_order_of_claims_follows_a_new_priority_at_once(store: Store) -> None:
    jobs = await add(store, *[new(tags=("x",))] * 3, new(delay=SECOND))
    raised = await move(store, jobs[2], reprioritise(jobs[2], 9))
    assert (raised.priority, raised.waiting, raised.run_at) == (9, Waiting.READY, jobs[2].run_at)
    lowered = await move(store, jobs[0], reprioritise(jobs[0], 0))
    assert await look(store, raised) == raised
    later = await move(store, jobs[3], reprioritise(jobs[3], 10))
    assert later.waiting is Waiting.SCHEDULED
    assert ids(await take(store, tags=("x",), limit=2)) == [raised.id, jobs[1].id]
    assert ids(await take(store)) == [lowered.id]
    entry = (await history(store, lowered))[1]
    assert (entry.event, entry.state, entry.reason) == (
        Event.REPRIORITISED,
        State.PENDING,
        "priority 5 became 0",
    )


async def test_blocked_job_keeps_its_place_behind_its_key_whatever_its_priority(
    store: Store,
) -> None:
    first, second = await add(store, new(key="k"), new(key="k"))
    assert (await move(store, second, reprioritise(second, 10))).waiting is Waiting.BLOCKED
    taken = await take_one(store)
    assert taken.id == first.id
    await settle(store, taken, Done())
    assert (await take_one(store)).priority == 10


async def test_new_priority_is_refused_when_the_job_changed(store: Store) -> None:
    job = await add_one(store)
    await take_one(store)
    assert await store.transition([Change(job, reprioritise(job, 9))], actor="w") == [None]
    assert (await look(store, job)).priority == 5


# histories


async def test_histories_are_jobs_with_their_logs(store: Store) -> None:
    await add(store, new(), new())
    await settle(store, await take_one(store), Done())
    found = await store.records([JobId(2), JobId(9), JobId(1)])
    assert ids([record.job for record in found]) == [2, 1]
    for record in found:
        assert record.job == await look(store, record.job)
        assert list(record.log) == await history(store, record.job)
    assert await store.records([]) == []


# restore


async def test_empty_store_keeps_the_ids_and_continues_behind_them(
    store: Store, clock: ManualClock
) -> None:
    other = open_store("memory://", runtime=Runtime(clock))
    options = {"tags": ("x",), "dedupe": "d", "correlation": "c", "tenant": "t", "priority": 7}
    await add(other, new(), new(delay=HOUR, timeout=SECOND), new(key="k"), new(key="k"))
    await add(other, new(**options, parent=JobId(2)), new())
    await settle(other, await take_one(other, tags=("x",)), Done("[1]", detail='{"by":"x"}'))
    await settle(other, await take_one(other), Failed("no", permanent=True, detail="[2]"))
    copied = await records(other)
    assert [one.detail for record in copied for one in record.log if one.detail] == [
        "[2]", '{"by":"x"}',
    ]  # fmt: skip
    origin = await other.origin()
    stored = await store.restore(copied, origin=origin, actor="admin")
    assert stored == await everything(store)
    for record, job in zip(copied, stored, strict=True):
        assert job is not None
        assert job == replace(record.job, version=job.version, token=job.token)
        *log, last = await history(store, job)
        assert [replace(one, id=LogId(0), token=None) for one in log] == [
            replace(one, id=LogId(0), token=None) for one in record.log
        ]
        assert (last.id, last.event, last.state) == (job.version, Event.RESTORED, job.state)
        assert (last.actor, last.reason) == ("admin", f"job {job.id} of store {origin.source}")
        claims = [one.id for one in log if one.event is Event.CLAIMED]
        assert job.token == (claims[-1] if claims else 0)
    assert await totals(store) == await totals(other)
    assert (await store.backlog())[0] == 4
    fresh = await add_one(store)
    assert fresh.id == 7
    assert fresh.version > max(entry.id for entry in await other.log())


async def test_tokens_are_higher_than_any_of_the_source(store: Store) -> None:
    await store.restore([], origin=Origin(source=1, last_log=LogId(1000)), actor="a")
    await add_one(store)
    assert (await take_one(store)).token > 1000


async def test_new_ids_are_higher_than_those_of_the_source(store: Store) -> None:
    await store.restore([], origin=Origin(source=1, last_job=JobId(1000)), actor="a")
    assert (await add_one(store)).id == 1001
    assert (await store.origin()).last_job == 1001


async def test_second_time_changes_nothing_even_after_retention(
    store: Store, clock: ManualClock
) -> None:
    other = open_store("memory://", runtime=Runtime(clock))
    await add(other, new(), new(key="k"))
    copied, origin = await records(other), await other.origin()
    await add_one(store)
    assert [job.id for job in await store.restore(copied, origin=origin, actor="a") if job] == [
        2,
        3,
    ]
    before = await everything(store), await store.log()
    assert await store.restore(copied, origin=origin, actor="a") == [None, None]
    assert (await everything(store), await store.log()) == before
    ended = [await settle(store, job, Done()) for job in await take(store)]
    assert len(await store.delete(ended)) == 3
    assert await store.restore(copied, origin=origin, actor="a") == [None, None]
    assert await everything(store) == []


async def test_same_id_of_another_source_is_another_job(store: Store, clock: ManualClock) -> None:
    for source in (5, 6):
        other = open_store("memory://", runtime=Runtime(clock))
        await add_one(other)
        copied = await records(other)
        assert None not in await store.restore(copied, origin=Origin(source=source), actor="a")
    assert len(await everything(store)) == 2


async def test_own_jobs_come_back_only_when_they_are_gone(store: Store) -> None:
    await add(store, new(), new())
    await settle(store, await take_one(store), Done())
    copied, origin = await records(store), await store.origin()
    assert await store.restore(copied, origin=origin, actor="a") == [None, None]
    assert await store.delete([copied[0].job]) == [1]
    restored, still_here = await store.restore(copied, origin=origin, actor="a")
    assert restored is not None
    assert (restored.id, restored.state) == (3, State.DONE)
    assert still_here is None


async def test_job_whose_dedupe_key_is_held_is_left_out(store: Store, clock: ManualClock) -> None:
    other = open_store("memory://", runtime=Runtime(clock))
    await add(other, new(dedupe="d"), new(dedupe="e"), new(dedupe="f"))
    ended = await settle(other, (await take(other, limit=2))[1], Done())
    pending = next(job for job in await everything(other) if job.state is State.PENDING)
    [ended_record, record] = await other.records([ended.id, pending.id])
    holder = await add_one(store, dedupe="f")
    await add_one(store, dedupe="e")
    first, second = await store.restore([ended_record, record], origin=ELSEWHERE, actor="a")
    assert first is not None
    assert second is None
    await settle(store, (await take(store, limit=1))[0], Cancelled())
    assert (await look(store, holder)).state is State.CANCELLED
    [now] = await store.restore([record], origin=ELSEWHERE, actor="a")
    assert now is not None


async def test_jobs_of_a_key_line_up_behind_those_that_are_there(
    store: Store, clock: ManualClock
) -> None:
    other = open_store("memory://", runtime=Runtime(clock))
    await add(other, new(key="k"), new(key="k"), new(key="l"), new(key="l"))
    await add_one(store, key="k")
    stored = await store.restore(await records(other), origin=ELSEWHERE, actor="a")
    assert [job.waiting for job in stored if job] == [
        Waiting.BLOCKED,
        Waiting.BLOCKED,
        Waiting.READY,
        Waiting.BLOCKED,
    ]
    order = []
    while jobs := await take(store):
        for job in jobs:
            order.append((job.key, job.id))
            await settle(store, job, Done())
    assert [place for key, place in order if key == "k"] == [1, 2, 3]
    assert [place for key, place in order if key == "l"] == [4, 5]


async def test_parent_is_kept_if_it_came_along(store: Store, clock: ManualClock) -> None:
    other = open_store("memory://", runtime=Runtime(clock))
    await add(other, new(), new(parent=JobId(1)), new(parent=JobId(99)))
    await add(store, new(), new())
    stored = await store.restore(await records(other), origin=ELSEWHERE, actor="a")
    assert [(job.id, job.parent) for job in stored if job] == [(3, None), (4, 3), (5, None)]


async def test_restored_job_waits_for_those_it_waited_for(store: Store, clock: ManualClock) -> None:
    other = open_store("memory://", runtime=Runtime(clock))
    await add(other, new(), new(follows=(0,), key="k"), new(follows=(0, 1)), new(key="k"))
    await add(store, *[new(delay=HOUR)] * 5)
    stored = await store.restore(await records(other), origin=ELSEWHERE, actor="a")
    assert [job and (job.id, job.waiting, job.needs) for job in stored] == [
        (6, Waiting.READY, 0),
        (7, Waiting.BLOCKED, 1),
        (8, Waiting.BLOCKED, 2),
        (9, Waiting.BLOCKED, 0),
    ]
    assert [(edge.needed, edge.job_id) for edge in await store.edges([JobId(8)])] == [
        (6, 8),
        (7, 8),
    ]
    order = []
    while jobs := await take(store):
        order.append(ids(jobs))
        for job in jobs:
            await settle(store, job, Done())
    assert order == [[6], [7], [8, 9]]
    assert await totals(store) == {
        ("default", State.PENDING, Waiting.SCHEDULED): 5,
        ("default", State.DONE, None): 4,
    }


async def test_what_did_not_come_along_is_not_waited_for(store: Store, clock: ManualClock) -> None:
    other = open_store("memory://", runtime=Runtime(clock))
    await add(other, new(), new(), new(follows=(0, 1)))
    first, second, third = await records(other)
    [half] = await store.restore([third], origin=replace(ELSEWHERE, source=8), actor="a")
    assert half is not None
    assert (half.waiting, half.needs, await store.edges([half.id])) == (Waiting.READY, 0, [])
    _, whole = await store.restore([first, third], origin=ELSEWHERE, actor="a")
    assert whole is not None
    assert (whole.waiting, whole.needs) == (Waiting.BLOCKED, 1)
    assert await store.restore([second], origin=ELSEWHERE, actor="a") != [None]
    assert await look(store, whole) == whole


@pytest.mark.parametrize("on_failure", OnFailure)
async def test_restored_job_hears_of_what_failed_between_two_calls(
    store: Store, clock: ManualClock, on_failure: OnFailure
) -> None:
    other = open_store("memory://", runtime=Runtime(clock))
    await add(other, new(), new(follows=(0,), on_failure=on_failure), new(follows=(1,), key="k"))
    first, *rest = await records(other)
    await store.restore([first], origin=ELSEWHERE, actor="a")
    await settle(store, await take_one(store), Failed("no", permanent=True))
    second, third = await store.restore(rest, origin=ELSEWHERE, actor="a")
    assert second is not None
    assert third is not None
    if on_failure is OnFailure.RUN:
        assert (second.waiting, third.needs) == (Waiting.READY, 1)
    else:
        assert [second.state, third.state] == [State.CANCELLED] * 2
        *_, before, last = await history(store, second)
        assert (before.event, last.event) == (Event.RESTORED, Event.CANCELLED)
        assert last.reason == "job 1, which it waits for, is failed"
    assert sum((await totals(store)).values()) == 3


async def test_restored_job_that_was_cancelled_waits_when_it_is_reset(
    store: Store, clock: ManualClock
) -> None:
    other = open_store("memory://", runtime=Runtime(clock))
    _, second = await add(other, new(), new(follows=(0,)))
    await move(other, second, cancel(second))
    _, job = await store.restore(await records(other), origin=ELSEWHERE, actor="a")
    assert job is not None
    assert (await move(store, job, reset(job))).waiting is Waiting.BLOCKED
    await settle(store, await take_one(store), Done())
    assert ids(await take(store)) == [job.id]


async def test_restored_job_runs_and_can_be_found(store: Store, clock: ManualClock) -> None:
    other = open_store("memory://", runtime=Runtime(clock))
    await add(other, new(tags=("x",), queue="q"), new(delay=HOUR, queue="q"))
    await store.restore(await records(other), origin=ELSEWHERE, actor="a")
    assert [queue.name for queue in await store.queues()] == ["q"]
    assert ids(await store.find(JobQuery(tags=("x",)))) == [1]
    assert ids(await take(store, tags=("x",), queues=("q",))) == [1]
    clock.advance(2 * HOUR)
    assert ids(await take(store)) == [2]


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_every_store_has_a_number_of_its_own(scheme: str, tmp_path: object) -> None:
    stores = [
        open_store("memory://" if scheme == "memory" else f"sqlite:///{tmp_path}/{n}.db")
        for n in range(2)
    ]
    numbers = {drive(store.origin()).source for store in stores}
    for store in stores:
        drive(store.close())
    assert len(numbers) == 2
    assert all(0 <= number < 2**63 for number in numbers)
