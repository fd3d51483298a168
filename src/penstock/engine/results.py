"""Waits for jobs to end, with one watch on the store for all waiters, and returns their results."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from penstock.core.errors import JobFailed, JobNotFound
from penstock.core.job import Job, JobId, bind, headline
from penstock.core.lifecycle import State
from penstock.core.store import Store
from penstock.engine.codec import Result
from penstock.engine.sync import Sync
from penstock.engine.validation import check_kind
from penstock.runtime import Runtime, running_loop

if TYPE_CHECKING:
    import asyncio

# The store notifies waiters when jobs end. This covers a notification that was lost.
_LOOK_AGAIN = 5.0


class _Connection(Protocol):
    @property
    def store(self) -> Store: ...
    @property
    def runtime(self) -> Runtime: ...


class ResultWatch:
    """Waits for jobs of one store to end."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.decoders: dict[str, Result] = {}
        """How to decode the results of this program's tasks, by their names."""
        self._watches: WeakKeyDictionary[asyncio.AbstractEventLoop, _Watch] = WeakKeyDictionary()

    @property
    def sync(self) -> Sync:
        """The same call from synchronous code."""
        return Sync(self)

    async def result(self, job: Job | int, *, timeout: timedelta | None = None) -> Any:
        """Wait for the end of a job, and return its result; see `Penstock.result`."""
        if timeout is not None:
            check_kind("timeout", timeout, timedelta)
        ended = await self._ended(
            job.id if isinstance(job, Job) else JobId(job),
            None if timeout is None else timeout.total_seconds(),
        )
        if ended.state is not State.DONE:
            because = f": {headline(ended.error)}" if ended.error else ""
            (known,) = bind([ended], self)
            raise JobFailed(f"job {ended.id} is {ended.state}{because}", known)
        decoder = self.decoders.get(ended.task)
        return ended.returned if decoder is None else decoder.decode(ended)

    async def _ended(self, job_id: JobId, timeout: float | None) -> Job:
        loop = running_loop()
        if loop is None:
            return await self._ended_in_thread(job_id, timeout)
        watch = self._watches.get(loop)
        if watch is None:
            watch = self._watches[loop] = _Watch(self._connection)
        return await watch.ended(job_id, loop, timeout)

    async def _ended_in_thread(self, job_id: JobId, timeout: float | None) -> Job:
        """Without an event loop, the calling thread waits."""
        store, monotonic = self._connection.store, self._connection.runtime.monotonic
        deadline = None if timeout is None else monotonic() + timeout
        jobs, seen = await store.watch([job_id]), 0
        while jobs and not jobs[0].state.final:
            left = _LOOK_AGAIN if deadline is None else deadline - monotonic()
            if left <= 0:
                raise TimeoutError(f"job {job_id} is still {jobs[0].state}")
            seen = await store.wait(seen, min(left, _LOOK_AGAIN))
            jobs = await store.get([job_id])
        if not jobs:
            raise job_not_found(job_id)
        return jobs[0]


class _Watch:
    """Waits for jobs in one event loop: a future belongs to its loop, and ends with it."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._waiters: dict[JobId, list[asyncio.Future[Job]]] = {}
        self._watching: asyncio.Task[None] | None = None

    async def ended(
        self, job_id: JobId, loop: "asyncio.AbstractEventLoop", timeout: float | None
    ) -> Job:
        """Wait for a job to end, and return it."""
        from asyncio import timeout as limit

        # First of all: if it were added after the read, the watch could see the job end in
        # between, and the future would never be resolved.
        ended: asyncio.Future[Job] = loop.create_future()
        self._waiters.setdefault(job_id, []).append(ended)
        try:
            found = await self._connection.store.watch([job_id])
            if not found:
                raise job_not_found(job_id)
            if found[0].state.final:
                return found[0]
            if self._watching is None:
                self._watching = loop.create_task(self._watch())
            async with limit(timeout):
                return await ended
        finally:
            self._forget(job_id, ended)

    async def _watch(self) -> None:
        try:
            await self._watch_all()
        finally:
            self._watching = None  # a task would keep its loop, and so this watch, for ever

    async def _watch_all(self) -> None:
        seen = 0
        while self._waiters:
            try:
                seen = await self._connection.store.wait(seen, _LOOK_AGAIN)
                wanted = list(self._waiters)  # others may arrive while the store is read
                found = {job.id: job for job in await self._connection.store.get(wanted)}
            except Exception as error:  # noqa: BLE001 - it belongs to the waiters
                for job_id in list(self._waiters):
                    self._resolve(job_id, error)
                return
            for job_id in wanted:
                job = found.get(job_id)
                if job is None:
                    self._resolve(job_id, job_not_found(job_id))
                elif job.state.final:
                    self._resolve(job_id, job)

    def _forget(self, job_id: JobId, ended: "asyncio.Future[Job]") -> None:
        waiting = self._waiters.get(job_id, [])
        if ended in waiting:
            waiting.remove(ended)
        if not waiting:
            self._waiters.pop(job_id, None)
        if ended.done() and not ended.cancelled():
            ended.exception()  # nobody awaits it any more: asyncio must not complain

    def _resolve(self, job_id: JobId, answer: Job | Exception) -> None:
        for waiter in self._waiters.pop(job_id, []):
            if waiter.done():
                continue
            if isinstance(answer, Exception):
                waiter.set_exception(answer)
            else:
                waiter.set_result(answer)


def job_not_found(job_id: int) -> JobNotFound:
    """Return the error for a job that does not exist, or no longer."""
    return JobNotFound(f"there is no job {job_id}; retention may have removed it")
