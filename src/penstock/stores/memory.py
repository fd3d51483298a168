"""Jobs in memory: for tests, and for work that may go when the process goes.

Every write decides first, on a `Draft` over what is stored, and changes nothing. `_commit` then
applies the draft's `Batch` as a whole. Rankings, totals and what a pending job waits for follow
from the batches alone: to keep and replay the batches is to keep the store.
"""
# ruff: noqa: D102 - the Store protocol documents the verbs

import asyncio
import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush, merge
from itertools import groupby, islice, takewhile
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.errors import ConfigurationError, QueueFull
from penstock.core.job import (
    Change,
    Claim,
    Counts,
    Job,
    JobId,
    JobQuery,
    Lease,
    LogEntry,
    LogId,
    NewJob,
    Queue,
    QueueSettings,
    Retention,
    Scope,
    moved,
)
from penstock.core.lifecycle import FINAL, UNFINISHED, Event, Move, State, Waiting
from penstock.core.store import Clock
from penstock.core.times import from_micros

SLACK = 64
"""How many stale entries a structure may hold before it is worth rebuilding."""

_RUNNING = frozenset({State.RUNNING})
_NOTES = frozenset({Event.REFUSED, Event.CANCEL_REQUESTED})

Ranked = tuple[Any, ...]
V = TypeVar("V")


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """All that one verb writes: the jobs and queues as they became, and what it logged."""

    jobs: list[Job] = []
    entries: list[LogEntry] = []
    queues: list[Queue] = []
    removed: list[JobId] = []


class Ranking:
    """Job ids in the order of their ranks.

    A heap that forgets a dropped entry when it comes up, or when the dropped outnumber the rest.
    """

    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[Ranked] = []
        self._live: dict[JobId, Ranked] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Ranked]:
        """The entries in order, without taking them off: a walk down from the heap's top."""
        heap = self._heap
        frontier = [(heap[0], 0)] if heap else []
        while frontier:
            entry, place = heappop(frontier)
            for child in range(2 * place + 1, min(2 * place + 3, len(heap))):
                heappush(frontier, (heap[child], child))
            if self._live.get(entry[-1]) is entry:
                yield entry

    def ids(self) -> Iterable[JobId]:
        """The ids in no order."""
        return self._live.keys()

    def first(self) -> Ranked | None:
        """The foremost entry: the parts of its rank, then the id."""
        return self._heap[0] if self._heap else None

    def put(self, job_id: JobId, *rank: object) -> None:
        """Place an id; if it was there before, it moves."""
        entry = (*rank, job_id)
        moved = job_id in self._live
        self._live[job_id] = entry
        heappush(self._heap, entry)
        if moved:
            self._tidy()

    def drop(self, job_id: JobId) -> None:
        """Remove an id, if it is there."""
        if self._live.pop(job_id, None) is not None:
            self._tidy()

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._live) + SLACK:
            self._heap = list(self._live.values())
            heapify(self._heap)
        while self._heap and self._live.get(self._heap[0][-1]) is not self._heap[0]:
            heappop(self._heap)


class Shelf(Generic[V]):
    """Values by growing ids, to be read from any id onwards or backwards."""

    __slots__ = ("_ids", "_values")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._values: dict[int, V] = {}

    def __getitem__(self, place: int) -> V:
        return self._values[place]

    def get(self, place: int) -> V | None:
        return self._values.get(place)

    def put(self, place: int, value: V) -> None:
        if place not in self._values:
            self._ids.append(place)
        self._values[place] = value

    def take(self, place: int) -> V:
        value = self._values.pop(place)
        if len(self._ids) > 2 * len(self._values) + SLACK:
            self._ids = list(self._values)
        return value

    def after(self, place: int | None) -> Iterator[V]:
        start = 0 if place is None else bisect_right(self._ids, place)
        return self._read(range(start, len(self._ids)))

    def before(self, place: int | None) -> Iterator[V]:
        end = len(self._ids) if place is None else bisect_left(self._ids, place)
        return self._read(range(end - 1, -1, -1))

    def _read(self, indexes: range) -> Iterator[V]:
        for index in indexes:
            if (value := self._values.get(self._ids[index])) is not None:
                yield value


class Line:
    """The unfinished jobs of one key: at most one of them is visible to a claim."""

    __slots__ = ("pending", "running", "visible")

    def __init__(self) -> None:
        self.pending = Ranking()
        self.running: set[JobId] = set()
        self.visible: JobId | None = None

    def put(self, job: Job) -> None:
        """Note where this job of the key stands now."""
        self.pending.drop(job.id)
        self.running.discard(job.id)
        if job.state is State.PENDING:
            self.pending.put(job.id)
        elif job.state is State.RUNNING:
            self.running.add(job.id)

    def head(self) -> JobId | None:
        """The job that is next, unless one is running."""
        first = None if self.running else self.pending.first()
        return None if first is None else first[-1]


class Draft:
    """The store as a verb would leave it: what it wrote so far, before what is stored."""

    def __init__(self, store: "MemoryStore", now: datetime, actor: str) -> None:
        self.jobs: dict[JobId, Job] = {}
        self.entries: list[LogEntry] = []
        self._store = store
        self._now = now
        self._actor = actor
        self._holders: dict[str, set[JobId]] = {}

    def get(self, job_id: JobId) -> Job | None:
        return self.jobs.get(job_id) or self._store._jobs.get(job_id)  # noqa: SLF001 - its draft

    def batch(self) -> Batch:
        return Batch(jobs=list(self.jobs.values()), entries=self.entries)

    def add(self, new: NewJob) -> tuple[JobId, bool]:
        """The id of the new job, or of the one that holds its dedupe key and True."""
        if new.dedupe is not None and (rival := self._rival(new.dedupe, new.scope)) is not None:
            return rival, True
        run_at = self._now + (new.delay or timedelta(0)) if new.run_at is None else new.run_at
        job_id = JobId(self._store._last_job + len(self.jobs) + 1)  # noqa: SLF001 - its draft
        self._write(
            Job(
                id=job_id,
                version=self._log(job_id, Event.ENQUEUED, State.PENDING),
                task=new.task,
                payload=new.payload,
                queue=new.queue,
                priority=new.priority,
                state=State.PENDING,
                waiting=self._waiting(new.key, run_at),
                attempt=0,
                enqueued_at=self._now,
                run_at=run_at.astimezone(UTC),
                key=new.key,
                dedupe=new.dedupe,
                scope=new.scope,
                tags=new.tags,
                retry=new.retry,
                timeout=new.timeout,
                lease_time=new.lease,
            )
        )
        return job_id, False

    def claim(self, job: Job) -> None:
        token = self._next_log()
        self._log(job.id, Event.CLAIMED, State.RUNNING, token=token)
        self._write(
            replace(
                job,
                version=token,
                state=State.RUNNING,
                waiting=None,
                attempt=job.attempt + 1,
                token=token,
                worker=self._actor,
                started_at=self._now,
                expires_at=self._now + job.lease_time,
            )
        )

    def move(self, job: Job, move: Move) -> None:
        """Write a move; raises `TransitionRefused` where it has to give way and cannot."""
        running, waiting, duration = job.state is State.RUNNING, job.waiting, None
        if move.event not in _NOTES:
            move = self._settled(job, move)
            back = move.state is State.PENDING
            waiting = self._waiting(job.key, self._now + move.delay) if back else None
            duration = self._now - job.started_at if running and job.started_at else None
        version = self._log(
            job.id,
            move.event,
            move.state,
            token=job.token if running else None,
            reason=move.reason,
            error=move.error,
            duration=duration,
        )
        self._write(moved(job, move, at=self._now, version=version, waiting=waiting))

    def _settled(self, job: Job, move: Move) -> Move:
        if move.state is not State.PENDING or job.dedupe is None:
            return move
        rival = self._rival(job.dedupe, job.scope, but=job.id)
        return move if rival is None else lifecycle.give_way(job, move, rival)

    def _waiting(self, key: str | None, run_at: datetime) -> Waiting:
        """Of a key, all are blocked until the store makes its head visible."""
        if key is not None:
            return Waiting.BLOCKED
        return Waiting.READY if run_at <= self._now else Waiting.SCHEDULED

    def _rival(self, dedupe: str, scope: Scope, but: JobId | None = None) -> JobId | None:
        """The job that keeps another one with that dedupe key from being pending."""
        holders = [job for place in sorted(self._held(dedupe)) if (job := self.get(place))]
        others = [job for job in holders if job.id != but]
        pending = [job.id for job in others if job.state is State.PENDING]
        running = [job.id for job in others if Scope.UNFINISHED in (scope, job.scope)]
        return next(iter(pending + running), None)

    def _held(self, dedupe: str) -> set[JobId]:
        if dedupe not in self._holders:
            stored = self._store._holders.get(dedupe, ())  # noqa: SLF001 - its draft
            self._holders[dedupe] = set(stored)
        return self._holders[dedupe]

    def _write(self, job: Job) -> None:
        self.jobs[job.id] = job
        if job.dedupe is not None:
            held = self._held(job.dedupe)
            (held.add if job.state in UNFINISHED else held.discard)(job.id)

    def _next_log(self) -> LogId:
        return LogId(self._store._last_log + len(self.entries) + 1)  # noqa: SLF001 - its draft

    def _log(
        self,
        job_id: JobId,
        event: Event,
        state: State,
        *,
        token: int | None = None,
        reason: str | None = None,
        error: str | None = None,
        duration: timedelta | None = None,
    ) -> LogId:
        entry = LogEntry(
            id=self._next_log(),
            job_id=job_id,
            at=self._now,
            event=event,
            state=state,
            actor=self._actor,
            token=token,
            reason=reason,
            error=error,
            duration=duration,
        )
        self.entries.append(entry)
        return entry.id


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
        # All below follows from the above.
        self._entries: dict[JobId, list[LogId]] = {}
        self._totals: Counter[tuple[str, State, Waiting | None]] = Counter()
        self._unfinished: dict[str, set[JobId]] = {}
        self._ready: dict[tuple[str, str | None], Ranking] = {}
        self._scheduled = Ranking()
        self._leased = Ranking()
        self._ended = {state: Ranking() for state in FINAL}
        self._lines: dict[str, Line] = {}
        self._holders: dict[str, set[JobId]] = {}
        self._generation = 0
        self._waiters: list[Callable[[], object]] = []

    async def add(self, jobs: Sequence[NewJob], *, actor: str, connection: Any = None) -> list[Job]:
        if connection is not None:
            raise ConfigurationError("the in-memory store cannot join a database transaction")
        with self._lock:
            draft = Draft(self, self._tick(), actor)
            places = [draft.add(new) for new in jobs]
            self._check_limits(draft.jobs.values())
            self._commit(draft.batch())
            found = ((self._jobs[place], duplicate) for place, duplicate in places)
            return [replace(job, duplicate=True) if hit else job for job, hit in found]

    async def claim(self, wanted: Claim) -> list[Job]:
        with self._lock:
            draft = Draft(self, self._tick(), wanted.worker)
            for entry in islice(self._claimable(wanted), wanted.limit):
                draft.claim(self._jobs[entry[-1]])
            self._commit(draft.batch())
            return list(draft.jobs.values())

    async def renew(self, leases: Sequence[Lease]) -> list[Job]:
        with self._lock:
            now = self._tick()
            held = [
                replace(job, expires_at=now + job.lease_time)
                for lease in leases
                if (job := self._jobs.get(lease.job_id))
                and (job.state, job.token) == (State.RUNNING, lease.token)
            ]
            self._commit(Batch(jobs=held), wake=False)
            return held

    async def transition(self, changes: Sequence[Change], *, actor: str) -> list[Job | None]:
        with self._lock:
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
            return [None if place is None else self._jobs[place] for place in places]

    async def expired(self, limit: int) -> list[Job]:
        with self._lock:
            past = _until(self._tick(), self._leased)
            return [self._jobs[entry[-1]] for entry in islice(past, limit)]

    async def get(self, ids: Sequence[JobId]) -> list[Job]:
        with self._lock:
            self._tick()
            return [job for job in map(self._jobs.get, ids) if job is not None]

    async def find(self, query: JobQuery) -> list[Job]:
        with self._lock:
            self._tick()
            return list(
                islice((job for job in self._listed(query) if _fits(job, query)), query.limit)
            )

    async def count(self) -> Counts:
        with self._lock:
            self._tick()
            return {place: total for place, total in self._totals.items() if total}

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
            stored = self._queues.get(settings.name) or Queue(name=settings.name)
            queue = replace(stored, **wanted)
            self._commit(Batch(queues=[queue]))
            return queue

    async def log(
        self, job_id: JobId | None = None, *, after: LogId | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        with self._lock:
            if job_id is None:
                return list(islice(self._log.after(after), limit))
            entries = map(self._log.__getitem__, self._entries.get(job_id, ()))
            return list(islice((one for one in entries if after is None or one.id > after), limit))

    async def prune(self, retention: Retention, limit: int) -> int:
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

    async def wait(self, seen: int, timeout: float) -> int:
        woken = _Alarm()
        with self._lock:
            now = self._tick()
            first = self._scheduled.first()
            if first is not None:
                timeout = min(timeout, (first[0] - now).total_seconds())
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

    async def close(self) -> None:
        with self._lock:
            self._wake()

    def _claimable(self, wanted: Claim) -> Iterator[Ranked]:
        names = self._queues.keys() if wanted.queues is None else set(wanted.queues)
        tags: set[str | None] = set(wanted.tags) or {None}
        open_names = [
            name for name in names if name in self._queues and not self._queues[name].paused
        ]
        rankings = [
            self._ready[name, tag]
            for name in open_names
            for tag in tags
            if (name, tag) in self._ready
        ]
        # A job that fits several tags comes up once for each, one after the other.
        return (entry for entry, _ in groupby(merge(*rankings)))

    def _check_limits(self, added: Iterable[Job]) -> None:
        for name, more in Counter(job.queue for job in added).items():
            limit = self._queues[name].max_pending if name in self._queues else None
            if limit is None:
                continue
            if more + sum(self._totals[name, State.PENDING, kind] for kind in Waiting) > limit:
                raise QueueFull(name, limit)

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
        for place in batch.removed:
            self._leave(self._jobs.take(place))
            for entry_id in self._entries.pop(place):
                self._log.take(entry_id)

    def _put(self, job: Job) -> None:
        if (old := self._jobs.get(job.id)) is not None:
            self._leave(old)
        self._jobs.put(job.id, job)
        self._enter(job)

    def _enter(self, job: Job) -> None:
        self._totals[job.queue, job.state, job.waiting] += 1
        if job.waiting is Waiting.READY:
            for tag in {None, *job.tags}:
                ranking = self._ready.setdefault((job.queue, tag), Ranking())
                ranking.put(job.id, -job.priority, job.run_at)
        elif job.waiting is Waiting.SCHEDULED:
            self._scheduled.put(job.id, job.run_at)
        elif job.state is State.RUNNING:
            self._leased.put(job.id, job.expires_at)
        elif job.state in FINAL:
            self._ended[job.state].put(job.id, job.finished_at)

    def _leave(self, job: Job) -> None:
        self._totals[job.queue, job.state, job.waiting] -= 1
        if job.waiting is Waiting.READY:
            for tag in {None, *job.tags}:
                ranking = self._ready[job.queue, tag]
                ranking.drop(job.id)
                if not ranking:
                    del self._ready[job.queue, tag]
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
            if job.waiting is Waiting.BLOCKED:
                kind = Waiting.READY if job.run_at <= self._now else Waiting.SCHEDULED
                self._put(replace(job, waiting=kind))
        if not line.pending and not line.running:
            del self._lines[key]

    def _wake(self) -> None:
        self._generation += 1
        waiters, self._waiters = self._waiters, []
        for ring in waiters:
            ring()


class _Alarm:
    """Rings from any thread; waits in an event loop where one runs, else blocks the thread."""

    def __init__(self) -> None:
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
            self._event = threading.Event()
        else:
            self._future = self._loop.create_future()

    def ring(self) -> None:
        if self._loop is None:
            self._event.set()
        else:
            with suppress(RuntimeError):  # the waiter's loop was closed
                self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self, timeout: float) -> None:
        if self._loop is None:
            self._event.wait(timeout)
        else:
            await asyncio.wait([self._future], timeout=timeout)


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
    return (
        (after is None or (job.id < after if query.newest_first else job.id > after))
        and (query.states is None or job.state in query.states)
        and (query.queue is None or job.queue == query.queue)
        and (query.task is None or job.task == query.task)
        and (query.key is None or job.key == query.key)
        and (query.tag is None or query.tag in job.tags)
        and (query.cancel_requested is None or job.cancel_requested == query.cancel_requested)
    )
