"""The Store protocol in memory: the reference model of all stores."""
# ruff: noqa: D102 - the Store protocol documents the verbs

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from heapq import merge
from itertools import compress, islice

from msgspec.structs import replace

from penstock.core.dependencies import Edge
from penstock.core.errors import QueueInUse
from penstock.core.job import Claim, Job, JobId, Lease, LogEntry, LogId, NewJob, Retention
from penstock.core.key_line import KeyLine
from penstock.core.lifecycle import FINAL, State
from penstock.core.limits import Held, Limit
from penstock.core.migration_lock import MigrationLock, MigrationPhase, check_lasting, check_open
from penstock.core.progress import Line, Progress, Report, Reported
from penstock.core.query import JobQuery, Tally, matches
from penstock.core.queue import (
    ALL_QUEUES,
    Counts,
    Queue,
    QueueQuery,
    QueueSettings,
    QueueSummary,
    apply_settings,
)
from penstock.core.recovery import (
    NOTED_JOB,
    RUNNING_JOBS,
    BackupProgress,
    Cut,
    changes_of_cut,
    next_floor,
    reason_of_cut,
)
from penstock.core.restoration import Origin, Record, originals, plan
from penstock.core.schedule import Due, Firing, Schedule
from penstock.core.statistics import Counters, Interval
from penstock.core.store import StoreSize
from penstock.core.superseding import Tail, check_tail
from penstock.core.tasks import SetAside
from penstock.core.tokens import Token
from penstock.core.transition import Change, is_outdated
from penstock.core.verification import Verification
from penstock.core.workers import DepartedTask, WorkerInfo
from penstock.stores.memory import queries, verification
from penstock.stores.memory.batch import WriteBatch
from penstock.stores.memory.claims import select
from penstock.stores.memory.content import until
from penstock.stores.memory.draft import Added, Draft, check_names
from penstock.stores.memory.execution import Executor, verb


class MemoryStore(Executor):
    """Jobs in memory, shared by the threads and event loops of one process."""

    kind = "memory"
    tables = None

    @verb
    def add(
        self,
        jobs: Sequence[NewJob],
        *,
        actor: str,
        tail: Tail | None = None,
        reason: str | None = None,
    ) -> list[Job]:
        check_open(self._content.migration_lock)
        draft = Draft(self._content, self._tick(), actor)
        if tail is not None:
            check_tail(jobs[0].key, tail, self._content.newest_pending(jobs[0].key))
        added: list[Added] = []
        for new in jobs:
            added.append(draft.add(new, added, reason))
        if tail is not None and tail.replaced is not None and not added[0][1]:
            draft.replace(tail.replaced, added[0][0])
        draft.check_limits()
        self._commit(draft.batch())
        return self._added(added)

    def _added(self, added: Iterable[Added]) -> list[Job]:
        return [replace(self._content.jobs[place], duplicate=held) for place, held in added]

    @verb
    def claim(self, wanted: Claim) -> list[Job]:
        check_open(self._content.migration_lock)
        draft = Draft(self._content, self._tick(), wanted.worker)
        selected = select(self._content, wanted)
        for place in selected.ids:
            draft.claim(self._content.jobs[place])
        self._commit(replace(draft.batch(), starts=selected.starts, turns=selected.turns))
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
        self._commit(WriteBatch(jobs=held), wake=False)
        return _copies(held)

    @verb
    def transition(self, changes: Sequence[Change], *, actor: str) -> list[Job | None]:
        check_open(self._content.migration_lock)
        draft = Draft(self._content, self._tick(), actor)
        places: list[JobId | None] = []
        for change in changes:
            job = draft.get(change.job.id)
            if job is None or is_outdated(change, job.version, job.expires_at, self._content.now):
                places.append(None)
            else:
                draft.move(job, change.move)
                places.append(job.id)
        self._commit(draft.batch())
        return self._copies_of(places)

    def _copies_of(self, places: Iterable[JobId | None]) -> list[Job | None]:
        return [None if place is None else replace(self._content.jobs[place]) for place in places]

    async def watch(self, ids: Sequence[JobId]) -> list[Job]:
        return await self.get(ids)

    @verb
    def edges(self, ids: Sequence[JobId]) -> list[Edge]:
        return queries.edges(self._content, ids)

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
        return _copies(queries.find(self._content, query))

    @verb
    def find_ids(self, query: JobQuery) -> list[JobId]:
        self._tick()
        return [job.id for job in queries.find(self._content, query)]

    @verb
    def tally(self, query: JobQuery) -> Tally:
        self._tick()
        return Counter(job.state for job in self._content.jobs.after(None) if matches(job, query))

    @verb
    def count(self, queues: Collection[str] | None = None) -> Counts:
        self._tick()
        return queries.count(self._content, queues)

    @verb
    def ready_tags(
        self, queue: str, limit: int = 1000, *, among: Sequence[str] | None = None
    ) -> list[str]:
        self._tick()
        return queries.ready_tags(self._content, queue, limit, among)

    @verb
    def keys(self, after: str | None, limit: int) -> list[KeyLine]:
        return queries.keys(self._content, after, limit)

    @verb
    def oldest_ready(self, queues: Collection[str] | None = None) -> dict[str, datetime]:
        self._tick()
        return queries.oldest_ready(self._content, queues)

    @verb
    def backlog(self, queue: str | None = None, until: JobId | None = None) -> tuple[int, JobId]:
        return queries.backlog(self._content, queue, until)

    @verb
    def queues(self, query: QueueQuery = ALL_QUEUES) -> list[Queue]:
        self._tick()
        return queries.queues(self._content, query)

    @verb
    def summary(self, without: Collection[str] = ()) -> QueueSummary:
        self._tick()
        return queries.summary(self._content, frozenset(without))

    @verb
    def configure(self, settings: QueueSettings) -> Queue:
        check_lasting(self._content.migration_lock)
        check_names(self._content, [settings.name])
        self._tick()
        queue = apply_settings(self._content.queue(settings.name), settings)
        self._commit(WriteBatch(queues=[queue]))
        return queue

    @verb
    def remove_queue(self, name: str) -> bool:
        self._tick()
        if name not in self._content.queues:
            return False
        if unfinished := self._content.unfinished.get(name):
            raise QueueInUse(name, len(unfinished))
        self._commit(WriteBatch(queues=[Queue(name=name)]))
        return True

    @verb
    def limit(self, limit: Limit) -> None:
        if limit.concurrency is not None:
            check_lasting(self._content.migration_lock)
        self._commit(WriteBatch(limits=[limit]))

    @verb
    def limits(self) -> list[Limit]:
        return self._content.limits.all()

    @verb
    def set_aside(self, most: int | None = None) -> list[SetAside]:
        self._tick()
        return queries.set_aside(self._content, most)

    @verb
    def held(self, job: Job) -> list[Held]:
        self._tick()
        content = self._content
        return content.limits.held(job, content.queue(job.queue), content.running(), content.now)

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
    def records(self, ids: Sequence[JobId]) -> list[Record]:
        self._tick()
        return queries.records(self._content, ids)

    @verb
    def delete(self, jobs: Sequence[Job]) -> list[JobId]:
        self._tick()
        known = {job.id: job.version for job in jobs}
        lock = self._content.migration_lock
        have_left = lock is not None and lock.phase is MigrationPhase.LEFT
        removed = [
            job.id
            for job in map(self._content.jobs.get, known)
            if job is not None and job.version == known[job.id]
            if have_left or job.state in FINAL
        ]
        self._commit(WriteBatch(removed=removed))
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
        reported: Mapping[JobId, Reported] | None = None,
    ) -> list[Job | None]:
        content = self._content
        check_lasting(content.migration_lock)
        check_names(content, {record.job.queue for record in records})
        draft = Draft(content, self._tick(), actor)
        known = queries.restored_ids(content, origin.source, list(originals(records)))
        stored = (content.jobs.get(place) for place in known.values())
        found = plan(
            records,
            origin=origin,
            actor=actor,
            now=content.now,
            last=(content.last_job, content.last_log),
            known=known,
            states={job.id: job.state for job in stored if job is not None},
            is_held=draft.is_held,
        )
        draft.restore(found)
        batch = replace(
            draft.batch(),
            origins=[(origin.source, one.original, one.job.id) for one in found.restored],
            last_job=found.last_job,
            last_log=found.last_log,
            reported={
                one.job.id: reported[one.original]
                for one in found.restored
                if reported is not None and one.original in reported
            },
        )
        self._commit(batch)
        return self._copies_of(found.answers)

    @verb
    def raise_floor(self, *, actor: str, reason: str, above: int = 0, reclaim: bool = False) -> Cut:
        content, now = self._content, self._tick()
        last_log = LogId(content.last_log)
        floor = next_floor(max(content.last_job, last_log), now, above)
        draft = Draft(content, now, actor)
        draft.raise_log(floor)
        reclaimed: list[JobId] = []
        if content.migration_lock is None:
            running = list(queries.find(content, RUNNING_JOBS)) if reclaim else []
            noted = list(queries.find(content, NOTED_JOB))
            why = reason_of_cut(reason, last_log, floor)
            for change in changes_of_cut(running, noted, why):
                draft.move(change.job, change.move)
            reclaimed = [job.id for job in running]
        self._commit(replace(draft.batch(), last_job=floor, last_log=floor, last_schedule=floor))
        jobs = [job for job in self._copies_of(reclaimed) if job is not None]
        return Cut(last_log=last_log, floor=floor, reclaimed=jobs)

    @verb
    def restored_ids(self, source: int, ids: Sequence[JobId]) -> Mapping[JobId, JobId]:
        return queries.restored_ids(self._content, source, ids)

    @verb
    def set_migration_lock(
        self, lock: MigrationLock | None, *, expected: MigrationLock | None
    ) -> bool:
        if self._content.migration_lock != expected:
            return False
        self._commit(WriteBatch(migration_lock=lock))
        return True

    @verb
    def migration_lock(self) -> MigrationLock | None:
        return self._content.migration_lock

    @verb
    def report(self, reports: Sequence[Report]) -> list[bool]:
        held = [self._content.is_held(report.lease) for report in reports]
        self._commit(WriteBatch(reports=list(compress(reports, held))), wake=False)
        return held

    @verb
    def progress(self, ids: Sequence[JobId]) -> Mapping[JobId, Progress]:
        return self._content.reports.progress(ids)

    @verb
    def checkpoint(self, job_id: JobId) -> str | None:
        return self._content.reports.checkpoint(job_id)

    @verb
    def reported(self, ids: Sequence[JobId]) -> Mapping[JobId, Reported]:
        return self._content.reports.reported(ids)

    @verb
    def lines(self, job_id: JobId, *, after: int = 0, limit: int = 1000) -> list[Line]:
        return self._content.reports.lines(job_id, after, limit)

    @verb
    def prune(self, retention: Retention, limit: int, *, whole_days: bool = False) -> int:  # noqa: ARG002 - it has no partitions
        now = self._tick()
        past = merge(
            *(
                until(now - retention.keeps(state), ended)
                for state, ended in self._content.ended.items()
            )
        )
        removed = [entry[-1] for entry in islice(past, limit)]
        self._commit(WriteBatch(removed=removed))
        return len(removed)

    @verb
    def roll_up(self, limit: int) -> int:
        statistics = self._content.statistics
        uncounted = self._content.log.after(statistics.rolled_up_to)
        ids = [entry.id for entry in islice(uncounted, limit)]
        batch = WriteBatch(
            roll_up_to=ids[-1] if ids else LogId(0),
            forget_before=statistics.oldest_kept(self._tick()),
        )
        self._commit(batch, wake=False)
        return len(ids)

    @verb
    def intervals(
        self,
        since: datetime,
        until: datetime | None,
        queue: str | Collection[str] | None,
        step: timedelta,
    ) -> list[Interval]:
        return self._content.statistics.find(since, until, queue, step)

    @verb
    def counters(self) -> list[Counters]:
        return self._content.statistics.counters()

    @verb
    def series(self, limit: int | None = None) -> list[str]:
        statistics = self._content.statistics
        limit = statistics.limit if limit is None else limit
        candidates = statistics.candidates(limit)
        if candidates or limit != statistics.limit:
            self._commit(WriteBatch(series_limit=limit, series=candidates), wake=False)
        return sorted(statistics.series.intersection(self._content.queues))

    @verb
    def schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        return self._content.schedules.find(names)

    @verb
    def put_schedule(self, schedule: Schedule) -> Schedule | None:
        check_lasting(self._content.migration_lock)
        if (written := self._content.schedules.put(schedule)) is not None:
            self._commit(WriteBatch(schedules=[written]))
        return written

    @verb
    def drop_schedule(self, name: str) -> bool:
        dropped = [schedule.name for schedule in self._content.schedules.find([name])]
        self._commit(WriteBatch(dropped_schedules=dropped))
        return bool(dropped)

    @verb
    def due(self, tasks: Collection[str], declared: Collection[str], limit: int) -> Due:
        return self._content.schedules.due(self._tick(), (tasks, declared), limit)

    @verb
    def fire(self, firing: Firing, *, actor: str) -> list[Job] | None:
        check_open(self._content.migration_lock)
        draft = Draft(self._content, self._tick(), actor)
        if not self._content.schedules.is_due(firing, self._content.now):
            return None
        added = [
            draft.add(new, reason=firing.schedule.reason(new.run_at or self._content.now))
            for new in firing.jobs
        ]
        draft.check_limits()
        fired = self._content.schedules.fired(firing, draft.jobs.values())
        self._commit(replace(draft.batch(), schedules=[fired]))
        return self._added(added)

    @verb
    def tokens(self) -> list[Token]:
        return [self._content.tokens[name] for name in sorted(self._content.tokens)]

    @verb
    def add_token(self, token: Token) -> bool:
        check_lasting(self._content.migration_lock)
        if token.name in self._content.tokens:
            return False
        self._commit(WriteBatch(tokens=[token]))
        return True

    @verb
    def drop_token(self, name: str) -> bool:
        if name not in self._content.tokens:
            return False
        self._commit(WriteBatch(dropped_tokens=[name]))
        return True

    @verb
    def heartbeat(self, workers: Sequence[WorkerInfo]) -> list[str]:
        now, known = self._tick(), self._content.workers
        seen = [replace(one, seen_at=now, draining=known.is_draining(one.name)) for one in workers]
        self._commit(WriteBatch(workers=seen), wake=False)
        return [one.name for one in seen if one.draining]

    @verb
    def drain_worker(self, name: str) -> bool:
        worker = self._content.workers.get(name)
        if worker is None:
            return False
        self._commit(WriteBatch(workers=[replace(worker, draining=True)]), wake=False)
        return True

    @verb
    def verify(self, progress: BackupProgress) -> Verification:
        self._tick()
        return verification.verify(self._content, progress)

    @verb
    def repair(self, *, actor: str) -> None:
        pass

    @verb
    def size(self) -> StoreSize:
        return StoreSize(kind=self.kind)

    @verb
    def deregister(self, names: Sequence[str]) -> None:
        self._commit(WriteBatch(deregistered=list(names)), wake=False)

    @verb
    def departed_tasks(self) -> list[DepartedTask]:
        return self._content.workers.departed()

    @verb
    def workers(self) -> list[WorkerInfo]:
        return self._content.workers.roster(self._content.running())


def _copies(jobs: Iterable[Job]) -> list[Job]:
    """Return copies to hand out; a stored job bound to a Penstock would keep it alive."""
    return [replace(job) for job in jobs]
