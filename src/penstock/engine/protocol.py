"""The protocol of a queue, in parts: what a store (`Penstock`) and a server offer alike.

`Penstock` implements all of it. `penstock.client.RemotePenstock` implements what a server has
routes for: its classes inherit from these protocols, whose methods refuse with `NotOffered` unless
they are overridden.
"""

import builtins
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NoReturn, Protocol, TypeVar, Unpack

from msgspec import UNSET, UnsetType

from penstock.core.dependencies import Edge
from penstock.core.errors import NotOffered
from penstock.core.explanation import Explanation
from penstock.core.job import Job, JobId, Lease, LogEntry, NewJob, Retention
from penstock.core.key_line import KeyLine
from penstock.core.lifecycle import FINAL, Done, Outcome, State
from penstock.core.limits import Limit
from penstock.core.migration_lock import MigrationLock
from penstock.core.progress import Line, Progress, Report
from penstock.core.query import JobQuery, Tally
from penstock.core.queue import (
    ALL_QUEUES,
    Ages,
    Counts,
    Queue,
    QueueQuery,
    QueueStatus,
    QueueSummary,
)
from penstock.core.recovery import Backup, BackupProgress, Cut, RestoredStore
from penstock.core.restoration import Record
from penstock.core.schedule import Schedule
from penstock.core.secrets import Secrets
from penstock.core.statistics import MINUTE, Counters, Interval
from penstock.core.tables import Mirror, Statements, Tables
from penstock.core.tasks import AnnouncedTask, KnownTasks
from penstock.core.tokens import Access, Token
from penstock.core.verification import Verification
from penstock.core.workers import WaitingTask, WorkerInfo
from penstock.engine.batch import Batch
from penstock.engine.bulk import Bulk, BulkProgress, Portion
from penstock.engine.queues import Drained
from penstock.engine.schedules import Recurrence
from penstock.engine.tables import Transaction
from penstock.engine.task import Options, Task

T = TypeVar("T")
PathLike = str | os.PathLike[str]
_DONE = Done()


def not_offered(call: str, command: str | None = None) -> NoReturn:
    """Raise `NotOffered` for a call that has no route, and name what to do instead."""
    here = f"Penstock(url).{call}"
    way = here if command is None else f"penstock {command}, or {here}"
    raise NotOffered(f"a server does not offer {call}; use the store itself: {way}")


class QueuePart(Protocol):
    """`app.queues`: list, pause, drain and remove queues."""

    async def list(self, query: QueueQuery = ALL_QUEUES) -> builtins.list[Queue]:
        """Return the queues with their limits, by name."""
        not_offered("queues.list(…)", "status")

    async def statuses(self, query: QueueQuery = ALL_QUEUES) -> builtins.list[QueueStatus]:
        """Return the queues with their jobs by state and their oldest ready job."""
        not_offered("queues.statuses(…)", "status")

    async def summary(self, without: Collection[str] = ()) -> QueueSummary:
        """Return the number of queues, other than these, and all their jobs by state."""
        not_offered("queues.summary(…)", "status")

    async def oldest_ready(self, queues: Collection[str] | None = None) -> Mapping[str, datetime]:
        """Return when the oldest ready job of each queue became due."""
        not_offered("queues.oldest_ready(…)", "status")

    async def ready_tags(
        self, queue: str, limit: int = 1000, *, among: Sequence[str] | None = None
    ) -> builtins.list[str]:
        """Return the tags of the ready jobs of a queue."""
        not_offered("queues.ready_tags(…)")

    async def keys(self, after: str | None = None, limit: int = 100) -> builtins.list[KeyLine]:
        """Return the keys of unfinished jobs."""
        not_offered("queues.keys(…)")

    async def pause(self, queue: str, *, duration: timedelta | None = None) -> Queue:
        """Start no more jobs of this queue, in any process."""
        not_offered("queues.pause(…)", "pause")

    async def resume(self, queue: str) -> Queue:
        """Start jobs of this queue again."""
        not_offered("queues.resume(…)", "resume")

    async def remove(self, queue: str) -> bool:
        """Remove all limits of a queue, and its pause; return whether it existed."""
        not_offered("queues.remove(…)", "remove")

    async def drain(self, queue: str | None = None, *, timeout: timedelta) -> Drained:
        """Wait until the jobs that are unfinished now have finished."""
        not_offered("queues.drain(…)", "drain")


class LimitPart(Protocol):
    """`app.limits`: limits of queues, tasks, throttles and the number of queues."""

    async def queue(
        self,
        queue: str,
        max_pending: int | UnsetType | None = UNSET,
        *,
        concurrency: int | UnsetType | None = UNSET,
        rate: tuple[int, timedelta] | UnsetType | None = UNSET,
        promote_after: Ages | UnsetType | None = UNSET,
    ) -> Queue:
        """Set limits of a queue; None removes one, and what is not given stays."""
        not_offered("limits.queue(…)", "limit")

    async def task(self, task: str, concurrency: int | None) -> None:
        """Limit how many jobs of a task run at a time."""
        not_offered("limits.task(…)")

    async def throttle(self, prefix: str, concurrency: int | None) -> None:
        """Limit how many jobs of each throttle with this prefix run at a time."""
        not_offered("limits.throttle(…)")

    async def queues(self, most: int | None) -> None:
        """Limit the number of queues in the store."""
        not_offered("limits.queues(…)", "limit-queues")

    def reserve(self, *queues: str) -> None:
        """Reserve queues for workers that name them."""
        not_offered("limits.reserve(…)")

    async def reserved(self) -> frozenset[str]:
        """Return the queues that are reserved for workers that name them."""
        not_offered("limits.reserved()")

    async def list(self) -> builtins.list[Limit]:
        """Return the limits of tasks, throttles and the number of queues."""
        not_offered("limits.list()", "status")


class SchedulePart(Protocol):
    """`app.schedules`: periodic jobs."""

    async def put(
        self, name: str, job: Task[..., Any] | NewJob, **recurrence: Unpack[Recurrence]
    ) -> Schedule:
        """Enqueue a job periodically."""
        not_offered("schedules.put(…)")

    async def remove(self, name: str) -> None:
        """Remove a schedule."""
        not_offered("schedules.remove(…)", "cron remove")

    async def list(self) -> builtins.list[Schedule]:
        """Return every schedule, by name."""
        not_offered("schedules.list()", "cron list")

    async def run_now(self, name: str) -> Job:
        """Enqueue the job of a schedule now."""
        not_offered("schedules.run_now(…)", "cron run")

    async def pause(self, name: str) -> Schedule:
        """Stop firing a schedule, in all processes, until it is resumed."""
        not_offered("schedules.pause(…)", "cron pause")

    async def resume(self, name: str) -> Schedule:
        """Fire a schedule again from its next run on."""
        not_offered("schedules.resume(…)", "cron resume")

    async def register(self) -> builtins.list[Schedule]:
        """Store the schedules that tasks declare."""
        not_offered("schedules.register()")

    async def fire_due(self) -> timedelta | None:
        """Enqueue every run that is due, and return the time until the next."""
        not_offered("schedules.fire_due()")


class BulkPart(Protocol):
    """`app.bulk(query)`: the jobs that match a query, to be counted or changed together."""

    async def count(self) -> int:
        """Count the jobs that match."""
        not_offered("bulk(…).count()")

    async def tally(self) -> Tally:
        """Count the jobs that match, by state."""
        not_offered("bulk(…).tally()")

    async def cancel(
        self,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """End the pending jobs that match, and ask the running ones to stop."""
        not_offered("bulk(…).cancel(…)", "cancel")

    async def retry(
        self,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """Run the failed jobs that match again; others only if the query's `states` name them."""
        not_offered("bulk(…).retry(…)", "retry")

    async def reprioritise(
        self,
        priority: int,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """Give the pending jobs that match another priority."""
        not_offered("bulk(…).reprioritise(…)", "prioritise")

    async def delete(
        self,
        *,
        archive: PathLike | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """Remove the finished jobs that match, with their log."""
        not_offered("bulk(…).delete(…)", "delete")


class ArchivePart(Protocol):
    """`app.archive`: jobs in files, and finished jobs past their time."""

    async def export(
        self,
        path: PathLike,
        query: JobQuery | None = None,
        *,
        progress: BulkProgress | None = None,
    ) -> Bulk:
        """Write the jobs that match to a new file."""
        not_offered("archive.export(…)", "export")

    async def import_(
        self, path: PathLike, *, dry_run: bool = False, progress: BulkProgress | None = None
    ) -> Bulk:
        """Import the jobs of an export or an archive."""
        not_offered("archive.import_(…)", "import")

    async def prune(
        self,
        retention: Retention | None = None,
        *,
        states: Iterable[State] = FINAL,
        archive: PathLike | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
    ) -> Bulk:
        """Remove finished jobs past their time."""
        not_offered("archive.prune(…)", "prune")

    async def backup(self, path: PathLike, *, progress: BackupProgress | None = None) -> Backup:
        """Write a backup of the whole store to a new file."""
        not_offered("archive.backup(…)", "backup")

    async def restore(
        self,
        backup: PathLike,
        *,
        replace: bool = False,
        above: int = 0,
        progress: BackupProgress | None = None,
    ) -> RestoredStore:
        """Make a store of a backup."""
        not_offered("archive.restore(…)", "restore")

    async def restored_in_place(self, *, above: int = 0) -> Cut:
        """Let a store that was set back by other means continue."""
        not_offered("archive.restored_in_place(…)", "restore --in-place")

    async def verify(self, *, progress: BackupProgress | None = None) -> Verification:
        """Read the whole store and check whether its promises hold."""
        not_offered("archive.verify(…)", "verify")

    async def repair(self) -> None:
        """Repair what `verify` has found."""
        not_offered("archive.repair()", "verify --repair")

    async def records(self, job_ids: Sequence[int]) -> list[Record]:
        """Return these jobs, each with its whole log and what it waits for."""
        not_offered("archive.records(…)")

    async def migration(self) -> MigrationLock | None:
        """Return the migration that locks this store; None without one."""
        not_offered("archive.migration()", "status")


class WorkerPart(Protocol):
    """`app.workers`: the workers of all processes."""

    async def list(self) -> builtins.list[WorkerInfo]:
        """Return every worker, by name, busy or idle."""
        not_offered("workers.list()", "workers")

    async def drain(self, name: str) -> bool:
        """Ask a worker to take no more jobs, finish those that it has, and exit."""
        not_offered("workers.drain(…)")

    async def waiting_tasks(self) -> builtins.list[WaitingTask]:
        """Return the tasks whose ready jobs wait because no live worker knows them."""
        not_offered("workers.waiting_tasks()")

    async def announced(self, task: str) -> AnnouncedTask | None:
        """Return what live workers announce of a task; None if nobody does."""
        not_offered("workers.announced(…)")


class TokenPart(Protocol):
    """`app.tokens`: access tokens."""

    async def create(
        self, name: str, scopes: Iterable[Access | str], expires_in: timedelta | None = None
    ) -> str:
        """Create an access token and return its secret."""
        not_offered("tokens.create(…)", "token create")

    async def list(self) -> builtins.list[Token]:
        """Return every access token, by name."""
        not_offered("tokens.list()", "token list")

    async def revoke(self, name: str) -> None:
        """Remove an access token."""
        not_offered("tokens.revoke(…)", "token revoke")

    async def scopes(self) -> frozenset[Access]:
        """Return what this program may do."""
        not_offered("tokens.scopes()")


class StatisticsPart(Protocol):
    """`app.statistics`: sums over the log."""

    async def intervals(
        self,
        since: datetime,
        until: datetime | None = None,
        queue: str | QueueQuery | Collection[str] | None = None,
        step: timedelta = MINUTE,
        *,
        together: bool = False,
    ) -> list[Interval]:
        """Return what has happened since then, per queue and `step`."""
        not_offered("statistics.intervals(…)", "stats")

    async def counters(self) -> list[Counters]:
        """Return what has happened in each queue since the store exists."""
        not_offered("statistics.counters()")

    async def roll_up(self) -> int:
        """Count the log entries added since the last time."""
        not_offered("statistics.roll_up()")


class TablePart(Protocol):
    """`app.tables`: an application's own tables in the database of the store."""

    async def prepare(self, name: str, steps: Tables) -> None:
        """Create tables, or bring them up to date."""
        not_offered("tables.prepare(…)")

    async def read(self, work: Callable[[Statements], T]) -> T:
        """Run `work`, which only reads."""
        not_offered("tables.read(…)")

    async def mirror(self, mirror: Mirror) -> None:
        """Update rows of yours with the jobs of a queue."""
        not_offered("tables.mirror(…)")


class LeasePart(Protocol):
    """`app.leases`: the protocol of workers."""

    async def claim(
        self,
        *,
        worker: str,
        limit: int = 1,
        queues: Sequence[str] | None = None,
        except_queues: Collection[str] = (),
        tags: Sequence[str] = (),
        tasks: KnownTasks | None = None,
    ) -> list[Job]:
        """Take up to `limit` ready jobs, of these tasks if any are given."""
        not_offered("leases.claim(…)", "worker")

    async def start(self, leases: Sequence[Job | Lease]) -> list[Job | None]:
        """Record that the worker has started these, and renew their leases."""
        not_offered("leases.start(…)", "worker")

    async def renew(self, leases: Sequence[Lease]) -> list[Job]:
        """Renew these leases."""
        not_offered("leases.renew(…)", "worker")

    async def report(self, reports: Sequence[Report]) -> list[bool]:
        """Keep the progress, lines and checkpoints that running jobs report."""
        not_offered("leases.report(…)", "worker")

    async def settle(self, results: Sequence[tuple[Job | Lease, Outcome]]) -> list[Job]:
        """Record the outcomes of runs of one worker."""
        not_offered("leases.settle(…)", "worker")

    async def settle_held(
        self, results: Sequence[tuple[Job | Lease, Outcome]], *, refuse: bool = True
    ) -> list[Job | None]:
        """Settle, with None in the place of a job that is no longer held."""
        not_offered("leases.settle_held(…)", "worker")

    async def finish(self, job: Job, outcome: Done = _DONE, *, connection: Any) -> Job:
        """End a claimed job successfully inside your own database transaction."""
        not_offered("leases.finish(…)", "worker")

    async def finish_all(self, ended: Sequence[tuple[Job, Done]], *, connection: Any) -> list[Job]:
        """Finish several jobs of one worker, all or none."""
        not_offered("leases.finish_all(…)", "worker")

    async def reclaim(self, limit: int = 1000) -> int:
        """Take back jobs whose leases have expired."""
        not_offered("leases.reclaim(…)", "worker")


class Jobs(Protocol):
    """`app`: what concerns jobs by themselves."""

    def task(self, *args: Any, **options: Any) -> Any:
        """Register a handler."""
        not_offered("task(…)")

    async def enqueue(
        self, task: str, args: Mapping[str, Any] | None = None, **options: Unpack[Options]
    ) -> Job:
        """Store a job for a task by its name."""
        not_offered("enqueue(…)", "enqueue")

    async def enqueue_many(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[Job]:
        """Store these jobs in one transaction, all or none."""
        not_offered("enqueue_many(…)", "enqueue")

    async def enqueue_batch(
        self, jobs: Sequence[NewJob], *, correlation: str | None = None, ordered: bool = False
    ) -> list[Job]:
        """Store jobs that belong together, all or none."""
        not_offered("enqueue_batch(…)")

    async def transaction(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in one transaction of the store's database."""
        not_offered("transaction(…)")

    async def get(self, job_id: int) -> Job:
        """Return the job as it is now."""
        not_offered("get(…)", "jobs")

    async def find(self, query: JobQuery | None = None) -> list[Job]:
        """Return the jobs that match."""
        not_offered("find(…)", "jobs")

    async def find_ids(self, query: JobQuery | None = None) -> list[JobId]:
        """Return the ids of the jobs that match."""
        not_offered("find_ids(…)", "jobs")

    async def count(self, queues: Collection[str] | None = None) -> Counts:
        """Count jobs by queue, state and what they wait for."""
        not_offered("count(…)", "status")

    async def edges(self, job_ids: Sequence[int]) -> list[Edge]:
        """Return the dependencies between jobs."""
        not_offered("edges(…)")

    async def log(
        self, job_id: int | None = None, *, after: int | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        """Return the log of one job, or of all, after an entry's id, oldest first."""
        not_offered("log(…)", "log")

    async def newest_log(self) -> int:
        """Return the id of the newest log entry."""
        not_offered("newest_log()", "log")

    def tail(self, after: int | None = None, job_id: int | None = None) -> AsyncIterator[LogEntry]:
        """Yield log entries as they are added, after an entry's id or from now on; never ends."""
        not_offered("tail(…)", "log")

    async def wait(self, seen: int, timeout: float) -> int:
        """Return when jobs may have become ready or have ended."""
        not_offered("wait(…)")

    async def result(self, job: Job | int, *, timeout: timedelta | None = None) -> Any:
        """Wait until the job ends, and return what its handler returned."""
        not_offered("result(…)", "jobs")

    async def batch(self, correlation: str) -> Batch:
        """Count the jobs of a batch by state."""
        not_offered("batch(…)")

    async def explain(self, job_id: int) -> Explanation:
        """Say why this job is not running, or how it ended."""
        not_offered("explain(…)", "explain")

    async def progress(self, job_id: int) -> Progress | None:
        """Return the progress of a job; None if it reported none."""
        not_offered("progress(…)", "jobs")

    async def lines(self, job_id: int, after: int | None = None, limit: int = 1000) -> list[Line]:
        """Return what a job has logged after a line's id, oldest first."""
        not_offered("lines(…)", "jobs")

    async def checkpoint(self, job_id: int) -> Any:
        """Return the decoded state that the job's next attempt would start from."""
        not_offered("checkpoint(…)", "jobs")

    async def cancel(self, job_id: int, reason: str | None = None) -> Job:
        """End a pending job, or ask a running one to stop."""
        not_offered("cancel(…)", "cancel")

    async def retry(self, job_id: int, reason: str | None = None) -> Job:
        """Run a failed, cancelled or waiting job now, with all its attempts again."""
        not_offered("retry(…)", "retry")

    async def reset(self, job_id: int, reason: str | None = None) -> Job:
        """Do the same as `retry`, and take a running job from its worker."""
        not_offered("reset(…)")

    async def set_priority(self, job_id: int, priority: int, reason: str | None = None) -> Job:
        """Give a pending job another priority."""
        not_offered("set_priority(…)", "prioritise")

    async def delete(self, job_id: int) -> Job:
        """Remove a finished job with its log, and return it as it was."""
        not_offered("delete(…)", "delete")

    async def close(self) -> None:
        """Close the store, or the connections to the server."""
        ...


class App(Jobs, Protocol):
    """A whole queue: jobs and all parts."""

    @property
    def url(self) -> str:
        """Where the store or the server is."""
        ...

    @property
    def secrets(self) -> Secrets:
        """The names of arguments whose values are still to be hidden."""
        ...

    @property
    def queues(self) -> QueuePart:
        """List, pause, drain and remove queues."""
        ...

    @property
    def limits(self) -> LimitPart:
        """Limits of queues, tasks and throttles."""
        ...

    @property
    def schedules(self) -> SchedulePart:
        """Periodic jobs."""
        ...

    @property
    def archive(self) -> ArchivePart:
        """Jobs in files, and finished jobs past their time."""
        ...

    @property
    def workers(self) -> WorkerPart:
        """The workers of all processes."""
        ...

    @property
    def tokens(self) -> TokenPart:
        """Access tokens."""
        ...

    @property
    def statistics(self) -> StatisticsPart:
        """Sums over the log."""
        ...

    @property
    def tables(self) -> TablePart:
        """An application's own tables."""
        ...

    @property
    def leases(self) -> LeasePart:
        """The protocol of workers."""
        ...

    def bulk(self, query: JobQuery) -> BulkPart:
        """Return the jobs that match a query, to change all of them."""
        ...
