"""What is known of jobs: the part of `Penstock` that finds them and waits for their ends."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, overload

import msgspec

from penstock.checks import check_kind, check_limit
from penstock.core.errors import JobNotFound
from penstock.core.job import (
    Counts,
    Edge,
    Job,
    JobId,
    JobQuery,
    KeyLine,
    LogEntry,
    LogId,
    Record,
    Tally,
    bind,
)
from penstock.core.lifecycle import State
from penstock.core.note import Line, Progress
from penstock.opening import Opened
from penstock.results import Ends, outcome_of


class Batch(msgspec.Struct, frozen=True):
    """How the jobs of one correlation fare."""

    correlation: str
    tally: Tally

    @property
    def total(self) -> int:
        """How many jobs there are."""
        return sum(self.tally.values())

    @property
    def status(self) -> Literal["running", "done", "failed"]:
        """Running while a job is unfinished; then done, or failed if one did not succeed."""
        if any(not state.final for state in self.tally):
            return "running"
        return "failed" if {State.FAILED, State.CANCELLED} & self.tally.keys() else "done"


class Looking(Opened):
    """The part of `Penstock` that changes nothing."""

    _ends: Ends

    async def get(self, job_id: int) -> Job:
        """The job as it is now."""
        found = await self.store.get([JobId(job_id)])
        if not found:
            raise JobNotFound(f"there is no job {job_id}; retention may have removed it")
        return bind(found, self)[0]

    async def find(self, query: JobQuery | None = None) -> list[Job]:
        """The jobs that fit, newest first unless asked otherwise."""
        query = query or JobQuery()
        check_limit(query.limit)
        return bind(await self.store.find(query), self)

    async def find_ids(self, query: JobQuery | None = None) -> list[JobId]:
        """As `find`, the ids alone: cheap enough for very long pages."""
        query = query or JobQuery()
        check_limit(query.limit)
        return await self.store.find_ids(query)

    async def wait(self, seen: int, timeout: float) -> int:
        """Return when jobs may have become ready or have ended, in whatever process.

        Also after `timeout` seconds. The answer is the next `seen`; begin with 0.
        """
        return await self.store.wait(seen, timeout)

    async def count(self, queues: Collection[str] | None = None) -> Counts:
        """How many jobs there are by queue, state and what they wait for.

        Of these queues, or of all. The cost does not grow with the jobs, nor with other queues.
        """
        return await self.store.count(queues)

    async def ready_tags(
        self, queue: str, limit: int = 1000, *, among: Sequence[str] | None = None
    ) -> list[str]:
        """The tags of the ready jobs of a queue, by name: whether a claim is worth its while.

        There are none while the queue is paused, or when its concurrency or rate lets no job
        start. With `among`, only those tags are looked for. The cost grows with the tags, not with
        the jobs.
        """
        check_limit(limit)
        return await self.store.ready_tags(queue, limit, among=among)

    async def keys(self, after: str | None = None, limit: int = 100) -> list[KeyLine]:
        """The keys that unfinished jobs have, by name: who holds each, and how many are in line.

        Pass the last key as `after` for the next page. The cost does not grow with the jobs.
        """
        check_limit(limit)
        return await self.store.keys(after, limit)

    async def oldest_ready(self, queues: Collection[str] | None = None) -> Mapping[str, datetime]:
        """Since when the job of each queue that is ready for the longest has been due.

        Of these queues, or of all. Also where a pause or a limit holds it; queues without a ready
        job are left out. The cost does not grow with the jobs.
        """
        return await self.store.oldest_ready(queues)

    async def records(self, job_ids: Sequence[int]) -> list[Record]:
        """These jobs, each with its whole log and what it waits for, as they were at one moment.

        In this order; unknown ids are left out.
        """
        return await self.store.histories([JobId(job_id) for job_id in job_ids])

    async def log(
        self, job_id: int | None = None, *, after: int | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        """The audit of one job, or of all behind an entry's id, oldest first."""
        check_limit(limit)
        found = await self.store.log(
            None if job_id is None else JobId(job_id),
            after=None if after is None else LogId(after),
            limit=limit,
        )
        if not found and job_id is not None:
            await self.get(job_id)  # no job is without a log: there may be none behind `after`
        return found

    async def newest_log(self) -> int:
        """The id of the newest entry of the log: where to begin reading on from now."""
        return await self.store.newest_log()

    async def result(self, job: Job | int, *, timeout: timedelta | None = None) -> Any:
        """What the job returns, when it has ended, in whatever process; see `Job.result`.

        Raises `JobFailed` if it ended without success, `TimeoutError` when the time is over.
        """
        if timeout is not None:
            check_kind("timeout", timeout, timedelta)
        ended = await self._ends.of(
            job.id if isinstance(job, Job) else JobId(job),
            None if timeout is None else timeout.total_seconds(),
        )
        return outcome_of(bind([ended], self)[0])

    async def batch(self, correlation: str) -> Batch:
        """How the jobs of a batch fare."""
        tally = await self.store.tally(JobQuery(correlation=correlation))
        if not tally:
            raise JobNotFound(f"there is no batch {correlation!r}; retention may have removed it")
        return Batch(correlation, tally)

    async def children(self, job_id: int, *, queue: str | None = None) -> Tally:
        """How many children of a job there are in each state, in all queues or in one."""
        return await self.store.tally(JobQuery(parent=JobId(job_id), queue=queue))

    async def edges(self, job_ids: Sequence[int]) -> list[Edge]:
        """Who waits for whom, as far as these jobs do or are waited for."""
        return await self.store.edges([JobId(job_id) for job_id in job_ids])

    @overload
    async def progress(self, job_id: int) -> Progress | None: ...
    @overload
    async def progress(self, job_id: Sequence[int]) -> dict[int, Progress]: ...
    async def progress(self, job_id: int | Sequence[int]) -> Progress | dict[int, Progress] | None:
        """How far a job is, None if it never said so; or of many at once, by their ids."""
        if isinstance(job_id, int):
            return (await self.store.progress([JobId(job_id)])).get(JobId(job_id))
        found = await self.store.progress([JobId(one) for one in job_id])
        return {one: progress for one, progress in found.items()}  # noqa: C416 - ids are numbers

    async def checkpoint(self, job_id: int) -> Any:
        """The state that a job's next attempt would go on from, decoded; None if there is none."""
        stored = await self.store.checkpoint(JobId(job_id))
        return None if stored is None else msgspec.json.decode(stored)

    async def lines(self, job_id: int, after: int | None = None, limit: int = 1000) -> list[Line]:
        """What a job has logged, oldest first, behind a line's id; its newest 1,000 are kept."""
        check_limit(limit)
        return await self.store.lines(JobId(job_id), after=after or 0, limit=limit)
