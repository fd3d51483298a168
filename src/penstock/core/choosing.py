"""Which ready jobs a claim takes where limits, tenants or ages matter.

A store lists its ready jobs by queue, priority and tenant. They are put in order here, lazily: no
job is read before it is about to be taken or held.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from heapq import heapify, heappop, heappush, merge
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from penstock.core.limits import Places
from penstock.core.tasks import FIRST_VERSION, UNKNOWN, Versioned, holder_of

HIGHEST = 10
PRIORITIES = range(HIGHEST, -1, -1)
T = TypeVar("T", int, timedelta)
NO_TENANT = ""
"""Stands for the jobs without a tenant; no tenant has this name."""


class Candidate(NamedTuple):
    """A ready job as a claim sees it; `level` is its priority, raised by its age and negated."""

    level: int
    run_at: Any
    id: int
    queue: str
    task: str
    throttle: str | None
    tenant: str | None
    task_version: int = FIRST_VERSION


def promoted(priority: int, waited: T, ages: T | tuple[T, ...]) -> int:
    """Return the priority of a job after waiting; times are microseconds or timedeltas."""
    if isinstance(ages, tuple):
        steps = sum(age <= waited for age in ages)
    else:
        steps = max(0, waited // ages)
    return min(HIGHEST, priority + steps)


Stream = Generator[Candidate, bool, None]
"""The ready jobs of one queue in order; it is sent, for each job, whether it was taken."""


class ReadyJobs(Protocol):
    """The ready jobs of one queue as a store lists them: in order, and read on demand."""

    def tenants(self, priority: int, after: str) -> Iterable[str]:
        """Return the tenants with ready jobs of a priority, by name, starting after `after`."""
        ...

    def jobs(self, priority: int, tenant: str) -> Iterator[Candidate]:
        """Yield the jobs of a priority and tenant; `NO_TENANT` for those without one."""
        ...


def in_order(ready: ReadyJobs) -> Stream:
    """Yield jobs by priority, highest first, then by due time, then by id."""
    for priority in PRIORITIES:
        for job in ready.jobs(priority, NO_TENANT):  # noqa: UP028 - `yield from` would send to it
            yield job


def by_age(ready: ReadyJobs) -> Stream:
    """Yield jobs like `in_order`, by the levels that result from their ages.

    Within a priority the oldest job is first, so levels only fall, and merging is enough.
    """
    levels = [ready.jobs(priority, NO_TENANT) for priority in PRIORITIES]
    for job in merge(*levels):  # noqa: UP028 - as above
        yield job


def in_turns(ready: ReadyJobs, last: Mapping[int, str]) -> Stream:
    """Let tenants take turns within each priority, starting after the one in `last`."""
    for priority in PRIORITIES:
        tenants = _round(ready, priority, last.get(-priority, NO_TENANT))
        yield from _rounds(ready.jobs(priority, tenant) for tenant in tenants)


def by_age_in_turns(ready: ReadyJobs, last: Mapping[int, str]) -> Stream:
    """Let tenants take turns within each level; reads every tenant with ready jobs."""
    tenants = {NO_TENANT}.union(*(ready.tenants(priority, NO_TENANT) for priority in PRIORITIES))
    lines = {
        tenant: _Line(merge(*(ready.jobs(priority, tenant) for priority in PRIORITIES)))
        for tenant in sorted(tenants)
    }
    for level in range(-HIGHEST, 1):
        former = last.get(level, NO_TENANT)
        turn = [name for name in lines if name > former] + [
            name for name in lines if name <= former
        ]
        yield from _rounds(lines[name].until(level) for name in turn)


def _round(ready: ReadyJobs, priority: int, last: str) -> Iterator[str]:
    """Yield each tenant once, starting after the one that had the last turn."""
    yield from ready.tenants(priority, last)
    yield NO_TENANT
    for tenant in ready.tenants(priority, NO_TENANT) if last else ():
        if tenant > last:
            return
        yield tenant


def _rounds(lines: Iterable[Iterator[Candidate]]) -> Stream:
    """Yield one job of each line in turn; a job that is held does not use up the turn."""
    while True:
        left: list[Iterator[Candidate]] = []
        for line in lines:
            for job in line:
                if (yield job):
                    left.append(line)
                    break
        if not left:
            return
        lines = left


class _Line:
    """Jobs ordered by level, to be read level by level."""

    def __init__(self, jobs: Iterator[Candidate]) -> None:
        self._jobs = jobs
        self._head = next(jobs, None)

    def until(self, level: int) -> Iterator[Candidate]:
        while (job := self._head) is not None and job.level <= level:
            self._head = next(self._jobs, None)
            yield job


class Chosen(msgspec.Struct):
    """The result of a claim: the jobs to start, and those that are held, by what holds them.

    That is a limit, or a task that the claim does not know. It `gave_up` if there may be more to
    take behind those.
    """

    taken: list[Candidate] = []
    held: dict[int, tuple[str, str]] = {}
    gave_up: bool = False


def choose(
    streams: Sequence[Stream],
    limit: int,
    places: Places,
    patience: int | None,
    knows: Callable[[Versioned], bool],
    *,
    holds_for_limits: bool = True,
) -> Chosen:
    """Take up to `limit` jobs of known tasks for which there are places.

    Gives up after `patience` jobs that are held, so that the caller can set them aside. Without
    `holds_for_limits`, these are jobs of unknown tasks only.
    """
    chosen = Chosen()
    seen: set[int] = set()
    heads = [(job, n) for n, stream in enumerate(streams) if (job := next(stream, None))]
    heapify(heads)
    while heads and len(chosen.taken) < limit:
        job, n = heappop(heads)
        if not places.queue_is_open(job.queue):
            continue  # and the rest of its stream
        taken = False
        if job.id not in seen:  # it may appear once for each of its tags
            seen.add(job.id)
            holder = places.holder(job) if knows(job) else holder_of(job)
            if holder is None:
                taken = True
                places.take(job)
                chosen.taken.append(job)
            elif holds_for_limits or holder[0] == UNKNOWN:
                chosen.held[job.id] = holder
                if patience is not None and len(chosen.held) >= patience:
                    chosen.gave_up = True
                    break
        with suppress(StopIteration):
            heappush(heads, (streams[n].send(taken), n))
    return chosen


def stream_of(
    ready: ReadyJobs, *, fair: bool, ages: bool, last: Callable[[], Mapping[int, str]]
) -> Stream:
    """Return the jobs of a queue in order: with turns of tenants, ages, both or neither."""
    if fair:
        return (by_age_in_turns if ages else in_turns)(ready, last())
    return by_age(ready) if ages else in_order(ready)
