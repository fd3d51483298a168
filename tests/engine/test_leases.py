"""Claiming, settling, renewing: what workers call."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from penstock import (
    ConfigurationError,
    Job,
    LeaseLost,
    NewJob,
    Penstock,
    State,
)
from penstock.core.job import JobId
from penstock.jobs import Event
from penstock.leases import Cancelled, Done, Failed, Lease, Outcome, Snoozed
from penstock.testing import faulty
from tests.contract.support import HOUR, SECOND, STEADY, ManualClock, ids, new
from tests.engine.support import add_one, claim_one, events_of

# Claiming


@pytest.mark.parametrize("tags", [(), ("x",), ("x", "y", "none")])
async def test_retried_job_is_ordered_by_its_due_time(
    app: Penstock, clock: ManualClock, tags: tuple[str, ...]
) -> None:
    """By priority, then by due time, then by id: also when it fell due just now."""

    def job(**options: Any) -> NewJob:
        return new(tags=("x", "y"), retry=STEADY, queue="q", **options)

    start = clock.now
    [retried] = await app.enqueue_many([job()])
    [claimed] = await app.leases.claim(worker="w", queues=["q"])
    await app.leases.settle([(claimed, Failed("no"))])  # due again in ten seconds
    before, level, behind, first, last = await app.enqueue_many(
        [
            job(run_at=start + 9 * SECOND),
            job(run_at=start + 10 * SECOND),
            job(run_at=start + 11 * SECOND),
            job(run_at=start + 12 * SECOND, priority=6),
            job(run_at=start, priority=4),
        ]
    )
    await app.enqueue_many([job(delay=HOUR), replace(job(priority=9), queue="other")])
    clock.advance(15 * SECOND)
    [ready] = await app.enqueue_many([job()])
    clock.advance(SECOND)
    taken = await app.leases.claim(worker="w", limit=1000, queues=["q"], tags=tags)
    assert ids(taken) == ids([first, before, retried, level, behind, ready, last])
    assert taken[2].attempt == 2


async def test_a_thousand_jobs_of_a_tag_are_claimed_at_once_in_order(
    app: Penstock, clock: ManualClock
) -> None:
    options = [{"priority": n % 3, "run_at": clock.now - n % 7 * SECOND} for n in range(1200)]
    jobs = await app.enqueue_many([new(queue="q", tags=("x",), **one) for one in options])
    await app.enqueue_many([new(queue="q", tags=("y",), priority=9)] * 10)
    order = sorted(jobs, key=lambda job: (-job.priority, job.run_at, job.id))
    taken = await app.leases.claim(worker="w", limit=1000, queues=["q"], tags=["x"])
    assert ids(taken) == ids(order[:1000])
    assert ids(await app.leases.claim(worker="w", limit=1000, queues=["q"], tags=["x"])) == ids(
        order[1000:]
    )


async def test_ready_tags_tell_whether_a_claim_is_worth_its_while(app: Penstock) -> None:
    await app.enqueue_many([new(queue="q", tags=("b", "a")), new(queue="q", tags=("c",))])
    assert await app.queues.ready_tags("q") == ["a", "b", "c"]
    assert await app.queues.ready_tags("q", 2) == ["a", "b"]
    with pytest.raises(ConfigurationError, match="limit"):
        await app.queues.ready_tags("q", 0)
    await app.leases.claim(worker="w", queues=["q"], tags=["a"])
    assert await app.queues.ready_tags("q") == ["c"]


# Settling


async def test_settled_jobs_are_answered_in_their_order(app: Penstock) -> None:
    await app.enqueue_many([new()] * 4)
    jobs = await app.leases.claim(worker="w", limit=4)
    outcomes: list[Outcome] = [Done("1"), Failed("no"), Snoozed(HOUR), Cancelled("stop")]
    settled = await app.leases.settle(list(zip(jobs, outcomes, strict=True)))
    assert ids(settled) == ids(jobs)
    assert [job.state for job in settled] == [
        State.DONE, State.PENDING, State.PENDING, State.CANCELLED,
    ]  # fmt: skip
    assert [await app.get(job.id) for job in jobs] == settled


async def test_lease_is_enough_to_settle(app: Penstock) -> None:
    """For workers in other languages, which keep no job."""
    await app.enqueue_many([new()] * 2)
    one, other = await app.leases.claim(worker="w", limit=2)
    settled = await app.leases.settle([(one.lease, Done("1")), (other, Done("2"))])
    assert [job.returned for job in settled] == [1, 2]


async def test_settling_nothing_is_no_trouble(app: Penstock) -> None:
    assert await app.leases.settle([]) == []


async def test_stale_worker_is_refused_and_the_refusal_is_logged(
    app: Penstock, clock: ManualClock
) -> None:
    await add_one(app)
    stale = await claim_one(app, "slow")
    clock.advance(HOUR)
    assert await app.leases.reclaim() == 1
    fresh = await claim_one(app, "quick")
    with pytest.raises(LeaseLost) as lost:
        await app.leases.settle([(stale, Done('"stale"'))])
    assert (lost.value.job_id, lost.value.token) == (stale.id, stale.token)
    *_, entry = await app.log(stale.id)
    assert (entry.event, entry.state, entry.actor) == (Event.REFUSED, State.RUNNING, "slow")
    assert entry.reason == f"stale token {stale.token} from slow"
    [done] = await app.leases.settle([(fresh, Done('"fresh"'))])
    assert done.returned == "fresh"


async def test_run_cannot_be_settled_twice(app: Penstock) -> None:
    await add_one(app)
    job = await claim_one(app)
    await app.leases.settle([(job, Done("1"))])
    with pytest.raises(LeaseLost):
        await app.leases.settle([(job, Failed("changed my mind"))])
    assert (await app.get(job.id)).returned == 1
    assert await events_of(app, job) == [
        Event.ENQUEUED, Event.CLAIMED, Event.DONE, Event.REFUSED,
    ]  # fmt: skip


async def test_run_settled_twice_in_one_call_is_settled_once(app: Penstock) -> None:
    await add_one(app)
    job = await claim_one(app)
    first, second = await app.leases.settle_held([(job, Done("1")), (job.lease, Failed("no"))])
    assert first is not None
    assert (first.returned, second) == (1, None)


async def test_unknown_job_cannot_be_settled(app: Penstock) -> None:
    with pytest.raises(LeaseLost):
        await app.leases.settle([(Lease(JobId(99), 1, "w"), Done())])
    assert await app.leases.settle_held([(Lease(JobId(99), 1, "w"), Done())]) == [None]
    assert await app.log() == []


async def test_token_of_another_claim_cannot_settle(app: Penstock) -> None:
    await add_one(app)
    job = await claim_one(app)
    assert await app.leases.settle_held([(Lease(job.id, job.token + 1, "w"), Done())]) == [None]
    assert (await app.get(job.id)).state is State.RUNNING


async def test_what_may_be_a_repetition_leaves_no_entry(app: Penstock) -> None:
    await app.enqueue_many([new(), new()])
    one, other = await app.leases.claim(worker="w", limit=2)
    await app.leases.settle([(one, Done())])
    before = await app.log()
    settled = await app.leases.settle_held([(one, Done()), (other, Done())], refuse=False)
    assert [job and job.id for job in settled] == [None, other.id]
    assert len(await app.log()) == len(before) + 1


async def test_held_jobs_are_settled_although_others_are_lost(
    app: Penstock, clock: ManualClock
) -> None:
    await app.enqueue_many([new(lease=SECOND), new(), new(lease=SECOND), new()])
    jobs = await app.leases.claim(worker="w", limit=4)
    clock.advance(SECOND)
    assert await app.leases.reclaim() == 2
    settled = await app.leases.settle_held([(job, Done()) for job in jobs])
    assert [job and job.state for job in settled] == [None, State.DONE, None, State.DONE]
    assert (await events_of(app, jobs[0]))[-1] is Event.REFUSED


async def test_settle_raises_for_the_first_lost_after_settling_the_rest(
    app: Penstock, clock: ManualClock
) -> None:
    await app.enqueue_many([new(), new(lease=SECOND), new(lease=SECOND)])
    jobs = await app.leases.claim(worker="w", limit=3)
    clock.advance(SECOND)
    await app.leases.reclaim()
    with pytest.raises(LeaseLost, match=f"job {jobs[1].id}"):
        await app.leases.settle([(job, Done()) for job in jobs])
    assert (await app.get(jobs[0].id)).state is State.DONE


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Done(), State.DONE),
        (Failed("no"), State.CANCELLED),
        (Failed("no", permanent=True), State.CANCELLED),
        (Snoozed(HOUR), State.CANCELLED),
        (Cancelled(), State.CANCELLED),
    ],
)
@pytest.mark.parametrize("by_lease", [False, True])
async def test_cancel_between_claim_and_settle_wins_over_all_but_success(
    app: Penstock, outcome: Any, state: State, by_lease: bool
) -> None:
    await add_one(app)
    job = await claim_one(app)
    await app.cancel(job.id)
    [settled] = await app.leases.settle([(job.lease if by_lease else job, outcome)])
    assert settled.state is state
    assert Event.REFUSED not in await events_of(app, job)


async def test_lease_that_ran_out_but_was_not_taken_back_can_be_settled(
    app: Penstock, clock: ManualClock
) -> None:
    await add_one(app)
    job = await claim_one(app)
    clock.advance(HOUR)
    [done] = await app.leases.settle([(job, Done())])
    assert done.state is State.DONE


@pytest.mark.parametrize("by_lease", [{0, 2}, {1}, {0, 1, 2, 3}])
async def test_jobs_and_leases_settle_side_by_side_in_their_order(
    app: Penstock, clock: ManualClock, by_lease: set[int]
) -> None:
    await app.enqueue_many([new(), new(lease=SECOND), new(), new()])
    jobs = await app.leases.claim(worker="w", limit=4)
    clock.advance(SECOND)
    assert await app.leases.reclaim() == 1
    settled = await app.leases.settle_held(
        [
            (job.lease if n in by_lease else job, Done(str(n), detail=f"[{n}]"))
            for n, job in enumerate(jobs)
        ]
    )
    assert [job and job.returned for job in settled] == [0, None, 2, 3]
    assert [job and job.id for job in settled] == [jobs[0].id, None, jobs[2].id, jobs[3].id]
    assert (await events_of(app, jobs[1]))[-1] is Event.REFUSED
    ends = [(await app.log(job.id))[-1] for job in (jobs[0], jobs[2], jobs[3])]
    assert [entry.detail for entry in ends] == ["[0]", "[2]", "[3]"]
    assert [entry.id for entry in ends] == sorted(entry.id for entry in ends)


async def test_only_what_is_not_known_is_looked_up(app: Penstock) -> None:
    await app.enqueue_many([new()] * 4)
    jobs = await app.leases.claim(worker="w", limit=4)
    with faulty(app) as faults:
        await app.leases.settle([(job, Done()) for job in jobs[:2]])
        assert faults.calls == {"transition": 1}
        asked: list[list[int]] = []
        get = app.store.get

        async def noting(ids: Sequence[JobId]) -> list[Job]:
            asked.append(list(ids))
            return await get(ids)

        app.store.get = noting  # type: ignore[method-assign] # replaced for the test
        await app.leases.settle([(jobs[2], Done()), (jobs[3].lease, Done())])
    assert asked == [[jobs[3].id]]


async def test_job_that_was_settled_on_an_old_view_is_looked_up(app: Penstock) -> None:
    await app.enqueue_many([new()] * 2)
    jobs = await app.leases.claim(worker="w", limit=2)
    await app.leases.start(jobs[:1])
    with faulty(app) as faults:
        settled = await app.leases.settle([(job, Done()) for job in jobs])
        assert faults.calls == {"transition": 2, "get": 1}
    assert [job.state for job in settled] == [State.DONE] * 2
    assert await events_of(app, jobs[0]) == [
        Event.ENQUEUED, Event.CLAIMED, Event.STARTED, Event.DONE,
    ]  # fmt: skip


# Starts and renewals


@pytest.mark.parametrize("by_lease", [False, True])
async def test_worker_says_that_it_began_and_keeps_the_job_longer(
    app: Penstock, clock: ManualClock, by_lease: bool
) -> None:
    await app.enqueue_many([new(lease=10 * SECOND)] * 2)
    jobs = await app.leases.claim(worker="w", limit=2)
    clock.advance(9 * SECOND)
    started = await app.leases.start([job.lease if by_lease else job for job in jobs])
    assert started == [await app.get(job.id) for job in jobs]
    for job in started:
        assert job is not None
        assert job.expires_at == clock.now + 10 * SECOND
        entry = (await app.log(job.id))[-1]
        assert (entry.event, entry.actor, entry.token) == (Event.STARTED, "w", job.token)
    clock.advance(9 * SECOND)
    assert await app.leases.reclaim() == 0
    done = await app.leases.settle([(job, Done()) for job in started if job])
    assert [job.state for job in done] == [State.DONE] * 2


async def test_start_of_a_lost_job_is_refused_and_logged(app: Penstock, clock: ManualClock) -> None:
    await app.enqueue_many([new(lease=SECOND), new(), new(lease=SECOND)])
    lost, held, done = await app.leases.claim(worker="slow", limit=3)
    await app.leases.settle([(done, Done())])
    clock.advance(SECOND)
    assert await app.leases.reclaim() == 1
    again = await claim_one(app, "quick")
    gone = Lease(JobId(99), 1, "slow")
    started = await app.leases.start([lost, held.lease, gone, done])
    assert [job and job.id for job in started] == [None, held.id, None, None]
    for job in (lost, done):
        entry = (await app.log(job.id))[-1]
        assert (entry.event, entry.actor) == (Event.REFUSED, "slow")
        assert entry.reason == f"stale token {job.token} from slow"
    assert (await app.get(lost.id)).expires_at == again.expires_at
    assert await app.leases.start([]) == []


async def test_renewal_that_comes_too_late_is_logged(app: Penstock, clock: ManualClock) -> None:
    await app.enqueue_many([new(lease=SECOND), new(), new(lease=SECOND)])
    jobs = await app.leases.claim(worker="slow", limit=3)
    clock.advance(SECOND)
    assert await app.leases.reclaim() == 2
    gone = Lease(JobId(99), 1, "slow")
    assert ids(await app.leases.renew([gone, *(job.lease for job in jobs)])) == [jobs[1].id]
    for job in (jobs[0], jobs[2]):
        entry = (await app.log(job.id))[-1]
        assert (entry.event, entry.actor) == (Event.REFUSED, "slow")
        assert entry.reason == f"stale token {job.token} from slow"
    assert (await events_of(app, jobs[1]))[-1] is Event.CLAIMED


async def test_renewal_in_time_is_one_write_and_leaves_no_entry(app: Penstock) -> None:
    await app.enqueue_many([new()] * 2)
    jobs = await app.leases.claim(worker="w", limit=2)
    newest = await app.newest_log()
    with faulty(app) as faults:
        assert ids(await app.leases.renew([job.lease for job in jobs])) == ids(jobs)
        assert faults.calls == {"renew": 1}
    assert await app.newest_log() == newest


async def test_reclaim_takes_back_only_what_ran_out(app: Penstock, clock: ManualClock) -> None:
    await app.enqueue_many([new(lease=SECOND), new(lease=HOUR)])
    short, long = await app.leases.claim(worker="w", limit=2)
    assert await app.leases.reclaim() == 0
    clock.advance(SECOND)
    assert await app.leases.reclaim() == 1
    assert await app.leases.reclaim() == 0
    assert [(await app.get(job.id)).state for job in (short, long)] == [
        State.PENDING, State.RUNNING,
    ]  # fmt: skip
    *_, entry = await app.log(short.id)
    assert (entry.event, entry.actor) == (Event.EXPIRED, "tester")


async def test_renewed_lease_is_not_taken_back(app: Penstock, clock: ManualClock) -> None:
    await add_one(app, lease=SECOND)
    job = await claim_one(app)
    clock.advance(SECOND)
    assert ids(await app.leases.renew([job.lease])) == [job.id]
    assert await app.leases.reclaim() == 0
