"""Which ready jobs are next where limits, tenants or ages have a say.

A store lists its ready jobs by queue, priority and tenant; here they are put in order, lazily:
nothing is read that is not about to be taken, or held.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from heapq import heapify, heappop, heappush, merge
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from penstock.core.limits import Places

HIGHEST = 10
PRIORITIES = range(HIGHEST, -1, -1)
T = TypeVar("T", int, timedelta)
NO_TENANT = ""
"""The share of the jobs without a tenant; no tenant is called so."""


class Candidate(NamedTuple):
    """A ready job as a claim sees it: `level` is its priority with what its age adds, negated."""

    level: int
    run_at: Any
    id: int
    queue: str
    task: str
    throttle: str | None
    tenant: str | None


def promoted(priority: int, waited: T, ages: T | tuple[T, ...]) -> int:
    """The priority that a job has come to by waiting; times are micros, or timedeltas."""
    if isinstance(ages, tuple):
        steps = sum(age <= waited for age in ages)
    else:
        steps = max(0, waited // ages)
    return min(HIGHEST, priority + steps)


Stream = Generator[Candidate, bool, None]
"""Ready jobs of one queue in their order; is told of each whether it was taken."""


class Ready(Protocol):
    """The ready jobs of one queue, as a store lists them: in order, read as they are wanted."""

    def tenants(self, priority: int, after: str) -> Iterable[str]:
        """The tenants with ready jobs of a priority, by name, all that come behind `after`."""
        ...

    def jobs(self, priority: int, tenant: str) -> Iterator[Candidate]:
        """The jobs of a priority and tenant, `NO_TENANT` for those without one."""
        ...


def in_order(ready: Ready) -> Stream:
    """Highest priority first, then earliest due, then lowest id."""
    for priority in PRIORITIES:
        for job in ready.jobs(priority, NO_TENANT):  # noqa: UP028 - it is no generator to tell
            yield job


def by_age(ready: Ready) -> Stream:
    """As `in_order`, by the levels that ages lead to.

    Within a priority the oldest comes first, so that levels only fall: merging is enough.
    """
    levels = [ready.jobs(priority, NO_TENANT) for priority in PRIORITIES]
    for job in merge(*levels):  # noqa: UP028 - as above
        yield job


def in_turns(ready: Ready, last: Mapping[int, str]) -> Stream:
    """Within each priority, tenants take turns, from the one behind who had the last."""
    for priority in PRIORITIES:
        tenants = _round(ready, priority, last.get(-priority, NO_TENANT))
        yield from _rounds(ready.jobs(priority, tenant) for tenant in tenants)


def by_age_in_turns(ready: Ready, last: Mapping[int, str]) -> Stream:
    """As `in_turns`, by the levels that ages lead to; looks at every tenant with ready jobs."""
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


def _round(ready: Ready, priority: int, last: str) -> Iterator[str]:
    """All tenants once, beginning behind the one that had its turn last."""
    yield from ready.tenants(priority, last)
    yield NO_TENANT
    for tenant in ready.tenants(priority, NO_TENANT) if last else ():
        if tenant > last:
            return
        yield tenant


def _rounds(lines: Iterable[Iterator[Candidate]]) -> Stream:
    """One of each line, as long as there are any; a job that is held costs nobody a turn."""
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
    """Jobs in the order of their levels, to be read level by level."""

    def __init__(self, jobs: Iterator[Candidate]) -> None:
        self._jobs = jobs
        self._head = next(jobs, None)

    def until(self, level: int) -> Iterator[Candidate]:
        while (job := self._head) is not None and job.level <= level:
            self._head = next(self._jobs, None)
            yield job


class Chosen(msgspec.Struct):
    """What a claim comes to: the jobs to start, and those that a limit holds, by that limit."""

    taken: list[Candidate] = []
    held: dict[int, tuple[str, str]] = {}
    gave_up: bool = False


def choose(streams: Sequence[Stream], limit: int, places: Places, patience: int | None) -> Chosen:
    """Take up to `limit` jobs, as far as there are places for them.

    Gives up after meeting `patience` jobs that are held: the caller can put them out of the way.
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
        if job.id not in seen:  # else it came up by another of its tags
            seen.add(job.id)
            holder = places.holder(job)
            if holder is None:
                taken = True
                places.take(job)
                chosen.taken.append(job)
            else:
                chosen.held[job.id] = holder
                if patience is not None and len(chosen.held) >= patience:
                    chosen.gave_up = True
                    break
        with suppress(StopIteration):
            heappush(heads, (streams[n].send(taken), n))
    return chosen


def stream_of(
    ready: Ready, *, fair: bool, ages: bool, last: Callable[[], Mapping[int, str]]
) -> Stream:
    """The order of one queue: with turns of tenants, with ages, with both or neither."""
    if fair:
        return (by_age_in_turns if ages else in_turns)(ready, last())
    return by_age(ready) if ages else in_order(ready)
