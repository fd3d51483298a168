"""Which ready jobs a claim gets: in plain order, or with limits, tenants and ages."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from heapq import merge
from itertools import groupby, islice
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.choosing import NO_TENANT, Candidate, Stream, choose, promoted, stream_of
from penstock.core.job import Claim, Job, JobId
from penstock.core.limits import Start
from penstock.core.queue import Queue
from penstock.core.tasks import UNKNOWN, TaskVersion
from penstock.core.times import to_micros
from penstock.stores.memory.batch import WriteBatch
from penstock.stores.memory.indexes import Ranked, Ranking

if TYPE_CHECKING:
    from penstock.stores.memory.content import Content

_NO_MORE: Ranked = ()

Shares = dict[tuple[int, str], Ranking]
"""Ready jobs by priority and tenant."""

ReadyPlace = tuple[str, str | None, TaskVersion | None]
"""Where ready jobs are indexed: a queue, a tag, and the task under which they are set aside."""


class ClaimSelection(NamedTuple):
    """The jobs that a claim gets, and what is to be remembered of it."""

    ids: list[JobId]
    starts: Mapping[str, list[Start]] = {}
    turns: Mapping[str, dict[int, str]] = {}


class Tenants:
    """The ready jobs of tenants, whose turn it was last, and the ready jobs with a throttle."""

    def __init__(self) -> None:
        self.turns: dict[str, dict[int, str]] = {}
        self.shares: dict[ReadyPlace, Shares] = {}
        self.throttled: set[JobId] = set()

    def apply(self, batch: WriteBatch) -> None:
        """Apply the turns of a batch."""
        for queue, turns in batch.turns.items():
            self.turns.setdefault(queue, {}).update(turns)

    def forget(self, queue: str) -> None:
        """Drop the turns of a queue that was removed."""
        self.turns.pop(queue, None)

    def add(self, job: Job, aside: TaskVersion | None) -> None:
        """Index a ready job that has a tenant or a throttle."""
        if job.throttle is not None:
            self.throttled.add(job.id)
        if job.tenant is not None:
            for tag in {None, *job.tags}:
                shares = self.shares.setdefault((job.queue, tag, aside), {})
                ranking = shares.setdefault((job.priority, job.tenant), Ranking())
                ranking.put(job.id, -job.priority, job.run_at)

    def remove(self, job: Job, aside: TaskVersion | None) -> None:
        """Remove a job from the index that is no longer ready."""
        self.throttled.discard(job.id)
        if job.tenant is not None:
            share = (job.priority, job.tenant)
            for tag in {None, *job.tags}:
                shares = self.shares[job.queue, tag, aside]
                shares[share].drop(job.id)
                if not shares[share]:
                    del shares[share]
                if not shares:
                    del self.shares[job.queue, tag, aside]


def select(content: "Content", wanted: Claim) -> ClaimSelection:
    """Return the jobs that a claim gets."""
    found = content.open_queues(wanted.queues)
    queues = [queue for queue in found if wanted.wants(queue.name)]
    while True:
        places = _places(content, wanted, queues)
        if _needs_choosing(content, queues, places):
            selected, unknown = _choose(content, wanted, queues, places)
        else:
            entries = islice(_in_order(content, places), wanted.limit)
            selected = ClaimSelection([entry[-1] for entry in entries])
            jobs = (content.jobs[place] for place in selected.ids)
            unknown = {
                TaskVersion(job.task, job.task_version) for job in jobs if not wanted.knows(job)
            }
        if not unknown:
            return selected
        content.set_aside(unknown)


def _places(
    content: "Content", wanted: Claim, queues: Iterable[Queue]
) -> dict[str, list[ReadyPlace]]:
    """Return where the jobs of a claim are indexed, by queue."""
    tags: set[str | None] = set(wanted.tags) or {None}
    aside: list[TaskVersion | None] = [None]
    if content.aside:
        aside += [
            task
            for task in content.aside
            if wanted.tasks is None or (task.task, task.version) in wanted.tasks
        ]
    return {
        queue.name: [(queue.name, tag, task) for tag in tags for task in aside] for queue in queues
    }


def _has_tenants(content: "Content", places: Iterable[ReadyPlace]) -> bool:
    """Whether a queue has ready jobs of tenants that the claim may take."""
    shares = content.tenants.shares
    return any((queue, None, aside) in shares for queue, _, aside in places)


def _needs_choosing(
    content: "Content", queues: Iterable[Queue], places: Mapping[str, list[ReadyPlace]]
) -> bool:
    """Whether a claim from these queues depends on more than priority and time."""
    return bool(
        content.tenants.throttled
        or content.limits.any_of_tasks
        or any(
            queue.concurrency is not None
            or queue.rate is not None
            or queue.promote_after is not None
            or _has_tenants(content, places[queue.name])
            for queue in queues
        )
    )


def _in_order(content: "Content", places: Mapping[str, list[ReadyPlace]]) -> Iterator[Ranked]:
    rankings = [
        content.ready[place]
        for of_queue in places.values()
        for place in of_queue
        if place in content.ready
    ]
    # A job with several of the tags appears once for each, in succession.
    return (entry for entry, _ in groupby(merge(*rankings)))


def _choose(
    content: "Content",
    wanted: Claim,
    queues: Sequence[Queue],
    places: Mapping[str, list[ReadyPlace]],
) -> tuple[ClaimSelection, set[TaskVersion]]:
    """Return what a claim gets, and the unknown tasks of jobs that it had to step over."""
    free = content.limits.places(queues, content.running(), content.now)
    streams = [
        _stream(content, queue, places[queue.name])
        for queue in queues
        if free.queue_is_open(queue.name)
    ]
    chosen = choose(streams, wanted.limit, free, None, wanted.knows)
    taken = chosen.taken
    passed = (content.jobs[JobId(n)] for n, (kind, _) in chosen.held.items() if kind == UNKNOWN)
    unknown = {TaskVersion(job.task, job.task_version) for job in passed}
    turns: dict[str, dict[int, str]] = {}
    for job in taken:
        if _has_tenants(content, places[job.queue]):
            turns.setdefault(job.queue, {})[job.level] = job.tenant or NO_TENANT
    counts = Counter(job.queue for job in taken)
    loads = [content.limits.load(queue, 0) for queue in queues if counts[queue.name]]
    now = to_micros(content.now)
    selected = ClaimSelection(
        ids=[JobId(job.id) for job in taken],
        starts={
            load.name: starts
            for load in loads
            if (starts := load.started(counts[load.name], now)) is not None
        },
        turns=turns,
    )
    return selected, unknown


def _stream(content: "Content", queue: Queue, places: Sequence[ReadyPlace]) -> Stream:
    shares = [content.tenants.shares[one] for one in places if one in content.tenants.shares]
    # A job with several of the tags appears once for each, in succession.
    common = merge(*(content.ready[place] for place in places if place in content.ready))
    return stream_of(
        _ReadyInMemory(queue, common, shares, content.jobs.__getitem__, content.now),
        fair=bool(shares),
        ages=queue.promote_after is not None,
        last=lambda: content.tenants.turns.get(queue.name, {}),
    )


class _ReadyInMemory:
    """The ready jobs of a queue, or those with certain tags."""

    def __init__(
        self,
        queue: Queue,
        ranking: Iterable[Ranked],
        shares: Sequence[Shares],
        job_of: Callable[[JobId], Job],
        now: datetime,
    ) -> None:
        self._queue = queue
        self._walk = iter(ranking)
        self._passed: dict[int, deque[JobId]] = {}
        self._shares = shares
        self._job_of = job_of
        self._now = now

    def tenants(self, priority: int, after: str) -> list[str]:
        """Return the tenants with ready jobs of a priority, by name, starting after `after`."""
        shares = {share for shares in self._shares for share in shares}
        return sorted(name for level, name in shares if level == priority and name > after)

    def jobs(self, priority: int, tenant: str) -> Iterator[Candidate]:
        """Yield the jobs of a priority and tenant, in order."""
        if tenant != NO_TENANT:
            share = (priority, tenant)
            for entry in merge(*(shares[share] for shares in self._shares if share in shares)):
                yield self._candidate(entry[-1])
            return
        # The common ranking has all priorities: jobs of the others are kept until they are due.
        own = self._passed.setdefault(priority, deque())
        while True:
            while own:
                yield self._candidate(own.popleft())
            if (entry := next(self._walk, _NO_MORE)) is _NO_MORE:
                return
            self._passed.setdefault(-entry[0], deque()).append(entry[-1])
            if -entry[0] < priority:
                return

    def _candidate(self, job_id: JobId) -> Candidate:
        job = self._job_of(job_id)
        level = job.priority
        if self._queue.promote_after is not None:
            level = promoted(level, self._now - job.run_at, self._queue.promote_after)
        return Candidate(
            -level, job.run_at, job_id, job.queue, job.task, job.throttle, job.tenant,
            job.task_version,
        )  # fmt: skip
