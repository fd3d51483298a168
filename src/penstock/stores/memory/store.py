"""The Store protocol in plain Python."""
# ruff: noqa: D102 - the Store protocol documents the verbs

import threading
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial, wraps
from heapq import merge, nsmallest
from itertools import compress, groupby, islice, takewhile
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

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
    KeyLine,
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
    configured,
    fits,
    queue_at,
)
from penstock.core.lifecycle import FINAL, Done, Event, State, Waiting
from penstock.core.limits import Held, Limit
from penstock.core.mirror import Mirror
from penstock.core.note import Line as LoggedLine
from penstock.core.note import Note, Progress
from penstock.core.note import Notes as KeptNotes
from penstock.core.schedule import Due, Firing, Schedule
from penstock.core.seal import Passage, Seal, check_lasting, check_open
from penstock.core.size import StoreSize
from penstock.core.store import Clock
from penstock.core.tables import Tables
from penstock.core.times import from_micros
from penstock.core.token import Token
from penstock.core.worker import WorkerInfo
from penstock.stores.alarm import Alarm
from penstock.stores.memory.batch import NOTHING, Batch
from penstock.stores.memory.claiming import Chosen
from penstock.stores.memory.content import Content, until
from penstock.stores.memory.draft import Draft
from penstock.stores.memory.restoring import Restoring
from penstock.stores.memory.shelves import Ranked

M = TypeVar("M", bound="MemoryStore")
P = ParamSpec("P")
T = TypeVar("T")
Answer = Coroutine[Any, Any, T]

_RUNNING = frozenset({State.RUNNING})


def verb(act: Callable[Concatenate[M, P], T]) -> Callable[Concatenate[M, P], Answer[T]]:
    """Make a verb of the protocol of what looks at the content, or decides and commits once."""

    @wraps(act)
    async def call(store: M, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await store._perform(partial(act, store, *args, **kwargs))  # noqa: SLF001 - its own

    return call


class MemoryStore:
    """The Store protocol in plain Python: shared by threads and event loops of one process."""

    _name = "the in-memory store"
    kind = "memory"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._content = Content()
        self._announced = from_micros(0)
        self._generation = 0
        self._waiters: list[Callable[[], object]] = []
        self._door = threading.Lock()

    @verb
    def add(
        self,
        jobs: Sequence[NewJob],
        *,
        actor: str,
        connection: Any = None,
        tail: Tail | None = None,
        reason: str | None = None,
    ) -> list[Job]:
        if connection is not None:
            raise ConfigurationError(f"{self._name} cannot join a database transaction")
        check_open(self._content.seal)
        draft = Draft(self._content, self._tick(), actor)
        if tail is not None and self._content.tail(jobs[0].key) != tail.job:
            raise Overtaken(f"the pending jobs of key {jobs[0].key!r} have changed")
        places: list[tuple[JobId, bool]] = []
        for new in jobs:
            places.append(draft.add(new, places, reason))
        if tail is not None and tail.job is not None and tail.replaces and not places[0][1]:
            draft.replace(tail.job, places[0][0])
        self._check_limits(draft.jobs.values())
        self._commit(draft.batch())
        found = ((self._content.jobs[place], duplicate) for place, duplicate in places)
        return [replace(job, duplicate=hit) for job, hit in found]

    async def finish(self, job: Job, outcome: Done, *, actor: str, connection: Any) -> Job:  # noqa: ARG002 - it is refused
        raise ConfigurationError(f"{self._name} cannot join a database transaction")

    async def supersede(self, job_id: JobId, by: JobId, *, actor: str, connection: Any) -> bool:  # noqa: ARG002 - it is refused
        raise self._no_database()

    async def transact(self, work: object) -> NoReturn:  # noqa: ARG002 - it is refused
        raise self._no_database()

    async def read(self, work: object) -> NoReturn:  # noqa: ARG002 - it is refused
        raise self._no_database()

    async def prepare(self, name: str, steps: Tables) -> NoReturn:  # noqa: ARG002 - it is refused
        raise self._no_database()

    def _no_database(self) -> ConfigurationError:
        refused = ConfigurationError(f"{self._name} has no tables for an application")
        refused.add_note("a store that has: sqlite:///FILE or postgresql://…")
        return refused

    async def mirror(self, mirror: Mirror) -> None:
        raise ConfigurationError(f"{mirror.name} needs a SQLite or PostgreSQL store")

    @verb
    def claim(self, wanted: Claim) -> list[Job]:
        check_open(self._content.seal)
        draft = Draft(self._content, self._tick(), wanted.worker)
        chosen = self._next(wanted)
        for place in chosen.ids:
            draft.claim(self._content.jobs[place])
        self._commit(replace(draft.batch(), starts=chosen.starts, turns=chosen.turns))
        return _copies(draft.jobs.values())

    @verb
    def renew(self, leases: Sequence[Lease]) -> list[Job]:
        now = self._tick()
        held = [
            replace(job, expires_at=now + job.lease_time)
            for lease in leases
            if (job := self._content.jobs.get(lease.job_id))
            and (job.state, job.lease) == (State.RUNNING, lease)
        ]
        self._commit(Batch(jobs=held), wake=False)
        return _copies(held)

    @verb
    def transition(self, changes: Sequence[Change], *, actor: str) -> list[Job | None]:
        check_open(self._content.seal)
        draft = Draft(self._content, self._tick(), actor)
        places: list[JobId | None] = []
        for change in changes:
            job = draft.get(change.job.id)
            if job is None or _overtaken(job, change, self._content.now):
                places.append(None)
            else:
                draft.move(job, change.move)
                places.append(job.id)
        self._commit(draft.batch())
        return [None if place is None else replace(self._content.jobs[place]) for place in places]

    async def watch(self, ids: Sequence[JobId]) -> list[Job]:
        return await self.get(ids)

    @verb
    def edges(self, ids: Sequence[JobId]) -> list[Edge]:
        found = {
            (edge.job_id, edge.needed): edge
            for place in ids
            for edge in (
                *self._content.dependents.get(place, {}).values(),
                *(
                    self._content.dependents[one][place]
                    for one in self._content.needed.get(place, ())
                ),
            )
        }
        return [found[place] for place in sorted(found)]

    @verb
    def expired(self, limit: int) -> list[Job]:
        past = until(self._tick(), self._content.leased)
        return _copies(self._content.jobs[entry[-1]] for entry in islice(past, limit))

    @verb
    def get(self, ids: Sequence[JobId]) -> list[Job]:
        self._tick()
        return _copies(job for job in map(self._content.jobs.get, ids) if job is not None)

    @verb
    def find(self, query: JobQuery) -> list[Job]:
        self._tick()
        return _copies(self._found(query))

    @verb
    def find_ids(self, query: JobQuery) -> list[JobId]:
        self._tick()
        return [job.id for job in self._found(query)]

    @verb
    def tally(self, query: JobQuery) -> Tally:
        self._tick()
        return Counter(job.state for job in self._content.jobs.after(None) if fits(job, query))

    @verb
    def count(self) -> Counts:
        self._tick()
        return {place: total for place, total in self._content.totals.items() if total}

    @verb
    def ready_tags(
        self, queue: str, limit: int = 1000, *, among: Sequence[str] | None = None
    ) -> list[str]:
        now = self._tick()
        running = self._content.totals[queue, State.RUNNING, None]
        queues = self._content.open_queues([queue])
        if not any(self._content.claiming.is_open(found, running, now) for found in queues):
            return []
        places = {*self._content.ready, *self._content.claiming.places()}
        found = {tag for name, tag in places if name == queue and tag is not None}
        return sorted(found if among is None else found & {*among})[:limit]

    @verb
    def keys(self, after: str | None, limit: int) -> list[KeyLine]:
        found = nsmallest(limit, (key for key in self._content.lines if key > (after or "")))
        return [self._content.line_of(key) for key in found]

    @verb
    def oldest_ready(self) -> dict[str, datetime]:
        self._tick()
        return {queue: ages.first()[0] for queue, ages in self._content.ages.items()}  # type: ignore[index] # none is empty

    @verb
    def backlog(self, queue: str | None = None, until: JobId | None = None) -> tuple[int, JobId]:
        sets = (
            self._content.unfinished.values()
            if queue is None
            else [self._content.unfinished.get(queue, ())]
        )
        ids = [place for ids in sets for place in ids if until is None or place <= until]
        return len(ids), max(ids, default=until or JobId(0))

    @verb
    def queues(self) -> list[Queue]:
        now = self._tick()
        return [queue_at(self._content.queues[name], now) for name in sorted(self._content.queues)]

    @verb
    def configure(self, settings: QueueSettings) -> Queue:
        check_lasting(self._content.seal)
        stored = self._content.queues.get(settings.name) or Queue(name=settings.name)
        queue = configured(queue_at(stored, self._tick()), settings)
        self._commit(Batch(queues=[queue]))
        return queue

    @verb
    def limit(self, limit: Limit) -> None:
        if limit.concurrency is not None:
            check_lasting(self._content.seal)
        self._commit(Batch(limits=[limit]))

    @verb
    def limits(self) -> list[Limit]:
        return self._content.claiming.limits()

    @verb
    def held(self, job: Job) -> list[Held]:
        self._tick()
        running = self._content.running()
        queue = self._content.queues.get(job.queue) or Queue(name=job.queue)
        return self._content.claiming.held(job, queue, running, self._content.now)

    @verb
    def log(
        self, job_id: JobId | None = None, *, after: LogId | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        if job_id is None:
            return list(islice(self._content.log.after(after), limit))
        entries = map(self._content.log.__getitem__, self._content.entries.get(job_id, ()))
        return list(islice((one for one in entries if after is None or one.id > after), limit))

    @verb
    def newest_log(self) -> LogId:
        return LogId(self._content.last_log)

    @verb
    def histories(self, ids: Sequence[JobId]) -> list[Record]:
        self._tick()
        return [
            Record(
                job=replace(job),
                log=tuple(self._content.log[entry] for entry in self._content.entries[job.id]),
                edges=tuple(self._content.open_edges(job.id)),
            )
            for job in map(self._content.jobs.get, ids)
            if job is not None
        ]

    @verb
    def delete(self, jobs: Sequence[Job]) -> list[JobId]:
        self._tick()
        known = {job.id: job.version for job in jobs}
        have_left = self._content.seal is not None and self._content.seal.passage is Passage.LEFT
        removed = [
            job.id
            for job in map(self._content.jobs.get, known)
            if job is not None and job.version == known[job.id]
            if have_left or job.state in FINAL
        ]
        self._commit(Batch(removed=removed))
        return removed

    @verb
    def origin(self) -> Origin:
        return Origin(
            source=self._content.source,
            last_job=JobId(self._content.last_job),
            last_log=LogId(self._content.last_log),
        )

    @verb
    def restore(
        self,
        records: Sequence[Record],
        *,
        origin: Origin,
        actor: str,
        notes: Mapping[JobId, KeptNotes] | None = None,
    ) -> list[Job | None]:
        check_lasting(self._content.seal)
        restoring = Restoring(self._content, self._tick(), origin, actor)
        places = [restoring.take(record) for record in records]
        restoring.link(records, places)
        self._commit(restoring.batch(notes or {}))
        return [None if place is None else replace(self._content.jobs[place]) for place in places]

    @verb
    def places(self, source: int, ids: Sequence[JobId]) -> Mapping[JobId, JobId]:
        own = {
            job.id
            for job in map(self._content.jobs.get, ids)
            if job and source == self._content.source
        }
        found = {
            one: one if one in own else self._content.origins.get((source, one)) for one in ids
        }
        return {one: place for one, place in found.items() if place is not None}

    @verb
    def seal(self, seal: Seal | None, *, was: Seal | None) -> bool:
        if self._content.seal != was:
            return False
        self._commit(Batch(seal=seal))
        return True

    @verb
    def sealed(self) -> Seal | None:
        return self._content.seal

    @verb
    def note(self, notes: Sequence[Note]) -> list[bool]:
        held = [self._content.is_held(note.lease) for note in notes]
        self._commit(Batch(notes=list(compress(notes, held))), wake=False)
        return held

    @verb
    def progress(self, ids: Sequence[JobId]) -> Mapping[JobId, Progress]:
        return self._content.notes.progress(ids)

    @verb
    def checkpoint(self, job_id: JobId) -> str | None:
        return self._content.notes.checkpoint(job_id)

    @verb
    def notes(self, ids: Sequence[JobId]) -> Mapping[JobId, KeptNotes]:
        return self._content.notes.kept(ids)

    @verb
    def lines(self, job_id: JobId, *, after: int = 0, limit: int = 1000) -> list[LoggedLine]:
        return self._content.notes.lines(job_id, after, limit)

    @verb
    def prune(self, retention: Retention, limit: int, *, whole_days: bool = False) -> int:  # noqa: ARG002 - it keeps no days
        now = self._tick()
        past = merge(
            *(
                until(now - retention.keeps(state), ended)
                for state, ended in self._content.ended.items()
            )
        )
        removed = [entry[-1] for entry in islice(past, limit)]
        self._commit(Batch(removed=removed))
        return len(removed)

    @verb
    def digest(self, limit: int) -> int:
        sums = self._content.sums
        behind = [entry.id for entry in islice(self._content.log.after(sums.digested), limit)]
        batch = Batch(
            digested=behind[-1] if behind else LogId(0),
            forgotten=sums.oldest_kept(self._tick()),
        )
        self._commit(batch, wake=False)
        return len(behind)

    @verb
    def history(
        self, since: datetime, until: datetime | None, queue: str | None, step: timedelta
    ) -> list[Interval]:
        return self._content.sums.find(since, until, queue, step)

    @verb
    def counters(self) -> list[Counters]:
        return self._content.sums.counters()

    async def wait(self, seen: int, timeout: float) -> int:
        woken = Alarm()
        left = await self._listen(woken, seen, timeout)
        if left is None:
            return self._generation
        try:
            await woken.wait(left)
        finally:
            with self._door, suppress(ValueError):  # it has rung
                self._waiters.remove(woken.ring)
        return await self._look()

    @verb
    def _listen(self, woken: Alarm, seen: int, timeout: float) -> float | None:
        """Let an alarm ring at the next change; for how long at most, or None if it is time."""
        now = self._tick()
        first = self._content.scheduled.first()
        if first is not None:
            timeout = min(timeout, (first[0] - now).total_seconds())
        queues = self._content.open_queues(None)
        start = self._content.next_opening(queues, self._announced)
        if start is not None and start <= now:
            # Once for all who wait: it may be long until one of them can take it.
            self._announced = now
            self._wake()
        elif start is not None:
            timeout = min(timeout, (start - now).total_seconds())
        if self._generation != seen or timeout <= 0:
            return None
        with self._door:
            self._waiters.append(woken.ring)
        return timeout

    @verb
    def _look(self) -> int:
        self._tick()
        return self._generation

    @verb
    def schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        return self._content.timetable.find(names)

    @verb
    def put_schedule(self, schedule: Schedule) -> Schedule | None:
        check_lasting(self._content.seal)
        if (written := self._content.timetable.put(schedule)) is not None:
            self._commit(Batch(schedules=[written]))
        return written

    @verb
    def drop_schedule(self, name: str) -> bool:
        dropped = [schedule.name for schedule in self._content.timetable.find([name])]
        self._commit(Batch(unscheduled=dropped))
        return bool(dropped)

    @verb
    def due(self, tasks: Collection[str], declared: Collection[str], limit: int) -> Due:
        return self._content.timetable.due(self._tick(), (tasks, declared), limit)

    @verb
    def fire(self, firing: Firing, *, actor: str) -> list[Job] | None:
        check_open(self._content.seal)
        draft = Draft(self._content, self._tick(), actor)
        places = self._content.timetable.fire(draft, firing, self._content.now)
        if places is None:
            return None
        self._check_limits(draft.jobs.values())
        fired = self._content.timetable.fired(firing, draft.jobs.values())
        self._commit(replace(draft.batch(), schedules=[fired]))
        return [replace(self._content.jobs[place], duplicate=hit) for place, hit in places]

    @verb
    def tokens(self) -> list[Token]:
        return [self._content.tokens[name] for name in sorted(self._content.tokens)]

    @verb
    def add_token(self, token: Token) -> bool:
        check_lasting(self._content.seal)
        if token.name in self._content.tokens:
            return False
        self._commit(Batch(tokens=[token]))
        return True

    @verb
    def drop_token(self, name: str) -> bool:
        if name not in self._content.tokens:
            return False
        self._commit(Batch(revoked=[name]))
        return True

    @verb
    def greet(self, workers: Sequence[WorkerInfo]) -> list[str]:
        now = self._tick()
        asked = self._content.attendance.draining
        greeted = [replace(one, seen_at=now, draining=one.name in asked) for one in workers]
        self._commit(Batch(greeted=greeted), wake=False)
        return [one.name for one in greeted if one.draining]

    @verb
    def drain(self, name: str) -> bool:
        known = [one for one in self._content.attendance.all() if one.name == name]
        if known:
            self._commit(Batch(greeted=[replace(known[0], draining=True)]), wake=False)
        return bool(known)

    @verb
    def size(self) -> StoreSize:
        return StoreSize(kind=self.kind)

    @verb
    def dismiss(self, names: Sequence[str]) -> None:
        self._commit(Batch(dismissed=list(names)), wake=False)

    @verb
    def workers(self) -> list[WorkerInfo]:
        return self._content.attendance.roster(self._content.running())

    async def close(self) -> None:
        with self._lock:
            self._wake()

    # How verbs are carried out

    async def _perform(self, act: Callable[[], T]) -> T:
        """Do what a verb does; all that it has seen and changed is durable on return."""
        with self._lock:
            return act()

    def _next(self, wanted: Claim) -> Chosen:
        content = self._content
        found = content.open_queues(wanted.queues)
        queues = [queue for queue in found if wanted.wants(queue.name)]
        if content.claiming.has_a_say(queues):
            return content.claiming.choose(
                wanted,
                queues,
                content.ready,
                content.jobs.__getitem__,
                content.running(),
                content.now,
            )
        entries = islice(self._claimable(queues, wanted), wanted.limit)
        return Chosen([entry[-1] for entry in entries], {}, {})

    def _claimable(self, queues: Iterable[Queue], wanted: Claim) -> Iterator[Ranked]:
        tags: set[str | None] = set(wanted.tags) or {None}
        rankings = [
            self._content.ready[queue.name, tag]
            for queue in queues
            for tag in tags
            if (queue.name, tag) in self._content.ready
        ]
        # A job that fits several tags comes up once for each, one after the other.
        return (entry for entry, _ in groupby(merge(*rankings)))

    def _check_limits(self, written: Collection[Job]) -> None:
        """Whether no queue gets too long by jobs that come, less those that go."""
        queues = self._content.queues
        if all(
            name not in queues or queues[name].max_pending is None
            for name in {job.queue for job in written}
        ):
            return
        growth: Counter[str] = Counter()
        for job in written:
            growth[job.queue] += job.state is State.PENDING
            if (old := self._content.jobs.get(job.id)) is not None:
                growth[job.queue] -= old.state is State.PENDING
        for name, more in growth.items():
            limit = self._content.queues[name].max_pending if name in self._content.queues else None
            if limit is None or more <= 0:
                continue
            pending = sum(self._content.totals[name, State.PENDING, kind] for kind in Waiting)
            if pending + more > limit:
                raise QueueFull(name, limit)

    def _found(self, query: JobQuery) -> Iterator[Job]:
        return islice((job for job in self._within(query) if _fits(job, query)), query.limit)

    def _within(self, query: JobQuery) -> Iterable[Job]:
        """What is listed, up to the last id that is looked at."""
        listed, last = self._listed(query), query.until
        if last is None:
            return listed
        if query.newest_first:
            return takewhile(lambda job: job.id >= last, listed)
        return takewhile(lambda job: job.id <= last, listed)

    def _listed(self, query: JobQuery) -> Iterable[Job]:
        """The jobs from which a query picks: not all of them where only running ones can fit."""
        if query.cancel_requested or query.states == _RUNNING:
            ids = sorted(self._content.leased.ids(), reverse=query.newest_first)
            return map(self._content.jobs.__getitem__, ids)
        read = self._content.jobs.before if query.newest_first else self._content.jobs.after
        return read(query.after)

    def _tick(self) -> datetime:
        """The time now, with every job that has fallen due made ready."""
        now = from_micros(self._clock())
        if self._content.tick(now):
            self._wake()
        return now

    def _commit(self, batch: Batch, *, wake: bool = True) -> None:
        """Where every write passes: all of the batch or nothing."""
        self._content.apply(batch)
        if wake and batch != NOTHING:
            self._wake()

    def _wake(self) -> None:
        with self._door:
            self._generation += 1
            waiters, self._waiters = self._waiters, []
        for ring in waiters:
            ring()


def _copies(jobs: Iterable[Job]) -> list[Job]:
    """Jobs to hand out; bound to a Penstock, the store's own would keep it alive for ever."""
    return [replace(job) for job in jobs]


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
