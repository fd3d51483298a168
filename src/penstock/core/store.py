"""The Store protocol: the contract every store fulfils, in parts that can be read one at a time.

`JobStore` stores jobs, hands them to workers and writes their transitions. `QueueStore` has the
queues and limits, `ScheduleStore` the periodic jobs, `WorkerStore` the registry of workers,
`TokenStore` the access tokens, `StatisticsStore` the counts of past events, and `TransferStore`
moves jobs between stores. `Store` combines them. `TableStore` is what only a database offers.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

import msgspec

from penstock.core.dependencies import Edge
from penstock.core.job import Claim, Job, JobId, Lease, LogEntry, LogId, NewJob, Retention
from penstock.core.key_line import KeyLine
from penstock.core.lifecycle import Done
from penstock.core.limits import Held, Limit
from penstock.core.migration_lock import MigrationLock
from penstock.core.progress import Line, Progress, Report, Reported
from penstock.core.query import JobQuery, Tally
from penstock.core.queue import (
    ALL_QUEUES,
    Counts,
    Queue,
    QueueQuery,
    QueueSettings,
    QueueSummary,
)
from penstock.core.recovery import BackupProgress, Cut
from penstock.core.restoration import Origin, Record
from penstock.core.schedule import Due, Firing, Schedule
from penstock.core.statistics import Counters, Interval
from penstock.core.superseding import Tail
from penstock.core.tables import Mirror, Statements, Tables, Within
from penstock.core.tasks import SetAside
from penstock.core.tokens import Token
from penstock.core.transition import Change
from penstock.core.verification import Verification
from penstock.core.workers import DepartedTask, WorkerInfo

T = TypeVar("T")

Clock = Callable[[], int]
"""Returns the time in microseconds since 1970, UTC."""


class StoreSize(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a store; None for a figure that the store does not have.

    `wal_bytes` is the size of SQLite's write-ahead log. `dead_rows` is the number of dead tuples
    that await vacuum in PostgreSQL.
    """

    kind: str
    bytes: int | None = None
    wal_bytes: int | None = None
    dead_rows: int | None = None


class JobStore(Protocol):
    """Jobs: adding, claiming, moving, finding and removing them, with their log and reports."""

    # Adding and moving

    async def add(
        self,
        jobs: Sequence[NewJob],
        *,
        actor: str,
        tail: Tail | None = None,
        reason: str | None = None,
    ) -> list[Job]:
        """Store jobs, all or none, with ids that grow in the given order.

        A job whose dedupe key is held is not stored: the holder is returned in its place, with
        `duplicate` set. Raises `QueueFull` if a queue would exceed its length limit and
        `TooManyQueues` if the store would have too many queues; duplicates take no room.

        A job with `after` or `follows` is blocked until all those jobs have ended. Raises
        `JobNotFound` if one of `after` is not stored.

        With `tail`, there is exactly one new job. It is stored only if the newest pending job of
        its key is still the one in `tail`, unchanged; otherwise raises `Overtaken`. If it replaces
        that job, it also waits for everything that job still waited for.

        `reason` becomes the reason of the log entries; it is ignored for a job with `tail`.
        """
        ...

    async def transition(self, changes: Sequence[Change], *, actor: str) -> list[Job | None]:
        """Write and log each move whose job is unchanged since it was decided on.

        Returns, for each change, the job as it is now, or None if it had changed or is gone (see
        `transition.is_outdated`). A start extends the deadline to a full lease time from now.

        In the same transaction, the next job of a key becomes visible when the head of its line
        ends or returns to pending, and the end of a job resolves what others wait for: they become
        ready or are abandoned (see `dependencies.release`). Jobs that wait for a job with a
        successor wait for the successor instead (see `dependencies.handed_over`).

        A move to pending gives way if another job holds the dedupe key (see `lifecycle.give_way`).
        Raises `TransitionRefused` if it cannot, or if a reset job would wait for itself (see
        `dependencies.check_order`); none of the call's moves is written then.
        """
        ...

    # Claims and leases

    async def claim(self, wanted: Claim) -> list[Job]:
        """Lease ready jobs to a worker: highest priority first, then earliest due, then lowest id.

        Each becomes running with one more attempt, a deadline its lease time from now, and a token
        higher than any before. Of the jobs of one key, only the oldest unfinished one is ever
        leased. A paused queue has no ready jobs.

        Jobs that would exceed a limit on running jobs or on starts are skipped. Tenants of a queue
        that have ready jobs take turns within a priority. Where a queue has `promote_after`,
        waiting raises the priority of a job, up to 10. See `choosing`.
        """
        ...

    async def renew(self, leases: Sequence[Lease]) -> list[Job]:
        """Extend the deadlines of these leases to a full lease time from now.

        Returns the jobs that are still held, as they are now. A lease that is over, or that names
        another worker, is left out.
        """
        ...

    async def expired(self, limit: int) -> list[Job]:
        """Return running jobs whose deadline has passed, earliest deadline first."""
        ...

    async def held(self, job: Job) -> list[Held]:
        """Return the limits that would keep this job from starting now if it were ready."""
        ...

    async def set_aside(self, most: int | None = None) -> list[SetAside]:
        """Return the tasks whose ready jobs claims have met and did not know.

        Looks at `most` jobs of each task at most.
        """
        ...

    # Reading

    async def get(self, ids: Sequence[JobId]) -> list[Job]:
        """Return these jobs, in this order; unknown ids are left out."""
        ...

    async def watch(self, ids: Sequence[JobId]) -> list[Job]:
        """Return these jobs like `get`, and make `wait` return in every process when they end."""
        ...

    async def find(self, query: JobQuery) -> list[Job]:
        """Return the jobs that match a query, ordered by id."""
        ...

    async def find_ids(self, query: JobQuery) -> list[JobId]:
        """Return the ids of the jobs that `find` returns; cheap enough for very long pages."""
        ...

    async def tally(self, query: JobQuery) -> Tally:
        """Count the jobs that match a query, on all pages, by state; visits each of them."""
        ...

    async def edges(self, ids: Sequence[JobId]) -> list[Edge]:
        """Return the edges from and to these jobs, ordered by job and needed job."""
        ...

    async def keys(self, after: str | None, limit: int) -> list[KeyLine]:
        """Return the lines of the keys that have unfinished jobs, by name, starting after `after`.

        The cost grows with the keys returned, not with the jobs.
        """
        ...

    async def log(
        self, job_id: JobId | None = None, *, after: LogId | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        """Return log entries of one job, or of all, oldest first, starting after `after`."""
        ...

    async def newest_log(self) -> LogId:
        """Return the id of the newest log entry; 0 if there is none."""
        ...

    # Reports of running jobs

    async def report(self, reports: Sequence[Report]) -> list[bool]:
        """Keep what running jobs report, if the reporting worker holds the lease.

        Returns, for each report, whether its lease is held; one with a stale lease is dropped. A
        job keeps its newest progress, its newest checkpoint and its newest `LINES_KEPT` lines. A
        reset clears progress and checkpoint. A report is not a transition and wakes nobody.
        """
        ...

    async def reported(self, ids: Sequence[JobId]) -> Mapping[JobId, Reported]:
        """Return everything kept of the reports of these jobs; those without any are left out."""
        ...

    async def progress(self, ids: Sequence[JobId]) -> Mapping[JobId, Progress]:
        """Return the progress of these jobs; those that reported none are left out."""
        ...

    async def checkpoint(self, job_id: JobId) -> str | None:
        """Return the newest checkpoint of a job as JSON text; None if it has none or is done."""
        ...

    async def lines(self, job_id: JobId, *, after: int = 0, limit: int = 1000) -> list[Line]:
        """Return the kept lines that a job logged, oldest first, starting after line `after`."""
        ...

    # Removing

    async def delete(self, jobs: Sequence[Job]) -> list[JobId]:
        """Remove those of these jobs that are finished and unchanged; returns their ids.

        Their log and reports are removed as well; their ids are never assigned again. In a store
        whose jobs have left (see `set_migration_lock`), unfinished jobs are removed, too.
        """
        ...

    async def prune(self, retention: Retention, limit: int, *, whole_days: bool = False) -> int:
        """Remove at most `limit` finished jobs that are past their retention; returns how many.

        Their log and reports are removed as well. With `whole_days`, a store that partitions
        finished jobs by day removes only whole days, regardless of `limit`: up to a day later, but
        at no cost per job.
        """
        ...


class QueueStore(Protocol):
    """Queues and limits."""

    async def queues(self, query: QueueQuery = ALL_QUEUES) -> list[Queue]:
        """Return the queues that match a query and have a job or a setting, by name."""
        ...

    async def configure(self, settings: QueueSettings) -> Queue:
        """Change settings of a queue, for every process; returns the queue as it is now.

        See `queue.apply_settings`. Raises `TooManyQueues` if the queue would be one too many.
        """
        ...

    async def remove_queue(self, name: str) -> bool:
        """Reset all settings of a queue, including its pause; returns whether it existed.

        The queue is removed at once if it has no jobs, and with its last job otherwise. Raises
        `QueueInUse`, and changes nothing, while it has unfinished jobs.
        """
        ...

    async def limit(self, limit: Limit) -> None:
        """Set a limit for every process; `concurrency=None` removes it.

        Running jobs continue, even beyond a lower limit. The kind "queues" limits how many queues
        there may be: `add`, `configure` and `restore` raise `TooManyQueues` instead of creating
        one more. Existing queues stay. Without such a limit, `MOST_QUEUES` applies.
        """
        ...

    async def limits(self) -> list[Limit]:
        """Return every limit that was set with `limit`, by kind and name."""
        ...

    async def count(self, queues: Collection[str] | None = None) -> Counts:
        """Return how many jobs these queues, or all, have, by state and what they wait for.

        The numbers are maintained: the cost grows neither with the jobs nor with other queues.
        """
        ...

    async def summary(self, without: Collection[str] = ()) -> QueueSummary:
        """Summarise all queues except some; the cost grows with the number of queues."""
        ...

    async def oldest_ready(self, queues: Collection[str] | None = None) -> Mapping[str, datetime]:
        """Return when the oldest ready job of each of these queues, or of all, became due.

        Jobs that have fallen due count, and so do those that a pause or a limit holds. A queue
        without a ready job is left out. The cost grows with these queues, their tenants and the
        limits that hold jobs, not with the jobs.
        """
        ...

    async def ready_tags(
        self, queue: str, limit: int = 1000, *, among: Sequence[str] | None = None
    ) -> list[str]:
        """Return the tags of a queue's ready jobs, each once, by name.

        Jobs that have fallen due count. The list is empty while the queue is paused, or while its
        concurrency or rate admits no start. Jobs that a limit of their task or throttle holds
        count as well, because only a claim finds out. With `among`, only those tags are looked
        for. The cost grows with the tags, not with the jobs.
        """
        ...

    async def backlog(
        self, queue: str | None = None, until: JobId | None = None
    ) -> tuple[int, JobId]:
        """Count the unfinished jobs of a queue, or of all, with ids up to `until`.

        Also returns the highest id among them; without any, `until`, or 0 if that is None.
        """
        ...


class ScheduleStore(Protocol):
    """Schedules, which enqueue jobs periodically."""

    async def schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        """Return the schedules with these names, or all, by name; unknown names are left out."""
        ...

    async def put_schedule(self, schedule: Schedule) -> Schedule | None:
        """Write a schedule if the stored one still has its version; version 0 means none is stored.

        Returns it with its new version, or None if another write came first. A version is never
        assigned twice under the same name.
        """
        ...

    async def drop_schedule(self, name: str) -> bool:
        """Remove a schedule; returns whether it existed. Jobs that it has enqueued stay."""
        ...

    async def due(self, tasks: Collection[str], declared: Collection[str], limit: int) -> Due:
        """Return the schedules whose next run is due, longest due first, and when the next one is.

        Only schedules of these tasks and, of those declared in code, only the ones with these
        names. A paused schedule is never due.
        """
        ...

    async def fire(self, firing: Firing, *, actor: str) -> list[Job] | None:
        """Add the jobs of a due schedule, like `add`, and set its next run, in one transaction.

        Returns None, and changes nothing, if the schedule has another version, is gone, or is not
        due by the store's clock: each run happens once, however many processes try. The log names
        the schedule. Raises `QueueFull`; the schedule stays due then.
        """
        ...


class WorkerStore(Protocol):
    """The registry of workers."""

    async def heartbeat(self, workers: Sequence[WorkerInfo]) -> list[str]:
        """Register these workers under their names, as seen now, or refresh their entries.

        Returns the names of those that should drain. Wakes nobody.
        """
        ...

    async def deregister(self, names: Sequence[str]) -> None:
        """Remove workers from the registry; unknown names are ignored. Wakes nobody."""
        ...

    async def drain_worker(self, name: str) -> bool:
        """Ask a worker to take no more jobs, and to end once it has finished those it has.

        It learns of this with its next heartbeat. Returns whether it is registered.
        """
        ...

    async def departed_tasks(self) -> list[DepartedTask]:
        """Return the tasks of workers that were deregistered, by name, as long as remembered."""
        ...

    async def workers(self) -> list[WorkerInfo]:
        """Return every worker that is registered or holds a lease, by name.

        Each with the leases that it holds now, past their deadlines or not. A claim or a renewal
        counts as a sign of life.
        """
        ...


class TokenStore(Protocol):
    """Access tokens."""

    async def tokens(self) -> list[Token]:
        """Return every access token, by name."""
        ...

    async def add_token(self, token: Token) -> bool:
        """Store an access token; returns False, and changes nothing, if its name is taken.

        `wait` returns in every process when a token is added or removed.
        """
        ...

    async def drop_token(self, name: str) -> bool:
        """Remove an access token; returns whether it existed."""
        ...


class StatisticsStore(Protocol):
    """Counts of past events, per queue and minute and in total."""

    async def roll_up(self, limit: int) -> int:
        """Add at most `limit` log entries that were not counted yet to the counts.

        Returns how many it processed: 0 if there are no more, or if another call was faster. The
        counts are written together with the position in the log up to which they reach, so that no
        entry is counted twice or left out. Reading the entries blocks no writer. Entries of jobs
        that were removed before are not counted, because they were removed with their jobs; nor
        are entries that were imported with a job.

        Entries are processed in the order in which they become visible. A store whose transactions
        can commit in another order than they take their log ids stops before the first entry of
        the oldest transaction that is still open, because an older entry may yet appear.

        Also removes some of the counts that are past `statistics.KEPT`.
        """
        ...

    async def intervals(
        self,
        since: datetime,
        until: datetime | None,
        queue: str | Collection[str] | None,
        step: timedelta,
    ) -> list[Interval]:
        """Return the counts of a period, per queue and `step`, by time and queue.

        Of one queue, of each of several, or of every queue. `TOGETHER` returns the sum over all
        queues, which is maintained: its cost does not grow with the queues. The period has the
        minutes that start in it. A step is a whole number of minutes, counted from 1970. An
        interval without events is left out. Minutes are kept for `statistics.KEPT`.
        """
        ...

    async def counters(self) -> list[Counters]:
        """Return the total counts of each queue since the store exists, by name.

        Only some queues have counters of their own (see `series`); all others are counted under
        `TOGETHER`. No number ever decreases: a queue that gets its own counters starts at zero,
        while its earlier events stay with the others, and so do those of a removed queue that
        had none of its own. Own counters are removed with their queue.
        """
        ...

    async def series(self, limit: int | None = None) -> list[str]:
        """Return the queues that have counters of their own, by name.

        Queues without them get them first, as long as there is room, and keep them until they are
        removed. `limit` sets how many queues may have them, for every process; those that have
        them already keep them. A queue named `OTHER_QUEUES` never gets any.
        """
        ...


class TransferStore(Protocol):
    """Jobs on their way between stores, or between a store and an archive."""

    async def origin(self) -> Origin:
        """Return the store's identity, which never changes, and the highest ids it has assigned."""
        ...

    async def records(self, ids: Sequence[JobId]) -> list[Record]:
        """Return these jobs, each with its whole log and its open edges, as of one moment.

        In this order; unknown ids are left out.
        """
        ...

    async def restore(
        self,
        records: Sequence[Record],
        *,
        origin: Origin,
        actor: str,
        reported: Mapping[JobId, Reported] | None = None,
    ) -> list[Job | None]:
        """Take over pending and finished jobs of another store, or of this one.

        Returns each job as it is stored now, or None for one that is not taken, because it was
        taken over from the same store before, is still here, or is pending while another job holds
        its dedupe key. See `restoration.plan` for what is taken and what becomes of ids, logs,
        tokens, parents and dependencies.

        Length limits of queues do not apply. Pending jobs of a key line up in the order of their
        ids. A job that waits for one that has failed here is abandoned. `reported` has what the
        jobs have reported, by their ids in the other store.
        """
        ...

    async def restored_ids(self, source: int, ids: Sequence[JobId]) -> Mapping[JobId, JobId]:
        """Return the ids here of jobs that were taken over from a store, by their ids there.

        Jobs that were not taken over are left out; those that were removed since are included.
        """
        ...

    async def raise_floor(
        self, *, actor: str, reason: str, above: int = 0, reclaim: bool = False
    ) -> Cut:
        """Note that the store was set back to an earlier moment, and let ids continue higher up.

        Ids of jobs and log entries, and therefore fencing tokens, and versions of schedules are
        higher than `recovery.next_floor` from now on. `above` is an id known to have been assigned.
        With `reclaim`, jobs that were running are taken from their workers, and these attempts do
        not count. The log notes the cut with its reason, at the jobs that are taken back and at the
        newest job that was not running. The jobs of a store with a migration lock stay as they are.
        """
        ...

    async def set_migration_lock(
        self, lock: MigrationLock | None, *, expected: MigrationLock | None
    ) -> bool:
        """Set the migration lock, or remove it with None, if the present one is `expected`.

        Returns whether it was. In a locked store, `add`, `claim`, `transition` and `fire` raise
        `StoreMoved`, or `StoreUnavailable` while jobs are arriving. While jobs leave or have left,
        `restore`, `configure`, `limit` with a number, `put_schedule` and `add_token` are refused
        as well, because what they write would stay behind. When this returns, no write that began
        before is still in progress.
        """
        ...

    async def migration_lock(self) -> MigrationLock | None:
        """Return the migration lock of the store; None if it is not locked."""
        ...


class TableStore(Protocol):
    """What a store in a database adds: an application's own tables and transactions.

    `connection` is a caller's own connection to the same database, with an open transaction, or
    what `transact` passes to its work. What is written there becomes visible when that transaction
    commits.
    """

    async def add_within(self, jobs: Sequence[NewJob], *, actor: str, connection: Any) -> list[Job]:
        """Store jobs inside the caller's transaction; see `JobStore.add`."""
        ...

    async def finish(
        self, ended: Sequence[tuple[Job, Done]], *, actor: str, connection: Any
    ) -> list[Job]:
        """Settle runs as done inside the caller's transaction.

        Raises `LeaseLost` unless the leases with which the jobs were claimed are still held.
        """
        ...

    async def supersede(self, job_id: JobId, by: JobId, *, actor: str, connection: Any) -> bool:
        """Let a job take the place of a pending one, inside a transaction of `transact`.

        Returns False, and changes nothing, if that one is no longer pending.
        """
        ...

    async def transact(self, work: Callable[[Within], T]) -> T:
        """Run an application's own statements in one transaction of the store's database.

        Returns or raises what `work` does; what it wrote is committed or rolled back. `work` may
        be called more than once, and in another thread.
        """
        ...

    async def read(self, work: Callable[[Statements], T]) -> T:
        """Run an application's read-only statements on one snapshot of the database."""
        ...

    async def prepare_tables(self, name: str, steps: Tables) -> None:
        """Create the tables of an application, or bring them up to date.

        Each step runs once, in the order of their numbers, even if several processes call this at
        the same time.
        """
        ...

    async def add_mirror(self, mirror: Mirror) -> None:
        """Let rows of an application follow the jobs of a queue; see `Mirror`.

        It stays in effect for every process and program until another one of the same name
        replaces it.
        """
        ...


class Store(
    JobStore,
    QueueStore,
    ScheduleStore,
    WorkerStore,
    TokenStore,
    StatisticsStore,
    TransferStore,
    Protocol,
):
    """A store: all parts together.

    A verb is one transaction: when it returns, all of it is durable; if it raises, nothing
    happened. The store's clock determines every time. `actor` is the name in the log. Jobs that a
    verb returns belong to the caller: the store keeps no reference to them.

    Verbs are coroutines. Called without a running event loop, they finish without suspending, so
    that synchronous code can drive them with a single `send` (see `penstock.run_sync`).
    """

    @property
    def tables(self) -> TableStore | None:
        """The part for an application's own tables; None if the store is not in a database."""
        ...

    async def wait(self, seen: int, timeout: float) -> int:
        """Return when the store has changed since `seen`, in any process, or on a timeout.

        Also when a scheduled job falls due, when a pause ends, and when a rate that holds ready
        jobs admits the next start. Returns the value to pass as the next `seen`.
        """
        ...

    async def verify(self, progress: BackupProgress) -> Verification:
        """Read everything and check whether the promises that can be read off hold.

        All of it at one moment, while others may write.
        """
        ...

    async def repair(self, *, actor: str) -> None:
        """Derive again what follows from the jobs and their dependencies; see `REPAIRS`."""
        ...

    async def size(self) -> StoreSize:
        """Return the size of the store; the cost does not grow with the number of jobs."""
        ...

    async def close(self) -> None:
        """Release files, connections and threads; everything acknowledged stays."""
        ...
