"""What is known of jobs, as it is in memory."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from heapq import nsmallest
from itertools import islice, takewhile

from msgspec.structs import replace

from penstock.core.job import (
    LONGEST_LINE,
    Counts,
    Edge,
    Job,
    JobId,
    JobQuery,
    KeyLine,
    Overall,
    Queue,
    QueueQuery,
    Record,
    fits,
    queue_at,
)
from penstock.core.lifecycle import State, Waiting
from penstock.stores.memory.content import Content

_RUNNING = frozenset({State.RUNNING})
_STAGES: tuple[tuple[State, Waiting | None], ...] = (
    *((State.PENDING, waiting) for waiting in Waiting),
    *((state, None) for state in State if state is not State.PENDING),
)


def found(content: Content, query: JobQuery) -> Iterator[Job]:
    """The jobs that fit, in the order that was asked for."""
    return islice((job for job in _within(content, query) if _fits(job, query)), query.limit)


def _within(content: Content, query: JobQuery) -> Iterable[Job]:
    """What is listed, up to the last id that is looked at."""
    listed, last = _listed(content, query), query.until
    if last is None:
        return listed
    if query.newest_first:
        return takewhile(lambda job: job.id >= last, listed)
    return takewhile(lambda job: job.id <= last, listed)


def _listed(content: Content, query: JobQuery) -> Iterable[Job]:
    """The jobs from which a query picks: not all of them where only running ones can fit."""
    if query.cancel_requested or query.states == _RUNNING:
        ids = sorted(content.leased.ids(), reverse=query.newest_first)
        return map(content.jobs.__getitem__, ids)
    read = content.jobs.before if query.newest_first else content.jobs.after
    return read(query.after)


def _fits(job: Job, query: JobQuery) -> bool:
    after = query.after
    return (after is None or (job.id < after if query.newest_first else job.id > after)) and fits(
        job, query
    )


def keys(content: Content, after: str | None, limit: int) -> list[KeyLine]:
    """See `Store.keys`."""
    found = nsmallest(limit, (key for key in content.lines if key > (after or "")))
    return [_line(content, key) for key in found]


def _line(content: Content, key: str) -> KeyLine:
    jobs = content.in_line(key)
    first = min(content.lines[key].running or jobs)
    return KeyLine(key=key, first=first, length=min(len(jobs), LONGEST_LINE))


def counted(content: Content, queues: Collection[str] | None) -> Counts:
    """See `Store.count`."""
    if queues is None:
        return {place: total for place, total in content.totals.items() if total}
    places = [(name, *stage) for name in queues for stage in _STAGES]
    return {place: total for place in places if (total := content.totals.get(place, 0))}


def oldest_ready(content: Content, queues: Collection[str] | None) -> dict[str, datetime]:
    """See `Store.oldest_ready`."""
    names = content.ages.keys() if queues is None else content.ages.keys() & {*queues}
    return {name: content.ages[name].first()[0] for name in names}  # type: ignore[index] # none is empty


def queues(content: Content, query: QueueQuery) -> list[Queue]:
    """See `Store.queues`."""
    known = content.queues
    names = known if query.names is None else {*query.names}.intersection(known)
    wanted = (name for name in names if query.wants(name))
    page = sorted(wanted) if query.limit is None else nsmallest(query.limit, wanted)
    return [queue_at(known[name], content.now) for name in page]


def overall(content: Content, without: frozenset[str]) -> Overall:
    """See `Store.overall`."""
    found = [queue for name, queue in content.queues.items() if name not in without]
    counts: Counter[tuple[State, Waiting | None]] = Counter()
    for (name, state, waiting), n in content.totals.items():
        if n and name not in without:
            counts[state, waiting] += n
    ages = [ages.first()[0] for name, ages in content.ages.items() if name not in without]  # type: ignore[index] # none is empty
    return Overall(
        queues=len(found),
        paused=sum(queue_at(queue, content.now).paused for queue in found),
        counts=dict(counts),
        oldest_ready=min(ages, default=None),
    )


def edges(content: Content, ids: Sequence[JobId]) -> list[Edge]:
    """See `Store.edges`."""
    found = {
        (edge.job_id, edge.needed): edge
        for place in ids
        for edge in (
            *content.dependents.get(place, {}).values(),
            *(content.dependents[one][place] for one in content.needed.get(place, ())),
        )
    }
    return [found[place] for place in sorted(found)]


def histories(content: Content, ids: Sequence[JobId]) -> list[Record]:
    """See `Store.histories`."""
    return [
        Record(
            job=replace(job),
            log=tuple(content.log[entry] for entry in content.entries[job.id]),
            edges=tuple(content.open_edges(job.id)),
        )
        for job in map(content.jobs.get, ids)
        if job is not None
    ]


def ready_tags(content: Content, queue: str, limit: int, among: Sequence[str] | None) -> list[str]:
    """See `Store.ready_tags`."""
    running = content.totals[queue, State.RUNNING, None]
    queues = content.open_queues([queue])
    if not any(content.claiming.is_open(found, running, content.now) for found in queues):
        return []
    places = {*content.ready, *content.claiming.places()}
    found = {tag for name, tag in places if name == queue and tag is not None}
    return sorted(found if among is None else found & {*among})[:limit]


def backlog(content: Content, queue: str | None, until: JobId | None) -> tuple[int, JobId]:
    """See `Store.backlog`."""
    sets = content.unfinished.values() if queue is None else [content.unfinished.get(queue, ())]
    ids = [place for ids in sets for place in ids if until is None or place <= until]
    return len(ids), max(ids, default=until or JobId(0))


def places(content: Content, source: int, ids: Sequence[JobId]) -> Mapping[JobId, JobId]:
    """See `Store.places`."""
    own = {job.id for job in map(content.jobs.get, ids) if job and source == content.source}
    found = {one: one if one in own else content.origins.get((source, one)) for one in ids}
    return {one: place for one, place in found.items() if place is not None}
