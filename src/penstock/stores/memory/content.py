"""All that a store keeps in memory, and how a batch changes it."""

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import takewhile
from operator import attrgetter

from msgspec import UNSET
from msgspec.structs import replace

from penstock.core.job import Edge, Job, JobId, Lease, LogEntry, LogId, Queue, queue_at
from penstock.core.lifecycle import FINAL, UNFINISHED, Event, State, Waiting
from penstock.core.seal import Seal
from penstock.core.times import from_micros
from penstock.core.token import Token
from penstock.stores.memory.attendance import Attendance
from penstock.stores.memory.batch import Batch
from penstock.stores.memory.claiming import Claiming
from penstock.stores.memory.history import Sums
from penstock.stores.memory.notes import Notes
from penstock.stores.memory.shelves import Line, Ranked, Ranking, Shelf
from penstock.stores.memory.timetable import Timetable

_UNTAGGED = (None,)
_STAGES: list[tuple[State, Waiting | None]] = [
    *((State.PENDING, waiting) for waiting in Waiting),
    *((state, None) for state in State if state is not State.PENDING),
]
_OFTEN = {"jobs", "entries", "queues", "edges", "removed", "last_job", "last_log", "seal"}
_rest_of = attrgetter(*(name for name in Batch.__struct_fields__ if name not in _OFTEN))


class Content:
    """Jobs and all that belongs to them. Only `tick` and `apply` change anything."""

    def __init__(self, source: int | None = None) -> None:
        self.now = from_micros(0)
        self.source = secrets.randbits(63) if source is None else source
        self.last_job = 0
        self.last_log = 0
        self.jobs: Shelf[Job] = Shelf()
        self.log: Shelf[LogEntry] = Shelf()
        self.queues: dict[str, Queue] = {}
        self.origins: dict[tuple[int, JobId], JobId] = {}
        self.notes = Notes()
        self.timetable = Timetable()
        self.tokens: dict[str, Token] = {}
        self.sums = Sums(self.queues.keys())
        self.attendance = Attendance()
        self.seal: Seal | None = None
        self.claiming = Claiming()
        self.dependents: dict[JobId, dict[JobId, Edge]] = {}
        # All below follows from the above.
        self.needed: dict[JobId, set[JobId]] = {}
        self.entries: dict[JobId, list[LogId]] = {}
        self.totals: Counter[tuple[str, State, Waiting | None]] = Counter()
        self.unfinished: dict[str, set[JobId]] = {}
        self.ready: dict[tuple[str, str | None], Ranking] = {}
        self.ages: dict[str, Ranking] = {}
        self.scheduled = Ranking()
        self.leased = Ranking()
        self.ended = {state: Ranking() for state in FINAL}
        self.lines: dict[str, Line] = {}
        self.holders: dict[str, set[JobId]] = {}

    # What there is

    def running(self) -> list[Job]:
        """The jobs that have a lease."""
        return [self.jobs[place] for place in self.leased.ids()]

    def is_held(self, lease: Lease) -> bool:
        """Whether a job still runs under this lease."""
        job = self.jobs.get(lease.job_id)
        return job is not None and (job.state, job.token) == (State.RUNNING, lease.token)

    def open_queues(self, names: Iterable[str] | None) -> list[Queue]:
        """Those of these queues, or of all, that are not paused."""
        chosen = self.queues.keys() if names is None else set(names)
        return [
            self.queues[name]
            for name in chosen
            if name in self.queues and not queue_at(self.queues[name], self.now).paused
        ]

    def next_opening(self, queues: Iterable[Queue], after: datetime) -> datetime | None:
        """When a pause ends, or a rate of these queues lets a job start; behind `after`."""
        ends = [queue.paused_until for queue in self.queues.values() if queue.paused]
        start = self.claiming.next_start(queues, after)
        return min((at for at in (*ends, start) if at is not None and at > after), default=None)

    def open_edges(self, place: JobId) -> Iterator[Edge]:
        """What a job waits for."""
        edges = (self.dependents[one][place] for one in sorted(self.needed.get(place, ())))
        return (edge for edge in edges if not edge.resolved)

    def tail(self, key: str | None) -> Job | None:
        """The newest pending job of a key."""
        pending = self.lines[key].pending.ids() if key in self.lines else ()
        return self.jobs[max(pending)] if pending else None

    def in_line(self, key: str) -> list[JobId]:
        """The unfinished jobs of a key."""
        line = self.lines.get(key)
        return [] if line is None else [*line.pending.ids(), *line.running]

    # What changes it

    def tick(self, now: datetime) -> bool:
        """It is so late now: make every job ready that has fallen due; whether there was one."""
        self.now = now
        due = [entry[-1] for entry in until(now, self.scheduled)]
        for place in due:
            self._put(replace(self.jobs[place], waiting=Waiting.READY))
        return bool(due)

    def apply(self, batch: Batch) -> None:
        """Take over all that a batch says."""
        for queue in batch.queues:
            self.queues[queue.name] = queue
        unused = {queue.name for queue in batch.queues}
        unused.update(self.jobs[place].queue for place in batch.removed)
        for job in batch.jobs:
            self._relate(job, self._put(job))
        for key in {job.key for job in batch.jobs}:
            if key is not None:
                self._show_head(key)
        for entry in batch.entries:
            self.last_log = entry.id
            self.log.put(entry.id, entry)
            self.entries.setdefault(entry.job_id, []).append(entry.id)
        self._link(batch.edges)
        self.last_job = max(self.last_job, batch.last_job)
        self.last_log = max(self.last_log, batch.last_log)
        for place in batch.removed:
            self._remove(place)
        for name in unused:
            self._remove_unused(name)
        if self.notes:
            self.notes.follow(batch.jobs, batch.entries, batch.removed)
        if batch.seal is not UNSET or any(_rest_of(batch)):
            self._apply_rest(batch)

    def _apply_rest(self, batch: Batch) -> None:
        """Take over what few batches have."""
        self.timetable.apply(batch)
        self.claiming.apply(batch)
        self.attendance.apply(batch)
        self.notes.apply(batch)
        for source, original, place in batch.origins:
            self.origins[source, original] = place
        for token in batch.tokens:
            self.tokens[token.name] = token
        for name in batch.revoked:
            self.tokens.pop(name, None)
        if batch.seal is not UNSET:
            self.seal = batch.seal
        self.sums.apply(batch)
        if batch.digested:
            behind = self.log.after(self.sums.digested)
            counted = takewhile(lambda entry: entry.id <= batch.digested, behind)
            self.sums.digest(counted, self._counted_under)

    def _counted_under(self, entry: LogEntry) -> str | None:
        """The queue that an entry counts for; None if it came along with an imported job."""
        later = (self.log[one] for one in self.entries[entry.job_id] if one > entry.id)
        if any(one.event is Event.RESTORED for one in later):
            return None
        return self.jobs[entry.job_id].queue

    def _remove(self, place: JobId) -> None:
        self._unlink(place)
        job = self.jobs[place]
        if job.state in UNFINISHED:  # of a store whose jobs have left
            self._end(job)
        self._leave(self.jobs.take(place))
        for entry_id in self.entries.pop(place):
            self.log.take(entry_id)

    def _remove_unused(self, name: str) -> None:
        """Remove a queue that has neither jobs nor settings."""
        if name not in self.queues or queue_at(self.queues[name], self.now) != Queue(name=name):
            return
        places = [(name, *stage) for stage in _STAGES]
        if any(self.totals[place] for place in places):
            return
        for place in places:
            del self.totals[place]
        del self.queues[name]
        self.unfinished.pop(name, None)
        self.claiming.forget(name)

    def _end(self, job: Job) -> None:
        """Let go of what an unfinished job holds."""
        ended = replace(job, state=State.CANCELLED, waiting=None, finished_at=self.now)
        self._relate(ended, self._put(ended))
        if job.key is not None:
            self._show_head(job.key)

    def _link(self, edges: Iterable[Edge]) -> None:
        for edge in edges:
            self.dependents.setdefault(edge.needed, {})[edge.job_id] = edge
            self.needed.setdefault(edge.job_id, set()).add(edge.needed)

    def _unlink(self, place: JobId) -> None:
        for job_id in self.dependents.pop(place, {}):
            self.needed[job_id].discard(place)
        for needed in self.needed.pop(place, ()):
            self.dependents[needed].pop(place, None)

    def _put(self, job: Job) -> Job | None:
        """Keep a job as it is now; returns it as it was."""
        if (old := self.jobs.get(job.id)) is not None:
            self._leave(old)
        self.jobs.put(job.id, job)
        self._enter(job)
        return old

    def _enter(self, job: Job) -> None:
        self.totals[job.queue, job.state, job.waiting] += 1
        if job.waiting is Waiting.READY:
            self.ages.setdefault(job.queue, Ranking()).put(job.id, job.run_at)
            for tag in _tags(job):
                ranking = self.ready.setdefault((job.queue, tag), Ranking())
                ranking.put(job.id, -job.priority, job.run_at)
            if job.tenant is not None or job.throttle is not None:
                self.claiming.enter(job)
        elif job.waiting is Waiting.SCHEDULED:
            self.scheduled.put(job.id, job.run_at)
        elif job.state is State.RUNNING:
            self.leased.put(job.id, job.expires_at)
        elif job.state in FINAL:
            self.ended[job.state].put(job.id, job.finished_at)

    def _leave(self, job: Job) -> None:
        self.totals[job.queue, job.state, job.waiting] -= 1
        if job.waiting is Waiting.READY:
            self.ages[job.queue].drop(job.id)
            if not self.ages[job.queue]:
                del self.ages[job.queue]
            for tag in _tags(job):
                ranking = self.ready[job.queue, tag]
                ranking.drop(job.id)
                if not ranking:
                    del self.ready[job.queue, tag]
            if job.tenant is not None or job.throttle is not None:
                self.claiming.leave(job)
        elif job.waiting is Waiting.SCHEDULED:
            self.scheduled.drop(job.id)
        elif job.state is State.RUNNING:
            self.leased.drop(job.id)
        elif job.state in FINAL:
            self.ended[job.state].drop(job.id)

    def _relate(self, job: Job, old: Job | None) -> None:
        """Note the job under its queue, its key and its dedupe key."""
        if old is None:
            self.last_job = max(self.last_job, job.id)
            if job.queue not in self.queues:
                self.queues[job.queue] = Queue(name=job.queue)
        if old is None or (old.state in UNFINISHED) != (job.state in UNFINISHED):
            self._count(job)
        if job.key is not None:
            self.lines.setdefault(job.key, Line()).put(job)

    def _count(self, job: Job) -> None:
        """Note whether the job is unfinished."""
        sets = [self.unfinished.setdefault(job.queue, set())]
        if job.dedupe is not None:
            sets.append(self.holders.setdefault(job.dedupe, set()))
        for ids in sets:
            (ids.add if job.state in UNFINISHED else ids.discard)(job.id)
        if job.dedupe is not None and not self.holders[job.dedupe]:
            del self.holders[job.dedupe]

    def _show_head(self, key: str) -> None:
        """Make the head of a key visible, and the one that was visible before blocked."""
        line = self.lines[key]
        former, line.visible = line.visible, line.head()
        if former is not None and former != line.visible:
            job = self.jobs[former]
            if job.state is State.PENDING and job.waiting is not Waiting.BLOCKED:
                self._put(replace(job, waiting=Waiting.BLOCKED))
        if line.visible is not None:
            job = self.jobs[line.visible]
            if job.waiting is Waiting.BLOCKED and not job.needs:
                kind = Waiting.READY if job.run_at <= self.now else Waiting.SCHEDULED
                self._put(replace(job, waiting=kind))
        if not line.pending and not line.running:
            del self.lines[key]


def _tags(job: Job) -> Iterable[str | None]:
    """The common rankings that a ready job stands in; with a tenant, it has a share instead."""
    if job.tenant is not None:
        return ()
    return {None, *job.tags} if job.tags else _UNTAGGED


def until(when: datetime, ranking: Iterable[Ranked]) -> Iterator[Ranked]:
    """The entries of a ranking by time that are not later than an instant."""
    return takewhile(lambda entry: entry[0] <= when, ranking)
