"""The worker: claims jobs for its free slots, runs them, settles their outcomes, and so on.

One coroutine exchanges jobs with the store (`exchange`), while the slots run them (`slots`), a
background thread renews their leases (`leases`), and further coroutines watch the store for
changes, keep it in order (`upkeep`) and fire schedules (`scheduler`).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

from msgspec.structs import replace

from penstock.core.errors import (
    ConfigurationError,
    PenstockError,
    SchemaMismatch,
    StoreUnavailable,
)
from penstock.core.job import Job, Lease, Retention
from penstock.core.lifecycle import Cancelled, Snoozed, State, Waiting
from penstock.core.migration_lock import check_lasting
from penstock.core.query import JobQuery
from penstock.core.tasks import MERGED, announced
from penstock.core.times import from_micros
from penstock.core.workers import WorkerInfo
from penstock.engine.penstock import Penstock
from penstock.engine.task import announcement
from penstock.worker.children.pool import ChildPool
from penstock.worker.exchange import RETRY_PAUSE, Exchange
from penstock.worker.leases import LeaseRenewal
from penstock.worker.progress import ProgressBuffer
from penstock.worker.run import Run
from penstock.worker.scheduler import Scheduler
from penstock.worker.slots import Slots
from penstock.worker.upkeep import Upkeep

_log = logging.getLogger(__name__)

# Waiting for the next change asks the store something: the claim goes first.
_HEAD_START = 0.004
_LOOK_AGAIN = 5.0
# How long cancelled handlers may take to clean up when the worker's grace is over.
_LAST_WAIT = 5.0
# Cancellation requests are read at most this often.
_CANCEL_PAUSE = 0.05
_CANCELS_AT_ONCE = 1_000
_PENDING = frozenset({State.PENDING})
_TAGGED_AT_ONCE = 1_000


class Worker:
    """Runs the jobs of a Penstock's tasks, up to `concurrency` at a time.

    Coroutine handlers share the event loop; plain functions run in threads; tasks with isolation
    run in child processes, which are killed if they do not stop within `kill_after`. A worker that
    is killed loses nothing: its jobs run again when their leases expire. Without `queues`, it takes
    jobs of all queues except reserved ones: see `Penstock.limits.reserve`. It logs every run that
    fails, with its traceback; with `log_jobs`, it logs every run that ends, one line each.
    """

    def __init__(
        self,
        penstock: Penstock,
        *,
        queues: Sequence[str] | None = None,
        tags: Sequence[str] = (),
        concurrency: int = 20,
        name: str | None = None,
        grace: timedelta = timedelta(seconds=30),
        sweep: timedelta = timedelta(seconds=1),
        kill_after: timedelta = timedelta(seconds=5),
        retention: Retention = Retention(),  # noqa: B008 - immutable
        log_jobs: bool = False,
    ) -> None:
        if concurrency < 1:
            raise ConfigurationError("concurrency must be at least 1")
        if isinstance(queues, str) or isinstance(tags, str):
            raise ConfigurationError("queues and tags must be lists of names, not a string")
        _check_duration("grace", grace)
        _check_duration("sweep", sweep)
        _check_duration("kill_after", kill_after)
        self.name = name or _name(penstock)
        self.draining = False
        self._penstock = penstock
        self._queues = queues
        self._tags = tags
        self._concurrency = concurrency
        self._grace = grace
        self._sweep = sweep
        self._retention = retention
        self._progress = ProgressBuffer(penstock)
        self._children = ChildPool(penstock, limit=concurrency, grace=kill_after)
        self._exchange = Exchange(
            penstock,
            self._progress,
            self._begin,
            worker=self.name,
            concurrency=concurrency,
            queues=queues,
            tags=tags,
            log_jobs=log_jobs,
        )
        self._renewal = LeaseRenewal(penstock, self._exchange.runs, self._renewed)
        self._store_changed = asyncio.Event()
        self._started = False
        self._stopping = False

    async def run(self, *, until_empty: bool = False) -> None:
        """Work until `stop`, or with `until_empty` until nothing is ready and nothing runs.

        Jobs held back by a limit count as ready: the worker waits for their turn. Jobs that are due
        later, belong to a paused queue or are of tasks that it does not have do not. A worker runs
        once; for another run, make another one. Cancelling this releases the running jobs at once.
        Raises `SchemaMismatch` when the store accepts newer programs only.
        """
        if self._started:
            raise ConfigurationError("a Worker can run only once: create another one")
        self._started = True
        await self._check_store()
        self._loop = asyncio.get_running_loop()
        await self._children.prepare()
        threads = self._penstock.runtime.executor(self._concurrency, f"penstock-{self.name}")
        self._slots = Slots(self._penstock, threads, self._children, self._exchange.end)
        scheduler = Scheduler(self._penstock, self._sweep)
        upkeep = Upkeep(self._penstock, self._info(), self._sweep, self._retention, self.drain)
        try:
            await scheduler.fire_due()
            async with asyncio.TaskGroup() as group:
                self._slots.open(self._concurrency, group)
                others = [
                    group.create_task(self._watch_store()),
                    group.create_task(self._watch_cancellations()),
                    group.create_task(upkeep.run()),
                    group.create_task(scheduler.run()),
                ]
                try:
                    await self._work(until_empty=until_empty)
                    await self._wind_down(self._grace)
                except asyncio.CancelledError:
                    await self._wind_down(timedelta(0))
                    raise
                finally:
                    self._slots.close()
                for other in others:
                    other.cancel()
        except BaseExceptionGroup as group:
            refusals = group.subgroup(SchemaMismatch)
            if refusals is None:
                raise
            raise refusals.exceptions[0] from None
        finally:
            self._renewal.close()
            threads.shutdown(wait=False, cancel_futures=True)
            try:
                await self._progress.close()
            finally:
                await self._children.close()
            if not self._exchange.runs:  # otherwise it stays registered as the holder of its jobs
                await upkeep.deregister()

    def stop(self) -> None:
        """Claim no more jobs, give the running ones their grace, then release them."""
        self._stopping = True
        self._exchange.wakeup.set()

    def drain(self) -> None:
        """Claim no more jobs, and end when the running ones have ended, however long it takes."""
        if not self.draining:
            _log.warning("worker %s is draining: it ends when its running jobs have", self.name)
        self.draining = True
        self._exchange.wakeup.set()

    @property
    def leases(self) -> list[Lease]:
        """The leases of the jobs that it holds at this moment."""
        return [run.job.lease for run in list(self._exchange.runs.values())]

    async def _check_store(self) -> None:
        """Raise if the store cannot be opened or its jobs have moved: waiting would not help."""
        with suppress(StoreUnavailable):
            check_lasting(await self._penstock.store.migration_lock())

    def _info(self) -> WorkerInfo:
        """Describe the worker in the process that runs it, which may not have created it."""
        now = from_micros(self._penstock.clock())
        return WorkerInfo(
            name=self.name,
            host=self._penstock.runtime.host(),
            pid=self._penstock.runtime.process_id(),
            queues=None if self._queues is None else tuple(self._queues),
            tags=tuple(self._tags),
            concurrency=self._concurrency,
            started_at=now,
            seen_at=now,
            tasks=announced(
                [announcement(task, name) for name, task in self._penstock.tasks.items()]
            ),
        )

    # Working

    async def _work(self, *, until_empty: bool) -> None:
        exchange = self._exchange
        while not self._stopping:
            exchange.wakeup.clear()
            try:
                await exchange.once(claiming=not self.draining)
                if self.draining and not exchange.runs:
                    return
                if exchange.is_due(claiming=not self.draining):
                    continue
                idle = not exchange.runs and not exchange.claimable
                if until_empty and idle and await self._is_empty():
                    return
            except SchemaMismatch:
                raise  # newer programs have taken over: trying again would not help
            except PenstockError as error:
                _log.warning("the store did not answer, trying again: %s", error)
                await asyncio.sleep(RETRY_PAUSE)
                continue
            await exchange.wakeup.wait()

    def _begin(self, runs: Sequence[Run]) -> None:
        self._slots.add(runs)
        self._renewal.added(min([run.job.lease_time for run in runs]))

    async def _is_empty(self) -> bool:
        """Return whether nothing is ready for this worker, after a claim that found nothing."""
        store = self._penstock.store
        known = self._exchange.known_tasks
        paused = {queue.name for queue in await store.queues() if queue.paused}
        ready = {
            name: n
            for (name, _, waiting), n in (await store.count()).items()
            if n and waiting is Waiting.READY and name not in paused and self._exchange.wants(name)
        }
        if ready and not self._tags:
            return await self._are_set_aside(ready)
        for queue in ready if self._tags else ():
            tags = tuple(self._tags)
            query = JobQuery(states=_PENDING, queue=queue, tags=tags, limit=_TAGGED_AT_ONCE)
            while page := await store.find(query):
                if any(job.waiting is Waiting.READY and known.take(job) for job in page):
                    return False
                query = replace(query, after=page[-1].id)
        return True

    async def _are_set_aside(self, ready: Mapping[str, int]) -> bool:
        """Return whether all ready jobs of these queues are of tasks that the worker lacks."""
        known = self._exchange.known_tasks
        aside: Counter[str] = Counter()
        for one in await self._penstock.store.set_aside():
            if (one.task, one.version) not in known:
                aside[one.queue] += one.jobs
        left = sum(max(0, n - aside[queue]) for queue, n in ready.items())
        return left <= aside[MERGED]

    async def _wind_down(self, grace: timedelta) -> None:
        exchange = self._exchange
        await exchange.wait_for_pending()  # jobs may be on their way here
        for run in self._slots.take_waiting():
            exchange.end(run, Snoozed(reason="the worker stopped before the job began"))
        with suppress(TimeoutError):
            async with asyncio.timeout(grace.total_seconds()):
                await exchange.settle_all()
        for run in list(exchange.runs.values()):
            run.end(Snoozed(reason="the worker stopped"))
        with suppress(TimeoutError):
            async with asyncio.timeout(max(_LAST_WAIT, self._children.longest_stop)):
                await exchange.settle_all()
        for run in exchange.runs.values():
            _log.error("job %d did not stop; it runs again when its lease expires", run.job.id)

    # Changes in the store

    async def _watch_store(self) -> None:
        seen = 0
        while True:
            try:
                seen = await self._penstock.store.wait(seen, _LOOK_AGAIN)
            except PenstockError as error:
                _log.warning("the store did not answer, trying again: %s", error)
                await asyncio.sleep(RETRY_PAUSE)
            self._exchange.claimable = True
            self._exchange.wakeup.set()
            self._store_changed.set()
            await asyncio.sleep(_HEAD_START)

    async def _watch_cancellations(self) -> None:
        while True:
            await self._store_changed.wait()
            self._store_changed.clear()
            if self._exchange.runs:
                try:
                    await self._cancel_requested()
                except PenstockError as error:
                    _log.warning("cancellation requests could not be read: %s", error)
            await asyncio.sleep(_CANCEL_PAUSE)

    async def _cancel_requested(self) -> None:
        """End the runs whose jobs somebody has asked to cancel."""
        query = JobQuery(
            states=frozenset({State.RUNNING}), cancel_requested=True, limit=_CANCELS_AT_ONCE
        )
        for job in await self._penstock.find(query):
            if run := self._exchange.runs.get(job.token):
                run.end(Cancelled("cancel was requested"))

    def _renewed(self, run: Run, job: Job | None) -> None:
        """Handle the answer to a lease renewal, in its background thread."""
        if job is None and not run.context.finishing:
            self._loop.call_soon_threadsafe(run.lose)
        elif job is not None and job.cancel_requested:
            self._loop.call_soon_threadsafe(run.end, Cancelled("cancel was requested"))


def _name(penstock: Penstock) -> str:
    runtime = penstock.runtime
    return f"{runtime.host()}:{runtime.process_id()}:{runtime.random.getrandbits(24):06x}"


def _check_duration(name: str, value: object) -> None:
    if not isinstance(value, timedelta):
        raise ConfigurationError(f"{name} must be a timedelta, not {value!r:.80}")
