"""What is known of jobs, as it is in memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from penstock.core.job import Edge, Job, JobId, JobQuery, Record, fits
from penstock.core.lifecycle import State
from penstock.stores.memory.content import Content

_RUNNING = frozenset({State.RUNNING})


def found(content: Content, query: JobQuery) -> Iterator[Job]:
    """The jobs that fit, in the order that was asked for."""
    return islice((job for job in _listed(content, query) if _fits(job, query)), query.limit)


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
