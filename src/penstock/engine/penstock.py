"""Penstock: the object users hold."""

import uuid
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextvars import copy_context
from datetime import timedelta
from typing import Any, ParamSpec, Self, TypeVar, Unpack, overload

import msgspec
from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.dependencies import Edge
from penstock.core.errors import (
    ConfigurationError,
    InvalidJob,
    JobNotFound,
    TransitionRefused,
    UnknownTask,
)
from penstock.core.explanation import Explanation
from penstock.core.job import Job, JobId, LogEntry, LogId, NewJob, bind
from penstock.core.lifecycle import Event, Move, State
from penstock.core.progress import Line, Progress
from penstock.core.query import JobQuery
from penstock.core.queue import Counts
from penstock.core.secrets import Secrets
from penstock.core.store import Clock, Store
from penstock.core.superseding import Tail
from penstock.core.tasks import FIRST_VERSION
from penstock.core.transition import Change
from penstock.engine.archive import Archive
from penstock.engine.batch import Batch, chain
from penstock.engine.bulk import Selection
from penstock.engine.connection import Connection, admit, replaces_all
from penstock.engine.decision import decide
from penstock.engine.explanation import explain
from penstock.engine.leases import Leases, Workers
from penstock.engine.limits import Limits
from penstock.engine.queues import Queues
from penstock.engine.results import job_not_found
from penstock.engine.schedules import Schedules, TaskOptions, recurrence_of
from penstock.engine.statistics import Statistics
from penstock.engine.sync import run_sync
from penstock.engine.sync_calls import SyncPenstock
from penstock.engine.tables import OwnTables, Transaction, joined
from penstock.engine.task import (
    AppFactory,
    Merge,
    Options,
    Registration,
    Task,
    Verdict,
    take_isolation,
    versions_of,
)
from penstock.engine.tokens import Tokens
from penstock.engine.tracing import current_trace
from penstock.engine.validation import (
    PAYLOAD_LIMIT,
    check_aliases,
    check_concurrency,
    check_jobs,
    check_limit,
    check_places,
    check_priority,
)
from penstock.runtime import SYSTEM, Runtime
from penstock.stores import Migrate, open_store

__all__ = ["Penstock", "enqueue_readable", "run_sync"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_PENDING = frozenset({State.PENDING})
_TAIL_WAIT = 5.0


class Penstock:
    """A queue of jobs in one store, and the tasks that this program knows.

    The first call that needs the store opens it, and creates it if it does not exist, unless
    `create` is false. A store of an earlier schema is migrated with `migrate="auto"`, the default
    for SQLite, and refused with `migrate="manual"`, the default for PostgreSQL. `opener` replaces
    `open_store`, for example to wrap the store. `clock` replaces the clock of the `runtime`.
    `factory` tells child processes how to build the app again when it is not defined in a module.
    `secret_fields` are names of arguments whose values servers and commands neither show nor
    search. All methods are coroutines unless they say otherwise; from synchronous code, put `sync`
    in front of the call: `app.sync.find()`, `app.queues.sync.pause("mail")`.
    """

    def __init__(
        self,
        url: str,
        *,
        actor: str | None = None,
        payload_limit: int = PAYLOAD_LIMIT,
        clock: Clock | None = None,
        runtime: Runtime = SYSTEM,
        create: bool = True,
        migrate: Migrate | None = None,
        opener: Callable[..., Store] = open_store,
        factory: AppFactory | None = None,
        secret_fields: Collection[str] = (),
    ) -> None:
        self.connection = Connection(
            url,
            actor=actor,
            payload_limit=payload_limit,
            runtime=runtime if clock is None else runtime.with_clock(clock),
            create=create,
            migrate=migrate,
            opener=opener,
            secrets=Secrets(secret_fields),
        )
        self.factory = factory
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.queues = Queues(self.connection)
        self.limits = Limits(self.connection)
        self.schedules = Schedules(self.connection, self.tasks)
        self.archive = Archive(self.connection)
        self.workers = Workers(self.connection)
        self.tokens = Tokens(self.connection)
        self.statistics = Statistics(self.connection)
        self.tables = OwnTables(self.connection, self.limits)
        self.leases = Leases(self.connection, self.limits)

    @property
    def sync(self) -> SyncPenstock:
        """The same calls from synchronous code, without `await`."""
        return SyncPenstock(self)

    @property
    def url(self) -> str:
        """Where the store is."""
        return self.connection.url

    @property
    def store(self) -> Store:
        """The open store."""
        return self.connection.store

    @property
    def clock(self) -> Clock:
        """The clock that jobs go by: that of the store if it has one, else of the runtime."""
        return self.connection.clock

    @property
    def runtime(self) -> Runtime:
        """How this program reaches the clock, randomness and threads."""
        return self.connection.runtime

    @property
    def secrets(self) -> Secrets:
        """The names of arguments whose values are not shown."""
        return self.connection.secrets

    async def close(self) -> None:
        """Close the store; everything acknowledged is durable."""
        await self.connection.close()

    async def __aenter__(self) -> Self:
        """Open the store."""
        _ = self.connection.store
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the store."""
        await self.connection.close()

    # Tasks

    @overload
    def task(
        self, name: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def task(self, name: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        name: str | None = None,
        /,
        *,
        permanent: tuple[type[Exception], ...] = (),
        merge: Merge | None = None,
        concurrency: int | None = None,
        version: int = FIRST_VERSION,
        accepts: Collection[int] | None = None,
        aliases: Collection[str] = (),
        **options: Unpack[TaskOptions],
    ) -> Registration: ...
    @overload
    def task(
        self,
        name: str,
        handler: Callable[P, Coroutine[Any, Any, T]],
        /,
        *,
        permanent: tuple[type[Exception], ...] = (),
        merge: Merge | None = None,
        concurrency: int | None = None,
        version: int = FIRST_VERSION,
        accepts: Collection[int] | None = None,
        aliases: Collection[str] = (),
        **options: Unpack[TaskOptions],
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def task(
        self,
        name: str,
        handler: Callable[P, R],
        /,
        *,
        permanent: tuple[type[Exception], ...] = (),
        merge: Merge | None = None,
        concurrency: int | None = None,
        version: int = FIRST_VERSION,
        accepts: Collection[int] | None = None,
        aliases: Collection[str] = (),
        **options: Unpack[TaskOptions],
    ) -> Task[P, R]: ...
    def task(
        self,
        name: str | Callable[..., Any] | None = None,
        handler: Callable[..., Any] | None = None,
        /,
        *,
        permanent: tuple[type[Exception], ...] = (),
        merge: Merge | None = None,
        concurrency: int | None = None,
        version: int = FIRST_VERSION,
        accepts: Collection[int] | None = None,
        aliases: Collection[str] = (),
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Register a handler: `@app.task`, `@app.task(queue="mail")` or `app.task("name", f)`.

        The name is that of the function unless given. Errors of the `permanent` types are not
        retried. `merge` is the rule for jobs that `supersede` others of their key. With
        `isolation="process"` the handler runs in a child process, which may hold `memory` bytes
        and is replaced after `recycle` jobs. With `cron` or `every`, workers call it
        periodically: see `schedules.put`. With `concurrency`, at most that many jobs of the task
        run at a time, in all processes: the first claim of this program stores that, as
        `limits.task` does. `version` is that of the arguments, and `accepts` the range of versions
        of stored jobs that the handler takes, by default its own only; a job of another version
        waits for a worker that takes it. Jobs stored under a name in `aliases` run as well, after
        the task was renamed. Not a coroutine.
        """
        if concurrency is not None:
            check_concurrency(concurrency)
        if callable(name):
            name, handler = None, name
        job_options, recurrence = recurrence_of(options)

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            title = function.__name__ if name is None else name
            former = check_aliases(title, aliases)
            for one in (title, *former):
                if one in self.tasks:
                    raise ConfigurationError(f"task {one!r} is already registered")
            own, isolation = take_isolation(title, job_options)
            task = Task(
                self,
                title,
                function,
                own,
                permanent=permanent,
                merge=merge,
                isolation=isolation,
                versions=versions_of(title, version, accepts),
            )
            # The key of a superseding job is often known only when it is enqueued.
            fields = {**task._fields, "supersede": False}
            self.connection.check(NewJob(task=title, payload="{}", **fields))
            if recurrence:
                self.schedules.declare(task, recurrence)
            for known in (title, *former):
                self.tasks[known] = task
                self.connection.results.decoders[known] = task.returns
            if concurrency is not None:
                self.limits.declare(title, concurrency)
            return task

        return register if handler is None else register(handler)

    # Producing jobs

    async def enqueue(
        self, task: str, args: Mapping[str, Any] | None = None, **options: Unpack[Options]
    ) -> Job:
        """Store a job for a task by its name, with its arguments by theirs.

        For a task of another program, make a `NewJob` and call `enqueue_many`. Raises
        `UnknownTask`, and the errors of `enqueue_many`: `InvalidJob`, `QueueFull`, `TooManyQueues`
        and `StoreUnavailable`; then nothing is stored. After any other `StoreError`, the job
        may or may not be stored.
        """
        if task not in self.tasks:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise UnknownTask(f"there is no task {task!r}; this program knows: {known}")
        # `using` would check the options, which are checked with the job.
        varied = self.tasks[task]._with(options)  # noqa: SLF001 - a task of its own
        new = varied.of({} if args is None else args)
        (job,) = await self.enqueue_many((new,), connection=options.get("connection"))
        return job

    async def enqueue_many(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[Job]:
        """Store these jobs in one transaction, all or none, and return them in this order.

        They are durable when this returns. With a `connection`, that transaction is the caller's
        own, and they are durable when it is committed. Raises `InvalidJob` for a job that cannot be
        stored, `QueueFull` and `TooManyQueues` at a limit, and `StoreUnavailable`.
        """
        check = self.connection.check
        try:
            for job in jobs:
                check(job)
        except (AttributeError, TypeError) as error:
            check_jobs(jobs)
            raise InvalidJob(f"a job cannot be stored as requested: {error}") from error
        return await self._add(jobs, connection)

    async def enqueue_batch(
        self, jobs: Sequence[NewJob], *, correlation: str | None = None, ordered: bool = False
    ) -> list[Job]:
        """Store jobs that belong together, all or none; `batch` counts them by state.

        With the correlation of an existing batch, they join it. Ordered jobs run one after the
        other; when one fails, the rest are cancelled.
        """
        name = correlation or self._unique_name()
        together = [replace(job, correlation=name) for job in jobs]
        return await self.enqueue_many(chain(*together) if ordered else together)

    def _unique_name(self) -> str:
        return uuid.UUID(int=self.runtime.random.getrandbits(128), version=4).hex

    async def _add(self, jobs: Sequence[NewJob], connection: Any) -> list[Job]:
        """Store jobs that were checked."""
        if (trace := current_trace()) is not None:
            jobs = [replace(job, trace=job.trace or trace) for job in jobs]
        admit(jobs)
        if self.limits.reserving and connection is None:
            await self.limits.store_reserved()
        if [job for job in jobs if job.follows or job.supersede]:
            check_places(jobs)
            if any(job.supersede for job in jobs):
                return [await self._add_superseding(jobs, connection)]
        own = self.connection
        if connection is None:
            return bind(await own.store.add(jobs, actor=own.actor), self)
        added = await own.tables.add_within(jobs, actor=own.actor, connection=joined(connection))
        return bind(added, self)

    async def _add_superseding(self, jobs: Sequence[NewJob], connection: Any) -> Job:
        if len(jobs) != 1 or connection is not None:
            raise InvalidJob("enqueue a superseding job by itself, in a transaction of its own")
        (new,) = jobs
        own = self.connection

        async def attempt() -> Job | None:
            tail, wanted = await self._merged(new)
            if wanted is not None:
                return (await own.store.add((wanted,), actor=own.actor, tail=tail))[0]
            if tail.job is None:
                return None
            change = Change(tail.job, lifecycle.supersede(tail.job, None))
            return (await own.store.transition([change], actor=own.actor))[0]

        return bind([await decide(attempt, f"the jobs of key {new.key!r}")], self)[0]

    async def _merged(self, new: NewJob) -> tuple[Tail, NewJob | None]:
        """Return what a superseding job finds at the end of its key, and what to store there."""
        found = await self.find(JobQuery(key=new.key, states=_PENDING, limit=1))
        if not found or found[0].task != new.task:  # nothing, or another task's: no merging
            return Tail(job=found[0] if found else None), new
        if not (replaces_all() or await self._is_own(found[0])):
            return Tail(job=found[0]), new  # it stays, and the new one waits behind it
        task = self.tasks.get(new.task)
        if task is None or task.merge is None:
            return Tail(job=found[0], replaces=True), new
        verdict: Mapping[str, Any] | Verdict = Verdict.KEEP
        if found[0].task_version == new.task_version:  # the rule knows the arguments of one version
            verdict = task.merge(found[0].args, msgspec.json.decode(new.payload))
        if verdict is Verdict.KEEP:
            return Tail(job=found[0]), new
        if verdict is Verdict.DROP:
            return Tail(job=found[0]), None
        merged = replace(new, payload=task.arguments.encode_json(verdict))
        self.connection.check(merged)
        return Tail(job=found[0], replaces=True), merged

    async def _is_own(self, job: Job) -> bool:
        """Return whether the present actor enqueued a job, which never changes."""
        first, actor = await self.log(job.id, limit=1), self.connection.actor
        return any(entry.event is Event.ENQUEUED and entry.actor == actor for entry in first)

    async def transaction(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in one transaction of the store's database; durable on return.

        `work` gets a `Transaction`, for jobs and for your own tables. Transactions of concurrent
        callers share a commit. When `work` raises, everything it has written is rolled back. It
        runs in another thread, may run more than once, and must have no effects but those of its
        statements. Raises `ConfigurationError` on a store without a database.
        """
        if self.limits.reserving:
            await self.limits.store_reserved()
        # `context()` and the actor for the log must be known in that thread as well.
        context = copy_context()
        return await self.connection.tables.transact(
            lambda within: context.run(work, Transaction(self, within))
        )

    # Reading jobs

    async def get(self, job_id: int) -> Job:
        """Return the job as it is now. Raises `JobNotFound`."""
        found = await self.connection.store.get([JobId(job_id)])
        if not found:
            raise job_not_found(job_id)
        return bind(found, self)[0]

    async def find(self, query: JobQuery | None = None) -> list[Job]:
        """Return the jobs that match, newest first unless the query says otherwise."""
        query = query or JobQuery()
        check_limit(query.limit)
        return bind(await self.connection.store.find(query), self)

    async def find_ids(self, query: JobQuery | None = None) -> list[JobId]:
        """Return the ids of the jobs that match: cheap enough for very long pages."""
        query = query or JobQuery()
        check_limit(query.limit)
        return await self.connection.store.find_ids(query)

    async def count(self, queues: Collection[str] | None = None) -> Counts:
        """Count the jobs of these queues, or of all, by queue, state and what they wait for.

        The cost grows neither with the jobs nor with other queues.
        """
        return await self.connection.store.count(queues)

    async def edges(self, job_ids: Sequence[int]) -> list[Edge]:
        """Return the dependencies that these jobs have, and those that others have on them."""
        return await self.connection.store.edges([JobId(job_id) for job_id in job_ids])

    async def log(
        self, job_id: int | None = None, *, after: int | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        """Return the log of one job, or of all, after an entry's id, oldest first."""
        check_limit(limit)
        found = await self.connection.store.log(
            None if job_id is None else JobId(job_id),
            after=None if after is None else LogId(after),
            limit=limit,
        )
        if not found and job_id is not None:
            await self.get(job_id)  # every job has a log: there may be none after `after`
        return found

    async def newest_log(self) -> int:
        """Return the id of the newest log entry: where to begin to follow the log from now on."""
        return await self.connection.store.newest_log()

    async def tail(
        self, after: int | None = None, job_id: int | None = None
    ) -> AsyncIterator[LogEntry]:
        """Yield the log entries of all jobs, or of one, as they are added; never ends.

        Begins after an entry's id, or now. A claim, which wakes nobody, is seen within 5 seconds.
        """
        seen, place = 0, await self.newest_log() if after is None else after
        while True:
            for entry in await self.log(job_id, after=place):
                yield entry
                place = entry.id
            seen = await self.wait(seen, _TAIL_WAIT)

    async def wait(self, seen: int, timeout: float) -> int:
        """Return when jobs may have become ready or have ended, in any process.

        Also after `timeout` seconds. Begin with 0, and pass what a call returns to the next.
        """
        return await self.connection.store.wait(seen, timeout)

    @overload
    async def result(self, job: Job[T], *, timeout: timedelta | None = None) -> T: ...
    @overload
    async def result(self, job: int, *, timeout: timedelta | None = None) -> Any: ...
    async def result(self, job: Job | int, *, timeout: timedelta | None = None) -> Any:
        """Wait until the job ends, in any process, and return what its handler returned.

        Raises `JobFailed` if it did not succeed, `TimeoutError` after `timeout`. See `Job.result`.
        """
        return await self.connection.results.result(job, timeout=timeout)

    async def batch(self, correlation: str) -> Batch:
        """Count the jobs of a batch by state. Raises `JobNotFound` if it has none."""
        tally = await self.connection.store.tally(JobQuery(correlation=correlation))
        if not tally:
            raise JobNotFound(f"there is no batch {correlation!r}; retention may have removed it")
        return Batch(correlation, tally)

    async def explain(self, job_id: int) -> Explanation:
        """Say why this job is not running, or how it ended."""
        return await explain(self.connection, await self.get(job_id))

    @overload
    async def progress(self, job_id: int) -> Progress | None: ...
    @overload
    async def progress(self, job_id: Sequence[int]) -> dict[int, Progress]: ...
    async def progress(self, job_id: int | Sequence[int]) -> Progress | dict[int, Progress] | None:
        """Return the progress of a job, None if it reported none; or of many, by their ids."""
        if isinstance(job_id, int):
            return (await self.connection.store.progress([JobId(job_id)])).get(JobId(job_id))
        found = await self.connection.store.progress([JobId(one) for one in job_id])
        return {one: progress for one, progress in found.items()}  # noqa: C416 - ids are numbers

    async def lines(self, job_id: int, after: int | None = None, limit: int = 1000) -> list[Line]:
        """Return what a job has logged after a line's id, oldest first; 1,000 lines are kept."""
        check_limit(limit)
        return await self.connection.store.lines(JobId(job_id), after=after or 0, limit=limit)

    async def checkpoint(self, job_id: int) -> Any:
        """Return the decoded state that the job's next attempt would start from; None if none."""
        stored = await self.connection.store.checkpoint(JobId(job_id))
        return None if stored is None else msgspec.json.decode(stored)

    # Changing jobs

    async def cancel(self, job_id: int, reason: str | None = None) -> Job:
        """End a pending job, or ask a running one to stop.

        Raises `JobNotFound`, and `TransitionRefused` if the job has ended.
        """
        return await self._move(job_id, lambda job: lifecycle.cancel(job, reason))

    async def retry(self, job_id: int, reason: str | None = None) -> Job:
        """Run a failed, cancelled or waiting job now, with all its attempts again.

        Raises `JobNotFound`, and `TransitionRefused` if the job is running, done or superseded.
        """
        return await self._move(job_id, lambda job: lifecycle.reset(job, reason))

    async def reset(self, job_id: int, reason: str | None = None) -> Job:
        """Do the same as `retry`, and take a running job from its worker, which loses its lease.

        Raises `JobNotFound`, and `TransitionRefused` if the job is done or superseded.
        """
        return await self._move(job_id, lambda job: lifecycle.reset(job, reason, forced=True))

    async def set_priority(self, job_id: int, priority: int, reason: str | None = None) -> Job:
        """Give a pending job another priority; claims follow it at once.

        Raises `InvalidJob` for a priority that is not allowed, `JobNotFound`, and
        `TransitionRefused` if the job is not pending.
        """
        check_priority(priority)
        return await self._move(job_id, lambda job: lifecycle.reprioritise(job, priority, reason))

    async def _move(self, job_id: int, rule: Callable[[Job], Move]) -> Job:
        own = self.connection

        async def attempt() -> Job | None:
            job = await self.get(job_id)
            return (await own.store.transition([Change(job, rule(job))], actor=own.actor))[0]

        return bind([await decide(attempt, f"job {job_id}")], self)[0]

    async def delete(self, job_id: int) -> Job:
        """Remove a finished job with its log, and return it as it was.

        Raises `TransitionRefused` for an unfinished one.
        """
        job = await self.get(job_id)
        if job.state.final and await self.connection.store.delete([job]):
            return job
        job = await self.get(job_id)
        raise TransitionRefused(f"job {job_id} is {job.state}; only finished jobs are removed")

    def bulk(self, query: JobQuery) -> Selection:
        """Return the jobs that match a query, to change all of them. Not a coroutine."""
        return Selection(self.connection, query)


async def enqueue_readable(
    penstock: Penstock, jobs: Sequence[NewJob], *, connection: Any = None
) -> list[Job]:
    """Do the same as `enqueue_many`, for payloads that the caller has decoded to check them.

    They are not decoded again. A payload that is not a JSON object, or cannot be read back, would
    be found by its worker only.
    """
    for job in jobs:
        penstock.connection.check_encoded(job)
    return await penstock._add(jobs, connection)  # noqa: SLF001 - they are checked
