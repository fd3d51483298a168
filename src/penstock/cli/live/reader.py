"""What a live view shows, read from a store or a server."""

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.cli.connection import offered
from penstock.cli.live.figures import Figures, begin, figures
from penstock.core.errors import JobNotFound
from penstock.core.explanation import Explanation
from penstock.core.job import Job, LogEntry
from penstock.core.lifecycle import State
from penstock.core.progress import LINES_KEPT, Line, Progress
from penstock.core.query import JobQuery, matches
from penstock.core.queue import QueueQuery, QueueSummary
from penstock.core.workers import WorkerInfo
from penstock.engine.protocol import App

LOG_SHOWN = 1_000
QUEUES_SHOWN = 200
"""Queues on a page."""
_LINES_SHOWN = 100
_RUNNING_SHOWN, _ENDED_SHOWN, _WAITING_SHOWN = 15, 10, 5
# Newest log entries to search for jobs that have ended, and how many of those jobs to read.
_LOG_READ, _JOBS_READ = 200, 20


class Overview(msgspec.Struct, frozen=True):
    """A page of queues, the totals of all queues, and all workers."""

    figures: list[Figures]
    workers: list[WorkerInfo]
    overall: QueueSummary


class Activity(msgspec.Struct, frozen=True):
    """The jobs that run, with their progress, those that ended last, and the newest waiting."""

    running: list[Job]
    progress: Mapping[int, Progress]
    ended: list[Job]
    waiting: list[Job]


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """One job in full."""

    job: Job
    explanation: Explanation
    progress: Progress | None
    checkpoint: Any
    lines: Sequence[Line]
    log: Sequence[LogEntry]


class Reader:
    """Reads what live views show; `queues` selects the page of queues."""

    def __init__(self, app: App, queues: QueueQuery | None = None) -> None:
        self.app = app
        self.queues = queues or QueueQuery(limit=QUEUES_SHOWN)

    async def overview(self, now: datetime) -> Overview:
        """Read the page of queues with their figures, and the workers."""
        app = self.app
        await offered(app.statistics.roll_up())  # a server does it by itself
        workers = await app.workers.list()
        found = figures(
            await app.queues.statuses(self.queues),
            workers,
            await app.statistics.intervals(begin(now), now, self.queues),
            now,
        )
        return Overview(found, workers, await app.queues.summary())

    async def find(self, query: JobQuery) -> list[Job]:
        """Read a page of jobs."""
        found = await self.app.find(query)
        return [job for job in found if self.app.secrets.lets_find(job, query)]

    async def activity(self, query: JobQuery) -> Activity:
        """Read what happens to the jobs that match."""
        running = await self.find(_narrowed(query, frozenset({State.RUNNING}), _RUNNING_SHOWN))
        progress = {job.id: await self.app.progress(job.id) for job in running}
        newest = await self.find(_narrowed(query, query.states, _ENDED_SHOWN))
        return Activity(
            running,
            {job_id: said for job_id, said in progress.items() if said is not None},
            await self._ended(query),
            [job for job in newest if job.state is State.PENDING][:_WAITING_SHOWN],
        )

    async def _ended(self, query: JobQuery) -> list[Job]:
        """Read the jobs that ended last: from the end of the log, and by their ids."""
        final = frozenset(state for state in query.states or State if state.final)
        if not final:
            return []
        found = {job.id: job for job in await self.find(_narrowed(query, final, _ENDED_SHOWN))}
        newest = await self.app.newest_log()
        entries = await self.app.log(after=max(0, newest - _LOG_READ), limit=_LOG_READ)
        ids = dict.fromkeys(entry.job_id for entry in reversed(entries) if entry.state.final)
        for job_id in islice((one for one in ids if one not in found), _JOBS_READ):
            with contextlib.suppress(JobNotFound):  # deleted since then
                found[job_id] = await self.app.get(job_id)
        ended = [job for job in found.values() if job.state.final and matches(job, query)]
        ended.sort(key=lambda job: (job.finished_at or job.enqueued_at, job.id), reverse=True)
        return ended[:_ENDED_SHOWN]

    async def details(self, job_id: int) -> Details:
        """Read one job in full."""
        app = self.app
        job = await app.get(job_id)
        lines = await app.lines(job_id, limit=LINES_KEPT)
        return Details(
            job=job,
            explanation=await app.explain(job_id),
            progress=await app.progress(job_id),
            checkpoint=await offered(app.checkpoint(job_id)),
            lines=lines[-_LINES_SHOWN:],
            log=await app.log(job_id, limit=LOG_SHOWN),
        )


def _narrowed(query: JobQuery, states: frozenset[State] | None, limit: int) -> JobQuery:
    return replace(query, states=states, limit=limit, after=None)
