from datetime import timedelta

import pytest

from penstock.core.errors import TransitionRefused
from penstock.core.job import Job, JobId, Scope
from penstock.core.lifecycle import (
    Cancelled,
    Done,
    Expired,
    Failed,
    Move,
    Outcome,
    Snoozed,
    State,
    Waiting,
    advance,
    cancel,
    refuse,
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

ENDS: list[tuple[Outcome, State]] = [
    (Done(), State.DONE),
    (Failed("no", permanent=True), State.FAILED),
    (Cancelled(), State.CANCELLED),
]


async def running(store: Store, **options: object) -> Job:
    await add_one(store, **options)
    return await take_one(store)


async def write(store: Store, *changes: tuple[Job, Move]) -> list[Job | None]:
    return await store.transition([Change(*change) for change in changes], actor="w")


# Where moves lead


async def test_done_job_keeps_its_result(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    clock.advance(SECOND)
    done = await settle(store, job, Done(result='{"rows":3}'))
    assert (done.state, done.waiting, done.attempt) == (State.DONE, None, 1)
    assert (done.returned, done.error, done.finished_at) == ({"rows": 3}, None, clock.now)
    assert done == await look(store, done)


async def test_done_job_without_result_has_none(store: Store) -> None:
    done = await settle(store, await running(store), Done())
    assert (done.result_json, done.returned) == (None, None)


@pytest.mark.parametrize(("outcome", "state"), ENDS)
async def test_finished_job_holds_no_lease(store: Store, outcome: Outcome, state: State) -> None:
    job = await running(store)
    ended = await settle(store, job, outcome)
    assert (ended.state, ended.expires_at, ended.token) == (state, None, job.token)
    assert await store.renew([job.lease]) == []
    assert await take(store) == []


async def test_failed_attempt_is_tried_again_after_its_delay(
    store: Store, clock: ManualClock
) -> None:
    job = await running(store)
    back = await settle(store, job, Failed("boom"))
    assert (back.state, back.waiting, back.attempt) == (State.PENDING, Waiting.SCHEDULED, 1)
    assert (back.run_at, back.error) == (clock.now + 10 * SECOND, "boom")
    assert (back.worker, back.started_at, back.expires_at) == (None, None, None)
    assert (back.token, back.finished_at) == (job.token, None)
    assert back == await look(store, back)
    clock.advance(10 * SECOND)
    assert ids(await take(store)) == [job.id]


async def test_last_attempt_fails_the_job(store: Store, clock: ManualClock) -> None:
    await settle(store, await running(store), Failed("first"))
    clock.advance(10 * SECOND)
    ended = await settle(store, await take_one(store), Failed("second"))
    assert (ended.state, ended.attempt, ended.error) == (State.FAILED, 2, "second")
    assert ended.finished_at == clock.now


async def test_success_clears_the_error_of_an_earlier_attempt(
    store: Store, clock: ManualClock
) -> None:
    await settle(store, await running(store), Failed("boom"))
    clock.advance(10 * SECOND)
    again = await take_one(store)
    assert again.error == "boom"
    assert (await settle(store, again, Done())).error is None


async def test_snooze_uses_up_no_attempt_and_keeps_the_last_error(
    store: Store, clock: ManualClock
) -> None:
    await settle(store, await running(store), Failed("boom"))
    clock.advance(10 * SECOND)
    back = await settle(store, await take_one(store), Snoozed(HOUR, "not yet"))
    assert (back.state, back.attempt, back.error) == (State.PENDING, 1, "boom")
    assert (back.run_at, back.waiting) == (clock.now + HOUR, Waiting.SCHEDULED)


async def test_snooze_without_delay_is_ready_at_once(store: Store) -> None:
    back = await settle(store, await running(store), Snoozed())
    assert back.waiting is Waiting.READY
    assert (await take_one(store)).attempt == 1


# Compare and set


async def test_move_decided_on_an_older_version_is_not_written(store: Store) -> None:
    job = await running(store)
    done = await settle(store, job, Done())
    before = await store.log()
    assert await write(store, (job, advance(job, Failed("late")))) == [None]
    assert await look(store, job) == done
    assert await store.log() == before


async def test_two_moves_of_one_job_in_a_call_write_only_the_first(store: Store) -> None:
    job = await running(store)
    done, late = await write(
        store, (job, advance(job, Done())), (job, advance(job, Failed("late")))
    )
    assert done is not None
    assert done.state is State.DONE
    assert late is None
    assert len(await history(store, job)) == 3


async def test_stale_moves_do_not_hold_up_the_others(store: Store) -> None:
    stale, good = await add(store, new(), new())
    one, two = await take(store)
    await settle(store, one, Done())
    answers = await write(
        store, (one, advance(one, Done())), (stale, cancel(stale)), (two, advance(two, Done()))
    )
    assert [job and job.state for job in answers] == [None, None, State.DONE]
    assert two.id == good.id


async def test_move_of_a_job_that_is_not_there_is_not_written(store: Store) -> None:
    job = await add_one(store)
    gone = Job(
        **{name: getattr(job, name) for name in job.__struct_fields__ if name != "id"},
        id=JobId(job.id + 1000),
    )
    assert await write(store, (gone, cancel(gone))) == [None]


async def test_lost_worker_cannot_settle_what_another_holds(
    store: Store, clock: ManualClock
) -> None:
    first = await running(store)
    clock.advance(HOUR)
    await settle(store, first, Expired())
    second = await take_one(store, worker="w2")
    assert second.token > first.token
    assert await write(store, (first, advance(first, Done(result="1")))) == [None]
    assert await look(store, first) == second


async def test_no_moves_change_nothing(store: Store) -> None:
    assert await store.transition([], actor="w") == []
    assert await store.log() == []


async def test_transition_answers_in_the_order_of_the_call(store: Store) -> None:
    jobs = await add(store, *[new()] * 5)
    asked = jobs[::-1]
    answers = await write(store, *((job, cancel(job)) for job in asked))
    assert [job and job.id for job in answers] == ids(asked)


async def test_transition_returns_jobs_as_they_are_after_the_whole_call(store: Store) -> None:
    head, second = await add(store, new(key="k"), new(key="k", delay=HOUR))
    answers = await write(store, (second, reset(second)), (head, cancel(head)))
    assert answers == await store.get([second.id, head.id])
    assert answers[0] is not None
    assert answers[0].waiting is Waiting.READY


# Cancel


@pytest.mark.parametrize("options", [{}, {"delay": HOUR}, {"key": "k"}])
async def test_pending_job_is_cancelled_at_once(
    store: Store, clock: ManualClock, options: dict[str, object]
) -> None:
    await add_one(store, key="k", queue="other")
    job = await add_one(store, **options)
    ended = await move(store, job, cancel(job, "not wanted"), actor="me")
    assert (ended.state, ended.waiting, ended.finished_at) == (State.CANCELLED, None, clock.now)
    clock.advance(2 * HOUR)
    assert await take(store, queues=("default",)) == []


async def test_running_job_is_asked_to_stop_and_keeps_its_lease(store: Store) -> None:
    job = await running(store)
    asked = await move(store, job, cancel(job), actor="me")
    assert asked.cancel_requested
    assert asked.version > job.version
    assert (asked.state, asked.token, asked.worker) == (State.RUNNING, job.token, job.worker)
    assert (asked.started_at, asked.expires_at) == (job.started_at, job.expires_at)
    assert asked == await look(store, job)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Done(), State.DONE),
        (Failed("no"), State.CANCELLED),
        (Snoozed(SECOND), State.CANCELLED),
        (Expired(), State.CANCELLED),
        (Cancelled(), State.CANCELLED),
    ],
)
async def test_cancel_request_wins_over_another_attempt(
    store: Store, clock: ManualClock, outcome: Outcome, state: State
) -> None:
    job = await running(store)
    asked = await move(store, job, cancel(job))
    clock.advance(HOUR)
    ended = await settle(store, asked, outcome)
    assert (ended.state, ended.cancel_requested) == (state, False)


async def test_worker_that_did_not_see_the_cancel_request_has_to_look_again(store: Store) -> None:
    job = await running(store)
    asked = await move(store, job, cancel(job))
    assert await write(store, (job, advance(job, Failed("no")))) == [None]
    assert (await settle(store, asked, Failed("no"))).state is State.CANCELLED


# Reset


@pytest.mark.parametrize("outcome", [Failed("no", permanent=True), Cancelled()])
async def test_reset_job_starts_over_at_once(
    store: Store, clock: ManualClock, outcome: Outcome
) -> None:
    job = await running(store)
    ended = await settle(store, job, outcome)
    clock.advance(HOUR)
    back = await move(store, ended, reset(ended))
    assert (back.state, back.waiting, back.attempt) == (State.PENDING, Waiting.READY, 0)
    assert (back.run_at, back.finished_at, back.error) == (clock.now, None, None)
    assert (back.returned, back.worker, back.started_at) == (None, None, None)
    assert back == await look(store, back)
    again = await take_one(store)
    assert (again.id, again.attempt) == (job.id, 1)
    assert again.token > job.token


async def test_reset_of_a_scheduled_job_makes_it_ready(store: Store, clock: ManualClock) -> None:
    job = await add_one(store, delay=HOUR, tags=("x",))
    back = await move(store, job, reset(job))
    assert (back.waiting, back.run_at) == (Waiting.READY, clock.now)
    assert ids(await take(store, tags=("x",))) == [job.id]


async def test_reset_of_a_ready_job_moves_it_behind_the_others(
    store: Store, clock: ManualClock
) -> None:
    first, second = await add(store, new(tags=("x",)), new(tags=("x",)))
    clock.advance(SECOND)
    await move(store, first, reset(first))
    assert ids(await take(store, tags=("x",))) == [second.id, first.id]
    assert await take(store) == []


async def test_reset_is_not_held_up_by_a_full_queue(store: Store) -> None:
    ended = await settle(store, await running(store), Cancelled())
    await store.configure(QueueSettings(name="default", max_pending=0))
    assert (await move(store, ended, reset(ended))).state is State.PENDING


# Dedupe on the way back


async def run_again(store: Store) -> tuple[Job, Job]:
    """One running, and one pending behind it."""
    job = await running(store, dedupe="d", scope=Scope.PENDING)
    return job, await add_one(store, dedupe="d", scope=Scope.PENDING)


@pytest.mark.parametrize("outcome", [Failed("no"), Snoozed(SECOND), Expired()])
async def test_run_that_would_be_tried_again_gives_way_to_the_newer_job(
    store: Store, clock: ManualClock, outcome: Outcome
) -> None:
    job, newer = await run_again(store)
    clock.advance(HOUR)
    ended = await settle(store, job, outcome)
    assert (ended.state, ended.waiting) == (State.SUPERSEDED, None)
    assert (ended.finished_at, ended.expires_at) == (clock.now, None)
    entry = (await history(store, job))[-1]
    assert (entry.state, entry.reason) == (State.SUPERSEDED, f"superseded by job {newer.id}")
    assert ids(await take(store)) == [newer.id]


@pytest.mark.parametrize(("outcome", "state"), ENDS)
async def test_run_that_ends_needs_not_give_way(
    store: Store, outcome: Outcome, state: State
) -> None:
    job, _ = await run_again(store)
    assert (await settle(store, job, outcome)).state is state


async def test_superseded_head_makes_the_next_of_its_key_visible(store: Store) -> None:
    job = await running(store, dedupe="d", scope=Scope.PENDING, key="k")
    newer = await add_one(store, dedupe="d", scope=Scope.PENDING, key="k")
    assert newer.waiting is Waiting.BLOCKED
    await settle(store, job, Failed("no"))
    assert (await look(store, newer)).waiting is Waiting.READY


@pytest.mark.parametrize("scope", Scope)
async def test_job_does_not_give_way_to_itself(store: Store, scope: Scope) -> None:
    job = await running(store, dedupe="d", scope=scope)
    back = await settle(store, job, Failed("no"))
    assert back.state is State.PENDING
    assert (await move(store, back, reset(back))).waiting is Waiting.READY


async def test_retry_is_allowed_while_a_job_of_scope_pending_runs(store: Store) -> None:
    job, newer = await run_again(store)
    assert (await take_one(store)).id == newer.id
    assert (await settle(store, job, Failed("no"))).state is State.PENDING


@pytest.mark.parametrize("taken", [False, True])
async def test_reset_is_refused_while_another_holds_the_dedupe_key(
    store: Store, taken: bool
) -> None:
    ended = await settle(store, await running(store, dedupe="d"), Cancelled())
    rival = await running(store, dedupe="d") if taken else await add_one(store, dedupe="d")
    before, log = await everything(store), await store.log()
    with pytest.raises(TransitionRefused, match=f"job {rival.id} holds"):
        await write(store, (ended, reset(ended)))
    assert await everything(store) == before
    assert await store.log() == log


async def test_refused_reset_undoes_the_whole_call(store: Store) -> None:
    ended = await settle(store, await running(store, dedupe="d"), Cancelled())
    await add_one(store, dedupe="d", key="k", delay=HOUR)
    other, behind = await running(store), await add_one(store, key="k")
    before, log, counts = await everything(store), await store.log(), await totals(store)
    with pytest.raises(TransitionRefused):
        await write(
            store,
            (other, advance(other, Done())),
            (behind, cancel(behind)),
            (ended, reset(ended)),
        )
    assert await everything(store) == before
    assert await store.log() == log
    assert await totals(store) == counts
    assert (await settle(store, other, Done())).state is State.DONE


async def two_cancelled(store: Store) -> tuple[Job, Job]:
    """Two ended jobs with one dedupe key."""
    one = await settle(store, await running(store, dedupe="d"), Cancelled())
    return one, await settle(store, await running(store, dedupe="d"), Cancelled())


async def test_two_resets_of_one_dedupe_key_in_a_call_are_refused(store: Store) -> None:
    one, two = await two_cancelled(store)
    with pytest.raises(TransitionRefused):
        await write(store, (one, reset(one)), (two, reset(two)))
    assert await everything(store) == [one, two]


async def test_two_runs_of_one_dedupe_key_put_back_in_a_call_leave_one_pending(
    store: Store,
) -> None:
    one, newer = await run_again(store)
    two = await take_one(store)
    assert two.id == newer.id
    back, ended = await write(
        store, (one, advance(one, Failed("no"))), (two, advance(two, Failed("no")))
    )
    assert [job and job.state for job in (back, ended)] == [State.PENDING, State.SUPERSEDED]


async def test_dedupe_key_freed_earlier_in_a_call_is_free(store: Store) -> None:
    ended = await settle(store, await running(store, dedupe="d"), Cancelled())
    rival = await add_one(store, dedupe="d")
    _, back = await write(store, (rival, cancel(rival)), (ended, reset(ended)))
    assert back is not None
    assert back.state is State.PENDING


# Refused writes leave a note


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.DONE])
async def test_refusal_is_noted_and_leaves_the_job_as_it_is(
    store: Store, clock: ManualClock, state: State
) -> None:
    job = await add_one(store, delay=SECOND)
    clock.advance(SECOND)
    if state is not State.PENDING:
        job = await take_one(store)
    if state is State.DONE:
        job = await settle(store, job, Done(result="1"))
    clock.advance(HOUR)
    [before] = await store.get([job.id])
    noted = await move(store, job, refuse(job, 77, "late"), actor="late")
    assert noted.version > before.version
    kept = [name for name in noted.__struct_fields__ if name not in {"version", "waiting"}]
    assert [getattr(noted, name) for name in kept] == [getattr(before, name) for name in kept]
    entry = (await history(store, job))[-1]
    assert (entry.id, entry.state, entry.actor) == (noted.version, state, "late")
    assert entry.reason == "stale token 77 from late"


async def test_refusal_keeps_a_cancel_request(store: Store) -> None:
    job = await running(store)
    asked = await move(store, job, cancel(job))
    assert (await move(store, asked, refuse(asked, 7, "late"))).cancel_requested


async def test_refusal_of_a_job_that_is_deduped_and_rivalled_is_noted(store: Store) -> None:
    _, newer = await run_again(store)
    assert (await move(store, newer, refuse(newer, 7, "late"))).state is State.PENDING


async def test_microseconds_survive(store: Store, clock: ManualClock) -> None:
    clock.advance(timedelta(microseconds=123_457))
    job = await running(store, lease=timedelta(microseconds=1_000_001))
    assert job.started_at == clock.now
    assert job.expires_at == clock.now + timedelta(microseconds=1_000_001)
    clock.advance(timedelta(microseconds=1))
    assert (await settle(store, job, Done())).finished_at == clock.now
    assert (await history(store, job))[-1].duration == timedelta(microseconds=1)
