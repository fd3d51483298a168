"""The synchronous calls of an app, its parts and its tasks, for type checkers and editors.

Generated from the coroutines by `python -m tests.engine.sync_stub`.
"""

import builtins
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, overload

from msgspec import UnsetType

from penstock.core.dependencies import Edge
from penstock.core.explanation import Explanation
from penstock.core.job import Job, JobId, Lease, LogEntry, NewJob, Retention
from penstock.core.key_line import KeyLine
from penstock.core.lifecycle import Done, Outcome, State
from penstock.core.limits import Limit
from penstock.core.migration_lock import MigrationLock
from penstock.core.progress import Line, Progress, Report
from penstock.core.query import JobQuery, Tally
from penstock.core.queue import Ages, Counts, Queue, QueueQuery, QueueStatus, QueueSummary
from penstock.core.recovery import Backup, BackupProgress, Cut, RestoredStore
from penstock.core.restoration import Record
from penstock.core.schedule import Schedule
from penstock.core.statistics import Counters, Interval
from penstock.core.tables import Mirror, Statements, Tables
from penstock.core.tasks import AnnouncedTask, KnownTasks
from penstock.core.tokens import Access, Token
from penstock.core.verification import Verification
from penstock.core.workers import WaitingTask, WorkerInfo
from penstock.engine.archive import Archive
from penstock.engine.batch import Batch
from penstock.engine.bulk import Bulk, BulkProgress, PathLike, Portion, Selection
from penstock.engine.leases import Leases, Workers
from penstock.engine.limits import Limits
from penstock.engine.penstock import Penstock
from penstock.engine.queues import Drained, Queues
from penstock.engine.schedules import Recurrence, Schedules
from penstock.engine.statistics import Statistics
from penstock.engine.tables import OwnTables, Transaction
from penstock.engine.task import Options, Task
from penstock.engine.tokens import Tokens

P = ParamSpec("P")
T = TypeVar("T")
V_co = TypeVar("V_co", covariant=True)

class SyncPenstock:
    """The coroutines of `Penstock` as plain functions."""

    def __init__(self, owner: Penstock) -> None: ...
    def close(self) -> None:
        """Close the store; everything acknowledged is durable."""

    def __enter__(self) -> Penstock:
        """Open the store."""

    def __exit__(self, *_: object) -> None:
        """Close the store."""

    def enqueue(
        self, task: str, args: Mapping[str, Any] | None = None, **options: Unpack[Options]
    ) -> Job:
        """Store a job for a task by its name, with its arguments by theirs.

        For a task of another program, make a `NewJob` and call `enqueue_many`. Raises
        `UnknownTask`, and the errors of `enqueue_many`: `InvalidJob`, `QueueFull`, `TooManyQueues`
        and `StoreUnavailable`; then nothing is stored. After any other `StoreError`, the job
        may or may not be stored.
        """

    def enqueue_many(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[Job]:
        """Store these jobs in one transaction, all or none, and return them in this order.

        They are durable when this returns. With a `connection`, that transaction is the caller's
        own, and they are durable when it is committed. Raises `InvalidJob` for a job that cannot be
        stored, `QueueFull` and `TooManyQueues` at a limit, and `StoreUnavailable`.
        """

    def enqueue_batch(
        self, jobs: Sequence[NewJob], *, correlation: str | None = None, ordered: bool = False
    ) -> list[Job]:
        """Store jobs that belong together, all or none; `batch` counts them by state.

        With the correlation of an existing batch, they join it. Ordered jobs run one after the
        other; when one fails, the rest are cancelled.
        """

    def transaction(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in one transaction of the store's database; durable on return.

        `work` gets a `Transaction`, for jobs and for your own tables. Transactions of concurrent
        callers share a commit. When `work` raises, everything it has written is rolled back. It
        runs in another thread, may run more than once, and must have no effects but those of its
        statements. Raises `ConfigurationError` on a store without a database.
        """

    def get(self, job_id: int) -> Job:
        """Return the job as it is now. Raises `JobNotFound`."""

    def find(self, query: JobQuery | None = None) -> list[Job]:
        """Return the jobs that match, newest first unless the query says otherwise."""

    def find_ids(self, query: JobQuery | None = None) -> list[JobId]:
        """Return the ids of the jobs that match: cheap enough for very long pages."""

    def count(self, queues: Collection[str] | None = None) -> Counts:
        """Count the jobs of these queues, or of all, by queue, state and what they wait for.

        The cost grows neither with the jobs nor with other queues.
        """

    def edges(self, job_ids: Sequence[int]) -> list[Edge]:
        """Return the dependencies that these jobs have, and those that others have on them."""

    def log(
        self, job_id: int | None = None, *, after: int | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        """Return the log of one job, or of all, after an entry's id, oldest first."""

    def newest_log(self) -> int:
        """Return the id of the newest log entry: where to begin to follow the log from now on."""

    def tail(self, after: int | None = None, job_id: int | None = None) -> Iterator[LogEntry]:
        """Yield the log entries of all jobs, or of one, as they are added; never ends.

        Begins after an entry's id, or now. A claim, which wakes nobody, is seen within 5 seconds.
        """

    def wait(self, seen: int, timeout: float) -> int:
        """Return when jobs may have become ready or have ended, in any process.

        Also after `timeout` seconds. Begin with 0, and pass what a call returns to the next.
        """

    @overload
    def result(self, job: Job[T], *, timeout: timedelta | None = None) -> T:
        """Wait until the job ends, in any process, and return what its handler returned.

        Raises `JobFailed` if it did not succeed, `TimeoutError` after `timeout`. See `Job.result`.
        """

    @overload
    def result(self, job: int, *, timeout: timedelta | None = None) -> Any:
        """Wait until the job ends, in any process, and return what its handler returned.

        Raises `JobFailed` if it did not succeed, `TimeoutError` after `timeout`. See `Job.result`.
        """

    def batch(self, correlation: str) -> Batch:
        """Count the jobs of a batch by state. Raises `JobNotFound` if it has none."""

    def explain(self, job_id: int) -> Explanation:
        """Say why this job is not running, or how it ended."""

    @overload
    def progress(self, job_id: int) -> Progress | None:
        """Return the progress of a job, None if it reported none; or of many, by their ids."""

    @overload
    def progress(self, job_id: Sequence[int]) -> dict[int, Progress]:
        """Return the progress of a job, None if it reported none; or of many, by their ids."""

    def lines(self, job_id: int, after: int | None = None, limit: int = 1000) -> list[Line]:
        """Return what a job has logged after a line's id, oldest first; 1,000 lines are kept."""

    def checkpoint(self, job_id: int) -> Any:
        """Return the decoded state that the job's next attempt would start from; None if none."""

    def cancel(self, job_id: int, reason: str | None = None) -> Job:
        """End a pending job, or ask a running one to stop.

        Raises `JobNotFound`, and `TransitionRefused` if the job has ended.
        """

    def retry(self, job_id: int, reason: str | None = None) -> Job:
        """Run a failed, cancelled or waiting job now, with all its attempts again.

        Raises `JobNotFound`, and `TransitionRefused` if the job is running, done or superseded.
        """

    def reset(self, job_id: int, reason: str | None = None) -> Job:
        """Do the same as `retry`, and take a running job from its worker, which loses its lease.

        Raises `JobNotFound`, and `TransitionRefused` if the job is done or superseded.
        """

    def set_priority(self, job_id: int, priority: int, reason: str | None = None) -> Job:
        """Give a pending job another priority; claims follow it at once.

        Raises `InvalidJob` for a priority that is not allowed, `JobNotFound`, and
        `TransitionRefused` if the job is not pending.
        """

    def delete(self, job_id: int) -> Job:
        """Remove a finished job with its log, and return it as it was.

        Raises `TransitionRefused` for an unfinished one.
        """

class SyncTask(Generic[P, V_co]):
    """The coroutines of `Task` as plain functions."""

    def __init__(self, owner: Task[P, Any, V_co]) -> None: ...
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[V_co]:
        """Store a job that calls the handler with these arguments; durable on return.

        Raises `InvalidJob` for arguments that do not match the handler or are not JSON, `QueueFull`
        and `TooManyQueues` at a limit, and `StoreUnavailable`; then nothing is stored. After any
        other `StoreError`, the job may or may not be stored.
        """

class SyncSelection:
    """The coroutines of `Selection` as plain functions."""

    def __init__(self, owner: Selection) -> None: ...
    def count(self) -> int:
        """Count the jobs that match."""

    def tally(self) -> Tally:
        """Count the jobs that match, by state."""

    def cancel(
        self,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """End the pending jobs that match, and ask the running ones to stop; newest first."""

    def retry(
        self,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """Run the failed jobs that match again, with all their attempts, oldest first.

        Cancelled jobs, and pending ones that wait for their time, only if the query's `states` name
        them. Skips a job whose dedupe key is held by another.
        """

    def reprioritise(
        self,
        priority: int,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """Give the pending jobs that match another priority; claims follow it at once.

        Skips those that have it already.
        """

    def delete(
        self,
        *,
        archive: PathLike | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """Remove the finished jobs that match, with their log, after writing them to an `archive`.

        Never removes unfinished jobs: cancel them first.
        """

class SyncQueues:
    """The coroutines of `Queues` as plain functions."""

    def __init__(self, owner: Queues) -> None: ...
    def list(self, query: QueueQuery = ...) -> builtins.list[Queue]:
        """Return the queues with their limits, by name: all, or those that match a query.

        There may be tens of thousands: request pages by `QueueQuery(after=…, limit=…)`.
        """

    def statuses(self, query: QueueQuery = ...) -> builtins.list[QueueStatus]:
        """Return the queues as `list` does, each with its jobs by state and its oldest ready job.

        The cost grows with the queues returned.
        """

    def summary(self, without: Collection[str] = ()) -> QueueSummary:
        """Return the number of queues, other than these, and all their jobs by state."""

    def oldest_ready(self, queues: Collection[str] | None = None) -> Mapping[str, datetime]:
        """Return when the oldest ready job of each of these queues, or of all, became due.

        Jobs that a pause or a limit holds count. Queues without a ready job are left out. The cost
        does not grow with the jobs.
        """

    def ready_tags(
        self, queue: str, limit: int = 1000, *, among: Sequence[str] | None = None
    ) -> builtins.list[str]:
        """Return the tags of the ready jobs of a queue, by name: whether a claim is worthwhile.

        There are none while the queue is paused, or while its concurrency or rate lets no job
        start. With `among`, looks for those tags only. The cost grows with the tags, not with the
        jobs.
        """

    def keys(self, after: str | None = None, limit: int = 100) -> builtins.list[KeyLine]:
        """Return the keys of unfinished jobs, by name: who holds each, and how many wait.

        Pass the last key as `after` for the next page. The cost does not grow with the jobs.
        """

    def pause(self, queue: str, *, duration: timedelta | None = None) -> Queue:
        """Start no more jobs of this queue, in any process; running jobs continue.

        After `duration` the pause ends by itself; another pause sets a new end. Without a duration
        it lasts until `resume`, even if a pause with a duration follows.
        """

    def resume(self, queue: str) -> Queue:
        """Start jobs of this queue again."""

    def remove(self, queue: str) -> bool:
        """Remove all limits of a queue, and its pause; return whether it existed.

        A queue without jobs disappears at once, another with its last job, as queues without
        settings do. Raises `QueueInUse` while it has unfinished jobs.
        """

    def drain(self, queue: str | None = None, *, timeout: timedelta) -> Drained:
        """Wait until the jobs that are unfinished now have finished; later jobs do not count.

        Of one queue, or of all. Returns `paused` at once when paused queues keep the whole backlog
        from moving.
        """

class SyncLimits:
    """The coroutines of `Limits` as plain functions."""

    def __init__(self, owner: Limits) -> None: ...
    def queue(
        self,
        queue: str,
        max_pending: int | UnsetType | None = ...,
        *,
        concurrency: int | UnsetType | None = ...,
        rate: tuple[int, timedelta] | UnsetType | None = ...,
        promote_after: Ages | UnsetType | None = ...,
    ) -> Queue:
        """Set limits of a queue; None removes one, and what is not given stays.

        While `max_pending` jobs are pending, new ones are refused with `QueueFull`. At most
        `concurrency` run at a time, and at most `rate[0]` start within any period of `rate[1]`. A
        ready job counts as one priority higher for each `promote_after` that it has waited or, if
        that is a tuple of ages, for each of them that it has reached.
        """

    def task(self, task: str, concurrency: int | None) -> None:
        """Limit how many jobs of a task run at a time, in all processes; None removes the limit."""

    def throttle(self, prefix: str, concurrency: int | None) -> None:
        """Limit how many jobs of each throttle with this prefix run at a time; None removes it.

        The longest prefix that matches a throttle counts. If none does, one job runs at a time.
        The empty prefix matches all.
        """

    def queues(self, most: int | None) -> None:
        """Limit the number of queues in the store; None restores the default of 100,000.

        A job for a queue beyond the limit is refused with `TooManyQueues`; existing queues stay.
        """

    def reserved(self) -> frozenset[str]:
        """Return the queues that are reserved for workers that name them."""

    def list(self) -> builtins.list[Limit]:
        """Return the limits of tasks, throttles and the number of queues.

        Those of queues are in `Penstock.queues.list`.
        """

    def store_reserved(self) -> None:
        """Store the queues that were reserved here."""

    def store_declared(self) -> None:
        """Store what was declared here: limits of tasks and reserved queues."""

class SyncSchedules:
    """The coroutines of `Schedules` as plain functions."""

    def __init__(self, owner: Schedules) -> None: ...
    def put(
        self, name: str, job: Task[..., Any] | NewJob, **recurrence: Unpack[Recurrence]
    ) -> Schedule:
        """Enqueue a job periodically: `await app.schedules.put("eu", report.new("eu"), cron=…)`.

        Durable on return. Replaces a schedule of the same name: a changed rhythm begins now, an
        unchanged one keeps its next run, so a program may call this whenever it starts.
        """

    def remove(self, name: str) -> None:
        """Remove a schedule; jobs that it has enqueued stay. Raises `ScheduleNotFound`.

        One that a task declares returns with the next worker that starts.
        """

    def list(self) -> builtins.list[Schedule]:
        """Return every schedule, by name.

        One that is not `known` belongs to a task that this program does not have, or no longer
        declares as periodic: workers of this program do not fire it.
        """

    def run_now(self, name: str) -> Job:
        """Enqueue the job of a schedule now, even if it is paused; its rhythm does not change.

        If runs must not overlap and one is unfinished, returns that one, with `duplicate` set. The
        log records who requested the run.
        """

    def pause(self, name: str) -> Schedule:
        """Stop firing a schedule, in all processes, until it is resumed."""

    def resume(self, name: str) -> Schedule:
        """Fire a schedule again from its next run on; runs during the pause are skipped."""

    def register(self) -> builtins.list[Schedule]:
        """Store the schedules that tasks declare. Workers do this when they start.

        Returns those that are stored as declared, but that this program no longer declares.
        """

    def fire_due(self) -> timedelta | None:
        """Enqueue every run that is due, and return the time until the next. Workers do this.

        Returns None if there is no next run. However many processes do this, each run is enqueued
        once.
        """

class SyncArchive:
    """The coroutines of `Archive` as plain functions."""

    def __init__(self, owner: Archive) -> None: ...
    def export(
        self, path: PathLike, query: JobQuery | None = None, *, progress: BulkProgress | None = None
    ) -> Bulk:
        """Write the jobs that match to a new file, with their logs and the settings of queues.

        In any state, oldest first. Every job is written as it was at one moment, but not all at
        the same moment. The file appears when it is complete.
        """

    def import_(
        self, path: PathLike, *, dry_run: bool = False, progress: BulkProgress | None = None
    ) -> Bulk:
        """Import the jobs of an export or an archive, with their logs.

        The whole file is checked before the first job is stored. Skips jobs that were imported
        before or still exist, and unfinished ones whose dedupe key is held by another. Pending
        jobs keep their order and wait for the jobs they waited for, as far as those are imported;
        running ones wait for a worker again. Settings of queues apply to queues that do not exist
        yet. `dry_run` only counts the jobs in the file.
        """

    def prune(
        self,
        retention: Retention | None = None,
        *,
        states: Iterable[State] = ...,
        archive: PathLike | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
    ) -> Bulk:
        """Remove finished jobs past their time, with their log, after writing them to an `archive`.

        A job is on disk in the archive before it is removed, so that a crash loses none; it may
        then appear in the archive twice, and the last one counts. `dry_run` only counts.
        """

    def backup(self, path: PathLike, *, progress: BackupProgress | None = None) -> Backup:
        """Write a backup of the whole store to a new file, while the store is in use.

        The file shows the store at one moment. It appears when it is complete, durable, and has
        been read back. For SQLite files and journals; PostgreSQL has its own programs.
        """

    def restore(
        self,
        backup: PathLike,
        *,
        replace: bool = False,
        above: int = 0,
        progress: BackupProgress | None = None,
    ) -> RestoredStore:
        """Make a store of a backup, at the URL of this one.

        Ids and fencing tokens continue above all that the store may have assigned since the
        backup, the log notes the cut, and jobs that were running wait for a worker again: workers
        from before are refused. See `Store.raise_floor` for `above`. With `replace`, the store at
        this URL is replaced: a SQLite file in one transaction, while it may be in use; a journal
        must not be in use.
        """

    def restored_in_place(self, *, above: int = 0) -> Cut:
        """Let a store that was set back by other means continue, like one that was restored.

        For a file that a replica was restored to, a copy made by hand, and a database that was
        restored with PostgreSQL's own programs. Call this before anything else uses the store.
        """

    def verify(self, *, progress: BackupProgress | None = None) -> Verification:
        """Read the whole store, at one moment, and check whether its promises hold."""

    def repair(self) -> None:
        """Repair what `verify` has found, as far as it can be derived from the jobs.

        `Verification.repairable` says what that is. One transaction; other writers wait meanwhile.
        """

    def records(self, job_ids: Sequence[int]) -> list[Record]:
        """Return these jobs, each with its whole log and what it waits for, at one moment.

        In this order; unknown ids are left out.
        """

    def migration(self) -> MigrationLock | None:
        """Return the migration that locks this store; None without one."""

class SyncWorkers:
    """The coroutines of `Workers` as plain functions."""

    def __init__(self, owner: Workers) -> None: ...
    def list(self) -> builtins.list[WorkerInfo]:
        """Return every worker, by name, with the number of jobs that it runs; also idle ones.

        One that was killed stays in the list for a day: `seen_at` is its last sign of life.
        """

    def waiting_tasks(self) -> builtins.list[WaitingTask]:
        """Return the tasks whose ready jobs wait because no live worker knows them.

        Counts only jobs that a worker has seen, not those of queues without workers, and at most
        10,000 jobs of each task.
        """

    def announced(self, task: str) -> AnnouncedTask | None:
        """Return what live workers announce of a task, as of some seconds ago; None if nobody does.

        Of several, the newest version.
        """

    def drain(self, name: str) -> bool:
        """Ask a worker to take no more jobs, finish those that it has, and exit.

        It learns of this within ten seconds. Returns whether there is such a worker; one that only
        holds leases, and never registered, cannot be asked.
        """

class SyncTokens:
    """The coroutines of `Tokens` as plain functions."""

    def __init__(self, owner: Tokens) -> None: ...
    def create(
        self, name: str, scopes: Iterable[Access | str], expires_in: timedelta | None = None
    ) -> str:
        """Create an access token and return its secret, which cannot be read again.

        The store keeps a digest of it. Raises `TokenExists` if the name is taken.
        """

    def list(self) -> builtins.list[Token]:
        """Return every access token, by name, including expired ones."""

    def revoke(self, name: str) -> None:
        """Remove an access token: it gives access to nothing any more. Raises `TokenNotFound`."""

    def scopes(self) -> frozenset[Access]:
        """Return what this program may do: with the store itself, everything."""

class SyncStatistics:
    """The coroutines of `Statistics` as plain functions."""

    def __init__(self, owner: Statistics) -> None: ...
    def roll_up(self) -> int:
        """Count the log entries added since the last time, and return how many. Workers do this.

        Works for a second at most: after a long backlog, call it again. However many processes do
        this, each entry is counted once.
        """

    def intervals(
        self,
        since: datetime,
        until: datetime | None = None,
        queue: str | QueueQuery | Collection[str] | None = None,
        step: timedelta = ...,
        *,
        together: bool = False,
    ) -> list[Interval]:
        """Return what has happened since then, per queue and `step`, by time and queue.

        For one queue, several, those that match a query, or all. With `together`, all queues form
        one sum, under the empty name, whose cost does not grow with the queues.

        Steps are whole minutes and begin at multiples of themselves, in UTC: the first contains
        `since`. Steps without events are left out. Statistics cover 8 days, up to the last
        `roll_up`.
        """

    def counters(self) -> list[Counters]:
        """Return what has happened in each queue since the store exists, by the queue's name.

        Up to the last `roll_up`. These numbers never decrease, even when jobs are removed. Only a
        limited number of queues, 100 unless a server is configured otherwise, have counters of
        their own, and keep them until they are removed. The others are counted under the empty
        name.
        """

class SyncTables:
    """The coroutines of `OwnTables` as plain functions."""

    def __init__(self, owner: OwnTables) -> None: ...
    def prepare(self, name: str, steps: Tables) -> None:
        """Create tables of yours in the store's database, or bring them up to date.

        Each step is taken once, however many processes start at the same time.
        """

    def read(self, work: Callable[[Statements], T]) -> T:
        """Run `work`, which only reads; all its statements see the store at one moment."""

    def mirror(self, mirror: Mirror) -> None:
        """Update rows of yours with the jobs of a queue, in the transactions that change them.

        The mirror stays in the database, for every program that changes a job there, and replaces
        one of the same name. Existing jobs are mirrored with their next change.
        """

class SyncLeases:
    """The coroutines of `Leases` as plain functions."""

    def __init__(self, owner: Leases) -> None: ...
    def claim(
        self,
        *,
        worker: str,
        limit: int = 1,
        queues: Sequence[str] | None = None,
        except_queues: Collection[str] = (),
        tags: Sequence[str] = (),
        tasks: KnownTasks | None = None,
    ) -> list[Job]:
        """Take up to `limit` ready jobs; each belongs to the worker while its lease is renewed.

        From these queues or, without `queues`, from all but `except_queues`. With `tasks`,
        only jobs of these.
        """

    def start(self, leases: Sequence[Job | Lease]) -> list[Job | None]:
        """Record in the log that the worker has started these, and renew their leases.

        One transaction. Returns None in the place of a job that is no longer held; the log records
        that too.
        """

    def renew(self, leases: Sequence[Lease]) -> list[Job]:
        """Renew these leases; a job that is missing in the answer is lost to the caller.

        The log records each loss. If a job in the answer has `cancel_requested`, stop it and
        settle it as cancelled.
        """

    def report(self, reports: Sequence[Report]) -> list[bool]:
        """Keep the progress, lines and checkpoints that running jobs report, in one transaction.

        Returns for each whether its lease is still held. If not, nothing of it is kept, and the
        log records a checkpoint that was refused.
        """

    def settle(self, results: Sequence[tuple[Job | Lease, Outcome]]) -> list[Job]:
        """Record the outcomes of runs of one worker, in one transaction for all still held.

        Raises `LeaseLost` for the first that is no longer held; the log records each.
        """

    def settle_held(
        self, results: Sequence[tuple[Job | Lease, Outcome]], *, refuse: bool = True
    ) -> list[Job | None]:
        """Settle as `settle` does, with None in the place of a job that is no longer held.

        Without `refuse`, the log records nothing of those: they may repeat what it contains.
        """

    def finish(self, job: Job, outcome: Done = ..., *, connection: Any) -> Job:
        """End a claimed job successfully inside your own database transaction.

        It is done if and only if you commit, and must not be settled then. Raises `LeaseLost` if
        the job is no longer held: roll back.
        """

    def finish_all(self, ended: Sequence[tuple[Job, Done]], *, connection: Any) -> list[Job]:
        """Finish several jobs of one worker as `finish` does, all or none."""

    def reclaim(self, limit: int = 1000) -> int:
        """Take back jobs whose leases have expired, and return how many. Workers do this."""
