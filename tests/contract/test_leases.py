from penstock.core.job import Lease
from penstock.core.lifecycle import (
    Done,
    Event,
    Expired,
    Failed,
    Snoozed,
    State,
    Waiting,
    advance,
    cancel,
    refuse,
    reset,
    start,
)
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
)


async def test_renewed_lease_runs_a_full_lease_time_from_now(
    store: Store, clock: ManualClock
) -> None:
    await add(store, new(lease=10 * SECOND), new(lease=60 * SECOND))
    short, long = await take(store)
    clock.advance(9 * SECOND)
    renewed = await store.renew([long.lease, short.lease])
    assert ids(renewed) == [long.id, short.id]
    assert [job.expires_at for job in renewed] == [
        clock.now + 60 * SECOND,
        clock.now + 10 * SECOND,
    ]
    assert renewed == await store.get([long.id, short.id])
    clock.advance(9 * SECOND)
    assert await store.expired(10) == []


async def test_renewal_is_no_transition(store: Store, clock: ManualClock) -> None:
    await add_one(store)
    job = await take_one(store)
    clock.advance(SECOND)
    [renewed] = await store.renew([job.lease])
    assert (renewed.version, renewed.started_at) == (job.version, job.started_at)
    assert len(await history(store, job)) == 2
    assert (await settle(store, job, Done())).state is State.DONE


async def test_leases_that_are_over_are_left_out(store: Store, clock: ManualClock) -> None:
    await add(store, *[new()] * 5)
    held, done, snoozed, retaken, reset_one = await take(store)
    await settle(store, done, Done())
    await settle(store, snoozed, Snoozed(HOUR))
    await settle(store, retaken, Snoozed())
    again = await take_one(store)
    ended = await settle(store, reset_one, Failed("no", permanent=True))
    await move(store, ended, reset(ended))
    asked = [job.lease for job in (done, snoozed, retaken, held, reset_one)]
    assert ids(await store.renew(asked)) == [held.id]
    assert again.id == retaken.id
    assert ids(await store.renew([retaken.lease, again.lease])) == [again.id]


async def test_stale_renewal_does_not_move_the_new_holders_deadline(
    store: Store, clock: ManualClock
) -> None:
    await add_one(store)
    first = await take_one(store)
    await settle(store, first, Snoozed())
    second = await take_one(store)
    clock.advance(SECOND)
    assert await store.renew([first.lease]) == []
    assert (await look(store, second)).expires_at == second.expires_at


async def test_lease_nobody_gave_is_left_out(store: Store) -> None:
    job = await add_one(store)
    assert await store.renew([]) == []
    assert await store.renew([job.lease, Lease(job.id, 999, "w")]) == []
    assert (await look(store, job)).state is State.PENDING


async def test_renewal_shows_a_cancel_request(store: Store) -> None:
    await add_one(store)
    job = await take_one(store)
    await move(store, job, cancel(job), actor="me")
    [renewed] = await store.renew([job.lease])
    assert renewed.cancel_requested


async def test_lease_expires_when_its_deadline_is_past(store: Store, clock: ManualClock) -> None:
    await add_one(store, lease=10 * SECOND)
    job = await take_one(store)
    clock.advance(9 * SECOND)
    assert await store.expired(10) == []
    clock.advance(2 * SECOND)
    assert await store.expired(10) == [job]
    assert await take(store) == []


async def test_longest_expired_lease_comes_first(store: Store, clock: ManualClock) -> None:
    await add(store, *(new(lease=lease * SECOND) for lease in (30, 10, 20, 100)))
    slow, quick, middle, _ = await take(store)
    clock.advance(60 * SECOND)
    assert ids(await store.expired(10)) == [quick.id, middle.id, slow.id]
    assert ids(await store.expired(2)) == [quick.id, middle.id]
    assert await store.expired(0) == []


async def test_renewal_moves_the_place_among_the_expired(store: Store, clock: ManualClock) -> None:
    await add(store, new(lease=10 * SECOND), new(lease=11 * SECOND))
    one, two = await take(store)
    clock.advance(5 * SECOND)
    await store.renew([one.lease])
    clock.advance(60 * SECOND)
    assert ids(await store.expired(10)) == [two.id, one.id]


async def test_ended_run_is_not_expired(store: Store, clock: ManualClock) -> None:
    await add_one(store)
    await settle(store, await take_one(store), Done())
    clock.advance(HOUR)
    assert await store.expired(10) == []


async def test_expired_job_returns_at_once_and_stops_at_its_attempt_limit(
    store: Store, clock: ManualClock
) -> None:
    job = await add_one(store)
    for attempt in (1, 2):
        taken = await take_one(store)
        assert (taken.id, taken.attempt) == (job.id, attempt)
        clock.advance(HOUR)
        [silent] = await store.expired(10)
        after = await settle(store, silent, Expired())
        if attempt == 1:
            assert (after.state, after.waiting) == (State.PENDING, Waiting.READY)
    assert (after.state, after.attempt) == (State.FAILED, 2)
    assert after.error is not None
    assert "lease of worker w ran out" in after.error
    assert await take(store) == []
    assert [entry.event for entry in await history(store, job)].count(Event.EXPIRED) == 2


async def test_two_sweeps_expire_a_lease_once(store: Store, clock: ManualClock) -> None:
    await add_one(store)
    job = await take_one(store)
    clock.advance(HOUR)
    [seen] = await store.expired(10)
    [also] = await store.expired(10)
    await settle(store, seen, Expired())
    assert await store.transition([Change(also, advance(also, Expired()))], actor="s") == [None]
    assert len(await history(store, job)) == 3


async def test_lease_renewed_after_the_sweep_looked_is_not_taken_away(
    store: Store, clock: ManualClock
) -> None:
    await add_one(store)
    job = await take_one(store)
    clock.advance(HOUR)
    [seen] = await store.expired(10)
    [renewed] = await store.renew([job.lease])
    assert await store.transition([Change(seen, advance(seen, Expired()))], actor="s") == [None]
    assert await look(store, job) == renewed
    assert (await settle(store, job, Done())).state is State.DONE


async def test_living_lease_cannot_be_expired(store: Store, clock: ManualClock) -> None:
    await add_one(store, lease=10 * SECOND)
    job = await take_one(store)
    clock.advance(9 * SECOND)
    assert await store.transition([Change(job, advance(job, Expired()))], actor="s") == [None]
    assert await look(store, job) == job


# Starts


async def test_start_is_logged_and_moves_the_deadline(store: Store, clock: ManualClock) -> None:
    await add(store, new(lease=10 * SECOND), new(lease=60 * SECOND), new())
    jobs = await take(store)
    clock.advance(9 * SECOND)
    changes = [Change(job, start(job)) for job in jobs[:2]]
    started = await store.transition(changes, actor="w")
    assert started == await store.get([job.id for job in jobs[:2]])
    assert [job and job.expires_at for job in started] == [
        clock.now + 10 * SECOND,
        clock.now + 60 * SECOND,
    ]
    for job, now in zip(jobs, started, strict=False):
        assert now is not None
        assert (now.state, now.token, now.started_at) == (State.RUNNING, job.token, job.started_at)
        entry = (await history(store, job))[-1]
        assert (entry.id, entry.event, entry.state) == (now.version, Event.STARTED, State.RUNNING)
        assert (entry.token, entry.actor, entry.duration) == (job.token, "w", None)
    assert (await look(store, jobs[2])).expires_at == jobs[2].expires_at
    clock.advance(9 * SECOND)
    assert await store.expired(10) == []
    clock.advance(SECOND)
    assert ids(await store.expired(10)) == [jobs[0].id]


async def test_start_keeps_a_cancel_request_and_a_detail(store: Store) -> None:
    await add(store, new(), new())
    stopping, other = await take(store)
    stopping = await move(store, stopping, cancel(stopping), actor="me")
    started = await store.transition(
        [Change(stopping, start(stopping, "[1]")), Change(other, start(other, "[2]"))], actor="w"
    )
    assert [job and job.cancel_requested for job in started] == [True, False]
    assert await store.get([stopping.id, other.id]) == started
    entries = [(await history(store, job))[-1] for job in (stopping, other)]
    assert [entry.detail for entry in entries] == ["[1]", "[2]"]


async def test_only_a_start_moves_a_deadline_of_what_stays(
    store: Store, clock: ManualClock
) -> None:
    await add_one(store)
    job = await take_one(store)
    clock.advance(SECOND)
    asked = await move(store, job, cancel(job), actor="me")
    noted = await move(store, asked, refuse(asked, 1, "late"), actor="late")
    assert noted.expires_at == asked.expires_at == job.expires_at
    assert await look(store, job) == noted


async def test_lease_started_after_the_sweep_looked_is_not_taken_away(
    store: Store, clock: ManualClock
) -> None:
    await add_one(store)
    job = await take_one(store)
    clock.advance(HOUR)
    [seen] = await store.expired(10)
    started = await move(store, job, start(job))
    assert await store.transition([Change(seen, advance(seen, Expired()))], actor="s") == [None]
    assert await look(store, job) == started


async def test_start_of_what_another_holds_is_not_written(store: Store) -> None:
    await add_one(store)
    first = await take_one(store)
    await settle(store, first, Snoozed())
    second = await take_one(store)
    assert await store.transition([Change(first, start(first))], actor="w") == [None]
    assert await look(store, second) == second
