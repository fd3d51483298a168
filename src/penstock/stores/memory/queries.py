"""Verbs that only read: what the store answers about its jobs and queues."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from heapq import nsmallest
from itertools import islice, takewhile

from msgspec.structs import replace

from penstock.core.dependencies import Edge
from penstock.core.job import Job, JobId
from penstock.core.key_line import LONGEST_LINE, KeyLine
from penstock.core.lifecycle import State, Waiting
from penstock.core.query import JobQuery, matches
from penstock.core.queue import Counts, Queue, QueueQuery, QueueSummary, queue_at
from penstock.core.restoration import Record
from penstock.core.tasks import SetAside, TaskVersion
from penstock.core.times import to_micros
from penstock.stores.memory.content import STAGES, Content

_RUNNING = frozenset({State.RUNNING})


def find(content: Content, query: JobQuery) -> Iterator[Job]:
    """Yield the jobs that match, in the order that the query asks for."""
    return islice((job for job in _page(content, query) if matches(job, query)), query.limit)


def _page(content: Content, query: JobQuery) -> Iterator[Job]:
    """Yield the candidates between `after` and `until`."""
    candidates = _candidates(content, query)
    after, until, down = query.after, query.until, query.newest_first
    if until is not None:
        candidates = takewhile(lambda job: job.id >= until if down else job.id <= until, candidates)
    if after is not None:
        return (job for job in candidates if (job.id < after if down else job.id > after))
    return iter(candidates)


def _candidates(content: Content, query: JobQuery) -> Iterable[Job]:
    """Return the jobs to compare with a query: only running ones where no other can match."""
    if query.cancel_requested or query.states == _RUNNING:
        ids = sorted(content.leased.ids(), reverse=query.newest_first)
        return map(content.jobs.__getitem__, ids)
    read = content.jobs.before if query.newest_first else content.jobs.after
    return read(query.after)


def keys(content: Content, after: str | None, limit: int) -> list[KeyLine]:
    """See `Store.keys`."""
    found = nsmallest(limit, (key for key in content.lines if key > (after or "")))
    return [_key_line(content, key) for key in found]


def _key_line(content: Content, key: str) -> KeyLine:
    line = content.lines[key]
    first = min(line.running or line.ids())
    return KeyLine(key=key, first=first, length=min(len(line), LONGEST_LINE))


def count(content: Content, queues: Collection[str] | None) -> Counts:
    """See `Store.count`."""
    if queues is None:
        return {place: total for place, total in content.totals.items() if total}
    places = [(name, *stage) for name in queues for stage in STAGES]
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


def summary(content: Content, without: frozenset[str]) -> QueueSummary:
    """See `Store.summary`."""
    found = [queue for name, queue in content.queues.items() if name not in without]
    counts: Counter[tuple[State, Waiting | None]] = Counter()
    for (name, state, waiting), n in content.totals.items():
        if n and name not in without:
            counts[state, waiting] += n
    ages = [ages.first()[0] for name, ages in content.ages.items() if name not in without]  # type: ignore[index] # none is empty
    return QueueSummary(
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


def records(content: Content, ids: Sequence[JobId]) -> list[Record]:
    """See `Store.records`."""
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
    now = to_micros(content.now)
    for found in content.open_queues([queue]):
        room = content.limits.load(found, running).room(now)
        if room is None or room > 0:
            places = {*content.ready, *content.tenants.shares}
            tags = {tag for name, tag, _ in places if name == queue and tag is not None}
            return sorted(tags if among is None else tags & {*among})[:limit]
    return []


def set_aside(content: Content, most: int | None) -> list[SetAside]:
    """See `Store.set_aside`."""
    found: dict[tuple[TaskVersion, str], list[Job]] = {}
    seen: Counter[TaskVersion] = Counter()
    rankings = [*content.ready.items()]
    for place, shares in content.tenants.shares.items():
        rankings += [(place, ranking) for ranking in shares.values()]
    for (queue, tag, task), ranking in rankings:
        if tag is None and task is not None:
            left = None if most is None else max(0, most - seen[task])
            some = [content.jobs[place] for place in islice(ranking.ids(), left)]
            seen[task] += len(some)
            if some:
                found.setdefault((task, queue), []).extend(some)
    return [
        SetAside(*task, queue=queue, jobs=len(jobs), oldest=min(job.run_at for job in jobs))
        for (task, queue), jobs in sorted(found.items())
    ]


def backlog(content: Content, queue: str | None, until: JobId | None) -> tuple[int, JobId]:
    """See `Store.backlog`."""
    sets = content.unfinished.values() if queue is None else [content.unfinished.get(queue, ())]
    ids = [place for ids in sets for place in ids if until is None or place <= until]
    return len(ids), max(ids, default=until or JobId(0))


def restored_ids(content: Content, source: int, ids: Sequence[JobId]) -> Mapping[JobId, JobId]:
    """See `Store.restored_ids`."""
    own = {job.id for job in map(content.jobs.get, ids) if job and source == content.source}
    found = {one: one if one in own else content.origins.get((source, one)) for one in ids}
    return {one: place for one, place in found.items() if place is not None}
