"""The Store protocol: what a home for jobs has to promise."""

from collections.abc import Callable, Sequence
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
from penstock.core.limits import Held, Limit

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

        What would pass a limit on running jobs or on starts stays, and what comes behind it is
        given instead. Claims without tags let the tenants of a queue take turns within a
        priority. Where `promote_after` is set, waiting raises a job's priority, up to 10.
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

    async def limit(self, limit: Limit) -> None:
        """Set how many jobs of a task or of each throttle run, for every process; None: any.

        What runs goes on, also beyond a lower limit.
        """
        ...

    async def limits(self) -> list[Limit]:
        """Every limit of a task or of throttles, by kind and name."""
        ...

    async def held(self, job: Job) -> list[Held]:
        """The limits that would keep this job, were it ready, from starting now."""
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

        Or when a rate that holds ready jobs lets the next one start.

        Also after `timeout` seconds. The answer is the next `seen`. Changes made by other
        processes count.
        """
        ...

    async def close(self) -> None:
        """Let go of files and threads; what was acknowledged stays."""
        ...
