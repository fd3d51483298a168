"""The life of a job: the only state machine.

```
 enqueue ──► pending ──claim──► running ──► done
               ▲  │                │  ├────► failed        attempts used up, or a permanent error
               │  │                │  └────► cancelled
               │  └──► cancelled   │
               │  └──► superseded  │
               └───────────────────┘  retry, lease expired, snooze, reset
```

A function here looks at a job and says which `Move` comes next. Stores write a move if the job
has not changed meanwhile; they never choose one. Times are relative, because the store's clock
decides.
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


# Enum's own hash is a function in Python, which a set or a dict calls for every look.
_hash = str.__hash__


class State(StrEnum):
    """Where a job stands."""

    __hash__ = _hash

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"

    @property
    def final(self) -> bool:
        """Whether the job is over."""
        return self is not _P and self is not _R


_P, _R = State.PENDING, State.RUNNING

UNFINISHED = frozenset({State.PENDING, State.RUNNING})
FINAL = frozenset(State) - UNFINISHED


class Waiting(StrEnum):
    """What a pending job waits for, as far as the job itself can tell."""

    __hash__ = _hash

    READY = "ready"
    SCHEDULED = "scheduled"
    BLOCKED = "blocked"


class Event(StrEnum):
    """What happened to a job; each is one entry in the log."""

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
    (_R, Event.RESTORED): frozenset({_P, State.CANCELLED}),
}


_json = msgspec.json.Decoder(msgspec.Raw)


def _check_json(detail: object) -> None:
    try:
        _json.decode(detail)  # type: ignore[arg-type] # what is no text is refused as well
    except (ValueError, TypeError) as error:
        raise InvalidJob(f"the detail of an outcome is JSON text, not {detail!r:.80}") from error


class Done(msgspec.Struct, frozen=True, gc=False):
    """The run succeeded; `result` is JSON text, if it returned anything.

    `detail` is JSON text that the log keeps with the entry. Raises `InvalidJob` if it is not.
    """

    result: str | None = None
    detail: str | None = None

    def __post_init__(self) -> None:
        if self.detail is not None:
            _check_json(self.detail)


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The run failed; `permanent` ends the job whatever attempts are left.

    `detail` is JSON text that the log keeps with the entry. Raises `InvalidJob` if it is not.
    """

    error: str
    permanent: bool = False
    detail: str | None = None

    def __post_init__(self) -> None:
        if self.detail is not None:
            _check_json(self.detail)


class Snoozed(msgspec.Struct, frozen=True, gc=False):
    """The run gave the job back for later, without using up an attempt."""

    delay: timedelta = timedelta(0)
    reason: str | None = None


class Cancelled(msgspec.Struct, frozen=True, gc=False):
    """The run ended because the job was cancelled."""

    reason: str | None = None


class Expired(msgspec.Struct, frozen=True, gc=False):
    """The worker fell silent and its lease ran out."""


Outcome = Done | Failed | Snoozed | Cancelled | Expired


class Move(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The next step of one job, as the store has to write it.

    Those that wait for a job with a `successor` wait for that one from then on.
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

    @property
    def stays(self) -> bool:
        """Whether only the log, the cancel request, the priority and the deadline change."""
        return self.event in _STAYING

    @property
    def renews(self) -> bool:
        """Whether the deadline moves to a full lease time from now."""
        return self.event is _STARTED


def advance(job: "Job", outcome: Outcome, chance: float = 0.5) -> Move:
    """What becomes of a running job after this outcome of its run.

    A cancel request wins over another attempt, never over a finished one.
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
    """Nearly every move is this one: stores write those that are the same object together."""
    return Move(event=Event.DONE, state=State.DONE, attempt=attempt)


def _detailed(move: Move, detail: str) -> Move:
    return msgspec.structs.replace(move, detail=detail)


def undetailed(move: Move) -> Move:
    """The move without its detail; plain successes are the same object again."""
    if move.event is _DONE and move.result is None:
        return _done(move.attempt)
    return msgspec.structs.replace(move, detail=None)


def _after_expiry(job: "Job", chance: float) -> timedelta:
    """At once the first time; then scattered.

    Jobs that were taken along by one that kills its worker would otherwise be claimed with it
    again, until the attempts of all are used up.
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
    """A worker began what it holds; it keeps the job for another lease time."""
    move = _move(job, Event.STARTED, State.RUNNING, cancel_requested=job.cancel_requested)
    return move if detail is None else _detailed(move, detail)


def cancel(job: "Job", reason: str | None = None) -> Move:
    """A pending job ends at once; a running one is asked to stop."""
    if job.state is State.RUNNING:
        return _move(
            job, Event.CANCEL_REQUESTED, State.RUNNING, cancel_requested=True, reason=reason
        )
    return _move(job, Event.CANCELLED, State.CANCELLED, reason=reason)


def reset(job: "Job", reason: str | None = None, *, forced: bool = False) -> Move:
    """Run it again from the first attempt, at once: a failed, cancelled or waiting job.

    A running one only if it is `forced` from its worker.
    """
    if job.state is State.RUNNING and not forced:
        raise TransitionRefused(
            f"job {job.id} is running and cannot be retried; reset takes it from its worker"
        )
    return _move(job, Event.RESET, State.PENDING, attempt=0, reason=reason)


def reprioritise(job: "Job", priority: int, reason: str | None = None) -> Move:
    """Let a pending job be claimed earlier or later than others; all else stays."""
    reason = reason or f"priority {job.priority} became {priority}"
    return _move(job, Event.REPRIORITISED, State.PENDING, priority=priority, reason=reason)


def restore(job: "Job", reason: str | None = None) -> Move:
    """How a job stands in another store, or in its own after it was removed.

    As it stood; but a running one has no worker there, so that it waits for one again. The
    attempt that nobody saw the end of is not counted.
    """
    if job.state is not State.RUNNING:
        return _move(job, Event.RESTORED, job.state, reason=reason)
    back = State.CANCELLED if job.cancel_requested else State.PENDING
    return _move(job, Event.RESTORED, back, attempt=job.attempt - 1, reason=reason)


def give_way(job: "Job", move: Move, rival: int) -> Move:
    """What becomes of a move to pending when another job holds the dedupe key meanwhile.

    A run that would be tried again ends, because the newer job does its work with newer
    arguments; nothing else may push itself beside the other.
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
    """Why a job cannot be put back into the line of its key: it would wait for itself."""
    return TransitionRefused(
        f"job {job.id} cannot run again: it waits for job {behind}, which comes after it in the "
        f"order of its key {job.key!r}; enqueue it anew"
    )


def frees(state: State, *, run_anyway: bool) -> bool:
    """Whether a job that ended in this state lets those go on that wait for it.

    The work of a superseded job is done by the one that took its place: who waits for it waits
    for that one, unless it would wait for itself, or there is none.
    """
    return run_anyway or state in (State.DONE, State.SUPERSEDED)


def abandon(job: "Job", needed: int, state: State) -> Move:
    """A job that this one waits for did not succeed."""
    reason = f"job {needed}, which it waits for, is {state}"
    return _move(job, Event.CANCELLED, State.CANCELLED, reason=reason)


def supersede(job: "Job", by: int | None) -> Move:
    """A newer job of its key takes a pending job's place, or both come to nothing."""
    reason = "a newer job undoes it" if by is None else f"superseded by job {by}"
    move = _move(job, Event.SUPERSEDED, State.SUPERSEDED, reason=reason)
    return msgspec.structs.replace(move, successor=by)


def refuse(job: "Job", token: int, actor: str) -> Move:
    """Note a write with a stale token; the job stays as it is."""
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
    """Text that every store can hold: a file's name may bring in what UTF-8 has no code for."""
    if text is None or text.isascii():
        return text
    return text.encode(errors="backslashreplace").decode()
