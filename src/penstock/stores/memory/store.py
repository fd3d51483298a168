"""The Store protocol in plain Python."""
# ruff: noqa: D102 - the Store protocol documents the verbs

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from heapq import merge
from itertools import groupby, islice, takewhile
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.core.errors import ConfigurationError, Overtaken, QueueFull
from penstock.core.history import Counters, Interval
from penstock.core.job import (
    Change,
    Claim,
    Counts,
    Edge,
    Job,
    JobId,
    JobQuery,
    Lease,
    LogEntry,
    LogId,
    NewJob,
    Origin,
    Queue,
    QueueSettings,
    Record,
    Retention,
    Tail,
    Tally,
    fits,
)
from penstock.core.lifecycle import FINAL, UNFINISHED, Done, Event, State, Waiting
from penstock.core.limits import Held, Limit
from penstock.core.note import Line as LoggedLine
from penstock.core.note import Note, Progress
from penstock.core.note import Notes as KeptNotes
from penstock.core.schedule import Due, Firing, Schedule
from penstock.core.seal import Passage, Seal, check_lasting, check_open
from penstock.core.store import Clock
from penstock.core.times import from_micros
from penstock.core.token import Token
from penstock.core.worker import WorkerInfo
from penstock.stores.alarm import Alarm
from penstock.stores.memory.attendance import Attendance
from penstock.stores.memory.claiming import Claiming
from penstock.stores.memory.draft import Batch, Draft
from penstock.stores.memory.history import Sums
from penstock.stores.memory.notes import Notes
from penstock.stores.memory.restoring import Restoring
from penstock.stores.memory.shelves import Line, Ranked, Ranking, Shelf
from penstock.stores.memory.timetable import Timetable

_RUNNING = frozenset({State.RUNNING})


class MemoryStore:
    """The Store protocol in plain Python: shared by threads and event loops of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now = from_micros(0)
        self._lock = threading.Lock()
        self._last_job = 0
        self._last_log = 0
        self._jobs: Shelf[Job] = Shelf()
        self._log: Shelf[LogEntry] = Shelf()
        self._queues: dict[str, Queue] = {}
        self._source = secrets.randbits(63)
        self._origins: dict[tuple[int, int], JobId] = {}
        self._notes = Notes()
        self._timetable = Timetable()
        self._tokens: dict[str, Token] = {}
        self._sums = Sums()
        self._attendance = Attendance()
        self._seal: Seal | None = None
        # All below follows from the above.
        self._entries: dict[JobId, list[LogId]] = {}
        self._totals: Counter[tuple[str, State, Waiting | None]] = Counter()
        self._unfinished: dict[str, set[JobId]] = {}
        self._ready: dict[tuple[str, str | None], Ranking] = {}
        self._ages: dict[str, Ranking] = {}
        self._scheduled = Ranking()
        self._leased = Ranking()
        self._ended = {state: Ranking() for state in FINAL}
        self._lines: dict[str, Line] = {}
        self._holders: dict[str, set[JobId]] = {}
        self._dependents: dict[JobId, dict[JobId, Edge]] = {}
        self._needed: dict[JobId, set[JobId]] = {}
        self._claiming = Claiming()
        self._announced = from_micros(0)
        self._generation = 0
        self._waiters: list[Callable[[], object]] = []

    async def add(
        self,
        jobs: Sequence[NewJob],
        *,
        actor: str,
        connection: Any = None,
        tail: Tail | None = None,
        reason: str | None = None,
    ) -> list[Job]:
        if connection is not None:
            raise ConfigurationError("the in-memory store cannot join a database transaction")
        with self._lock:
            check_open(self._seal)
            draft = Draft(self, self._tick(), actor)
            if tail is not None and self._tail(jobs[0].key) != tail.job:
                raise Overtaken(f"the pending jobs of key {jobs[0].key!r} have changed")
            places: list[tuple[JobId, bool]] = []
            for new in jobs:
                places.append(draft.add(new, places, reason))
            if tail is not None and tail.job is not None and tail.replaces and not places[0][1]:
                draft.replace(tail.job, places[0][0])
            self._check_limits(draft.jobs.values())
            self._commit(draft.batch())
            found = ((self._jobs[place], duplicate) for place, duplicate in places)
            return [replace(job, duplicate=hit) for job, hit in found]

    async def finish(self, job: Job, outcome: Done, *, actor: str, connection: Any) -> Job:  # noqa: ARG002 - it is refused
        raise ConfigurationError("the in-memory store cannot join a database transaction")

    async def claim(self, wanted: Claim) -> list[Job]:
        with self._lock:
            check_open(self._seal)
            draft = Draft(self, self._tick(), wanted.worker)
            for place in self._next(wanted):
                draft.claim(self._jobs[place])
            self._commit(draft.batch())
            return _copies(draft.jobs.values())

    async def renew(self, leases: Sequence[Lease]) -> list[Job]:
        with self._lock:
            now = self._tick()
            held = [
                replace(job, expires_at=now + job.lease_time)
                for lease in leases
                if (job := self._jobs.get(lease.job_id))
                and (job.state, job.lease) == (State.RUNNING, lease)
            ]
            self._commit(Batch(jobs=held), wake=False)
            return _copies(held)

    async def transition(self, changes: Sequence[Change], *, actor: str) -> list[Job | None]:
        with self._lock:
            check_open(self._seal)
            draft = Draft(self, self._tick(), actor)
            places: list[JobId | None] = []
            for change in changes:
                job = draft.get(change.job.id)
                if job is None or _overtaken(job, change, self._now):
                    places.append(None)
                else:
                    draft.move(job, change.move)
                    places.append(job.id)
            self._commit(draft.batch())
            return [None if place is None else replace(self._jobs[place]) for place in places]

    async def watch(self, ids: Sequence[JobId]) -> list[Job]:
        return await self.get(ids)

    async def edges(self, ids: Sequence[JobId]) -> list[Edge]:
        with self._lock:
            found = {
                (edge.job_id, edge.needed): edge
                for place in ids
                for edge in (
                    *self._dependents.get(place, {}).values(),
                    *(self._dependents[one][place] for one in self._needed.get(place, ())),
                )
            }
            return [found[place] for place in sorted(found)]

    async def expired(self, limit: int) -> list[Job]:
        with self._lock:
            past = _until(self._tick(), self._leased)
            return _copies(self._jobs[entry[-1]] for entry in islice(past, limit))

    async def get(self, ids: Sequence[JobId]) -> list[Job]:
        with self._lock:
            self._tick()
            return _copies(job for job in map(self._jobs.get, ids) if job is not None)

    async def find(self, query: JobQuery) -> list[Job]:
        with self._lock:
            self._tick()
            return _copies(self._found(query))

    async def find_ids(self, query: JobQuery) -> list[JobId]:
        with self._lock:
            self._tick()
            return [job.id for job in self._found(query)]

    async def tally(self, query: JobQuery) -> Tally:
        with self._lock:
            self._tick()
            return Counter(job.state for job in self._jobs.after(None) if fits(job, query))

    async def count(self) -> Counts:
        with self._lock:
            self._tick()
            return {place: total for place, total in self._totals.items() if total}

    async def ready_tags(
        self, queue: str, limit: int = 1000, *, among: Sequence[str] | None = None
    ) -> list[str]:
        with self._lock:
            now = self._tick()
            running = self._totals[queue, State.RUNNING, None]
            if not any(
                self._claiming.is_open(found, running, now) for found in self._open_queues([queue])
            ):
                return []
            places = {*self._ready, *self._claiming.places()}
            found = {tag for name, tag in places if name == queue and tag is not None}
            return sorted(found if among is None else found & {*among})[:limit]

    async def oldest_ready(self) -> dict[str, datetime]:
        with self._lock:
            self._tick()
            return {queue: ages.first()[0] for queue, ages in self._ages.items()}  # type: ignore[index] # none is empty

    async def backlog(
        self, queue: str | None = None, until: JobId | None = None
    ) -> tuple[int, JobId]:
        with self._lock:
            sets = self._unfinished.values() if queue is None else [self._unfinished.get(queue, ())]
            ids = [place for ids in sets for place in ids if until is None or place <= until]
            return len(ids), max(ids, default=until or JobId(0))

    async def queues(self) -> list[Queue]:
        with self._lock:
            return [self._queues[name] for name in sorted(self._queues)]

    async def configure(self, settings: QueueSettings) -> Queue:
        wanted = {
            name: value
            for name, value in msgspec.structs.asdict(settings).items()
            if value is not msgspec.UNSET
        }
        with self._lock:
            check_lasting(self._seal)
            stored = self._queues.get(settings.name) or Queue(name=settings.name)
            queue = replace(stored, **wanted)
            self._commit(Batch(queues=[queue]))
            return queue

    async def limit(self, limit: Limit) -> None:
        with self._lock:
            if limit.concurrency is not None:
                check_lasting(self._seal)
            self._claiming.limit(limit)
            self._wake()

    async def limits(self) -> list[Limit]:
        with self._lock:
            return self._claiming.limits()

    async def held(self, job: Job) -> list[Held]:
        with self._lock:
            self._tick()
            running = [self._jobs[place] for place in self._leased.ids()]
            queue = self._queues.get(job.queue) or Queue(name=job.queue)
            return self._claiming.held(job, queue, running, self._now)

    async def log(
        self, job_id: JobId | None = None, *, after: LogId | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        with self._lock:
            if job_id is None:
                return list(islice(self._log.after(after), limit))
            entries = map(self._log.__getitem__, self._entries.get(job_id, ()))
            return list(islice((one for one in entries if after is None or one.id > after), limit))

    async def newest_log(self) -> LogId:
        with self._lock:
            return LogId(self._last_log)

    async def histories(self, ids: Sequence[JobId]) -> list[Record]:
        with self._lock:
            self._tick()
            return [
                Record(
                    job=replace(job),
                    log=tuple(self._log[entry] for entry in self._entries[job.id]),
                    edges=tuple(self._open_edges(job.id)),
                )
                for job in map(self._jobs.get, ids)
                if job is not None
            ]

    async def delete(self, jobs: Sequence[Job]) -> list[JobId]:
        with self._lock:
            self._tick()
            known = {job.id: job.version for job in jobs}
            have_left = self._seal is not None and self._seal.passage is Passage.LEFT
            removed = [
                job.id
                for job in map(self._jobs.get, known)
                if job is not None and job.version == known[job.id]
                if have_left or job.state in FINAL
            ]
            self._commit(Batch(removed=removed))
            return removed

    async def origin(self) -> Origin:
        with self._lock:
            return Origin(
                source=self._source,
                last_job=JobId(self._last_job),
                last_log=LogId(self._last_log),
            )

    async def restore(
        self,
        records: Sequence[Record],
        *,
        origin: Origin,
        actor: str,
        notes: Mapping[JobId, KeptNotes] | None = None,
    ) -> list[Job | None]:
        with self._lock:
            check_lasting(self._seal)
            restoring = Restoring(self, self._tick(), origin, actor)
            places = [restoring.take(record) for record in records]
            restoring.link(records, places)
            self._commit(restoring.batch())
            for record, place in zip(records, places, strict=True):
                if place is not None and notes and record.job.id in notes:
                    self._notes.restore(place, notes[record.job.id])
            after = Draft(self, self._now, actor)
            for news in restoring.lost:
                after.tell(*news)
            self._commit(after.batch())
            return [None if place is None else replace(self._jobs[place]) for place in places]

    async def places(self, source: int, ids: Sequence[JobId]) -> Mapping[JobId, JobId]:
        with self._lock:
            own = {job.id for job in map(self._jobs.get, ids) if job and source == self._source}
            found = {one: one if one in own else self._origins.get((source, one)) for one in ids}
            return {one: place for one, place in found.items() if place is not None}

    async def seal(self, seal: Seal | None, *, was: Seal | None) -> bool:
        with self._lock:
            if self._seal != was:
                return False
            self._seal = seal
            self._wake()
            return True

    async def sealed(self) -> Seal | None:
        with self._lock:
            return self._seal

    async def note(self, notes: Sequence[Note]) -> list[bool]:
        with self._lock:
            held = [self._is_held(note.lease) for note in notes]
            for note, is_held in zip(notes, held, strict=True):
                if is_held:
                    self._notes.write(note)
            return held

    async def progress(self, ids: Sequence[JobId]) -> Mapping[JobId, Progress]:
        with self._lock:
            return self._notes.progress(ids)

    async def checkpoint(self, job_id: JobId) -> str | None:
        with self._lock:
            return self._notes.checkpoint(job_id)

    async def notes(self, ids: Sequence[JobId]) -> Mapping[JobId, KeptNotes]:
        with self._lock:
            return self._notes.kept(ids)

    async def lines(self, job_id: JobId, *, after: int = 0, limit: int = 1000) -> list[LoggedLine]:
        with self._lock:
            return self._notes.lines(job_id, after, limit)

    async def prune(self, retention: Retention, limit: int, *, whole_days: bool = False) -> int:  # noqa: ARG002 - it keeps no days
        with self._lock:
            now = self._tick()
            past = merge(
                *(
                    _until(now - retention.keeps(state), ended)
                    for state, ended in self._ended.items()
                )
            )
            removed = [entry[-1] for entry in islice(past, limit)]
            self._commit(Batch(removed=removed))
            return len(removed)

    async def digest(self, limit: int) -> int:
        with self._lock:
            self._sums.forget(self._tick())
            entries = islice(self._log.after(self._sums.digested), limit)
            return self._sums.digest(entries, self._counted_under)

    async def history(
        self, since: datetime, until: datetime | None, queue: str | None, step: timedelta
    ) -> list[Interval]:
        with self._lock:
            return self._sums.find(since, until, queue, step)

    async def counters(self) -> list[Counters]:
        with self._lock:
            return self._sums.counters()

    async def wait(self, seen: int, timeout: float) -> int:
        woken = Alarm()
        with self._lock:
            now = self._tick()
            first = self._scheduled.first()
            if first is not None:
                timeout = min(timeout, (first[0] - now).total_seconds())
            start = self._claiming.next_start(self._open_queues(None), self._announced)
            if start is not None and start <= now:
                # Once for all who wait: it may be long until one of them can take it.
                self._announced = now
                self._wake()
            elif start is not None:
                timeout = min(timeout, (start - now).total_seconds())
            if self._generation != seen or timeout <= 0:
                return self._generation
            self._waiters.append(woken.ring)
        try:
            await woken.wait(timeout)
        finally:
            with self._lock, suppress(ValueError):
                self._waiters.remove(woken.ring)
        with self._lock:
            self._tick()
            return self._generation

    async def schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        with self._lock:
            return self._timetable.find(names)

    async def put_schedule(self, schedule: Schedule) -> Schedule | None:
        with self._lock:
            check_lasting(self._seal)
            if (written := self._timetable.put(schedule)) is not None:
                self._commit(Batch(schedules=(written,)))
            return written

    async def drop_schedule(self, name: str) -> bool:
        with self._lock:
            dropped = tuple(schedule.name for schedule in self._timetable.find([name]))
            self._commit(Batch(unscheduled=dropped))
            return bool(dropped)

    async def due(self, tasks: Collection[str], declared: Collection[str], limit: int) -> Due:
        with self._lock:
            return self._timetable.due(self._tick(), (tasks, declared), limit)

    async def fire(self, firing: Firing, *, actor: str) -> list[Job] | None:
        with self._lock:
            check_open(self._seal)
            draft = Draft(self, self._tick(), actor)
            places = self._timetable.fire(draft, firing, self._now)
            if places is None:
                return None
            self._check_limits(draft.jobs.values())
            fired = self._timetable.fired(firing, draft.jobs.values())
            self._commit(replace(draft.batch(), schedules=(fired,)))
            return [replace(self._jobs[place], duplicate=hit) for place, hit in places]

    async def tokens(self) -> list[Token]:
        with self._lock:
            return [self._tokens[name] for name in sorted(self._tokens)]

    async def add_token(self, token: Token) -> bool:
        with self._lock:
            check_lasting(self._seal)
            if token.name in self._tokens:
                return False
            self._tokens[token.name] = token
            self._wake()
            return True

    async def drop_token(self, name: str) -> bool:
        with self._lock:
            if self._tokens.pop(name, None) is None:
                return False
            self._wake()
            return True

    async def greet(self, workers: Sequence[WorkerInfo]) -> None:
        with self._lock:
            self._attendance.greet(workers, self._tick())

    async def dismiss(self, names: Sequence[str]) -> None:
        with self._lock:
            self._attendance.dismiss(names)

    async def workers(self) -> list[WorkerInfo]:
        with self._lock:
            return self._attendance.roster(map(self._jobs.__getitem__, self._leased.ids()))

    async def close(self) -> None:
        with self._lock:
            self._wake()

    def _counted_under(self, entry: LogEntry) -> str | None:
        """The queue that an entry counts for; None if it came along with an imported job."""
        later = (self._log[one] for one in self._entries[entry.job_id] if one > entry.id)
        if any(one.event is Event.RESTORED for one in later):
            return None
        return self._jobs[entry.job_id].queue

    def _open_edges(self, place: JobId) -> Iterator[Edge]:
        """What a job waits for."""
        edges = (self._dependents[one][place] for one in sorted(self._needed.get(place, ())))
        return (edge for edge in edges if not edge.resolved)

    def _tail(self, key: str | None) -> Job | None:
        """The newest pending job of a key."""
        pending = self._lines[key].pending.ids() if key in self._lines else ()
        return self._jobs[max(pending)] if pending else None

    def _in_line(self, key: str) -> list[JobId]:
        """The unfinished jobs of a key."""
        line = self._lines.get(key)
        return [] if line is None else [*line.pending.ids(), *line.running]

    def _is_held(self, lease: Lease) -> bool:
        job = self._jobs.get(lease.job_id)
        return job is not None and (job.state, job.token) == (State.RUNNING, lease.token)

    def _open_queues(self, names: Iterable[str] | None) -> list[Queue]:
        chosen = self._queues.keys() if names is None else set(names)
        return [
            self._queues[name]
            for name in chosen
            if name in self._queues and not self._queues[name].paused
        ]

    def _next(self, wanted: Claim) -> list[JobId]:
        queues = [queue for queue in self._open_queues(wanted.queues) if wanted.wants(queue.name)]
        if self._claiming.has_a_say(queues):
            running = [self._jobs[place] for place in self._leased.ids()]
            return self._claiming.choose(
                wanted, queues, self._ready, self._jobs.__getitem__, running, self._now
            )
        return [entry[-1] for entry in islice(self._claimable(queues, wanted), wanted.limit)]

    def _claimable(self, queues: Iterable[Queue], wanted: Claim) -> Iterator[Ranked]:
        tags: set[str | None] = set(wanted.tags) or {None}
        rankings = [
            self._ready[queue.name, tag]
            for queue in queues
            for tag in tags
            if (queue.name, tag) in self._ready
        ]
        # A job that fits several tags comes up once for each, one after the other.
        return (entry for entry, _ in groupby(merge(*rankings)))

    def _check_limits(self, written: Iterable[Job]) -> None:
        """Whether no queue gets too long by jobs that come, less those that go."""
        growth: Counter[str] = Counter()
        for job in written:
            growth[job.queue] += 1 if job.state is State.PENDING else -1
        for name, more in growth.items():
            limit = self._queues[name].max_pending if name in self._queues else None
            if limit is None or more <= 0:
                continue
            if more + sum(self._totals[name, State.PENDING, kind] for kind in Waiting) > limit:
                raise QueueFull(name, limit)

    def _found(self, query: JobQuery) -> Iterator[Job]:
        return islice((job for job in self._listed(query) if _fits(job, query)), query.limit)

    def _listed(self, query: JobQuery) -> Iterable[Job]:
        """The jobs from which a query picks: not all of them where only running ones can fit."""
        if query.cancel_requested or query.states == _RUNNING:
            ids = sorted(self._leased.ids(), reverse=query.newest_first)
            return map(self._jobs.__getitem__, ids)
        read = self._jobs.before if query.newest_first else self._jobs.after
        return read(query.after)

    def _tick(self) -> datetime:
        """The time now, with every job that has fallen due made ready."""
        self._now = now = from_micros(self._clock())
        due = [entry[-1] for entry in _until(now, self._scheduled)]
        for place in due:
            self._put(replace(self._jobs[place], waiting=Waiting.READY))
        if due:
            self._wake()
        return now

    def _commit(self, batch: Batch, *, wake: bool = True) -> None:
        """Where every write passes: all of the batch or nothing."""
        self._apply(batch)
        if wake and batch != Batch():
            self._wake()

    def _apply(self, batch: Batch) -> None:
        for queue in batch.queues:
            self._queues[queue.name] = queue
        if batch.schedules or batch.unscheduled:
            self._timetable.apply(batch.schedules, batch.unscheduled)
        for job in batch.jobs:
            self._put(job)
            self._relate(job)
        for key in {job.key for job in batch.jobs}:
            if key is not None:
                self._show_head(key)
        for entry in batch.entries:
            self._last_log = entry.id
            self._log.put(entry.id, entry)
            self._entries.setdefault(entry.job_id, []).append(entry.id)
        self._link(batch.edges)
        self._origins.update(batch.origins)
        self._last_job = max(self._last_job, batch.floors[0])
        self._last_log = max(self._last_log, batch.floors[1])
        for place in batch.removed:
            self._remove(place)
        if self._notes:
            self._notes.follow(batch.jobs, batch.entries, batch.removed)

    def _remove(self, place: JobId) -> None:
        self._unlink(place)
        job = self._jobs[place]
        if job.state in UNFINISHED:  # of a store whose jobs have left
            self._end(job)
        self._leave(self._jobs.take(place))
        for entry_id in self._entries.pop(place):
            self._log.take(entry_id)

    def _end(self, job: Job) -> None:
        """Let go of what an unfinished job holds."""
        ended = replace(job, state=State.CANCELLED, waiting=None, finished_at=self._now)
        self._put(ended)
        self._relate(ended)
        if job.key is not None:
            self._show_head(job.key)

    def _link(self, edges: Iterable[Edge]) -> None:
        for edge in edges:
            self._dependents.setdefault(edge.needed, {})[edge.job_id] = edge
            self._needed.setdefault(edge.job_id, set()).add(edge.needed)

    def _unlink(self, place: JobId) -> None:
        for job_id in self._dependents.pop(place, {}):
            self._needed[job_id].discard(place)
        for needed in self._needed.pop(place, ()):
            self._dependents[needed].pop(place, None)

    def _put(self, job: Job) -> None:
        if (old := self._jobs.get(job.id)) is not None:
            self._leave(old)
        self._jobs.put(job.id, job)
        self._enter(job)

    def _enter(self, job: Job) -> None:
        self._totals[job.queue, job.state, job.waiting] += 1
        if job.waiting is Waiting.READY:
            self._ages.setdefault(job.queue, Ranking()).put(job.id, job.run_at)
            # Of jobs with a tenant, shares take the place of the common rankings.
            for tag in {None, *job.tags} if job.tenant is None else ():
                ranking = self._ready.setdefault((job.queue, tag), Ranking())
                ranking.put(job.id, -job.priority, job.run_at)
            if job.tenant is not None or job.throttle is not None:
                self._claiming.enter(job)
        elif job.waiting is Waiting.SCHEDULED:
            self._scheduled.put(job.id, job.run_at)
        elif job.state is State.RUNNING:
            self._leased.put(job.id, job.expires_at)
        elif job.state in FINAL:
            self._ended[job.state].put(job.id, job.finished_at)

    def _leave(self, job: Job) -> None:
        self._totals[job.queue, job.state, job.waiting] -= 1
        if job.waiting is Waiting.READY:
            self._ages[job.queue].drop(job.id)
            if not self._ages[job.queue]:
                del self._ages[job.queue]
            for tag in {None, *job.tags} if job.tenant is None else ():
                ranking = self._ready[job.queue, tag]
                ranking.drop(job.id)
                if not ranking:
                    del self._ready[job.queue, tag]
            if job.tenant is not None or job.throttle is not None:
                self._claiming.leave(job)
        elif job.waiting is Waiting.SCHEDULED:
            self._scheduled.drop(job.id)
        elif job.state is State.RUNNING:
            self._leased.drop(job.id)
        elif job.state in FINAL:
            self._ended[job.state].drop(job.id)

    def _relate(self, job: Job) -> None:
        """Note the job under its queue, its key and its dedupe key."""
        self._last_job = max(self._last_job, job.id)
        if job.queue not in self._queues:
            self._queues[job.queue] = Queue(name=job.queue)
        sets = [self._unfinished.setdefault(job.queue, set())]
        if job.dedupe is not None:
            sets.append(self._holders.setdefault(job.dedupe, set()))
        for ids in sets:
            (ids.add if job.state in UNFINISHED else ids.discard)(job.id)
        if job.dedupe is not None and not self._holders[job.dedupe]:
            del self._holders[job.dedupe]
        if job.key is not None:
            self._lines.setdefault(job.key, Line()).put(job)

    def _show_head(self, key: str) -> None:
        """Make the head of a key visible, and the one that was visible before blocked."""
        line = self._lines[key]
        former, line.visible = line.visible, line.head()
        if former is not None and former != line.visible:
            job = self._jobs[former]
            if job.state is State.PENDING and job.waiting is not Waiting.BLOCKED:
                self._put(replace(job, waiting=Waiting.BLOCKED))
        if line.visible is not None:
            job = self._jobs[line.visible]
            if job.waiting is Waiting.BLOCKED and not job.needs:
                kind = Waiting.READY if job.run_at <= self._now else Waiting.SCHEDULED
                self._put(replace(job, waiting=kind))
        if not line.pending and not line.running:
            del self._lines[key]

    def _wake(self) -> None:
        self._generation += 1
        waiters, self._waiters = self._waiters, []
        for ring in waiters:
            ring()


def _copies(jobs: Iterable[Job]) -> list[Job]:
    """Jobs to hand out; bound to a Penstock, the store's own would keep it alive for ever."""
    return [replace(job) for job in jobs]


def _until(when: datetime, ranking: Iterable[Ranked]) -> Iterator[Ranked]:
    return takewhile(lambda entry: entry[0] <= when, ranking)


def _overtaken(job: Job, change: Change, now: datetime) -> bool:
    """Whether the job is no longer the one that the move was decided on.

    A renewal writes no version, but a lease that was renewed has not expired.
    """
    alive = job.expires_at is not None and job.expires_at > now
    return job.version != change.job.version or (change.move.event is Event.EXPIRED and alive)


def _fits(job: Job, query: JobQuery) -> bool:
    after = query.after
    return (after is None or (job.id < after if query.newest_first else job.id > after)) and fits(
        job, query
    )
