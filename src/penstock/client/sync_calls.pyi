"""The synchronous calls of a queue behind a server, for type checkers and editors.

Generated from the coroutines by `python -m tests.engine.sync_stub`.
"""

import builtins
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from penstock.client.remote import (
    RemoteLimits,
    RemotePenstock,
    RemoteQueues,
    RemoteSchedules,
    RemoteSelection,
    RemoteStatistics,
    RemoteTokens,
    RemoteWorkers,
)
from penstock.core import progress as reports
from penstock.core.explanation import Explanation
from penstock.core.job import Job, LogEntry, NewJob
from penstock.core.query import JobQuery
from penstock.core.queue import Ages, Counts, Queue, QueueQuery, QueueStatus, QueueSummary
from penstock.core.schedule import Schedule
from penstock.core.statistics import Interval
from penstock.core.tokens import Access
from penstock.core.workers import WorkerInfo
from penstock.engine.batch import Batch
from penstock.engine.bulk import Bulk, BulkProgress, Portion
from penstock.engine.protocol import PathLike
from penstock.engine.queues import Drained

class SyncRemotePenstock:
    """The coroutines of `RemotePenstock` as plain functions."""

    def __init__(self, owner: RemotePenstock) -> None: ...
    def close(self) -> None:
        """Close the connections."""

    def enqueue(self, task: str, args: Mapping[str, Any] | None = None, **options: Any) -> Job:
        """Store a job for a task by its name; the options are the fields of a `NewJob`.

        A call without an answer is repeated under a dedupe key of its own.
        """

    def enqueue_many(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[Job]:
        """Store up to 1,000 jobs in one transaction, all or none, and return them in this order.

        The transaction is always the server's own.
        """

    def get(self, job_id: int) -> Job:
        """Return the job as it is now. Raises `JobNotFound`."""

    def find(self, query: JobQuery | None = None) -> list[Job]:
        """Return the jobs that match, newest first unless the query says otherwise."""

    def count(self, queues: Collection[str] | None = None) -> Counts:
        """Count jobs by queue, state and what they wait for."""

    def log(
        self, job_id: int | None = None, *, after: int | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        """Return the log of one job, or of all, after an entry's id, oldest first."""

    def newest_log(self) -> int:
        """Return the id of the newest log entry: where to begin to follow the log from now on."""

    def tail(self, after: int | None = None, job_id: int | None = None) -> Iterator[LogEntry]:
        """Yield the log entries of all jobs, or of one, as they are added; never ends.

        Begins after an entry's id, or now. Reconnects where it was when the connection breaks.
        """

    def wait(self, seen: int, timeout: float) -> int:
        """Return when the log has grown, or after about `timeout` seconds.

        Begin with 0, and pass what a call returns to the next.
        """

    def explain(self, job_id: int) -> Explanation:
        """Say why this job is not running, or how it ended."""

    def progress(self, job_id: int) -> reports.Progress | None:
        """Return the progress of a job; None if it reported none."""

    def lines(self, job_id: int, after: int | None = None, limit: int = 1000) -> list[reports.Line]:
        """Return what a job has logged after a line's id, oldest first."""

    def batch(self, correlation: str) -> Batch:
        """Count the jobs of a batch by state."""

    def cancel(self, job_id: int, reason: str | None = None) -> Job:
        """End a pending job, or ask a running one to stop."""

    def retry(self, job_id: int, reason: str | None = None) -> Job:
        """Run a failed, cancelled or waiting job now, with all its attempts again."""

    def reset(self, job_id: int, reason: str | None = None) -> Job:
        """Do the same as `retry`, and take a running job from its worker."""

    def set_priority(self, job_id: int, priority: int, reason: str | None = None) -> Job:
        """Give a pending job another priority; claims follow it at once."""

    def delete(self, job_id: int) -> Job:
        """Remove a finished job with its log, and return it as it was."""

class SyncRemoteSelection:
    """The coroutines of `RemoteSelection` as plain functions."""

    def __init__(self, owner: RemoteSelection) -> None: ...
    def cancel(
        self,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """End the pending jobs that match, and ask the running ones to stop."""

    def retry(
        self,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """Run the failed jobs that match again; others only if the query's `states` name them."""

    def reprioritise(
        self,
        priority: int,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """Give the pending jobs that match another priority."""

    def delete(
        self,
        *,
        archive: PathLike | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """Remove the finished jobs that match, with their log. A server writes no archive."""

class SyncRemoteQueues:
    """The coroutines of `RemoteQueues` as plain functions."""

    def __init__(self, owner: RemoteQueues) -> None: ...
    def list(self, query: QueueQuery = ...) -> builtins.list[Queue]:
        """Return the queues with their limits, by name: all, or those that match a query."""

    def statuses(self, query: QueueQuery = ...) -> builtins.list[QueueStatus]:
        """Return the queues with their jobs by state and their oldest ready job."""

    def summary(self, without: Collection[str] = ()) -> QueueSummary:
        """Return the number of queues and all their jobs by state; a server leaves out none."""

    def oldest_ready(self, queues: Collection[str] | None = None) -> Mapping[str, datetime]:
        """Return when the oldest ready job of each of these queues, or of all, became due."""

    def pause(self, queue: str, *, duration: timedelta | None = None) -> Queue:
        """Start no more jobs of this queue, in any process; running jobs continue.

        After `duration` the pause ends by itself; without one it lasts until `resume`.
        """

    def resume(self, queue: str) -> Queue:
        """Start jobs of this queue again."""

    def remove(self, queue: str) -> bool:
        """Remove all limits of a queue, and its pause; it disappears with its last job.

        False if there is no such queue; raises `QueueInUse` while it has unfinished jobs.
        """

    def drain(self, queue: str | None = None, *, timeout: timedelta) -> Drained:
        """Wait until the jobs that are unfinished now have finished; later jobs do not count."""

class SyncRemoteLimits:
    """The coroutines of `RemoteLimits` as plain functions."""

    def __init__(self, owner: RemoteLimits) -> None: ...
    def queue(
        self,
        queue: str,
        max_pending: int | msgspec.UnsetType | None = ...,
        *,
        concurrency: int | msgspec.UnsetType | None = ...,
        rate: tuple[int, timedelta] | msgspec.UnsetType | None = ...,
        promote_after: Ages | msgspec.UnsetType | None = ...,
    ) -> Queue:
        """Set limits of a queue; None removes one, and what is not given stays."""

class SyncRemoteSchedules:
    """The coroutines of `RemoteSchedules` as plain functions."""

    def __init__(self, owner: RemoteSchedules) -> None: ...
    def list(self) -> builtins.list[Schedule]:
        """Return every schedule, by name; of its job, the task and the queue."""

    def run_now(self, name: str) -> Job:
        """Enqueue the job of a schedule now; its rhythm does not change."""

    def pause(self, name: str) -> Schedule:
        """Stop firing a schedule, in all processes, until it is resumed."""

    def resume(self, name: str) -> Schedule:
        """Fire a schedule again from its next run on; runs during the pause are skipped."""

class SyncRemoteWorkers:
    """The coroutines of `RemoteWorkers` as plain functions."""

    def __init__(self, owner: RemoteWorkers) -> None: ...
    def list(self) -> builtins.list[WorkerInfo]:
        """Return every worker, by name, busy or idle."""

class SyncRemoteTokens:
    """The coroutines of `RemoteTokens` as plain functions."""

    def __init__(self, owner: RemoteTokens) -> None: ...
    def scopes(self) -> frozenset[Access]:
        """Return the scopes of the token; all of them if the server requires none."""

class SyncRemoteStatistics:
    """The coroutines of `RemoteStatistics` as plain functions."""

    def __init__(self, owner: RemoteStatistics) -> None: ...
    def intervals(
        self,
        since: datetime,
        until: datetime | None = None,
        queue: str | QueueQuery | Collection[str] | None = None,
        step: timedelta = ...,
        *,
        together: bool = False,
    ) -> list[Interval]:
        """Return what has happened since then, by minute and queue; of the last 8 days.

        For one queue, several, those that match a query, or all; with `together`, as one sum.
        """
