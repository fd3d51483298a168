"""The Store protocol in plain Python."""
# ruff: noqa: D102 - the Store protocol documents the verbs

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from heapq import merge
from itertools import compress, islice
from typing import Any, NoReturn

from msgspec.structs import replace

from penstock.core.errors import ConfigurationError, Overtaken, QueueInUse
from penstock.core.history import Counters, Interval
from penstock.core.job import (
    ALL_QUEUES,
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
    Overall,
    Queue,
    QueueQuery,
    QueueSettings,
    Record,
    Retention,
    Tail,
    Tally,
    configured,
    fits,
    queue_at,
)
from penstock.core.lifecycle import FINAL, Done, Event, State
from penstock.core.limits import Held, Limit
from penstock.core.mirror import Mirror
from penstock.core.note import Line as LoggedLine
from penstock.core.note import Note, Progress
from penstock.core.note import Notes as KeptNotes
from penstock.core.schedule import Due, Firing, Schedule
from penstock.core.seal import Passage, Seal, check_lasting, check_open
from penstock.core.size import StoreSize
from penstock.core.tables import Tables
from penstock.core.token import Token
from penstock.core.worker import WorkerInfo
from penstock.stores.memory import looking
from penstock.stores.memory.batch import Batch
from penstock.stores.memory.content import until
from penstock.stores.memory.draft import Draft
from penstock.stores.memory.performing import Performing, verb
from penstock.stores.memory.queueing import check_lengths, check_names, chosen
from penstock.stores.memory.restoring import Restoring


class MemoryStore(Performing):
    """The Store protocol in plain Python: shared by threads and event loops of one process."""

    _name = "the in-memory store"
    kind = "memory"

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
        check_lengths(self._content, draft.jobs.values())
        check_names(self._content, {job.queue for job in draft.jobs.values()})
        self._commit(draft.batch())
        found = ((self._content.jobs[place], duplicate) for place, duplicate in places)
        return [replace(job, duplicate=hit) for job, hit in found]

    async def finish(
        self,
        ended: Sequence[tuple[Job, Done]],  # noqa: ARG002 - it is refused
        *,
        actor: str,  # noqa: ARG002
        connection: Any,  # noqa: ARG002
    ) -> list[Job]:
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
        taken = chosen(self._content, wanted)
        for place in taken.ids:
            draft.claim(self._content.jobs[place])
        self._commit(replace(draft.batch(), starts=taken.starts, turns=taken.turns))
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
        return looking.edges(self._content, ids)

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
        return _copies(looking.found(self._content, query))

    @verb
    def find_ids(self, query: JobQuery) -> list[JobId]:
        self._tick()
        return [job.id for job in looking.found(self._content, query)]

    @verb
    def tally(self, query: JobQuery) -> Tally:
        self._tick()
        return Counter(job.state for job in self._content.jobs.after(None) if fits(job, query))

    @verb
    def count(self, queues: Collection[str] | None = None) -> Counts:
        self._tick()
        return looking.counted(self._content, queues)

    @verb
    def ready_tags(
        self, queue: str, limit: int = 1000, *, among: Sequence[str] | None = None
    ) -> list[str]:
        self._tick()
        return looking.ready_tags(self._content, queue, limit, among)

    @verb
    def keys(self, after: str | None, limit: int) -> list[KeyLine]:
        return looking.keys(self._content, after, limit)

    @verb
    def oldest_ready(self, queues: Collection[str] | None = None) -> dict[str, datetime]:
        self._tick()
        return looking.oldest_ready(self._content, queues)

    @verb
    def backlog(self, queue: str | None = None, until: JobId | None = None) -> tuple[int, JobId]:
        return looking.backlog(self._content, queue, until)

    @verb
    def queues(self, query: QueueQuery = ALL_QUEUES) -> list[Queue]:
        self._tick()
        return looking.queues(self._content, query)

    @verb
    def overall(self, without: Collection[str] = ()) -> Overall:
        self._tick()
        return looking.overall(self._content, frozenset(without))

    @verb
    def configure(self, settings: QueueSettings) -> Queue:
        check_lasting(self._content.seal)
        check_names(self._content, [settings.name])
        stored = self._content.queues.get(settings.name) or Queue(name=settings.name)
        queue = configured(queue_at(stored, self._tick()), settings)
        self._commit(Batch(queues=[queue]))
        return queue

    @verb
    def remove_queue(self, name: str) -> bool:
        self._tick()
        if name not in self._content.queues:
            return False
        if unfinished := self._content.unfinished.get(name):
            raise QueueInUse(name, len(unfinished))
        self._commit(Batch(queues=[Queue(name=name)]))
        return True

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
        return looking.histories(self._content, ids)

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
        check_names(self._content, {record.job.queue for record in records})
        restoring = Restoring(self._content, self._tick(), origin, actor)
        places = [restoring.take(record) for record in records]
        restoring.link(records, places)
        self._commit(restoring.batch(notes or {}))
        return [None if place is None else replace(self._content.jobs[place]) for place in places]

    @verb
    def places(self, source: int, ids: Sequence[JobId]) -> Mapping[JobId, JobId]:
        return looking.places(self._content, source, ids)

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
        self,
        since: datetime,
        until: datetime | None,
        queue: str | Collection[str] | None,
        step: timedelta,
    ) -> list[Interval]:
        return self._content.sums.find(since, until, queue, step)

    @verb
    def counters(self) -> list[Counters]:
        return self._content.sums.counters()

    @verb
    def series(self, limit: int | None = None) -> list[str]:
        sums = self._content.sums
        limit = sums.limit if limit is None else limit
        unnamed = sums.unnamed(limit)
        if unnamed or limit != sums.limit:
            self._commit(Batch(series=limit, named=unnamed), wake=False)
        return sorted(sums.named.intersection(self._content.queues))

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
        check_lengths(self._content, draft.jobs.values())
        check_names(self._content, {job.queue for job in draft.jobs.values()})
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


def _copies(jobs: Iterable[Job]) -> list[Job]:
    """Jobs to hand out; bound to a Penstock, the store's own would keep it alive for ever."""
    return [replace(job) for job in jobs]


def _overtaken(job: Job, change: Change, now: datetime) -> bool:
    """Whether the job is no longer the one that the move was decided on.

    A renewal writes no version, but a lease that was renewed has not expired.
    """
    alive = job.expires_at is not None and job.expires_at > now
    return job.version != change.job.version or (change.move.event is Event.EXPIRED and alive)
