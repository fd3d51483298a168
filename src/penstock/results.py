"""Waits for the ends of jobs: one watch on the store, however many wait."""

import asyncio
import time
from collections.abc import Callable

from penstock.core.errors import JobFailed, JobNotFound
from penstock.core.job import Job, JobId, headline
from penstock.core.lifecycle import State
from penstock.core.store import Store

# The store rings for ends of jobs: this is only in case that a ring was lost.
_LOOK_AGAIN = 5.0


class Ends:
    """The jobs of one store whose ends are waited for."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._waiters: dict[JobId, list[asyncio.Future[Job]]] = {}
        self._watching: asyncio.Task[None] | None = None

    async def of(self, job_id: JobId, timeout: float | None) -> Job:
        """The job when it has ended; raises `TimeoutError`."""
        if asyncio._get_running_loop() is None:  # noqa: SLF001 - the public one raises
            return await self._of_here(job_id, timeout)
        # First of all: were it among the waiters only after the look, the watch could have seen
        # the job's end in between, and told nobody.
        ended: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(job_id, []).append(ended)
        try:
            found = await self._store().watch([job_id])
            if not found:
                raise _gone(job_id)
            if found[0].state.final:
                return found[0]
            if self._watching is None or self._watching.done():
                self._watching = asyncio.create_task(self._watch())
            async with asyncio.timeout(timeout):
                return await ended
        finally:
            self._forget(job_id, ended)

    async def _of_here(self, job_id: JobId, timeout: float | None) -> Job:
        """Without an event loop, the calling thread waits."""
        deadline = None if timeout is None else time.monotonic() + timeout
        jobs, seen = await self._store().watch([job_id]), 0
        while jobs and not jobs[0].state.final:
            left = _LOOK_AGAIN if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"job {job_id} is still {jobs[0].state}")
            seen = await self._store().wait(seen, min(left, _LOOK_AGAIN))
            jobs = await self._store().get([job_id])
        if not jobs:
            raise _gone(job_id)
        return jobs[0]

    async def _watch(self) -> None:
        seen = 0
        while self._waiters:
            try:
                seen = await self._store().wait(seen, _LOOK_AGAIN)
                asked = list(self._waiters)  # others may come while the store is read
                found = {job.id: job for job in await self._store().get(asked)}
            except Exception as error:  # noqa: BLE001 - it belongs to those who wait
                for job_id in list(self._waiters):
                    self._tell(job_id, error)
                return
            for job_id in asked:
                job = found.get(job_id)
                if job is None:
                    self._tell(job_id, _gone(job_id))
                elif job.state.final:
                    self._tell(job_id, job)

    def _forget(self, job_id: JobId, ended: asyncio.Future[Job]) -> None:
        waiting = self._waiters.get(job_id, [])
        if ended in waiting:
            waiting.remove(ended)
        if not waiting:
            self._waiters.pop(job_id, None)
        if ended.done() and not ended.cancelled():
            ended.exception()  # nobody asks any more: asyncio need not complain

    def _tell(self, job_id: JobId, answer: Job | Exception) -> None:
        for waiter in self._waiters.pop(job_id, []):
            if waiter.done():
                continue
            if isinstance(answer, Exception):
                waiter.set_exception(answer)
            else:
                waiter.set_result(answer)


def outcome_of(job: Job) -> object:
    """What an ended job returned; raises `JobFailed` if it did not succeed."""
    if job.state is not State.DONE:
        because = f": {headline(job.error)}" if job.error else ""
        raise JobFailed(f"job {job.id} is {job.state}{because}", job)
    return job.returned


def _gone(job_id: JobId) -> JobNotFound:
    return JobNotFound(f"there is no job {job_id}; retention may have removed it")
