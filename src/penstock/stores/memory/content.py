"""Everything that a store keeps in memory, and how a batch changes it."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from itertools import takewhile
from operator import attrgetter

from msgspec import UNSET
from msgspec.structs import replace

from penstock.core.dependencies import Edge
from penstock.core.job import Job, JobId, Lease, LogEntry, LogId
from penstock.core.key_line import Queued, rearranged
from penstock.core.lifecycle import FINAL, UNFINISHED, Event, State, Waiting
from penstock.core.migration_lock import MigrationLock
from penstock.core.queue import Queue, queue_at
from penstock.core.tasks import TaskVersion
from penstock.core.times import from_micros
from penstock.core.tokens import Token
from penstock.stores.memory.batch import WriteBatch
from penstock.stores.memory.claims import ReadyPlace, Tenants
from penstock.stores.memory.indexes import ById, LineIndex, Ranked, Ranking
from penstock.stores.memory.limits import StoredLimits
from penstock.stores.memory.reports import Reports
from penstock.stores.memory.schedules import StoredSchedules
from penstock.stores.memory.statistics import StoredStatistics
from penstock.stores.memory.workers import StoredWorkers

STAGES: tuple[tuple[State, Waiting | None], ...] = (
    *((State.PENDING, waiting) for waiting in Waiting),
    *((state, None) for state in State if state is not State.PENDING),
)
"""What a job can be: its state and, if it is pending, what it waits for."""

_UNTAGGED = (None,)
_OFTEN = {
    "jobs", "entries", "queues", "edges", "removed", "last_job", "last_log", "migration_lock",
}  # fmt: skip
_rest_of = attrgetter(*(name for name in WriteBatch.__struct_fields__ if name not in _OFTEN))


class Content:
    """Jobs and everything that belongs to them.

    Only `tick` and `apply` change anything, besides `set_aside`, which changes an index.
    """

    def __init__(self, source: int) -> None:
        self.source = source
        self.now = from_micros(0)
        self.last_job = 0
        self.last_log = 0
        self.jobs: ById[Job] = ById()
        self.log: ById[LogEntry] = ById()
        self.queues: dict[str, Queue] = {}
        self.dependents: dict[JobId, dict[JobId, Edge]] = {}
        self.origins: dict[tuple[int, JobId], JobId] = {}
        self.reports = Reports()
        self.schedules = StoredSchedules()
        self.tokens: dict[str, Token] = {}
        self.limits = StoredLimits()
        self.tenants = Tenants()
        self.statistics = StoredStatistics(self.queues.keys())
        self.workers = StoredWorkers()
        self.migration_lock: MigrationLock | None = None
        # Indexes: everything below is derived from the above.
        self.needed: dict[JobId, set[JobId]] = {}
        self.entries: dict[JobId, list[LogId]] = {}
        self.totals: Counter[tuple[str, State, Waiting | None]] = Counter()
        self.unfinished: dict[str, set[JobId]] = {}
        self.ready: dict[ReadyPlace, Ranking] = {}
        # The tasks that a claim did not know, with the number of their ready jobs.
        self.aside: Counter[TaskVersion] = Counter()
        self.ages: dict[str, Ranking] = {}
        self.scheduled = Ranking()
        self.leased = Ranking()
        self.ended = {state: Ranking() for state in FINAL}
        self.lines: dict[str, LineIndex] = {}
        self.holders: dict[str, set[JobId]] = {}

    # Reading

    def running(self) -> list[Job]:
        """Return the jobs that have a lease."""
        return [self.jobs[place] for place in self.leased.ids()]

    def is_held(self, lease: Lease) -> bool:
        """Return whether a job still runs under this lease."""
        job = self.jobs.get(lease.job_id)
        return job is not None and (job.state, job.token) == (State.RUNNING, lease.token)

    def queue(self, name: str) -> Queue:
        """Return a queue as it is now; one without settings if it does not exist."""
        stored = self.queues.get(name)
        return Queue(name=name) if stored is None else queue_at(stored, self.now)

    def open_queues(self, names: Iterable[str] | None) -> list[Queue]:
        """Return those of these queues, or of all, that exist and are not paused."""
        chosen = self.queues.keys() if names is None else set(names)
        return [
            self.queues[name]
            for name in chosen
            if name in self.queues and not queue_at(self.queues[name], self.now).paused
        ]

    def next_opening(self, after: datetime) -> datetime | None:
        """Return when, after an instant, the first pause ends or a rate admits a start."""
        ends = [queue.paused_until for queue in self.queues.values() if queue.paused]
        start = self.limits.next_start(self.open_queues(None), after)
        return min((at for at in (*ends, start) if at is not None and at > after), default=None)

    def open_edges(self, place: JobId) -> Iterator[Edge]:
        """Yield the edges to the jobs that a job waits for."""
        edges = (self.dependents[one][place] for one in sorted(self.needed.get(place, ())))
        return (edge for edge in edges if not edge.resolved)

    def newest_pending(self, key: str | None) -> tuple[JobId, LogId] | None:
        """Return the id and version of the newest pending job of a key."""
        pending = self.lines[key].pending.ids() if key in self.lines else ()
        if not pending:
            return None
        job = self.jobs[max(pending)]
        return job.id, job.version

    # Changing

    def tick(self, now: datetime) -> bool:
        """Advance the time; make every job ready that has fallen due. Returns whether any has."""
        self.now = now
        due = [entry[-1] for entry in until(now, self.scheduled)]
        for place in due:
            self._put(replace(self.jobs[place], waiting=Waiting.READY))
        return bool(due)

    def apply(self, batch: WriteBatch) -> None:
        """Apply a batch."""
        for queue in batch.queues:
            self.queues[queue.name] = queue
        unused = {queue.name for queue in batch.queues}
        unused.update(self.jobs[place].queue for place in batch.removed)
        for job in batch.jobs:
            self._relate(job, self._put(job))
        for key in {job.key for job in batch.jobs}:
            if key is not None:
                self._rearrange(key)
        for entry in batch.entries:
            # In a snapshot, a higher id comes first: the entry that had it was removed.
            self.last_log = max(self.last_log, entry.id)
            self.log.put(entry.id, entry)
            self.entries.setdefault(entry.job_id, []).append(entry.id)
        self._link(batch.edges)
        self.last_job = max(self.last_job, batch.last_job)
        self.last_log = max(self.last_log, batch.last_log)
        for place in batch.removed:
            self._remove(place)
        for name in unused:
            self._remove_unused(name)
        if self.reports:
            self.reports.follow(batch.jobs, batch.entries, batch.removed)
        if batch.migration_lock is not UNSET or any(_rest_of(batch)):
            self._apply_rest(batch)

    def _apply_rest(self, batch: WriteBatch) -> None:
        """Apply what few batches have."""
        for part in (self.schedules, self.limits, self.tenants, self.workers, self.reports):
            part.apply(batch)
        for source, original, place in batch.origins:
            self.origins[source, original] = place
        for token in batch.tokens:
            self.tokens[token.name] = token
        for name in batch.dropped_tokens:
            self.tokens.pop(name, None)
        if batch.migration_lock is not UNSET:
            self.migration_lock = batch.migration_lock
        self.statistics.apply(batch)
        if batch.roll_up_to:
            uncounted = self.log.after(self.statistics.rolled_up_to)
            entries = takewhile(lambda entry: entry.id <= batch.roll_up_to, uncounted)
            self.statistics.roll_up(entries, self._counted_under)

    def _counted_under(self, entry: LogEntry) -> str | None:
        """Return the queue that an entry counts for; None if it was imported with its job."""
        later = (self.log[one] for one in self.entries[entry.job_id] if one > entry.id)
        if any(one.event is Event.RESTORED for one in later):
            return None
        return self.jobs[entry.job_id].queue

    def _remove(self, place: JobId) -> None:
        self._unlink(place)
        job = self.jobs[place]
        if job.state in UNFINISHED:  # of a store whose jobs have left
            ended = replace(job, state=State.CANCELLED, waiting=None, finished_at=self.now)
            self._relate(ended, self._put(ended))
            if job.key is not None:
                self._rearrange(job.key)
        self._unindex(self.jobs.pop(place))
        for entry_id in self.entries.pop(place):
            self.log.pop(entry_id)

    def _remove_unused(self, name: str) -> None:
        """Remove a queue that has neither jobs nor settings."""
        if name not in self.queues or self.queue(name) != Queue(name=name):
            return
        places = [(name, *stage) for stage in STAGES]
        if any(self.totals[place] for place in places):
            return
        for place in places:
            del self.totals[place]
        del self.queues[name]
        self.unfinished.pop(name, None)
        self.limits.forget(name)
        self.tenants.forget(name)

    def _link(self, edges: Iterable[Edge]) -> None:
        for edge in edges:
            self.dependents.setdefault(edge.needed, {})[edge.job_id] = edge
            self.needed.setdefault(edge.job_id, set()).add(edge.needed)

    def _unlink(self, place: JobId) -> None:
        for job_id in self.dependents.pop(place, {}):
            self.needed[job_id].discard(place)
        for needed in self.needed.pop(place, ()):
            self.dependents[needed].pop(place, None)

    # Indexing

    def set_aside(self, tasks: Collection[TaskVersion]) -> None:
        """Index the ready jobs of these tasks apart from others, as long as there are any."""
        ready = [self.jobs[place] for ranking in self.ages.values() for place in ranking.ids()]
        moved = [job for job in ready if (job.task, job.task_version) in tasks]
        for job in moved:
            self._unindex(job)
        self.aside.update(dict.fromkeys(tasks, 0))
        for job in moved:
            self._index(job)

    def _aside_of(self, job: Job) -> TaskVersion | None:
        """Return under which task a ready job is set aside; None for most."""
        if not self.aside:
            return None
        task = TaskVersion(job.task, job.task_version)
        return task if task in self.aside else None

    def _put(self, job: Job) -> Job | None:
        """Store a job as it is now; returns it as it was."""
        if (old := self.jobs.get(job.id)) is not None:
            self._unindex(old)
        self.jobs.put(job.id, job)
        self._index(job)
        return old

    def _index(self, job: Job) -> None:
        self.totals[job.queue, job.state, job.waiting] += 1
        if job.waiting is Waiting.READY:
            aside = self._aside_of(job)
            if aside is not None:
                self.aside[aside] += 1
            self.ages.setdefault(job.queue, Ranking()).put(job.id, job.run_at)
            for tag in _tags(job):
                ranking = self.ready.setdefault((job.queue, tag, aside), Ranking())
                ranking.put(job.id, -job.priority, job.run_at)
            if job.tenant is not None or job.throttle is not None:
                self.tenants.add(job, aside)
        elif job.waiting is Waiting.SCHEDULED:
            self.scheduled.put(job.id, job.run_at)
        elif job.state is State.RUNNING:
            self.leased.put(job.id, job.expires_at)
        elif job.state in FINAL:
            self.ended[job.state].put(job.id, job.finished_at)

    def _unindex(self, job: Job) -> None:
        self.totals[job.queue, job.state, job.waiting] -= 1
        if job.waiting is Waiting.READY:
            self._unindex_ready(job)
        elif job.waiting is Waiting.SCHEDULED:
            self.scheduled.drop(job.id)
        elif job.state is State.RUNNING:
            self.leased.drop(job.id)
        elif job.state in FINAL:
            self.ended[job.state].drop(job.id)

    def _unindex_ready(self, job: Job) -> None:
        aside = self._aside_of(job)
        self.ages[job.queue].drop(job.id)
        if not self.ages[job.queue]:
            del self.ages[job.queue]
        for tag in _tags(job):
            ranking = self.ready[job.queue, tag, aside]
            ranking.drop(job.id)
            if not ranking:
                del self.ready[job.queue, tag, aside]
        if job.tenant is not None or job.throttle is not None:
            self.tenants.remove(job, aside)
        if aside is not None:
            self.aside[aside] -= 1
            if not self.aside[aside]:
                del self.aside[aside]

    def _relate(self, job: Job, old: Job | None) -> None:
        """Index a job by its queue, its key and its dedupe key."""
        if old is None:
            self.last_job = max(self.last_job, job.id)
            if job.queue not in self.queues:
                self.queues[job.queue] = Queue(name=job.queue)
        if old is None or (old.state in UNFINISHED) != (job.state in UNFINISHED):
            self._count(job)
        if job.key is not None:
            self.lines.setdefault(job.key, LineIndex()).put(job)

    def _count(self, job: Job) -> None:
        """Index whether a job is unfinished."""
        sets = [self.unfinished.setdefault(job.queue, set())]
        if job.dedupe is not None:
            sets.append(self.holders.setdefault(job.dedupe, set()))
        for ids in sets:
            (ids.add if job.state in UNFINISHED else ids.discard)(job.id)
        if job.dedupe is not None and not self.holders[job.dedupe]:
            del self.holders[job.dedupe]

    def _rearrange(self, key: str) -> None:
        """Let the right job of a key be visible to claims."""
        line = self.lines[key]
        pending = {
            self._queued(place) for place in (line.oldest(), line.visible) if place is not None
        }
        for place, waiting in rearranged(pending, self.now, running=bool(line.running)):
            job = replace(self.jobs[place], waiting=waiting)
            self._put(job)
            line.put(job)
        if not line:
            del self.lines[key]

    def _queued(self, place: JobId) -> Queued[datetime]:
        job = self.jobs[place]
        return Queued(job.id, job.waiting or Waiting.BLOCKED, job.needs, job.run_at)


def _tags(job: Job) -> Iterable[str | None]:
    """Return the common rankings of a ready job; a job of a tenant is in a share instead."""
    if job.tenant is not None:
        return ()
    return {None, *job.tags} if job.tags else _UNTAGGED


def until(when: datetime, ranking: Iterable[Ranked]) -> Iterator[Ranked]:
    """Yield the entries of a ranking by time that are not later than an instant."""
    return takewhile(lambda entry: entry[0] <= when, ranking)
