from datetime import UTC, datetime, timedelta, timezone

import pytest

from penstock.core.errors import QueueFull
from penstock.core.job import JobId, Scope
from penstock.core.lifecycle import Done, Event, Failed, State, Waiting
from penstock.core.queue import QueueSettings
from penstock.core.retry import RetryPolicy
from penstock.core.store import Store
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    everything,
    history,
    ids,
    look,
    new,
    settle,
    take,
    take_one,
    totals,
)


async def test_added_job_has_every_option(store: Store, clock: ManualClock) -> None:
    policy = RetryPolicy(attempts=7, delay=HOUR, factor=3, max_delay=9 * HOUR, jitter=0.5)
    asked = new(
        task="mail.send",
        payload='{"to":"zoë","n":1}',
        queue="mail",
        priority=9,
        delay=2 * SECOND,
        key="zoë",
        dedupe="welcome zoë",
        scope=Scope.PENDING,
        tags=("eu", "slow"),
        retry=policy,
        timeout=timedelta(milliseconds=1500),
        lease=timedelta(minutes=2),
    )
    [job] = await add(store, asked)
    assert job == await look(store, job)
    assert (job.task, job.payload, job.args) == (asked.task, asked.payload, {"to": "zoë", "n": 1})
    assert (job.queue, job.priority, job.key) == ("mail", 9, "zoë")
    assert (job.dedupe, job.scope, job.tags) == ("welcome zoë", Scope.PENDING, ("eu", "slow"))
    assert (job.retry, job.timeout) == (policy, timedelta(milliseconds=1500))
    assert job.lease_time == timedelta(minutes=2)
    assert (job.enqueued_at, job.run_at) == (clock.now, clock.now + 2 * SECOND)


async def test_added_job_is_pending_and_untouched(store: Store, clock: ManualClock) -> None:
    job = await add_one(store)
    assert (job.state, job.waiting, job.attempt) == (State.PENDING, Waiting.READY, 0)
    assert (job.enqueued_at, job.run_at) == (clock.now, clock.now)
    assert (job.token, job.worker, job.started_at, job.expires_at) == (0, None, None, None)
    assert (job.finished_at, job.error, job.returned, job.cancel_requested) == (None,) * 3 + (
        False,
    )
    assert (job.key, job.dedupe, job.tags, job.timeout) == (None, None, (), None)
    assert not job.duplicate


async def test_times_are_aware_utc(store: Store) -> None:
    job = await add_one(store, run_at=datetime(2030, 6, 1, 12, tzinfo=timezone(2 * HOUR)))
    for seen in (job, await look(store, job)):
        assert seen.run_at == datetime(2030, 6, 1, 10, tzinfo=UTC)
        assert (seen.run_at.utcoffset(), seen.enqueued_at.utcoffset()) == (timedelta(0),) * 2


async def test_ids_grow_in_the_order_of_the_call(store: Store) -> None:
    first = await add(store, *(new(payload=f'{{"n":{n}}}') for n in range(50)))
    second = await add(store, new(), new())
    grown = ids(first + second)
    assert grown == sorted(set(grown))
    assert [job.args["n"] for job in await store.get([JobId(n) for n in grown[:50]])] == [
        *range(50)
    ]


async def test_adding_nothing_changes_nothing(store: Store) -> None:
    assert await add(store) == []
    assert await store.log() == []


async def test_large_payload_comes_back_whole(store: Store) -> None:
    payload = '{"text":"' + "ä" * 300_000 + '"}'
    job = await add_one(store, payload=payload)
    assert (await look(store, job)).payload == payload
    assert (await take_one(store)).payload == payload


async def test_job_in_the_future_is_scheduled(store: Store, clock: ManualClock) -> None:
    delayed, dated = await add(store, new(delay=SECOND), new(run_at=clock.now + HOUR))
    assert (delayed.waiting, delayed.run_at) == (Waiting.SCHEDULED, clock.now + SECOND)
    assert (dated.waiting, dated.run_at) == (Waiting.SCHEDULED, clock.now + HOUR)


async def test_job_of_the_past_is_ready_at_once(store: Store, clock: ManualClock) -> None:
    dated, undelayed = await add(store, new(run_at=clock.now - HOUR), new(delay=timedelta(0)))
    assert (dated.waiting, undelayed.waiting) == (Waiting.READY, Waiting.READY)
    assert ids(await take(store)) == [dated.id, undelayed.id]


# Dedupe


async def test_pending_holder_is_returned_instead(store: Store) -> None:
    holder = await add_one(store, dedupe="d", payload='{"n":1}')
    hit = await add_one(store, dedupe="d", payload='{"n":2}')
    assert hit.duplicate
    assert (hit.id, hit.args) == (holder.id, {"n": 1})
    assert await everything(store) == [holder]
    assert await history(store, holder) == await store.log()


async def test_duplicates_inside_one_call_meet_the_first(store: Store) -> None:
    one, two, other = await add(store, new(dedupe="d"), new(dedupe="d"), new(dedupe="e"))
    assert (one.duplicate, two.duplicate, other.duplicate) == (False, True, False)
    assert one.id == two.id != other.id
    assert ids(await everything(store)) == [one.id, other.id]


async def test_each_job_of_a_call_is_held_to_its_own_scope(store: Store) -> None:
    await add_one(store, dedupe="d", scope=Scope.PENDING)
    running = await take_one(store)
    again, hit = await add(
        store, new(dedupe="d", scope=Scope.PENDING), new(dedupe="d", scope=Scope.UNFINISHED)
    )
    assert (again.duplicate, hit.duplicate) == (False, True)
    assert running.id != again.id == hit.id


async def test_duplicate_for_another_queue_leaves_the_first_in_its_own(store: Store) -> None:
    first, hit = await add(store, new(dedupe="d", queue="a"), new(dedupe="d", queue="b"))
    assert (hit.id, hit.queue) == (first.id, "a")
    assert ids(await take(store, queues=("a",))) == [first.id]


async def test_dedupe_holds_across_queues_and_tasks(store: Store) -> None:
    holder = await add_one(store, dedupe="d", queue="a", task="one")
    assert (await add_one(store, dedupe="d", queue="b", task="two")).id == holder.id


async def test_scheduled_and_blocked_jobs_hold_their_dedupe_key(store: Store) -> None:
    await add_one(store, key="k")
    blocked = await add_one(store, key="k", dedupe="b", scope=Scope.PENDING)
    scheduled = await add_one(store, delay=HOUR, dedupe="s", scope=Scope.PENDING)
    assert (await add_one(store, dedupe="b", scope=Scope.PENDING)).id == blocked.id
    assert (await add_one(store, dedupe="s", scope=Scope.PENDING)).id == scheduled.id


async def test_scope_unfinished_also_meets_a_running_job(store: Store) -> None:
    await add_one(store, dedupe="d")
    running = await take_one(store)
    hit = await add_one(store, dedupe="d")
    assert (hit.id, hit.duplicate, hit.state) == (running.id, True, State.RUNNING)


async def test_scope_pending_lets_one_wait_behind_a_running_one(store: Store) -> None:
    await add_one(store, dedupe="d", scope=Scope.PENDING)
    running = await take_one(store)
    again = await add_one(store, dedupe="d", scope=Scope.PENDING)
    third = await add_one(store, dedupe="d", scope=Scope.PENDING)
    assert again.id != running.id
    assert not again.duplicate
    assert (third.id, third.duplicate) == (again.id, True)


@pytest.mark.parametrize(
    ("held", "asked", "hit"),
    [
        (Scope.PENDING, Scope.PENDING, False),
        (Scope.PENDING, Scope.UNFINISHED, True),
        (Scope.UNFINISHED, Scope.PENDING, True),
        (Scope.UNFINISHED, Scope.UNFINISHED, True),
    ],
)
async def test_either_scope_can_ask_for_one_unfinished_job(
    store: Store, held: Scope, asked: Scope, hit: bool
) -> None:
    await add_one(store, dedupe="d", scope=held)
    await take_one(store)
    assert (await add_one(store, dedupe="d", scope=asked)).duplicate is hit


async def test_pending_holder_is_met_before_a_running_one(store: Store) -> None:
    await add_one(store, dedupe="d", scope=Scope.PENDING)
    await take_one(store)
    again = await add_one(store, dedupe="d", scope=Scope.PENDING)
    assert (await add_one(store, dedupe="d", scope=Scope.UNFINISHED)).id == again.id


async def test_finished_job_no_longer_holds_its_dedupe_key(store: Store) -> None:
    await add_one(store, dedupe="d")
    done = await settle(store, await take_one(store), Done())
    fresh = await add_one(store, dedupe="d")
    await settle(store, await take_one(store), Failed("no", permanent=True))
    fresher = await add_one(store, dedupe="d")
    assert len({done.id, fresh.id, fresher.id}) == 3


async def test_retried_job_holds_its_dedupe_key_again(store: Store) -> None:
    await add_one(store, dedupe="d", scope=Scope.PENDING)
    back = await settle(store, await take_one(store), Failed("no"))
    assert back.state is State.PENDING
    assert (await add_one(store, dedupe="d", scope=Scope.PENDING)).id == back.id


# Limits


async def limit(store: Store, pending: int | None, queue: str = "default") -> None:
    await store.configure(QueueSettings(name=queue, max_pending=pending))


async def test_full_queue_refuses_and_stores_nothing(store: Store) -> None:
    await limit(store, 2)
    await add(store, new(), new())
    with pytest.raises(QueueFull) as refused:
        await add_one(store)
    assert (refused.value.queue, refused.value.limit) == ("default", 2)
    assert len(await everything(store)) == 2
    assert len(await store.log()) == 2


async def test_call_that_would_pass_the_limit_stores_none_of_its_jobs(store: Store) -> None:
    await limit(store, 2)
    with pytest.raises(QueueFull):
        await add(store, new(queue="other"), new(), new(), new())
    assert await everything(store) == []
    assert await store.log() == []
    assert await totals(store) == {}
    assert len(await add(store, new(), new())) == 2


async def test_refused_call_leaves_no_dedupe_key_behind(store: Store) -> None:
    await limit(store, 1)
    with pytest.raises(QueueFull):
        await add(store, new(dedupe="d"), new())
    assert not (await add_one(store, dedupe="d")).duplicate


async def test_duplicates_do_not_count_against_the_limit(store: Store) -> None:
    await limit(store, 2)
    await add(store, new(dedupe="a"), new(dedupe="b"))
    one, two = await add(store, new(dedupe="b"), new(dedupe="a"))
    assert (one.duplicate, two.duplicate) == (True, True)


async def test_first_of_two_duplicates_counts_against_its_own_queue(store: Store) -> None:
    await limit(store, 0, "a")
    with pytest.raises(QueueFull) as refused:
        await add(store, new(dedupe="d", queue="a"), new(dedupe="d", queue="b"))
    assert refused.value.queue == "a"
    await limit(store, None, "a")
    await limit(store, 0, "b")
    await add(store, new(dedupe="d", queue="a"), new(dedupe="d", queue="b"))


async def test_refused_call_leaves_no_queue_behind(store: Store) -> None:
    await limit(store, 0)
    with pytest.raises(QueueFull):
        await add(store, new(queue="fresh"), new())
    assert [queue.name for queue in await store.queues()] == ["default"]


async def test_limit_counts_whatever_is_pending_and_nothing_else(store: Store) -> None:
    await add(store, new(key="k", priority=9), new(key="k"), new(delay=HOUR))
    await take_one(store)
    await limit(store, 3)
    await add_one(store)
    with pytest.raises(QueueFull):
        await add_one(store)
    await take_one(store)
    await add_one(store)


async def test_limit_of_zero_accepts_nothing(store: Store) -> None:
    await limit(store, 0)
    with pytest.raises(QueueFull):
        await add_one(store)


async def test_limit_of_one_queue_does_not_touch_another(store: Store) -> None:
    await limit(store, 1, "a")
    await add_one(store, queue="a")
    assert len(await add(store, new(queue="b"), new(queue="b"))) == 2


async def test_lifted_limit_refuses_no_more(store: Store) -> None:
    await limit(store, 0)
    await limit(store, None)
    await add_one(store)


async def test_retry_returns_to_a_full_queue(store: Store) -> None:
    await limit(store, 1)
    await add_one(store)
    running = await take_one(store)
    await add_one(store)
    back = await settle(store, running, Failed("no"))
    assert back.state is State.PENDING
    with pytest.raises(QueueFull):
        await add_one(store)


async def test_every_stored_job_leaves_one_entry(store: Store, clock: ManualClock) -> None:
    jobs = await add(store, new(), new(dedupe="d"), new(dedupe="d"))
    entries = await store.log()
    assert [entry.job_id for entry in entries] == [jobs[0].id, jobs[1].id]
    for job, entry in zip(jobs, entries, strict=False):
        assert (entry.id, entry.event, entry.state) == (job.version, Event.ENQUEUED, State.PENDING)
        assert (entry.actor, entry.at) == ("producer", clock.now)
        assert (entry.token, entry.reason, entry.error, entry.duration) == (None,) * 4
