"""The Store protocol: what a home for jobs has to promise."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

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
)
from penstock.core.schedule import Due, Firing, Schedule

Clock = Callable[[], int]
"""Microseconds since 1970, UTC."""


class Store(Protocol):
    """Where jobs are durable.

    A verb is one transaction: all of it is durable when it returns, or nothing happened. Writes
    take a sequence. The store's clock decides every time. `actor` is who the log will name.

    Verbs are coroutines. Called where no event loop runs, they finish without suspending, so
    that synchronous code can drive them by one `send` (see `penstock.engine.run_sync`).
    """

    async def add(self, jobs: Sequence[NewJob], *, actor: str, connection: Any = None) -> list[Job]:
        """Store these jobs, all or none, in this order; ids grow in that order.

        A job whose dedupe key is held is not stored: the holder is returned in its place, with
        `duplicate` set. Raises `QueueFull` when a queue would pass its limit; duplicates are
        looked for first. With `connection`, all happens inside that caller's own transaction
        and becomes visible when the caller commits.
        """
        ...

    async def claim(self, wanted: Claim) -> list[Job]:
        """Give ready jobs to a worker: highest priority first, then earliest due, then lowest id.

        Each becomes running with a token higher than any given before, one attempt more, and a
        deadline its own lease time away. Of the jobs of one key only the oldest unfinished one
        is ever given. A paused queue gives none.
        """
        ...

    async def renew(self, leases: Sequence[Lease]) -> list[Job]:
        """Move the deadlines of these leases to a full lease time from now.

        Returns the jobs still held, as they are now; a lease that is over is left out.
        """
        ...

    async def transition(self, changes: Sequence[Change], *, actor: str) -> list[Job | None]:
        """Write each move whose job still has the version it was decided on; log each.

        The expiry of a lease is written only while its deadline is still past.

        Returns, for each change, the job as it is now, or None where the job had changed or is
        gone. Finishing or giving back the head of a key makes the next job of the key visible
        in the same transaction. A move to pending meets `lifecycle.give_way` if its dedupe key
        is held by another.
        """
        ...

    async def expired(self, limit: int) -> list[Job]:
        """Running jobs whose deadline is past, longest past first."""
        ...

    async def get(self, ids: Sequence[JobId]) -> list[Job]:
        """These jobs, in this order; unknown ids are left out."""
        ...

    async def find(self, query: JobQuery) -> list[Job]:
        """The jobs that fit, by id."""
        ...

    async def count(self) -> Counts:
        """How many jobs there are per queue, state and, when pending, what they wait for.

        Comes from kept totals: the cost does not grow with the number of jobs.
        """
        ...

    async def backlog(
        self, queue: str | None = None, until: JobId | None = None
    ) -> tuple[int, JobId]:
        """How many jobs of a queue (or of all) with an id up to `until` are unfinished.

        Also the highest such id, or `until` where there is none.
        """
        ...

    async def queues(self) -> list[Queue]:
        """Every queue that has held a job or a setting, by name."""
        ...

    async def configure(self, settings: QueueSettings) -> Queue:
        """Change what is set in a queue's settings, for every process; the queue as it is now."""
        ...

    async def log(
        self, job_id: JobId | None = None, *, after: LogId | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        """The audit, oldest first: of one job or of all, behind `after`."""
        ...

    async def prune(self, retention: Retention, limit: int) -> int:
        """Remove at most `limit` finished jobs past their time, with their log; how many went."""
        ...

    async def wait(self, seen: int, timeout: float) -> int:
        """Return when the store has changed since `seen`, or a scheduled job falls due.

        Also after `timeout` seconds. The answer is the next `seen`. Changes made by other
        processes count.
        """
        ...

    async def schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        """The schedules with these names, or all; by name. Unknown names are left out."""
        ...

    async def put_schedule(self, schedule: Schedule) -> Schedule | None:
        """Write a schedule while the stored one still has its version, or while there is none.

        A schedule that is not stored has version 0. Returns it as it is now, with the next
        version, or None where another write came first. A version is never given twice under
        the same name.
        """
        ...

    async def drop_schedule(self, name: str) -> bool:
        """Remove a schedule; whether there was one. Jobs that it has enqueued stay."""
        ...

    async def due(self, tasks: Collection[str], declared: Collection[str], limit: int) -> Due:
        """The schedules whose next run has come, longest due first, and when the next one comes.

        Only those of these tasks; of the ones that are declared in code, only those with these
        names. A paused schedule is never due.
        """
        ...

    async def fire(self, firing: Firing, *, actor: str) -> list[Job] | None:
        """Add the jobs of a schedule that is due, as `add` does, and set its next run.

        All of it or nothing: None where the schedule has another version meanwhile, is gone, or
        is not due by the store's clock. So each run happens once, whoever else tries. The log
        says which schedule enqueued each job. Raises `QueueFull`; the schedule then stays due.
        """
        ...

    async def close(self) -> None:
        """Let go of files and threads; what was acknowledged stays."""
        ...
