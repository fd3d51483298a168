"""Reads all jobs and log entries of a store, and formats jobs for messages."""

from collections.abc import AsyncIterator
from datetime import datetime

from msgspec.structs import replace

from penstock.core.job import Job, LogEntry, LogId
from penstock.core.lifecycle import State, Waiting
from penstock.core.query import JobQuery
from penstock.core.store import Store

_PAGE = 1_000
_SHOWN = 60


async def every_job(store: Store, query: JobQuery | None = None) -> AsyncIterator[Job]:
    """Yield the matching jobs, in the order in which they were enqueued."""
    query = replace(query or JobQuery(), newest_first=False, limit=_PAGE)
    while True:
        page = await store.find(query)
        for job in page:
            yield job
        if len(page) < _PAGE:
            return
        query = replace(query, after=page[-1].id)


async def every_entry(store: Store, after: LogId | None = None) -> AsyncIterator[LogEntry]:
    """Yield the log entries after one, oldest first."""
    while True:
        page = await store.log(after=after, limit=_PAGE)
        for entry in page:
            yield entry
        if len(page) < _PAGE:
            return
        after = page[-1].id


async def next_due(store: Store) -> datetime | None:
    """Return when work next becomes available: a scheduled job, an expired lease, a rate."""
    unfinished = JobQuery(states=frozenset({State.PENDING, State.RUNNING}))
    times: list[datetime | None] = []
    ready: dict[str, Job] = {}
    async for job in every_job(store, unfinished):
        if job.state is State.RUNNING:
            times.append(job.expires_at)
        elif job.waiting is Waiting.SCHEDULED:
            times.append(job.run_at)
        elif job.waiting is Waiting.READY:
            ready.setdefault(job.queue, job)
    for job in ready.values():
        times += [held.until for held in await store.held(job)]
    return min((instant for instant in times if instant is not None), default=None)


def shown(job: Job) -> str:
    """Format a job as a call: `job 3: send(to='a')`."""
    arguments = ", ".join(f"{name}={_short(value)}" for name, value in job.args.items())
    return f"job {job.id}: {job.task}({arguments})"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
