"""Dependencies: jobs that wait for the end of others.

An edge says that one job needs another. It is open until the needed job has ended. A job is
blocked while it has open edges. A needed job that ends without success makes the jobs that need it
end, too, unless they asked to run anyway.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from penstock.core.errors import JobNotFound
from penstock.core.job import Job, JobId, NewJob, OnFailure
from penstock.core.lifecycle import Event, Move, State, frees, keep_back


class Edge(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`job_id` waits for `needed`; `resolved` once that one has ended."""

    needed: JobId
    job_id: JobId
    on_failure: OnFailure
    resolved: bool = False


Dependent = tuple[int, int, str]
"""An open edge: the needed job, the job that waits for it, and its `OnFailure`."""

Cause = tuple[int, State]
"""Why a job is abandoned: the job that it needed, and the state in which that one ended."""


# New jobs


def needed_by(new: NewJob, earlier: Sequence[int]) -> list[JobId]:
    """Return the jobs that a new one needs, each once, by id.

    `earlier` has the ids that the jobs before it in the same call resulted in.
    """
    return sorted({*map(JobId, new.after), *(JobId(earlier[place]) for place in new.follows)})


def check_known(needed: Iterable[int], known: Container[int]) -> None:
    """Raise `JobNotFound` for the first of these jobs that is not stored."""
    missing = [job_id for job_id in needed if job_id not in known]
    if missing:
        raise JobNotFound(f"there is no job {min(missing)} to wait for")


def new_edges(job_id: int, needed: Mapping[int, State], on_failure: OnFailure) -> list[Edge]:
    """Return the edges of a new or restored job to the jobs that it needs, given their states."""
    return [
        Edge(needed=JobId(one), job_id=JobId(job_id), on_failure=on_failure, resolved=state.final)
        for one, state in needed.items()
    ]


def orphans(ended: Mapping[int, State], dependents: Iterable[Dependent]) -> dict[int, Cause]:
    """Return the jobs that have to be abandoned because a job they need ended without success.

    `ended` has the states of needed jobs; those that have not ended do not count. Where several
    needed jobs are the cause, the one with the lowest id is named.
    """
    found: dict[int, Cause] = {}
    for needed, job_id, on_failure in dependents:
        state = ended.get(needed)
        if state is None or not state.final:
            continue
        if not frees(state, run_anyway=on_failure == OnFailure.RUN) and (
            job_id not in found or needed < found[job_id][0]
        ):
            found[job_id] = (needed, state)
    return found


# Ends


class Release(msgspec.Struct, frozen=True):
    """What the ends of jobs mean for others.

    `edges` are to be resolved: `needs` of each job falls by the number of its edges here, and one
    that is left with none waits as `key_line.waiting` says. `abandoned` jobs end as cancelled, in
    this order (see `lifecycle.abandon`); the edges to them are included.
    """

    edges: list[Dependent] = []
    abandoned: dict[int, Cause] = {}


def release(
    ended: Mapping[int, State],
    dependents: Callable[[Collection[int]], Iterable[Dependent]],
    pending: Callable[[Collection[int]], Iterable[int]],
) -> Release:
    """Follow the ends of jobs through everything that waits for them.

    `dependents` returns the open edges to any of some jobs, `pending` those of some jobs that are
    pending. Jobs that are abandoned have ended as well, and so on. Only called with jobs whose
    dependents have not been handed over to a successor.
    """
    found = Release()
    while ended:
        edges = list(dependents(ended.keys()))
        found.edges.extend(edges)
        lost = orphans(ended, edges)
        for job_id in found.abandoned:
            lost.pop(job_id, None)
        still = sorted(pending(lost.keys())) if lost else []
        found.abandoned.update((job_id, lost[job_id]) for job_id in still)
        ended = dict.fromkeys(still, State.CANCELLED)
    return found


# Order


class Order(Protocol):
    """How a store answers which jobs precede others."""

    def before(self, ids: Collection[int]) -> Iterable[int]:
        """Return the unfinished jobs that have to end before one of these can begin.

        Those that it needs and, if it is pending and has a key, those of its key that run or are
        pending with a lower id. The answer may include jobs that precede these in turn.
        """
        ...

    def newer_in_line(self, job: Job, among: Collection[int]) -> int | None:
        """Return the lowest of these ids that is an unfinished job of the key, newer than `job`."""
        ...


def predecessors(job_id: int, order: Order) -> set[int]:
    """Return a job and everything that has to end before it can begin.

    By open edges and by the order of keys, through any number of jobs.
    """
    found: set[int] = set()
    frontier = {job_id}
    while frontier:
        found |= frontier
        frontier = {*order.before(frontier)} - found
    return found


def handed_over(dependents: Collection[int], successor: int, order: Order) -> list[int]:
    """Return which dependents of a superseded job wait for its successor from now on.

    All but those that the successor itself has to wait for, in whatever way: they would wait for
    themselves. For these the superseded job counts as ended.
    """
    if not dependents:
        return []
    ahead = predecessors(successor, order)
    return [job_id for job_id in dependents if job_id not in ahead]


def may_wait_for_itself(job: Job, move: Move) -> bool:
    """Return whether a move could put a job behind one of its key that waits for it.

    Only a cancelled job that is reset, because it may need a newer one of its key: a successor to
    which its dependency was handed over. The caller then calls `check_order`.
    """
    return (
        move.event is Event.RESET
        and job.state is State.CANCELLED
        and job.key is not None
        and job.needs > 0
    )


def check_order(job: Job, order: Order) -> None:
    """Raise `TransitionRefused` if a reset job would wait for one that comes after it in its key.

    That one would wait for this one, by the order of the key, and neither would ever run.
    """
    newer = order.newer_in_line(job, predecessors(job.id, order) - {job.id})
    if newer is not None:
        raise keep_back(job, newer)
