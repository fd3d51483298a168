"""Penstock: the object users hold."""

import asyncio
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

import msgspec

from penstock.checks import (
    PAYLOAD_LIMIT,
    JobChecker,
    check_concurrency,
    check_key,
    check_kind,
    check_limit,
    check_name,
    check_queue_limits,
)
from penstock.core import lifecycle
from penstock.core.errors import (
    ConfigurationError,
    JobNotFound,
    LeaseLost,
    PenstockError,
    StoreError,
    UnknownTask,
)
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
    headline,
)
from penstock.core.lifecycle import Event, Move, Outcome, State, Waiting
from penstock.core.limits import Held, Limit
from penstock.core.store import Clock, Store
from penstock.core.times import from_micros
from penstock.stores import open_store, system_clock
from penstock.task import Options, Task

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# A move is decided anew this often when others keep changing the job, before giving up.
_DECISIONS = 100

_ENDED = {
    State.DONE: "it finished at",
    State.FAILED: "it failed at",
    State.CANCELLED: "it was cancelled at",
    State.SUPERSEDED: "it was superseded at",
}


def run_sync(awaitable: Coroutine[Any, Any, T]) -> T:
    """Run a call of this package from synchronous code: `run_sync(task.enqueue(1))`.

    Nothing is started for it: without a running event loop, stores answer in the calling thread.
    """
    if asyncio._get_running_loop() is None:  # noqa: SLF001 - the public one raises: 2 µs a call
        try:
            awaitable.send(None)
        except StopIteration as answer:
            return answer.value  # type: ignore[no-any-return] # a coroutine's own result
    awaitable.close()
    raise ConfigurationError(
        "run_sync drives calls of penstock outside an event loop; inside one, await them"
    )


class Drained(msgspec.Struct, frozen=True):
    """How a drain ended: what is left of the backlog that was there when it began."""

    status: Literal["drained", "timeout", "paused"]
    remaining: int
    elapsed: timedelta


class Explanation(msgspec.Struct, frozen=True):
    """Why a job is, or is not, running."""

    job_id: JobId
    reason: Literal["ready", "scheduled", "blocked", "held", "running", "finished"]
    text: str
    blocked_by: JobId | None = None


class Penstock:
    """A queue of jobs in one store, and the tasks that this program knows.

    The store is opened by the first call that needs it, and created if it is not there, unless
    `create` is false. All methods are coroutines; from
    synchronous code, wrap a call in `run_sync`.
    """

    def __init__(
        self,
        url: str,
        *,
        actor: str | None = None,
        payload_limit: int = PAYLOAD_LIMIT,
        clock: Clock = system_clock,
        create: bool = True,
    ) -> None:
        self.url = url
        self.actor = actor or f"{socket.gethostname()}:{os.getpid()}"
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.check = JobChecker(payload_limit).check
        self._declared: dict[str, int] = {}
        self._clock = clock
        self._create = create
        self._store: Store | None = None
        self._pid = 0
        self._opening = threading.Lock()

    @property
    def store(self) -> Store:
        """The open store. After a fork, the child cannot use the one its parent had opened."""
        if self._store is None:
            with self._opening:
                if self._store is None:
                    self._pid = os.getpid()
                    self._store = open_store(self.url, clock=self._clock, create=self._create)
        if self._pid != os.getpid():
            raise StoreError(
                f"{self.url} was opened before this process was forked, and cannot be shared with "
                "it; start processes first, or start them by 'spawn'"
            )
        return self._store

    async def close(self) -> None:
        """Let go of the store; what was acknowledged stays."""
        if self._store is not None and self._pid == os.getpid():
            await self._store.close()
            self._store = None

    async def __aenter__(self) -> Self:
        """Open the store."""
        _ = self.store
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the store."""
        await self.close()

    # Tasks

    @overload
    def task(
        self,
        name: Callable[P, R],
        /,
    ) -> Task[P, R]: ...
    @overload
    def task(
        self,
        name: str | None = None,
        /,
        *,
        permanent: tuple[type[Exception], ...] = (),
        concurrency: int | None = None,
        **options: Unpack[Options],
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    @overload
    def task(
        self,
        name: str,
        handler: Callable[P, R],
        /,
        *,
        permanent: tuple[type[Exception], ...] = (),
        concurrency: int | None = None,
        **options: Unpack[Options],
    ) -> Task[P, R]: ...
    def task(
        self,
        name: str | Callable[..., Any] | None = None,
        handler: Callable[..., Any] | None = None,
        /,
        *,
        permanent: tuple[type[Exception], ...] = (),
        concurrency: int | None = None,
        **options: Unpack[Options],
    ) -> Any:
        """Register a handler: `@app.task`, `@app.task(queue="mail")` or `app.task("name", f)`.

        The name is the function's own unless given. Errors of the `permanent` types are not
        tried again. With `concurrency`, at most so many jobs of the task run at a time, in all
        processes: the first claim of this program stores it, as `limit_task` does.
        """
        if concurrency is not None:
            check_concurrency(concurrency)
        if callable(name):
            name, handler = None, name

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            title = function.__name__ if name is None else name
            if title in self.tasks:
                raise ConfigurationError(f"task {title!r} is registered twice")
            task = Task(self, title, function, options, permanent=permanent)
            self.check(NewJob(task=title, payload="{}", **task._fields))
            self.tasks[title] = task
            if concurrency is not None:
                self._declared[title] = concurrency
            return task

        return register if handler is None else register(handler)

    # Producers

    async def enqueue(
        self, task: str, args: Mapping[str, Any] | None = None, **options: Unpack[Options]
    ) -> Job:
        """Store a job for a task by its name, with its arguments by theirs.

        For a task of another program, make a `NewJob` and call `enqueue_many`.
        """
        if task not in self.tasks:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise UnknownTask(f"no task is called {task!r}; this program knows: {known}")
        new = self.tasks[task].using(**options).of({} if args is None else args)
        (job,) = await self.enqueue_many((new,), connection=options.get("connection"))
        return job

    async def enqueue_many(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[Job]:
        """Store these jobs in one transaction, all or none; the answer has their order."""
        for job in jobs:
            self.check(job)
        return await self.store.add(jobs, actor=self.actor, connection=connection)

    # Workers

    async def claim(
        self,
        *,
        worker: str,
        limit: int = 1,
        queues: Sequence[str] | None = None,
        tags: Sequence[str] = (),
    ) -> list[Job]:
        """Take up to `limit` ready jobs; each stays the worker's while its lease is renewed."""
        check_limit(limit)
        if self._declared:
            await self._declare_limits()
        wanted = Claim(
            worker=worker,
            limit=limit,
            queues=None if queues is None else tuple(queues),
            tags=tuple(tags),
        )
        return await self.store.claim(wanted)

    async def _declare_limits(self) -> None:
        """Store what tasks were registered with, before the first of their jobs is claimed."""
        declared = dict(self._declared)
        stored = {one.name: one for one in await self.limits() if one.kind == "task"}
        for name, n in declared.items():
            if name not in stored or stored[name].concurrency != n:
                await self.limit_task(name, n)
        for name in declared:
            self._declared.pop(name, None)

    async def renew(self, leases: Sequence[Lease]) -> list[Job]:
        """Prolong these leases; a job that is missing in the answer is lost to the caller.

        A job in the answer may have `cancel_requested`: then stop, and settle it as cancelled.
        """
        return await self.store.renew(leases)

    async def settle(self, results: Sequence[tuple[Job | Lease, Outcome]]) -> list[Job]:
        """Say what the runs of one worker came to; what is still held is one transaction.

        Raises `LeaseLost` for the first that is not held any more; the log notes each. A `Job`
        as it was claimed saves looking it up.
        """
        settled = await self.settle_held(results)
        for (job, _), answer in zip(results, settled, strict=True):
            if answer is None:
                lease = _lease(job)
                raise LeaseLost(lease.job_id, lease.token)
        return [answer for answer in settled if answer is not None]

    async def settle_held(self, results: Sequence[tuple[Job | Lease, Outcome]]) -> list[Job | None]:
        """As `settle`, with None in the place of a job that is not held any more."""
        settled: list[Job | None] = [None] * len(results)
        known = {n: job for n, (job, _) in enumerate(results) if isinstance(job, Job)}
        left = list(range(len(results)))
        for _ in range(_DECISIONS):
            if len(known) < len(left):
                known = await self._known({n: _lease(results[n][0]).job_id for n in left})
            if not known:
                return settled
            changes = [Change(job, _settling(job, *results[n])) for n, job in known.items()]
            answers = await self.store.transition(changes, actor=results[0][0].worker or "")
            left = []
            for n, change, answer in zip(known, changes, answers, strict=True):
                if answer is None:
                    left.append(n)
                elif change.move.event is not Event.REFUSED:
                    settled[n] = answer
            known = {}
        raise PenstockError("the jobs keep changing while they are settled; try again")

    async def _known(self, ids: Mapping[int, JobId]) -> dict[int, Job]:
        found = {job.id: job for job in await self.store.get(list(ids.values()))}
        return {n: found[job_id] for n, job_id in ids.items() if job_id in found}

    async def reclaim(self, limit: int = 1000) -> int:
        """Take back jobs whose leases ran out; how many. Workers do this by themselves."""
        expired = [job for job in await self.store.expired(limit) if job.state is State.RUNNING]
        if not expired:
            return 0
        # Those that are scattered are spread evenly, so that each runs alone.
        changes = [
            Change(job, lifecycle.advance(job, lifecycle.Expired(), (n + 0.5) / len(expired)))
            for n, job in enumerate(expired)
        ]
        answers = await self.store.transition(changes, actor=self.actor)
        return sum(answer is not None for answer in answers)

    # Looking

    async def get(self, job_id: int) -> Job:
        """The job as it is now."""
        found = await self.store.get([JobId(job_id)])
        if not found:
            raise JobNotFound(f"there is no job {job_id}; retention may have removed it")
        return found[0]

    async def find(self, query: JobQuery | None = None) -> list[Job]:
        """The jobs that fit, newest first unless asked otherwise."""
        query = query or JobQuery()
        check_limit(query.limit)
        return await self.store.find(query)

    async def count(self) -> Counts:
        """How many jobs there are by queue, state and what they wait for; constant time."""
        return await self.store.count()

    async def log(
        self, job_id: int | None = None, *, after: int | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        """The audit of one job, or of all behind an entry's id, oldest first."""
        check_limit(limit)
        return await self.store.log(
            None if job_id is None else JobId(job_id),
            after=None if after is None else LogId(after),
            limit=limit,
        )

    async def explain(self, job_id: int) -> Explanation:
        """Why this job is not running, or what else became of it."""
        job = await self.get(job_id)
        if job.state is State.RUNNING:
            return Explanation(job.id, "running", self._explain_running(job))
        if job.state.final:
            reason = (await self.log(job.id))[-1].reason
            because = headline(job.error) if job.error else reason
            text = f"{_ENDED[job.state]} {_moment(job.finished_at)}"
            return Explanation(job.id, "finished", f"{text}: {because}" if because else text)
        return await self._explain_pending(job)

    def _explain_running(self, job: Job) -> str:
        attempt = f"attempt {job.attempt} of {job.retry.attempts}"
        stop = "; it was asked to stop" if job.cancel_requested else ""
        if job.expires_at is not None and job.expires_at < from_micros(self._clock()):
            return (
                f"{attempt} began on {job.worker}, which fell silent: its lease ended at "
                f"{_moment(job.expires_at)}, and the next worker takes the job back{stop}"
            )
        return f"it runs on {job.worker}, {attempt}, leased until {_moment(job.expires_at)}{stop}"

    async def _explain_pending(self, job: Job) -> Explanation:
        if any(queue.paused for queue in await self.queues() if queue.name == job.queue):
            text = f"queue {job.queue!r} is paused; resume it to let its jobs go on"
            return Explanation(job.id, "held", text)
        if job.waiting is Waiting.READY and (held := await self.store.held(job)):
            return Explanation(job.id, "held", "; ".join(map(_holding, held)))
        if job.waiting is Waiting.BLOCKED and (first := await self._holder_of_key(job)):
            text = f"job {first.id}, which is {first.state}, holds its key {job.key!r}"
            return Explanation(job.id, "blocked", text, first.id)
        if job.waiting is Waiting.SCHEDULED and job.run_at > from_micros(self._clock()):
            text = f"its time comes at {_moment(job.run_at)}"
            if job.error:
                attempt = f"attempt {job.attempt} of {job.retry.attempts}"
                text += f", after {attempt} failed: {headline(job.error)}"
            return Explanation(job.id, "scheduled", text)
        return Explanation(job.id, "ready", "it is ready; no free worker has claimed it yet")

    async def _holder_of_key(self, job: Job) -> Job | None:
        for state in (State.RUNNING, State.PENDING):
            query = JobQuery(key=job.key, states=frozenset({state}), newest_first=False, limit=1)
            for holder in await self.find(query):
                if holder.id != job.id:
                    return holder
        return None

    # Steering

    async def cancel(self, job_id: int, reason: str | None = None) -> Job:
        """End a pending job, or ask a running one to stop."""
        return await self._decide(job_id, lambda job: lifecycle.cancel(job, reason))

    async def retry(self, job_id: int, reason: str | None = None) -> Job:
        """Run a failed, cancelled or waiting job now, with all its attempts again."""
        return await self._decide(job_id, lambda job: lifecycle.reset(job, reason))

    async def _decide(self, job_id: int, decide: Callable[[Job], Move]) -> Job:
        for _ in range(_DECISIONS):
            job = await self.get(job_id)
            (answer,) = await self.store.transition([Change(job, decide(job))], actor=self.actor)
            if answer is not None:
                return answer
        raise PenstockError(f"job {job_id} keeps changing; try again")

    async def queues(self) -> list[Queue]:
        """Every queue with its limits, by name."""
        return await self.store.queues()

    async def pause(self, queue: str) -> Queue:
        """Start no more jobs of this queue, in any process; running ones go on."""
        return await self._configure(QueueSettings(name=queue, paused=True))

    async def resume(self, queue: str) -> Queue:
        """Start jobs of this queue again."""
        return await self._configure(QueueSettings(name=queue, paused=False))

    async def limit(
        self,
        queue: str,
        max_pending: int | msgspec.UnsetType | None = msgspec.UNSET,
        *,
        concurrency: int | msgspec.UnsetType | None = msgspec.UNSET,
        rate: tuple[int, timedelta] | msgspec.UnsetType | None = msgspec.UNSET,
        promote_after: timedelta | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> Queue:
        """Set a queue's limits, for every process; None lifts one, what is not given stays.

        While `max_pending` jobs are pending, new ones are refused with `QueueFull`. At most
        `concurrency` run at a time, and at most `rate[0]` start within any time of `rate[1]`.
        A ready job counts as one priority higher for each `promote_after` that it has waited.
        """
        settings = QueueSettings(
            name=queue,
            max_pending=max_pending,
            concurrency=concurrency,
            rate=rate,
            promote_after=promote_after,
        )
        check_queue_limits(settings)
        return await self._configure(settings)

    async def limit_task(self, task: str, concurrency: int | None) -> None:
        """Run at most so many jobs of a task at a time, in all processes; None for any number."""
        check_name("task", task)
        await self._limit(Limit(kind="task", name=task, concurrency=concurrency))
        self._declared.pop(task, None)

    async def limit_throttle(self, prefix: str, concurrency: int | None) -> None:
        """Run at most so many jobs at a time of each throttle that begins so; None: as if unset.

        The longest prefix that fits a throttle counts, and where none does, one job runs at a
        time. The empty prefix fits all.
        """
        if prefix:
            check_key("prefix", prefix)
        await self._limit(Limit(kind="throttle", name=prefix, concurrency=concurrency))

    async def _limit(self, limit: Limit) -> None:
        if limit.concurrency is not None:
            check_concurrency(limit.concurrency)
        await self.store.limit(limit)

    async def limits(self) -> list[Limit]:
        """Every limit of a task or of throttles; those of queues are in `queues`."""
        return await self.store.limits()

    async def _configure(self, settings: QueueSettings) -> Queue:
        check_name("queue", settings.name)
        return await self.store.configure(settings)

    async def drain(self, queue: str | None = None, *, timeout: timedelta) -> Drained:
        """Wait until the jobs that are unfinished now have finished; later ones do not count.

        Ends at once with `paused` when a paused queue keeps the backlog from moving.
        """
        check_kind("timeout", timeout, timedelta)
        start = time.monotonic()
        remaining, newest = await self.store.backlog(queue)
        seen = 0
        while remaining:
            left = timeout.total_seconds() - (time.monotonic() - start)
            if await self._stands_still(queue, newest):
                return Drained("paused", remaining, timedelta(seconds=time.monotonic() - start))
            if left <= 0:
                return Drained("timeout", remaining, timedelta(seconds=time.monotonic() - start))
            seen = await self.store.wait(seen, min(left, 1.0))
            remaining, _ = await self.store.backlog(queue, newest)
        return Drained("drained", 0, timedelta(seconds=time.monotonic() - start))

    async def _stands_still(self, queue: str | None, newest: JobId) -> bool:
        """Whether all that is left of a backlog lies in paused queues, with nothing running."""
        paused = {found.name for found in await self.queues() if found.paused}
        left = {
            (name, state)
            for (name, state, _), n in (await self.count()).items()
            if n and not state.final and queue in (None, name)
        }
        moving = {name for name, state in left if name not in paused or state is State.RUNNING}
        for name in moving:
            if (await self.store.backlog(name, newest))[0]:
                return False
        return bool((await self.store.backlog(queue, newest))[0])


def _holding(held: Held) -> str:
    match held.kind:
        case "rate":
            when = "" if held.until is None else f", the next may at {_moment(held.until)}"
            text = f"{held.taken} of {held.limit} jobs of queue {held.name!r} have started"
            return f"{text} within its rate{when}"
        case _:
            return f"{held.kind} {held.name!r} runs {held.taken} of {held.limit}"


def _moment(instant: datetime | None) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"


def _settling(job: Job, held: Job | Lease, outcome: Outcome) -> Move:
    if job.state is not State.RUNNING or job.token != held.token:
        return lifecycle.refuse(job, held.token, held.worker or "")
    return lifecycle.advance(job, outcome, random.random())  # noqa: S311 - jitter


def _lease(job: Job | Lease) -> Lease:
    return job.lease if isinstance(job, Job) else job
