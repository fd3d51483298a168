"""Dedupe keys: which job holds one, and what happens to the others.

A dedupe key is held by at most one pending job. A running job holds it too, unless both that job
and the other one have the scope `PENDING`. A new job whose key is held is not stored; a job that
would return to pending gives way (see `lifecycle.give_way`); a restored one is left out.
"""

from collections.abc import Container, Iterable

from penstock.core.job import Job, Scope
from penstock.core.lifecycle import Move, State

Holding = tuple[int, bool, str]
"""An unfinished job with a dedupe key: its id, whether it is pending, and its scope."""


def holder(scope: str, unfinished: Iterable[Holding], exclude: Container[int] = ()) -> int | None:
    """Return the job that keeps another one from becoming pending with the same dedupe key.

    `scope` is that of the other job, `unfinished` has the unfinished jobs with the key, in any
    order. Jobs in `exclude` do not count: the job itself, and those that end in the same
    transaction. A pending job comes before a running one, then the lowest id.
    """
    holding = [
        (not pending, job_id)
        for job_id, pending, other in unfinished
        if job_id not in exclude and (pending or Scope.UNFINISHED in (scope, other))
    ]
    return min(holding)[1] if holding else None


def needs_key(job: Job, move: Move) -> bool:
    """Return whether a move is possible only if no other job holds the job's dedupe key."""
    return job.dedupe is not None and move.state is State.PENDING and not move.stays
