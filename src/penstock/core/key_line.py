"""The line of a key: its unfinished jobs, which run one at a time, in the order of their ids.

At most one job of a line runs or is visible to claims. It is the oldest pending one, its head,
while none runs. All others are blocked, however long they have been due.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

import msgspec

from penstock.core.job import JobId
from penstock.core.lifecycle import Waiting

T = TypeVar("T", int, datetime)

LONGEST_LINE = 1_000
"""The length of a line is counted up to this number where many keys are listed."""


class KeyLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The line of a key in a listing: the job that runs or is next, and the number of jobs.

    `length` is counted up to `LONGEST_LINE`.
    """

    key: str
    first: JobId
    length: int


def waiting(run_at: T, now: T, *, needs: int = 0, behind: bool = False) -> Waiting:
    """Return what a pending job waits for.

    It is blocked while it needs jobs that have not ended, or is `behind` another unfinished job of
    its key; otherwise it is ready once it is due, and scheduled before. This holds for a new job,
    for one that returns to pending, for one that needs no more jobs, and for a restored one.
    """
    if needs or behind:
        return Waiting.BLOCKED
    return Waiting.READY if run_at <= now else Waiting.SCHEDULED


class Queued(NamedTuple, Generic[T]):
    """A pending job of a line."""

    id: int
    waiting: Waiting
    needs: int
    run_at: T


def rearranged(
    pending: Collection[Queued[T]], now: T, *, running: bool
) -> list[tuple[int, Waiting]]:
    """Return the jobs of a line that have to wait for something else now, and for what.

    `pending` has at least the pending job of the line with the lowest id and the one that is ready
    or scheduled, if any; `running` says whether a job of the line runs. A visible job that is no
    longer the head becomes blocked; a head that is blocked, but needs no other job, becomes ready
    or scheduled. Jobs that become blocked are returned first. To be called whenever a job enters
    the line, leaves it, starts, returns to pending, or needs no more jobs.
    """
    head: Queued[T] | None = None
    if not running:
        for one in pending:
            if head is None or one.id < head.id:
                head = one
    changed = [
        (one.id, Waiting.BLOCKED)
        for one in pending
        if one is not head and one.waiting is not Waiting.BLOCKED
    ]
    if head is not None and head.waiting is Waiting.BLOCKED:
        now_waiting = waiting(head.run_at, now, needs=head.needs)
        if now_waiting is not Waiting.BLOCKED:
            changed.append((head.id, now_waiting))
    return changed
