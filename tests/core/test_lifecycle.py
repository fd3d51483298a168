from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.core.errors import InvalidJob, TransitionRefused
from penstock.core.job import Job, JobId, LogId
from penstock.core.lifecycle import (
    FINAL,
    TRANSITIONS,
    UNFINISHED,
    Cancelled,
    Done,
    Event,
    Expired,
    Failed,
    Move,
    Outcome,
    Snoozed,
    State,
    Waiting,
    advance,
    allowed_moves,
    cancel,
    give_way,
    refuse,
    reprioritise,
    reset,
    restore,
    start,
)
from penstock.core.restoration import apply_restore
from penstock.core.retry import RetryPolicy
from penstock.core.transition import apply_move

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
P, R = State.PENDING, State.RUNNING
DONE, FAILED, CANCELLED, SUPERSEDED = State.DONE, State.FAILED, State.CANCELLED, State.SUPERSEDED

ALLOWED: dict[Event, dict[State, set[State]]] = {
    Event.ENQUEUED: {},
    Event.CLAIMED: {P: {R}},
    Event.STARTED: {R: {R}},
    Event.DONE: {R: {DONE}},
    Event.FAILED: {R: {P, FAILED, CANCELLED, SUPERSEDED}},
    Event.SNOOZED: {R: {P, CANCELLED, SUPERSEDED}},
    Event.EXPIRED: {R: {P, FAILED, CANCELLED, SUPERSEDED}},
    Event.CANCEL_REQUESTED: {R: {R}},
    Event.CANCELLED: {P: {CANCELLED}, R: {CANCELLED}},
    Event.SUPERSEDED: {P: {SUPERSEDED}},
    Event.RESET: {P: {P}, R: {P, SUPERSEDED}, FAILED: {P}, CANCELLED: {P}},
    Event.REPRIORITISED: {P: {P}},
    Event.RESTORED: {**{state: {state} for state in State}, R: {P, CANCELLED, SUPERSEDED}},
    Event.REFUSED: {state: {state} for state in State},
}

OUTCOMES: list[tuple[Outcome, Event]] = [
    (Done(), Event.DONE),
    (Failed("boom"), Event.FAILED),
    (Failed("boom", permanent=True), Event.FAILED),
    (Snoozed(SECOND), Event.SNOOZED),
    (Cancelled(), Event.CANCELLED),
    (Expired(), Event.EXPIRED),
]


def job(state: State = R, *, attempt: int = 1, attempts: int = 3, stopping: bool = False) -> Job:
    running = state is R
    return Job(
        id=JobId(7),
        version=LogId(20),
        task="t",
        payload="{}",
        queue="q",
        priority=5,
        state=state,
        waiting=Waiting.READY if state is P else None,
        attempt=attempt,
        enqueued_at=NOW - 60 * SECOND,
        run_at=NOW - 50 * SECOND,
        dedupe="d",
        retry=RetryPolicy(attempts=attempts, delay=10 * SECOND, factor=2, jitter=0),
        token=19,
        worker="w" if running else None,
        started_at=NOW - 40 * SECOND if running else None,
        expires_at=NOW + 40 * SECOND if running else None,
        cancel_requested=stopping,
        finished_at=NOW - 30 * SECOND if state in FINAL else None,
        error="earlier",
        result_json="[1]" if state is DONE else None,
    )


# The table


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_every_state_and_event_leads_where_the_drawing_says(state: State, event: Event) -> None:
    assert TRANSITIONS.get((state, event), frozenset()) == ALLOWED[event].get(state, set())


def test_states_are_unfinished_or_final() -> None:
    assert {P, R} == UNFINISHED
    assert {DONE, FAILED, CANCELLED, SUPERSEDED} == FINAL
    assert [state for state in State if state.final] == [DONE, FAILED, CANCELLED, SUPERSEDED]


def test_no_event_but_a_reset_or_a_note_leaves_a_final_state() -> None:
    leaving = {event for state, event in TRANSITIONS if state.final}
    assert leaving == {Event.RESET, Event.RESTORED, Event.REFUSED}


def test_every_run_that_may_be_repeated_may_give_way_instead() -> None:
    """To a job that holds its dedupe key meanwhile."""
    for (state, event), after in TRANSITIONS.items():
        if state is R and P in after:
            assert SUPERSEDED in after, event


# Outcomes of a run


@pytest.mark.parametrize(("outcome", "event"), OUTCOMES)
@pytest.mark.parametrize("state", State)
def test_only_a_running_job_has_an_outcome(state: State, outcome: Outcome, event: Event) -> None:
    # A pending job can be cancelled, by whoever.
    if state is R or (state is P and event is Event.CANCELLED):
        assert advance(job(state), outcome).event is event
    else:
        with pytest.raises(TransitionRefused, match=f"job 7 is {state}"):
            advance(job(state), outcome)


def test_success_keeps_the_result() -> None:
    move = advance(job(), Done(result='{"n":1}'))
    assert (move.state, move.result, move.attempt, move.error) == (DONE, '{"n":1}', 1, None)


def test_failure_is_tried_again_after_the_policys_delay() -> None:
    move = advance(job(attempt=2), Failed("boom"))
    assert (move.state, move.delay, move.attempt) == (P, 20 * SECOND, 2)
    assert (move.error, move.reason) == ("boom", None)


def test_chance_reaches_the_policy() -> None:
    held = replace(job(), retry=RetryPolicy(delay=10 * SECOND, jitter=0.5))
    assert advance(held, Failed("boom"), chance=0.0).delay == 5 * SECOND
    assert advance(held, Failed("boom")).delay == 10 * SECOND


def fields(held: Job) -> dict[str, object]:
    return {name: getattr(held, name) for name in held.__struct_fields__}


@pytest.mark.parametrize("outcome", [Failed("boom"), Expired()])
def test_last_attempt_ends_the_job(outcome: Outcome) -> None:
    assert advance(job(attempt=2), outcome).state is P
    move = advance(job(attempt=3), outcome)
    assert (move.state, move.reason) == (FAILED, "attempt 3 of 3")
    assert advance(job(attempt=4), outcome).state is FAILED


def test_permanent_error_ends_the_job_whatever_attempts_are_left() -> None:
    move = advance(job(attempt=1), Failed("boom", permanent=True))
    assert (move.state, move.error, move.reason) == (FAILED, "boom", "permanent error")


def test_snooze_gives_the_attempt_back() -> None:
    move = advance(job(attempt=3), Snoozed(5 * SECOND, "rate limit"))
    assert (move.state, move.attempt, move.delay) == (P, 2, 5 * SECOND)
    assert (move.reason, move.error) == ("rate limit", None)


def test_expiry_returns_the_job_at_once_and_names_the_worker() -> None:
    move = advance(job(), Expired())
    assert (move.state, move.delay, move.attempt) == (P, timedelta(0), 1)
    assert move.error == "the lease of worker w ran out"


def test_cancelled_run_ends_the_job() -> None:
    move = advance(job(), Cancelled("told to"))
    assert (move.state, move.reason) == (CANCELLED, "told to")


@pytest.mark.parametrize(("outcome", "event"), OUTCOMES)
def test_cancel_request_wins_over_another_attempt_never_over_a_finished_one(
    outcome: Outcome, event: Event
) -> None:
    move = advance(job(stopping=True), outcome)
    assert (move.event, move.state) == (event, DONE if event is Event.DONE else CANCELLED)
    assert not move.cancel_requested


def test_cancelled_by_request_keeps_the_error_of_the_run() -> None:
    move = advance(job(stopping=True), Failed("boom"))
    assert (move.error, move.reason) == ("boom", "cancel was requested")


@given(
    attempt=st.integers(1, 50),
    attempts=st.integers(1, 50),
    stopping=st.booleans(),
    outcome=st.sampled_from([outcome for outcome, _ in OUTCOMES]),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_every_outcome_leads_along_the_table_and_never_past_the_attempts(
    attempt: int, attempts: int, stopping: bool, outcome: Outcome, chance: float
) -> None:
    held = job(attempt=attempt, attempts=attempts, stopping=stopping)
    move = advance(held, outcome, chance)
    assert move.state in TRANSITIONS[R, move.event]
    assert move.delay >= timedelta(0)
    if move.state is P:
        assert move.attempt < attempts or attempt > attempts
        assert not stopping


# What others ask for


def test_pending_job_is_cancelled_at_once() -> None:
    move = cancel(job(P), "not wanted")
    assert (move.event, move.state, move.reason) == (Event.CANCELLED, CANCELLED, "not wanted")
    assert not move.cancel_requested


def test_running_job_is_asked_to_stop() -> None:
    move = cancel(job(R), "not wanted")
    assert (move.event, move.state) == (Event.CANCEL_REQUESTED, R)
    assert (move.cancel_requested, move.attempt, move.reason) == (True, 1, "not wanted")
    assert move.stays


@pytest.mark.parametrize("state", sorted(FINAL))
def test_finished_job_cannot_be_cancelled(state: State) -> None:
    with pytest.raises(TransitionRefused, match=f"job 7 is {state}"):
        cancel(job(state))


@pytest.mark.parametrize("state", [P, FAILED, CANCELLED])
def test_reset_starts_over_from_the_first_attempt(state: State) -> None:
    move = reset(job(state, attempt=3), "fixed")
    assert (move.event, move.state, move.attempt) == (Event.RESET, P, 0)
    assert (move.delay, move.reason) == (timedelta(0), "fixed")


@pytest.mark.parametrize("state", [R, DONE, SUPERSEDED])
def test_running_done_or_superseded_job_cannot_be_reset(state: State) -> None:
    with pytest.raises(TransitionRefused, match=f"job 7 is {state}"):
        reset(job(state))


def test_running_job_is_reset_by_force_alone() -> None:
    move = reset(job(R, attempt=2, stopping=True), "silent", forced=True)
    assert (move.event, move.state, move.attempt) == (Event.RESET, P, 0)
    assert not move.cancel_requested


@pytest.mark.parametrize("stopping", [False, True])
@pytest.mark.parametrize("state", State)
def test_refusal_records_the_late_worker_and_changes_nothing(state: State, stopping: bool) -> None:
    move = refuse(job(state, attempt=2, stopping=stopping), 11, "w9")
    assert (move.event, move.state, move.attempt) == (Event.REFUSED, state, 2)
    assert (move.cancel_requested, move.reason) == (stopping, "stale token 11 from w9")
    assert move.stays


# Starts


@pytest.mark.parametrize("stopping", [False, True])
@pytest.mark.parametrize("detail", [None, "[1]"])
def test_start_is_noted_and_renews_the_lease(stopping: bool, detail: str | None) -> None:
    running = job(attempt=2, stopping=stopping)
    move = start(running, detail)
    assert (move.event, move.state, move.attempt) == (Event.STARTED, R, 2)
    assert (move.cancel_requested, move.reason, move.detail) == (stopping, None, detail)
    assert move.stays
    assert move.renews
    after = apply_move(running, move, at=NOW, version=LogId(9), waiting=None)
    assert after == replace(running, version=LogId(9), expires_at=NOW + running.lease_time)


@pytest.mark.parametrize("state", [state for state in State if state is not R])
def test_only_a_running_job_can_be_started(state: State) -> None:
    with pytest.raises(TransitionRefused, match=f"job 7 is {state} and cannot be started"):
        start(job(state))


# Details


@pytest.mark.parametrize("outcome", [Done(), Done("[1]"), Failed("boom"), Failed("b", True)])
def test_detail_changes_nothing_else_about_a_move(outcome: Done | Failed) -> None:
    plain, move = advance(job(), outcome), advance(job(), replace(outcome, detail="[1]"))
    assert (plain.detail, move.detail) == (None, "[1]")
    assert replace(move, detail=None) == plain


@pytest.mark.parametrize("detail", ["", "half", '{"n": 1', "[1] 2", "NaN", '"\udc80"', 1])
def test_detail_that_is_no_json_is_refused_where_it_is_given(detail: Any) -> None:
    with pytest.raises(InvalidJob, match="the detail of an outcome must be JSON text, not"):
        Done(detail=detail)
    with pytest.raises(InvalidJob, match="the detail of an outcome must be JSON text, not"):
        Failed("no", detail=detail)


def test_plain_successes_are_one_and_the_same_move() -> None:
    """Stores write those together that are the same object."""
    advance(job(), Done(detail="[1]"))
    assert advance(job(), Done()) is advance(job(), Done())


# Giving way


@pytest.mark.parametrize("outcome", [Failed("boom"), Snoozed(SECOND, "later"), Expired()])
def test_run_that_would_be_tried_again_gives_way(outcome: Outcome) -> None:
    move = advance(job(), outcome)
    ended = give_way(job(), move, rival=9)
    assert (ended.state, ended.delay, ended.reason) == (
        SUPERSEDED,
        timedelta(0),
        "superseded by job 9",
    )
    assert (ended.event, ended.error, ended.attempt) == (move.event, move.error, move.attempt)
    assert ended.state in TRANSITIONS[R, ended.event]


@pytest.mark.parametrize("state", [P, FAILED, CANCELLED])
def test_reset_is_refused_while_another_holds_the_dedupe_key(state: State) -> None:
    with pytest.raises(TransitionRefused, match="job 9 holds its dedupe key 'd'"):
        give_way(job(state), reset(job(state)), rival=9)


# The job after a move


def after(held: Job, move: Move) -> Job:
    waiting = Waiting.READY if move.state is P else None
    return apply_move(held, move, at=NOW, version=LogId(30), waiting=waiting)


@pytest.mark.parametrize(("outcome", "event"), OUTCOMES)
def test_move_writes_what_it_says_and_keeps_the_rest(outcome: Outcome, event: Event) -> None:
    held, move = job(), advance(job(), outcome)
    now = after(held, move)
    assert (now.state, now.attempt, now.version) == (move.state, move.attempt, 30)
    assert (now.expires_at, now.cancel_requested) == (None, False)
    assert (now.id, now.task, now.payload, now.queue) == (7, "t", "{}", "q")
    assert (now.enqueued_at, now.token, now.dedupe) == (held.enqueued_at, 19, "d")
    assert (now.priority, now.retry, now.scope) == (held.priority, held.retry, held.scope)


def test_job_put_back_has_no_worker_and_a_new_due_time() -> None:
    now = after(job(), advance(job(), Failed("boom")))
    assert (now.worker, now.started_at, now.finished_at) == (None, None, None)
    assert (now.run_at, now.error) == (NOW + 10 * SECOND, "boom")


def test_job_that_ended_has_its_end_and_the_same_due_time() -> None:
    now = after(job(), advance(job(), Cancelled()))
    assert (now.finished_at, now.run_at, now.error) == (NOW, job().run_at, "earlier")


def test_success_replaces_the_error_by_a_result() -> None:
    now = after(job(), advance(job(), Done(result="[2]")))
    assert (now.error, now.returned) == (None, [2])


def test_reset_forgets_how_it_ended() -> None:
    now = after(job(FAILED), reset(job(FAILED)))
    assert (now.finished_at, now.error, now.result_json) == (None, None, None)
    assert (now.attempt, now.run_at) == (0, NOW)


@pytest.mark.parametrize("state", State)
def test_note_leaves_all_but_the_version(state: State) -> None:
    held = job(state)
    now = apply_move(held, refuse(held, 1, "late"), at=NOW, version=LogId(30), waiting=held.waiting)
    assert fields(now) == {**fields(held), "version": 30}


def test_cancel_request_leaves_all_but_version_and_request() -> None:
    now = after(job(), cancel(job()))
    assert fields(now) == {**fields(job()), "version": 30, "cancel_requested": True}


# Administration


def test_another_priority_leaves_all_else_as_it_is() -> None:
    pending = job(P)
    move = reprioritise(pending, 9)
    assert move.stays
    assert move.reason == "priority 5 became 9"
    after = apply_move(pending, move, at=NOW, version=LogId(21), waiting=None)
    assert after == replace(pending, version=LogId(21), priority=9)


@pytest.mark.parametrize("state", [R, *sorted(FINAL)])
def test_only_a_pending_job_has_a_priority_to_change(state: State) -> None:
    with pytest.raises(TransitionRefused, match="cannot be reprioritised"):
        reprioritise(job(state), 9)


@pytest.mark.parametrize("state", [P, *sorted(FINAL)])
def test_restored_job_keeps_its_state(state: State) -> None:
    before = job(state)
    move = restore(before)
    assert (move.event, move.state) == (Event.RESTORED, state)
    assert apply_restore(before, move, at=NOW) == before


def test_restored_running_job_waits_again_and_keeps_its_attempt_and_place() -> None:
    before = job(R, attempt=3)
    after = apply_restore(before, restore(before), at=NOW)
    assert (after.state, after.attempt, after.worker) == (P, 2, None)
    assert (after.run_at, after.started_at, after.expires_at) == (before.run_at, None, None)


def test_restored_running_job_that_should_stop_is_cancelled() -> None:
    before = job(R, stopping=True)
    after = apply_restore(before, restore(before), at=NOW)
    assert (after.state, after.finished_at, after.cancel_requested) == (CANCELLED, NOW, False)


def test_allowed_moves_are_the_transition_table_as_rows() -> None:
    rows = allowed_moves()
    assert len(rows) == len(set(rows)) == sum(map(len, TRANSITIONS.values()))
    for before, event, after in rows:
        assert after in TRANSITIONS[before, event]
    assert rows == allowed_moves()
