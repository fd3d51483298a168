"""The Store protocol on a database: one class, whose verbs are functions of this package."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from penstock.core.dependencies import Edge
from penstock.core.job import Claim, Job, JobId, Lease, LogEntry, LogId, NewJob, Retention
from penstock.core.key_line import KeyLine
from penstock.core.lifecycle import Done
from penstock.core.limits import Held, Limit
from penstock.core.migration_lock import MigrationLock
from penstock.core.progress import Line, Progress, Report, Reported
from penstock.core.query import JobQuery, Tally
from penstock.core.queue import ALL_QUEUES, Counts, Queue, QueueQuery, QueueSettings, QueueSummary
from penstock.core.recovery import BackupProgress, Cut
from penstock.core.restoration import Origin, Record
from penstock.core.schedule import Due, Firing, Schedule
from penstock.core.statistics import Counters, Interval
from penstock.core.store import StoreSize
from penstock.core.superseding import Tail
from penstock.core.tables import Mirror, Statements, Tables, Within
from penstock.core.tasks import SetAside
from penstock.core.tokens import Token
from penstock.core.transition import Change
from penstock.core.verification import Verification
from penstock.core.workers import DepartedTask, WorkerInfo
from penstock.stores.sql import (
    additions,
    claims,
    jobs,
    limits,
    migration_lock,
    queues,
    recovery,
    removal,
    reports,
    restoration,
    schedules,
    statistics,
    tables,
    tokens,
    transitions,
    verification,
)
from penstock.stores.sql import workers as registry
from penstock.stores.sql.database import Database, Reader
from penstock.stores.sql.queues import oldest_ready
from penstock.stores.sql.reports import write as write_reports
from penstock.stores.sql.tables import ApplicationTransaction

T = TypeVar("T")


class SqlStore:
    """Jobs in a database, durable on return."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = database.clock
        self._write = database.write
        self._read = database.read
        # Up to when changes that only time brings were announced to waiters.
        self._announced = 0

    @property
    def tables(self) -> "SqlStore":
        """See `Store.tables`."""
        return self

    # Writing jobs

    async def add(
        self,
        jobs: Sequence[NewJob],
        *,
        actor: str,
        tail: Tail | None = None,
        reason: str | None = None,
    ) -> list[Job]:
        """See `Store.add`."""
        if reason is not None:
            return await self._write(additions.add_with_reason, (jobs, actor, reason))
        addition = (jobs, actor, tail)
        plain = self.database.add_plain
        verb = additions.add if plain is None or not additions.is_plain(addition) else plain
        return await self._write(verb, addition)

    async def claim(self, wanted: Claim) -> list[Job]:
        """See `Store.claim`."""
        while (jobs := await self._write(self.database.claim, wanted)) is None:
            pass  # other writers had their turn
        return jobs

    async def renew(self, leases: Sequence[Lease]) -> list[Job]:
        """See `Store.renew`."""
        return await self._write(claims.renew, leases)

    async def transition(self, changes: Sequence[Change], *, actor: str) -> list[Job | None]:
        """See `Store.transition`."""
        finish = self.database.finish_plain
        if finish is not None and transitions.are_plain_ends(changes):
            return await self._write(finish, (changes, actor))
        return await self._write(transitions.transition, (changes, actor))

    async def watch(self, ids: Sequence[JobId]) -> list[Job]:
        """See `Store.watch`."""
        return await self._write(jobs.watch, ids)

    async def delete(self, jobs: Sequence[Job]) -> list[JobId]:
        """See `Store.delete`."""
        return await self._write(removal.delete, jobs)

    async def prune(self, retention: Retention, limit: int, *, whole_days: bool = False) -> int:
        """See `Store.prune`."""
        if whole_days and (dropped := await self.database.drop_days(retention)) is not None:
            return dropped
        return await self._write(removal.prune, (retention, limit))

    async def restore(
        self,
        records: Sequence[Record],
        *,
        origin: Origin,
        actor: str,
        reported: Mapping[JobId, Reported] | None = None,
    ) -> list[Job | None]:
        """See `Store.restore`."""
        return await self._write(restoration.restore, (records, origin, actor, reported or {}))

    async def raise_floor(
        self, *, actor: str, reason: str, above: int = 0, reclaim: bool = False
    ) -> Cut:
        """See `Store.raise_floor`."""
        return await self._write(recovery.raise_floor, (actor, reason, above, reclaim))

    async def report(self, reports: Sequence[Report]) -> list[bool]:
        """See `Store.report`."""
        return await self._write(write_reports, reports)

    # Reading jobs

    async def get(self, ids: Sequence[JobId]) -> list[Job]:
        """See `Store.get`."""
        return await self._read(lambda reader: reader.jobs(ids))

    async def find(self, query: JobQuery) -> list[Job]:
        """See `Store.find`."""
        return await self._read(lambda reader: jobs.find(reader, query))

    async def find_ids(self, query: JobQuery) -> list[JobId]:
        """See `Store.find_ids`."""
        return await self._read(lambda reader: jobs.find_ids(reader, query))

    async def tally(self, query: JobQuery) -> Tally:
        """See `Store.tally`."""
        return await self._read(lambda reader: jobs.tally(reader, query))

    async def expired(self, limit: int) -> list[Job]:
        """See `Store.expired`."""
        return await self._read(lambda reader: jobs.expired(reader, limit))

    async def edges(self, ids: Sequence[JobId]) -> list[Edge]:
        """See `Store.edges`."""
        return await self._read(lambda reader: jobs.edges(reader, ids))

    async def keys(self, after: str | None, limit: int) -> list[KeyLine]:
        """See `Store.keys`."""
        return await self._read(lambda reader: jobs.keys(reader, after, limit))

    async def log(
        self, job_id: JobId | None = None, *, after: LogId | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        """See `Store.log`."""
        return await self._read(lambda reader: jobs.log(reader, job_id, after, limit))

    async def newest_log(self) -> LogId:
        """See `Store.newest_log`."""
        return await self._read(jobs.newest_log)

    async def records(self, ids: Sequence[JobId]) -> list[Record]:
        """See `Store.records`."""
        return await self._read(lambda reader: jobs.records(reader, ids))

    async def origin(self) -> Origin:
        """See `Store.origin`."""
        return await self._read(jobs.origin)

    async def restored_ids(self, source: int, ids: Sequence[JobId]) -> Mapping[JobId, JobId]:
        """See `Store.restored_ids`."""
        return await self._read(lambda reader: restoration.restored_ids(reader, source, ids))

    async def progress(self, ids: Sequence[JobId]) -> Mapping[JobId, Progress]:
        """See `Store.progress`."""
        return await self._read(lambda reader: reports.progress(reader, ids))

    async def checkpoint(self, job_id: JobId) -> str | None:
        """See `Store.checkpoint`."""
        return await self._read(lambda reader: reports.checkpoint(reader, job_id))

    async def reported(self, ids: Sequence[JobId]) -> Mapping[JobId, Reported]:
        """See `Store.reported`."""
        return await self._read(lambda reader: reports.reported(reader, ids))

    async def lines(self, job_id: JobId, *, after: int = 0, limit: int = 1000) -> list[Line]:
        """See `Store.lines`."""
        return await self._read(lambda reader: reports.lines(reader, job_id, after, limit))

    # Queues and limits

    async def count(self, queues: Collection[str] | None = None) -> Counts:
        """See `Store.count`."""
        return await self._read(lambda reader: jobs.count(reader, queues))

    async def backlog(
        self, queue: str | None = None, until: JobId | None = None
    ) -> tuple[int, JobId]:
        """See `Store.backlog`."""
        return await self._read(lambda reader: queues.backlog(reader, queue, until))

    async def queues(self, query: QueueQuery = ALL_QUEUES) -> list[Queue]:
        """See `Store.queues`."""
        return await self._read(lambda reader: queues.find(reader, query))

    async def summary(self, without: Collection[str] = ()) -> QueueSummary:
        """See `Store.summary`."""
        return await self._read_promoted(
            lambda reader, now: queues.summary(reader, frozenset(without), now)
        )

    async def oldest_ready(self, queues: Collection[str] | None = None) -> dict[str, datetime]:
        """See `Store.oldest_ready`."""
        return await self._read_promoted(lambda reader, _: oldest_ready(reader, queues))

    async def ready_tags(
        self, queue: str, limit: int = 1000, *, among: Sequence[str] | None = None
    ) -> list[str]:
        """See `Store.ready_tags`."""
        return await self._read_promoted(
            lambda reader, now: limits.ready_tags(reader, queue, limit, among, now)
        )

    async def configure(self, settings: QueueSettings) -> Queue:
        """See `Store.configure`."""
        return await self._write(queues.configure, settings)

    async def remove_queue(self, name: str) -> bool:
        """See `Store.remove_queue`."""
        return await self._write(queues.remove, name)

    async def limit(self, limit: Limit) -> None:
        """See `Store.limit`."""
        await self._write(queues.limit, limit)

    async def limits(self) -> list[Limit]:
        """See `Store.limits`."""
        return await self._read(queues.limits)

    async def set_aside(self, most: int | None = None) -> list[SetAside]:
        """See `Store.set_aside`."""
        return await self._read(lambda reader: limits.set_aside(reader, most))

    async def held(self, job: Job) -> list[Held]:
        """See `Store.held`."""
        return await self._read(lambda reader: limits.held_by(reader, job))

    # Waiting

    async def wait(self, seen: int, timeout: float) -> int:
        """See `Store.wait`."""
        generation = await self.database.listen()
        if generation != seen:
            return generation
        due, now = await self._read(lambda reader: limits.next_change(reader, self._announced))
        if due is not None and due <= now:
            # Once for all waiters here: it may take long until one of them can claim the job.
            self._announced = now
            self.database.notify()
        elif due is not None:
            timeout = min(timeout, (due - now) / 1e6)
        return await self.database.wait(seen, timeout)

    # Migration between stores

    async def migration_lock(self) -> MigrationLock | None:
        """See `Store.migration_lock`."""
        return await self._read(migration_lock.find)

    async def set_migration_lock(
        self, lock: MigrationLock | None, *, expected: MigrationLock | None
    ) -> bool:
        """See `Store.set_migration_lock`."""
        if not await self._write(migration_lock.put, (lock, expected)):
            return False
        await self.database.wait_for_writers()
        return True

    # Statistics

    async def roll_up(self, limit: int) -> int:
        """See `Store.roll_up`."""
        summed = await self._read(lambda reader: statistics.sum_up(reader, limit))
        if summed.end == summed.start and summed.forget_before is None:
            return 0
        return await self._write(statistics.write, summed)

    async def intervals(
        self,
        since: datetime,
        until: datetime | None,
        queue: str | Collection[str] | None,
        step: timedelta,
    ) -> list[Interval]:
        """See `Store.intervals`."""
        return await self._read(lambda reader: statistics.find(reader, since, until, queue, step))

    async def counters(self) -> list[Counters]:
        """See `Store.counters`."""
        return await self._read(statistics.counters)

    async def series(self, limit: int | None = None) -> list[str]:
        """See `Store.series`."""
        if await self._read(lambda reader: statistics.lacks_series(reader, limit)):
            await self._write(statistics.assign_series, limit)
        return await self._read(statistics.series)

    # Schedules

    async def schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        """See `Store.schedules`."""
        return await self._read(lambda reader: schedules.find(reader, names))

    async def put_schedule(self, schedule: Schedule) -> Schedule | None:
        """See `Store.put_schedule`."""
        return await self._write(schedules.put, schedule)

    async def drop_schedule(self, name: str) -> bool:
        """See `Store.drop_schedule`."""
        return await self._write(schedules.drop, name)

    async def due(self, tasks: Collection[str], declared: Collection[str], limit: int) -> Due:
        """See `Store.due`."""
        return await self._read(lambda reader: schedules.due(reader, tasks, declared, limit))

    async def fire(self, firing: Firing, *, actor: str) -> list[Job] | None:
        """See `Store.fire`."""
        return await self._write(schedules.fire, (firing, actor))

    # Tokens

    async def tokens(self) -> list[Token]:
        """See `Store.tokens`."""
        return await self._read(tokens.find)

    async def add_token(self, token: Token) -> bool:
        """See `Store.add_token`."""
        return await self._write(tokens.add, token)

    async def drop_token(self, name: str) -> bool:
        """See `Store.drop_token`."""
        return await self._write(tokens.drop, name)

    # Workers

    async def heartbeat(self, workers: Sequence[WorkerInfo]) -> list[str]:
        """See `Store.heartbeat`; also applies switches that wait for older programs to exit."""
        await self.database.switch()
        return await self._write(registry.heartbeat, workers)

    async def drain_worker(self, name: str) -> bool:
        """See `Store.drain_worker`."""
        return await self._write(registry.drain, name)

    async def deregister(self, names: Sequence[str]) -> None:
        """See `Store.deregister`."""
        await self._write(registry.deregister, names)

    async def departed_tasks(self) -> list[DepartedTask]:
        """See `Store.departed_tasks`."""
        return await self._read(registry.departed_tasks)

    async def workers(self) -> list[WorkerInfo]:
        """See `Store.workers`."""
        return await self._read(registry.find)

    # An application's own tables and transactions

    async def transact(self, work: Callable[[Within], T]) -> T:
        """See `TableStore.transact`."""
        answer: T = await self._write(tables.transact, work)
        return answer

    async def read(self, work: Callable[[Statements], T]) -> T:
        """See `TableStore.read`."""
        return await self._read(lambda reader: tables.read(reader, work))

    async def prepare_tables(self, name: str, steps: Tables) -> None:
        """See `TableStore.prepare_tables`."""
        if not await self._read(lambda reader: tables.is_prepared(reader, name, steps)):
            await self._write(tables.prepare, (name, steps))

    async def add_mirror(self, mirror: Mirror) -> None:
        """See `TableStore.add_mirror`."""
        await self._write(self.database.install_mirror, mirror)

    async def add_within(self, jobs: Sequence[NewJob], *, actor: str, connection: Any) -> list[Job]:
        """See `TableStore.add_within`."""
        addition = (jobs, actor, None)
        if not isinstance(connection, ApplicationTransaction):
            return await self.database.add_within(connection, addition)
        plain = self.database.add_plain
        verb = additions.add_within if plain is None or not additions.is_plain(addition) else plain
        return connection.run(verb, addition)

    async def finish(
        self, ended: Sequence[tuple[Job, Done]], *, actor: str, connection: Any
    ) -> list[Job]:
        """See `TableStore.finish`."""
        if not isinstance(connection, ApplicationTransaction):
            return await self.database.finish_within(connection, ended, actor)
        return connection.run(transitions.finish, (ended, actor))

    async def supersede(self, job_id: JobId, by: JobId, *, actor: str, connection: Any) -> bool:
        """See `TableStore.supersede`."""
        if not isinstance(connection, ApplicationTransaction):
            return await self.database.supersede_within(connection, job_id, by, actor)
        return connection.run(transitions.supersede, (job_id, by, actor))

    # The store itself

    async def verify(self, progress: BackupProgress) -> Verification:
        """See `Store.verify`."""
        return await self._read(lambda reader: verification.verify(reader, progress))

    async def repair(self, *, actor: str) -> None:
        """See `Store.repair`."""
        await self._write(verification.repair, actor)

    async def size(self) -> StoreSize:
        """See `Store.size`."""
        size, dead = await self._read(lambda reader: reader.execute("size").fetchone())
        return StoreSize(
            kind=self.database.kind,
            bytes=size,
            wal_bytes=self.database.wal_bytes(),
            dead_rows=dead,
        )

    async def close(self) -> None:
        """See `Store.close`."""
        await self.database.close()

    async def _read_promoted(self, read: Callable[[Reader, int], T]) -> T:
        """Read after all jobs due by now have become ready; what falls due later does not count."""
        now = await self._read(lambda reader: reader.clock())

        def look(reader: Reader) -> T | None:
            due = reader.execute("any_due", (now,)).fetchone()
            return None if due else read(reader, now)

        while (found := await self._read(look)) is None:
            await self._write(claims.promote, now)
        return found
