"""The life of a job: the only state machine.

```
 enqueue ──► pending ──claim──► running ──► done
               ▲  │                │  ├────► failed        attempts used up, or a permanent error
               │  │                │  └────► cancelled
               │  └──► cancelled   │
               │  └──► superseded  │
               └───────────────────┘  retry, lease expired, snooze, reset
```

A function here looks at a job and returns the `Move` that comes next. Stores write a move if the
job has not changed since; they never choose one. Times are relative, because the store's clock
determines them.
"""

from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from penstock.core.errors import InvalidJob, TransitionRefused
from penstock.core.retry import LONGEST

if TYPE_CHECKING:
    from penstock.core.job import Job


# Enum's own hash is a Python function, which a set or a dict calls for every lookup.
_hash = str.__hash__


class State(StrEnum):
    """The state of a job."""

    __hash__ = _hash

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"

    @property
    def final(self) -> bool:
        """Whether the job has ended."""
        return self is not _P and self is not _R


_P, _R = State.PENDING, State.RUNNING

UNFINISHED = frozenset({State.PENDING, State.RUNNING})
FINAL = frozenset(State) - UNFINISHED


class Waiting(StrEnum):
    """What a pending job waits for; see `key_line.waiting`."""

    __hash__ = _hash

    READY = "ready"
    SCHEDULED = "scheduled"
    BLOCKED = "blocked"


class Event(StrEnum):
    """What happened to a job; each event is one entry in the log."""

    __hash__ = _hash

    ENQUEUED = "enqueued"
    CLAIMED = "claimed"
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"
    SNOOZED = "snoozed"
    EXPIRED = "expired"
    CANCEL_REQUESTED = "cancel_requested"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    RESET = "reset"
    REPRIORITISED = "reprioritised"
    RESTORED = "restored"
    REFUSED = "refused"


_STARTED, _DONE = Event.STARTED, Event.DONE
_STAYING = frozenset({Event.STARTED, Event.CANCEL_REQUESTED, Event.REPRIORITISED, Event.REFUSED})

TRANSITIONS: dict[tuple[State, Event], frozenset[State]] = {
    (_P, Event.CLAIMED): frozenset({_R}),
    (_P, Event.CANCELLED): frozenset({State.CANCELLED}),
    (_P, Event.SUPERSEDED): frozenset({State.SUPERSEDED}),
    (_P, Event.RESET): frozenset({_P}),
    (_P, Event.REPRIORITISED): frozenset({_P}),
    (_R, Event.STARTED): frozenset({_R}),
    (_R, Event.DONE): frozenset({State.DONE}),
    (_R, Event.FAILED): frozenset({_P, State.FAILED, State.CANCELLED, State.SUPERSEDED}),
    (_R, Event.SNOOZED): frozenset({_P, State.CANCELLED, State.SUPERSEDED}),
    (_R, Event.EXPIRED): frozenset({_P, State.FAILED, State.CANCELLED, State.SUPERSEDED}),
    (_R, Event.CANCEL_REQUESTED): frozenset({_R}),
    (_R, Event.RESET): frozenset({_P, State.SUPERSEDED}),
    (_R, Event.CANCELLED): frozenset({State.CANCELLED}),
    (State.FAILED, Event.RESET): frozenset({_P}),
    (State.CANCELLED, Event.RESET): frozenset({_P}),
    **{(state, Event.REFUSED): frozenset({state}) for state in State},
    **{(state, Event.RESTORED): frozenset({state}) for state in State},
    (_R, Event.RESTORED): frozenset({_P, State.CANCELLED, State.SUPERSEDED}),
}


def allowed_moves() -> list[tuple[State, Event, State]]:
    """Return every allowed move as a row: the state before, the event, and the state after.

    In a fixed order. Databases check moves of other programs against a table of these rows.
    """
    return [
        (before, event, after)
        for before in State
        for event in Event
        for after in State
        if after in TRANSITIONS.get((before, event), ())
    ]


_json = msgspec.json.Decoder(msgspec.Raw)


def _check_json(detail: object) -> None:
    try:
        _json.decode(detail)  # type: ignore[arg-type] # what is no text is refused as well
    except (ValueError, TypeError) as error:
        raise InvalidJob(
            f"the detail of an outcome must be JSON text, not {detail!r:.80}"
        ) from error


class Done(msgspec.Struct, frozen=True, gc=False):
    """The run succeeded; `result` is JSON text, or None if it returned nothing.

    `detail` is JSON text that is logged with the entry; raises `InvalidJob` if it is not JSON.
    """

    result: str | None = None
    detail: str | None = None

    def __post_init__(self) -> None:
        if self.detail is not None:
            _check_json(self.detail)


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The run failed; `permanent` ends the job even if attempts are left.

    `detail` is JSON text that is logged with the entry; raises `InvalidJob` if it is not JSON.
    """

    error: str
    permanent: bool = False
    detail: str | None = None

    def __post_init__(self) -> None:
        if self.detail is not None:
            _check_json(self.detail)


class Snoozed(msgspec.Struct, frozen=True, gc=False):
    """The run returned the job for later, without using up an attempt."""

    delay: timedelta = timedelta(0)
    reason: str | None = None


class Cancelled(msgspec.Struct, frozen=True, gc=False):
    """The run ended because the job was cancelled."""

    reason: str | None = None


class Expired(msgspec.Struct, frozen=True, gc=False):
    """The worker did not renew its lease in time."""


Outcome = Done | Failed | Snoozed | Cancelled | Expired


class Move(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The next step of one job, as the store has to write it.

    Jobs that wait for a job with a `successor` wait for the successor from then on. A `note` leaves
    the job as it is and only adds to its log.
    """

    event: Event
    state: State
    attempt: int
    delay: timedelta = timedelta(0)
    cancel_requested: bool = False
    reason: str | None = None
    error: str | None = None
    result: str | None = None
    priority: int | None = None
    detail: str | None = None
    successor: int | None = None
    note: bool = False

    @property
    def stays(self) -> bool:
        """Whether the state stays: only log, cancel request, priority and deadline change."""
        return self.event in _STAYING or self.note

    @property
    def renews(self) -> bool:
        """Whether the deadline is extended to a full lease time from now."""
        return self.event is _STARTED


def advance(job: "Job", outcome: Outcome, chance: float = 0.5) -> Move:
    """Return the move of a running job after this outcome of its run.

    A cancel request prevents another attempt, but never overrides an end. `chance` in [0, 1)
    determines the jitter of a delay.
    """
    match outcome:
        case Done(result=result, detail=detail):
            if result is None and job.state is _R:
                move = _done(job.attempt)
            else:
                move = _move(job, Event.DONE, State.DONE, result=result)
            return move if detail is None else _detailed(move, detail)
        case Cancelled(reason=reason):
            return _move(job, Event.CANCELLED, State.CANCELLED, reason=reason)
        case Snoozed(delay=delay, reason=reason):
            back = State.CANCELLED if job.cancel_requested else State.PENDING
            delay = min(max(delay, timedelta(0)), LONGEST)
            return _move(
                job, Event.SNOOZED, back, attempt=job.attempt - 1, delay=delay, reason=reason
            )
        case Failed(error=error, permanent=permanent, detail=detail):
            delay = job.retry.delay_after(job.attempt, chance)
            move = _retry(job, Event.FAILED, error, delay, permanent=permanent)
            return move if detail is None else _detailed(move, detail)
        case Expired():
            error = f"the lease of worker {job.worker} ran out"
            return _retry(job, Event.EXPIRED, error, _after_expiry(job, chance))


@lru_cache(64)
def _done(attempt: int) -> Move:
    """Return the most frequent move; stores write moves that are the same object together."""
    return Move(event=Event.DONE, state=State.DONE, attempt=attempt)


def _detailed(move: Move, detail: str) -> Move:
    return msgspec.structs.replace(move, detail=detail)


def undetailed(move: Move) -> Move:
    """Return a move without its detail; plain successes become the same object again."""
    if move.event is _DONE and move.result is None:
        return _done(move.attempt)
    return msgspec.structs.replace(move, detail=None)


def _after_expiry(job: "Job", chance: float) -> timedelta:
    """Return the delay after an expired lease: none the first time, then a random one.

    Otherwise, jobs that ran in the same worker as one that kills it would be claimed together with
    that one again, until all of them have used up their attempts.
    """
    if job.attempt <= 1:
        return timedelta(0)
    return max(job.retry.delay_after(job.attempt, 0.5), job.lease_time) * chance


def _retry(
    job: "Job", event: Event, error: str, delay: timedelta, *, permanent: bool = False
) -> Move:
    if job.cancel_requested:
        return _move(job, event, State.CANCELLED, error=error, reason="cancel was requested")
    if permanent:
        return _move(job, event, State.FAILED, error=error, reason="permanent error")
    if job.attempt >= job.retry.attempts:
        reason = f"attempt {job.attempt} of {job.retry.attempts}"
        return _move(job, event, State.FAILED, error=error, reason=reason)
    return _move(job, event, State.PENDING, error=error, delay=delay)


def start(job: "Job", detail: str | None = None) -> Move:
    """Return the move of a worker that starts a job it holds, for a full lease time."""
    move = _move(job, Event.STARTED, State.RUNNING, cancel_requested=job.cancel_requested)
    return move if detail is None else _detailed(move, detail)


def cancel(job: "Job", reason: str | None = None) -> Move:
    """Return the move that cancels a job: a pending one ends, a running one is asked to stop."""
    if job.state is State.RUNNING:
        return _move(
            job, Event.CANCEL_REQUESTED, State.RUNNING, cancel_requested=True, reason=reason
        )
    return _move(job, Event.CANCELLED, State.CANCELLED, reason=reason)


def reset(job: "Job", reason: str | None = None, *, forced: bool = False) -> Move:
    """Return the move that runs a failed, cancelled or pending job again from its first attempt.

    A running job is reset only if `forced`: its worker loses it.
    """
    if job.state is State.RUNNING and not forced:
        raise TransitionRefused(
            f"job {job.id} is running and cannot be retried; use reset to take it from its worker"
        )
    return _move(job, Event.RESET, State.PENDING, attempt=0, reason=reason)


def reprioritise(job: "Job", priority: int, reason: str | None = None) -> Move:
    """Return the move that changes the priority of a pending job, and nothing else."""
    reason = reason or f"priority {job.priority} became {priority}"
    return _move(job, Event.REPRIORITISED, State.PENDING, priority=priority, reason=reason)


def restore(job: "Job", reason: str | None = None) -> Move:
    """Return the move of a job that is taken over by another store, or restored to its own.

    Its state stays, except that a running job becomes pending, because it has no worker there; the
    attempt whose end is unknown is not counted.
    """
    if job.state is not State.RUNNING:
        return _move(job, Event.RESTORED, job.state, reason=reason)
    back = State.CANCELLED if job.cancel_requested else State.PENDING
    return _move(job, Event.RESTORED, back, attempt=job.attempt - 1, reason=reason)


def note_restore(job: "Job", reason: str) -> Move:
    """Return the move that notes in a job's log that its store was set back."""
    move = _move(
        job, Event.RESTORED, job.state, cancel_requested=job.cancel_requested, reason=reason
    )
    return msgspec.structs.replace(move, note=True)


def give_way(job: "Job", move: Move, rival: int) -> Move:
    """Return what becomes of a move to pending while another job holds the dedupe key.

    A run that would be retried is superseded, because the newer job does its work with newer
    arguments. Any other move raises `TransitionRefused`.
    """
    if job.state is not State.RUNNING:
        raise TransitionRefused(
            f"job {job.id} cannot run again: job {rival} holds its dedupe key {job.dedupe!r}"
        )
    return msgspec.structs.replace(
        move,
        state=State.SUPERSEDED,
        delay=timedelta(0),
        reason=f"superseded by job {rival}",
        successor=rival,
    )


def keep_back(job: "Job", behind: int) -> TransitionRefused:
    """Return the error for a job that cannot return to its key: it would wait for itself."""
    return TransitionRefused(
        f"job {job.id} cannot run again: it waits for job {behind}, which comes after it in the "
        f"order of its key {job.key!r}; enqueue it anew"
    )


def frees(state: State, *, run_anyway: bool) -> bool:
    """Return whether the end of a job in this state lets the jobs that wait for it continue.

    The successor of a superseded job does its work: jobs that wait for it wait for the successor,
    unless there is none or they would wait for themselves.
    """
    return run_anyway or state in (State.DONE, State.SUPERSEDED)


def abandon(job: "Job", needed: int, state: State) -> Move:
    """Return the move of a job that loses one it waits for: it is cancelled."""
    reason = f"job {needed}, which it waits for, is {state}"
    return _move(job, Event.CANCELLED, State.CANCELLED, reason=reason)


def supersede(job: "Job", by: int | None) -> Move:
    """Return the move of a pending job that a newer one of its key replaces or undoes."""
    reason = "a newer job undoes it" if by is None else f"superseded by job {by}"
    move = _move(job, Event.SUPERSEDED, State.SUPERSEDED, reason=reason)
    return msgspec.structs.replace(move, successor=by)


def refuse(job: "Job", token: int, actor: str) -> Move:
    """Return the move that logs a write with a stale token; the job stays as it is."""
    return _move(
        job,
        Event.REFUSED,
        job.state,
        cancel_requested=job.cancel_requested,
        reason=f"stale token {token} from {actor}",
    )


def _move(
    job: "Job",
    event: Event,
    state: State,
    *,
    attempt: int | None = None,
    delay: timedelta = timedelta(0),
    cancel_requested: bool = False,
    reason: str | None = None,
    error: str | None = None,
    result: str | None = None,
    priority: int | None = None,
) -> Move:
    if state not in TRANSITIONS.get((job.state, event), ()):
        what = _DEEDS.get(event, event)
        raise TransitionRefused(f"job {job.id} is {job.state} and cannot be {what}")
    return Move(
        event=event,
        state=state,
        attempt=job.attempt if attempt is None else attempt,
        delay=delay,
        cancel_requested=cancel_requested,
        reason=_text(reason),
        error=_text(error),
        result=result,
        priority=priority,
    )


_DEEDS = {Event.RESET: "retried", Event.CANCEL_REQUESTED: "cancelled"}


def _text(text: str | None) -> str | None:
    """Return text that every store can hold: file names may have what UTF-8 cannot encode."""
    if text is None or text.isascii():
        return text
    return text.encode(errors="backslashreplace").decode()
