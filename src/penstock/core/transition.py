"""What a move changes in a job: the fields that every store has to write.

`lifecycle` decides on moves; here they are applied.
"""

from datetime import datetime
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from penstock.core.job import Job, LogId
from penstock.core.lifecycle import Event, Move, State, Waiting

T = TypeVar("T", int, datetime)


class Change(msgspec.Struct, frozen=True, gc=False):
    """A move and the job that it was decided on; it is written only if that job is unchanged."""

    job: Job
    move: Move


def is_outdated(change: Change, version: int | None, expires_at: T | None, now: T) -> bool:
    """Return whether a job has changed since the move was decided on.

    It has if its version is another one, None for a job that no longer exists. A renewal does not
    change the version, but a lease that was renewed meanwhile has not expired: the move of an
    expiry also requires that the deadline has passed.
    """
    if version != change.job.version:
        return True
    return change.move.event is Event.EXPIRED and expires_at is not None and expires_at > now


def apply_move(
    job: Job, move: Move, *, at: datetime, version: LogId, waiting: Waiting | None
) -> Job:
    """Return the job after a move.

    `version` is the id of its log entry, `waiting` what a job that returns to pending waits for
    (see `key_line.waiting`).
    """
    fields = fields_after_move(move, error_after_move(job, move), at=at, waiting=waiting)
    if move.renews:
        fields["expires_at"] = at + job.lease_time
    return replace(job, version=version, **fields)


def fields_after_move(
    move: Move, error: str | None, *, at: datetime, waiting: Waiting | None
) -> dict[str, Any]:
    """Return the fields that a move changes, apart from the version and a renewed deadline."""
    if move.stays:
        if move.priority is not None:
            return {"priority": move.priority}
        return {"cancel_requested": move.cancel_requested}
    fields: dict[str, Any] = {
        "state": move.state,
        "waiting": waiting,
        "attempt": move.attempt,
        "expires_at": None,
        "cancel_requested": False,
        "error": error,
        "result_json": move.result,
    }
    if move.state is not State.PENDING:
        return {**fields, "finished_at": at}
    run_at = at + move.delay
    return {**fields, "run_at": run_at, "worker": None, "started_at": None, "finished_at": None}


def error_after_move(job: Job, move: Move) -> str | None:
    """Return the error of a job after a move: its last one, until it succeeds or is reset."""
    if move.event in (Event.DONE, Event.RESET):
        return None
    return move.error or job.error
