"""Claims where limits, tenants or ages have a say: what the store keeps for them.

Running jobs are counted when they matter, from the jobs themselves. Jobs that a limit holds stay
where they are: a claim passes them by.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from heapq import merge
from typing import Any, NamedTuple

from penstock.core.choosing import NO_TENANT, Candidate, Stream, choose, promoted, stream_of
from penstock.core.job import Claim, Job, JobId, Queue
from penstock.core.limits import (
    MOST_QUEUES,
    Held,
    Limit,
    Places,
    Start,
    free_at,
    rate_taken,
    started,
    throttle_limit,
)
from penstock.core.times import from_micros, span_to_micros, to_micros
from penstock.stores.memory.batch import Batch
from penstock.stores.memory.shelves import Ranked, Ranking

_NO_MORE: Ranked = ()

Rankings = Mapping[tuple[str, str | None], Ranking]
"""Ready jobs without a tenant by queue, and by queue and tag."""
Shares = dict[tuple[int, str], Ranking]
"""Ready jobs by priority and tenant."""


class Chosen(NamedTuple):
    """The jobs that a claim gets, and what is remembered of it."""

    ids: list[JobId]
    starts: dict[str, list[Start]]
    turns: dict[str, dict[int, str]]


class Claiming:
    """The limits of tasks and throttles, the starts that rates count, and the tenants' shares."""

    def __init__(self) -> None:
        self._limits: dict[tuple[Any, str], int] = {}
        self.starts: dict[str, list[Start]] = {}
        self.turns: dict[str, dict[int, str]] = {}
        self._shares: dict[tuple[str, str | None], Shares] = {}
        self._throttled: set[JobId] = set()

    # What is ready

    def enter(self, job: Job) -> None:
        """A job with a tenant or a throttle is ready."""
        if job.throttle is not None:
            self._throttled.add(job.id)
        if job.tenant is not None:
            for tag in {None, *job.tags}:
                shares = self._shares.setdefault((job.queue, tag), {})
                ranking = shares.setdefault((job.priority, job.tenant), Ranking())
                ranking.put(job.id, -job.priority, job.run_at)

    def leave(self, job: Job) -> None:
        """It is not ready any more."""
        self._throttled.discard(job.id)
        if job.tenant is not None:
            place = (job.priority, job.tenant)
            for tag in {None, *job.tags}:
                shares = self._shares[job.queue, tag]
                shares[place].drop(job.id)
                if not shares[place]:
                    del shares[place]
                if not shares:
                    del self._shares[job.queue, tag]

    def places(self) -> Iterable[tuple[str, str | None]]:
        """The queues and tags of ready jobs that have a tenant."""
        return self._shares.keys()

    # Limits

    def apply(self, batch: Batch) -> None:
        """Take over what a batch says."""
        for limit in batch.limits:
            if limit.concurrency is None:
                self._limits.pop((limit.kind, limit.name), None)
            else:
                self._limits[limit.kind, limit.name] = limit.concurrency
        self.starts.update(batch.starts)
        for queue, turns in batch.turns.items():
            self.turns.setdefault(queue, {}).update(turns)

    def forget(self, queue: str) -> None:
        """A queue is no more."""
        self.starts.pop(queue, None)
        self.turns.pop(queue, None)

    @property
    def most_queues(self) -> int:
        """How many queues there may be."""
        return self._limits.get(("queues", ""), MOST_QUEUES)

    def limits(self) -> list[Limit]:
        """See `Store.limits`."""
        return [
            Limit(kind=kind, name=name, concurrency=n)
            for (kind, name), n in sorted(self._limits.items())
        ]

    def held(self, job: Job, queue: Queue, running: Sequence[Job], now: datetime) -> list[Held]:
        """See `Store.held`."""
        found: list[Held] = []
        in_queue = sum(other.queue == queue.name for other in running)
        if queue.concurrency is not None and in_queue >= queue.concurrency:
            found.append(
                Held(kind="queue", name=queue.name, taken=in_queue, limit=queue.concurrency)
            )
        if queue.rate is not None:
            (limit, span), starts = queue.rate, self.starts.get(queue.name, [])
            taken = rate_taken(starts, to_micros(now), span_to_micros(span))
            until = free_at(starts, limit, span_to_micros(span))
            if taken >= limit:
                found.append(
                    Held(
                        kind="rate",
                        name=queue.name,
                        taken=taken,
                        limit=limit,
                        until=None if until is None else from_micros(until),
                    )
                )
        of_task = sum(other.task == job.task for other in running)
        if of_task >= (limit := self._limits.get(("task", job.task), len(running) + 1)):
            found.append(Held(kind="task", name=job.task, taken=of_task, limit=limit))
        if job.throttle is not None:
            limit = throttle_limit(self._prefixes(), job.throttle)
            taken = sum(other.throttle == job.throttle for other in running)
            if taken >= limit:
                found.append(Held(kind="throttle", name=job.throttle, taken=taken, limit=limit))
        return found

    def next_start(self, queues: Iterable[Queue], after: datetime) -> datetime | None:
        """When a rate that has come to its limit lets the next one start, behind an instant."""
        instants = [
            from_micros(at)
            for queue in queues
            if queue.rate is not None
            and (
                at := free_at(
                    self.starts.get(queue.name, []), queue.rate[0], span_to_micros(queue.rate[1])
                )
            )
            is not None
        ]
        return min((at for at in instants if at > after), default=None)

    def is_open(self, queue: Queue, running: int, now: datetime) -> bool:
        """Whether the limits of a queue let another job start."""
        room = self._room(queue, running, now)
        return room is None or room > 0

    def _prefixes(self) -> dict[str, int]:
        return {name: n for (kind, name), n in self._limits.items() if kind == "throttle"}

    # Claims

    def has_a_say(self, queues: Iterable[Queue]) -> bool:
        """Whether a claim from these queues depends on more than priority and time."""
        return bool(
            self._throttled
            or any(kind == "task" for kind, _ in self._limits)
            or any(
                queue.concurrency is not None
                or queue.rate is not None
                or queue.promote_after is not None
                or (queue.name, None) in self._shares
                for queue in queues
            )
        )

    def choose(  # noqa: PLR0917 - the parts of the store that a claim reads
        self,
        wanted: Claim,
        queues: Sequence[Queue],
        ready: Rankings,
        job_of: Callable[[JobId], Job],
        running: Sequence[Job],
        now: datetime,
    ) -> Chosen:
        """The jobs to start."""
        places = self._places(queues, running, now)
        tags: set[str | None] = set(wanted.tags) or {None}
        streams = [
            self._stream(queue, tags, ready, job_of, now)
            for queue in queues
            if places.queue_is_open(queue.name)
        ]
        taken = choose(streams, wanted.limit, places, patience=None).taken
        return Chosen(
            ids=[JobId(job.id) for job in taken],
            starts=self._started(Counter(job.queue for job in taken), queues, now),
            turns=self._taken_turns(taken),
        )

    def _started(
        self, counts: Counter[str], queues: Iterable[Queue], now: datetime
    ) -> dict[str, list[Start]]:
        """The starts to remember after these."""
        found = {}
        for queue in queues:
            if queue.rate is not None and (n := counts[queue.name]):
                before, window = self.starts.get(queue.name, []), span_to_micros(queue.rate[1])
                found[queue.name] = started(before, to_micros(now), n, window)
        return found

    def _taken_turns(self, taken: Iterable[Candidate]) -> dict[str, dict[int, str]]:
        turns: dict[str, dict[int, str]] = {}
        for job in taken:
            if (job.queue, None) in self._shares:
                turns.setdefault(job.queue, {})[job.level] = job.tenant or NO_TENANT
        return turns

    def _places(self, queues: Iterable[Queue], running: Sequence[Job], now: datetime) -> Places:
        in_queues = Counter(job.queue for job in running)
        of_tasks = Counter(job.task for job in running)
        of_throttles = Counter(job.throttle for job in running)
        prefixes = self._prefixes()
        return Places(
            queues={queue.name: self._room(queue, in_queues[queue.name], now) for queue in queues},
            tasks={
                name: n - of_tasks[name]
                for (kind, name), n in self._limits.items()
                if kind == "task"
            },
            throttle=lambda name: throttle_limit(prefixes, name) - of_throttles[name],
        )

    def _room(self, queue: Queue, running: int, now: datetime) -> int | None:
        rooms = []
        if queue.concurrency is not None:
            rooms.append(queue.concurrency - running)
        if queue.rate is not None:
            limit, span = queue.rate
            starts = self.starts.get(queue.name, [])
            rooms.append(limit - rate_taken(starts, to_micros(now), span_to_micros(span)))
        return min(rooms, default=None)

    def _stream(
        self,
        queue: Queue,
        tags: Iterable[str | None],
        ready: Rankings,
        job_of: Callable[[JobId], Job],
        now: datetime,
    ) -> Stream:
        places = [(queue.name, tag) for tag in tags]
        shares = [self._shares[place] for place in places if place in self._shares]
        # A job that has several of the tags comes up once for each, one after the other.
        common = merge(*(ready[place] for place in places if place in ready))
        return stream_of(
            _Ready(queue, common, shares, job_of, now),
            fair=bool(shares),
            ages=queue.promote_after is not None,
            last=lambda: self.turns.get(queue.name, {}),
        )


class _Ready:
    """The ready jobs of a queue, or those with a tag."""

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
        self._met: dict[int, deque[JobId]] = {}
        self._shares = shares
        self._job_of = job_of
        self._now = now

    def tenants(self, priority: int, after: str) -> list[str]:
        """Those with ready jobs of a priority, by name, behind `after`."""
        places = {place for shares in self._shares for place in shares}
        return sorted(name for place, name in places if place == priority and name > after)

    def jobs(self, priority: int, tenant: str) -> Iterator[Candidate]:
        """The jobs of a priority and tenant, in order."""
        if tenant != NO_TENANT:
            place = (priority, tenant)
            for entry in merge(*(shares[place] for shares in self._shares if place in shares)):
                yield self._candidate(entry[-1])
            return
        # The common ranking has all priorities in one: what belongs to others is kept for them.
        own = self._met.setdefault(priority, deque())
        while True:
            while own:
                yield self._candidate(own.popleft())
            if (entry := next(self._walk, _NO_MORE)) is _NO_MORE:
                return
            self._met.setdefault(-entry[0], deque()).append(entry[-1])
            if -entry[0] < priority:
                return

    def _candidate(self, job_id: JobId) -> Candidate:
        job = self._job_of(job_id)
        level = job.priority
        if self._queue.promote_after is not None:
            level = promoted(level, self._now - job.run_at, self._queue.promote_after)
        return Candidate(-level, job.run_at, job_id, job.queue, job.task, job.throttle, job.tenant)
