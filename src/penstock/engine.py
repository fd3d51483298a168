"""Penstock: the object users hold."""

import asyncio
import contextlib
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, cast, overload

import msgspec
from msgspec.structs import replace

from penstock.access import AccessTokens
from penstock.admin import Administration
from penstock.checks import (
    PAYLOAD_LIMIT,
    JobChecker,
    check_concurrency,
    check_duration,
    check_identifier,
    check_jobs,
    check_key,
    check_kind,
    check_limit,
    check_name,
    check_places,
    check_priority,
    check_queue_limits,
)
from penstock.compose import chain
from penstock.core import lifecycle
from penstock.core.errors import (
    ConfigurationError,
    InvalidJob,
    JobNotFound,
    LeaseLost,
    Overtaken,
    PenstockError,
    StoreError,
    TransitionRefused,
    UnknownTask,
)
from penstock.core.job import (
    Ages,
    Change,
    Claim,
    Counts,
    Edge,
    Job,
    JobId,
    JobQuery,
    Lease,
    LogEntry,
    LogId,
    NewJob,
    Queue,
    QueueSettings,
    Record,
    Tail,
    Tally,
    bind,
    headline,
)
from penstock.core.lifecycle import Done, Event, Move, Outcome, State, Waiting
from penstock.core.limits import Held, Limit
from penstock.core.mirror import Mirror
from penstock.core.note import Line, Note, Progress
from penstock.core.schedule import Schedule
from penstock.core.store import Clock, Store
from penstock.core.times import from_micros
from penstock.core.worker import WorkerInfo
from penstock.history import History
from penstock.isolation import Origin, take_isolation
from penstock.periodic import Periodic, TaskOptions, recurrence_of
from penstock.results import Ends, outcome_of
from penstock.stores import open_store, system_clock
from penstock.tables import OwnTables, joined
from penstock.task import Merge, Options, Task, Verdict
from penstock.tracing import current_trace

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# A move is decided anew this often when others keep changing the job, before giving up.
_DECISIONS = 100
_DONE = Done()

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


_acting: ContextVar[str | None] = ContextVar("penstock_actor", default=None)


@contextlib.contextmanager
def acting_as(actor: str) -> Iterator[None]:
    """Let the log name somebody else for what is done inside the block: whoever asked for it."""
    before = _acting.set(actor)
    try:
        yield
    finally:
        _acting.reset(before)


class _Process:
    """This process: asking the system which it is, with every call, would cost a microsecond."""

    pid = os.getpid()

    @classmethod
    def forked(cls) -> None:
        """Note that this is another one now."""
        cls.pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Process.forked)


class Drained(msgspec.Struct, frozen=True):
    """How a drain ended: what is left of the backlog that was there when it began."""

    status: Literal["drained", "timeout", "paused"]
    remaining: int
    elapsed: timedelta


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


class Explanation(msgspec.Struct, frozen=True):
    """Why a job is, or is not, running."""

    job_id: JobId
    reason: Literal["ready", "scheduled", "blocked", "held", "running", "finished"]
    text: str
    blocked_by: JobId | None = None


class Penstock(AccessTokens, Administration, History, OwnTables, Periodic):
    """A queue of jobs in one store, and the tasks that this program knows.

    The store is opened by the first call that needs it, and created if it is not there, unless
    `create` is false; `opener` opens it, for who wants to stand between. `origin` tells child
    processes how to make the app again, where it stands in no module. All methods are coroutines;
    from synchronous code, wrap a call in `run_sync`.
    """

    def __init__(
        self,
        url: str,
        *,
        actor: str | None = None,
        payload_limit: int = PAYLOAD_LIMIT,
        clock: Clock = system_clock,
        create: bool = True,
        opener: Callable[..., Store] = open_store,
        origin: Origin | None = None,
    ) -> None:
        self.url = url
        self.origin = origin
        self._actor = actor or f"{socket.gethostname()}:{os.getpid()}"
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.check = JobChecker(payload_limit).check
        self._declared: dict[str, Schedule] = {}
        self._complaints: dict[str, int] = {}
        self._task_limits: dict[str, int] = {}
        self._clock = clock
        self._create = create
        self._open = opener
        self._store: Store | None = None
        self._pid = 0
        self._opening = threading.Lock()
        self._ends = Ends(lambda: self.store)

    @property
    def actor(self) -> str:
        """Who the log names for what is done here: see also `acting_as`."""
        return _acting.get() or self._actor

    @property
    def store(self) -> Store:
        """The open store. After a fork, the child cannot use the one its parent had opened."""
        if self._store is None:
            with self._opening:
                if self._store is None:
                    self._pid = _Process.pid
                    self._store = self._open(self.url, clock=self._clock, create=self._create)
        if self._pid != _Process.pid:
            raise StoreError(
                f"{self.url} was opened before this process was forked, and cannot be shared with "
                "it; start processes first, or start them by 'spawn'"
            )
        return self._store

    async def close(self) -> None:
        """Let go of the store; what was acknowledged stays."""
        if self._store is not None and self._pid == _Process.pid:
            await self._store.close()
            self._store = None

    @property
    def clock(self) -> Clock:
        """What tells the time: the store, where that has a clock of its own."""
        clock: Clock = getattr(self._store, "clock", self._clock)
        return clock

    @contextlib.contextmanager
    def elsewhere(self, url: str, store: Store, clock: Clock) -> Iterator[None]:
        """Work on another store inside the block, and on its own again behind it; for tests.

        Who gives the store closes it. Its own stays as it is, open or not.
        """
        kept = self.url, self._clock, self._open, self._store, self._pid
        self.url, self._clock, self._open = url, clock, lambda *_, **__: store
        self._store = None
        try:
            yield
        finally:
            self.url, self._clock, self._open, self._store, self._pid = kept

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
        merge: Merge | None = None,
        concurrency: int | None = None,
        **options: Unpack[TaskOptions],
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
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
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Register a handler: `@app.task`, `@app.task(queue="mail")` or `app.task("name", f)`.

        The name is the function's own unless given. Errors of the `permanent` types are not
        tried again. `merge` is the rule for jobs that `supersede` others of their key. With
        `isolation="process"` the handler runs in a child process, which may hold `memory` bytes
        and is replaced after `recycle` jobs. With `cron` or `every`, workers call it
        periodically: see `schedule`. With `concurrency`, at most so many jobs of the task run at a
        time, in all processes: the first claim of this program stores it, as `limit_task` does.
        """
        if concurrency is not None:
            check_concurrency(concurrency)
        if callable(name):
            name, handler = None, name
        task_options, recurrence = recurrence_of(options)

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            title = function.__name__ if name is None else name
            if title in self.tasks:
                raise ConfigurationError(f"task {title!r} is registered twice")
            own: dict[str, Any] = {**task_options}
            isolation = take_isolation(title, own)
            task = Task(
                self,
                title,
                function,
                cast("Options", own),
                permanent=permanent,
                merge=merge,
                isolation=isolation,
            )
            # The key of a superseding job is often known only when it is enqueued.
            fields = {**task._fields, "supersede": False}
            self.check(NewJob(task=title, payload="{}", **fields))
            if recurrence:
                self._declare(task, recurrence)
            self.tasks[title] = task
            if concurrency is not None:
                self._task_limits[title] = concurrency
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
        # `using` would check the options, which are checked with the job.
        varied = self.tasks[task]._with(options)  # noqa: SLF001 - a task of its own
        new = varied.of({} if args is None else args)
        (job,) = await self.enqueue_many((new,), connection=options.get("connection"))
        return job

    async def enqueue_many(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[Job]:
        """Store these jobs in one transaction, all or none; the answer has their order."""
        if (trace := current_trace()) is not None:
            jobs = [replace(job, trace=job.trace or trace) for job in jobs]
        try:
            for job in jobs:
                self.check(job)
        except (AttributeError, TypeError) as error:
            check_jobs(jobs)
            raise InvalidJob(f"a job cannot be stored as asked for: {error}") from error
        if [job for job in jobs if job.follows or job.supersede]:
            check_places(jobs)
            if any(job.supersede for job in jobs):
                return [await self._enqueue_superseding(jobs, connection)]
        inside = joined(connection)
        return bind(await self.store.add(jobs, actor=self.actor, connection=inside), self)

    async def enqueue_batch(
        self, jobs: Sequence[NewJob], *, correlation: str | None = None, ordered: bool = False
    ) -> list[Job]:
        """Store jobs that belong together, all or none; `batch` tells how they fare.

        With the correlation of a batch that exists, they join it. Ordered ones run one after the
        other; when one fails, the rest is cancelled.
        """
        name = correlation or uuid.uuid4().hex
        together = [replace(job, correlation=name) for job in jobs]
        return await self.enqueue_many(chain(*together) if ordered else together)

    async def _enqueue_superseding(self, jobs: Sequence[NewJob], connection: Any) -> Job:
        if len(jobs) != 1 or connection is not None:
            raise InvalidJob("a superseding job is enqueued alone, in a transaction of its own")
        (new,) = jobs
        for _ in range(_DECISIONS):
            tail, wanted = await self._merged(new)
            try:
                if wanted is not None:
                    added = await self.store.add((wanted,), actor=self.actor, tail=tail)
                    return bind(added, self)[0]
                if tail.job is not None:
                    change = Change(tail.job, lifecycle.supersede(tail.job, None))
                    (undone,) = await self.store.transition([change], actor=self.actor)
                    if undone is not None:
                        return bind([undone], self)[0]
            except Overtaken:
                continue
        raise PenstockError(f"the jobs of key {new.key!r} keep changing; try again")

    async def _merged(self, new: NewJob) -> tuple[Tail, NewJob | None]:
        """What a superseding job meets, and what is to be stored after that."""
        pending = frozenset({State.PENDING})
        found = await self.find(JobQuery(key=new.key, states=pending, limit=1))
        if not found or found[0].task != new.task:  # nothing, or another task's: no merging
            return Tail(job=found[0] if found else None), new
        task = self.tasks.get(new.task)
        if task is None or task.merge is None:
            return Tail(job=found[0], replaces=True), new
        verdict = task.merge(found[0].args, msgspec.json.decode(new.payload))
        if verdict is Verdict.KEEP:
            return Tail(job=found[0]), new
        if verdict is Verdict.DROP:
            return Tail(job=found[0]), None
        merged = replace(new, payload=task.arguments.encode_json(verdict))
        self.check(merged)
        return Tail(job=found[0], replaces=True), merged

    # Workers

    async def claim(
        self,
        *,
        worker: str,
        limit: int = 1,
        queues: Sequence[str] | None = None,
        besides: Collection[str] = (),
        tags: Sequence[str] = (),
    ) -> list[Job]:
        """Take up to `limit` ready jobs; each stays the worker's while its lease is renewed.

        Of these queues, or without `queues` of all but those `besides`.
        """
        check_limit(limit)
        if self._task_limits:
            await self._declare_limits()
        wanted = Claim(
            worker=worker,
            limit=limit,
            queues=None if queues is None else tuple(queues),
            besides=frozenset(besides),
            tags=tuple(tags),
        )
        return await self.store.claim(wanted)

    async def _declare_limits(self) -> None:
        """Store what tasks were registered with, before the first of their jobs is claimed."""
        declared = dict(self._task_limits)
        stored = {one.name: one for one in await self.limits() if one.kind == "task"}
        for name, n in declared.items():
            if name not in stored or stored[name].concurrency != n:
                await self.limit_task(name, n)
        for name in declared:
            self._task_limits.pop(name, None)

    async def start(self, leases: Sequence[Job | Lease]) -> list[Job | None]:
        """Note in the log that the worker began these, and prolong their leases.

        One transaction. None stands in the place of a job that is not held any more; the log
        notes that too. A `Job` as it was claimed saves looking it up.
        """
        return await self._write_held(leases, lambda _, job: lifecycle.start(job))

    async def renew(self, leases: Sequence[Lease]) -> list[Job]:
        """Prolong these leases; a job that is missing in the answer is lost to the caller.

        The log notes each that is lost. A job in the answer may have `cancel_requested`: then
        stop, and settle it as cancelled.
        """
        renewed = await self.store.renew(leases)
        if len(renewed) < len(leases):
            held = {job.lease for job in renewed}
            await self._refuse([one for one in leases if one not in held])
        return renewed

    async def note(self, notes: Sequence[Note]) -> list[bool]:
        """Keep what running jobs say about themselves, in one transaction.

        For each, whether its lease is still held; where it is not, nothing of it is kept, and
        the log notes a checkpoint that was refused.
        """
        held = await self.store.note(notes)
        if not all(held):
            await self._refuse(
                [
                    note.lease
                    for note, is_held in zip(notes, held, strict=True)
                    if not is_held and note.state is not None
                ]
            )
        return held

    async def _refuse(self, leases: Sequence[Lease]) -> None:
        """Note in the log that these leases are over; of a job that is gone nothing is noted."""
        await self._write_held(
            leases, lambda n, job: lifecycle.refuse(job, leases[n].token, leases[n].worker)
        )

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

    async def finish(self, job: Job, outcome: Done = _DONE, *, connection: Any) -> Job:
        """End a claimed job with success inside your own database transaction.

        It is done if and only if you commit, and needs no `settle` then. Raises `LeaseLost` if the
        job is not held any more: roll back.
        """
        actor = job.worker or self.actor
        inside = joined(connection)
        done = await self.store.finish(job, outcome, actor=actor, connection=inside)
        return bind([done], self)[0]

    async def settle_held(
        self, results: Sequence[tuple[Job | Lease, Outcome]], *, refuse: bool = True
    ) -> list[Job | None]:
        """As `settle`, with None in the place of a job that is not held any more.

        Unless `refuse`, the log notes nothing of those: they may be repetitions of what it has.
        """
        return await self._write_held(
            [held for held, _ in results],
            lambda n, job: lifecycle.advance(job, results[n][1], random.random()),  # noqa: S311 - jitter
            refuse=refuse,
        )

    async def _write_held(
        self,
        holds: Sequence[Job | Lease],
        decide: Callable[[int, Job], Move],
        *,
        refuse: bool = True,
    ) -> list[Job | None]:
        """Write a move for each that is still held, decided by its place and the job as it is.

        One transaction, unless a job has changed meanwhile: those are looked at again. The others
        are refused; None stands in their places.
        """
        written: list[Job | None] = [None] * len(holds)
        known = {n: job for n, job in enumerate(holds) if isinstance(job, Job)}
        left: Sequence[int] = range(len(holds))
        for _ in range(_DECISIONS):
            if len(known) < len(left):
                unknown = {n: _lease(holds[n]).job_id for n in left if n not in known}
                known = dict(sorted({**known, **await self._known(unknown)}.items()))
            if not refuse:
                known = {n: job for n, job in known.items() if _holds(holds[n], job)}
            if not known:
                return written
            changes = [
                Change(job, decide(n, job) if _holds(holds[n], job) else _refusal(holds[n], job))
                for n, job in known.items()
            ]
            answers = await self.store.transition(changes, actor=holds[0].worker or "")
            left = []
            for n, change, answer in zip(known, changes, answers, strict=True):
                if answer is None:
                    left.append(n)
                elif change.move.event is not Event.REFUSED:
                    written[n] = answer
            known = {}
        raise PenstockError("the jobs keep changing while they are written; try again")

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

    async def count(self) -> Counts:
        """How many jobs there are by queue, state and what they wait for; constant time."""
        return await self.store.count()

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

    async def oldest_ready(self) -> Mapping[str, datetime]:
        """Since when the job of each queue that is ready for the longest has been due.

        Also where a pause or a limit holds it; queues without a ready job are left out. The
        cost does not grow with the jobs.
        """
        return await self.store.oldest_ready()

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

    async def children(self, job_id: int) -> Tally:
        """How many children of a job there are in each state."""
        return await self.store.tally(JobQuery(parent=JobId(job_id)))

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
        if job.expires_at is not None and job.expires_at < from_micros(self.clock()):
            return (
                f"{attempt} began on {job.worker}, which fell silent: its lease ended at "
                f"{_moment(job.expires_at)}, and the next worker takes the job back{stop}"
            )
        return f"it runs on {job.worker}, {attempt}, leased until {_moment(job.expires_at)}{stop}"

    async def _explain_pending(self, job: Job) -> Explanation:
        found = (queue for queue in await self.queues() if queue.name == job.queue)
        if (paused := next(found, None)) is not None and paused.paused:
            text = f"queue {job.queue!r} is paused{_until(paused)}; resume it to let its jobs go on"
            return Explanation(job.id, "held", text)
        if job.needs:
            return await self._explain_needs(job)
        due = job.waiting is Waiting.SCHEDULED and job.run_at <= from_micros(self.clock())
        if (due or job.waiting is Waiting.READY) and (held := await self.store.held(job)):
            return Explanation(job.id, "held", "; ".join(map(_holding, held)))
        if job.waiting is Waiting.BLOCKED and (first := await self._holder_of_key(job)):
            text = f"job {first.id}, which is {first.state}, holds its key {job.key!r}"
            return Explanation(job.id, "blocked", text, first.id)
        if job.waiting is Waiting.SCHEDULED and not due:
            text = f"its time comes at {_moment(job.run_at)}"
            if job.error:
                attempt = f"attempt {job.attempt} of {job.retry.attempts}"
                text += f", after {attempt} failed: {headline(job.error)}"
            return Explanation(job.id, "scheduled", text)
        return Explanation(job.id, "ready", "it is ready; no free worker has claimed it yet")

    async def _explain_needs(self, job: Job) -> Explanation:
        open_ends = [
            edge.needed
            for edge in await self.store.edges([job.id])
            if edge.job_id == job.id and not edge.resolved
        ]
        if not open_ends:  # they have ended meanwhile
            return await self.explain(job.id)
        needed = (await self.store.get(open_ends[:1]))[0]
        text = f"it waits for job {needed.id}, which is {needed.state}"
        if len(open_ends) > 1:
            text += f", and for {len(open_ends) - 1} more"
        return Explanation(job.id, "blocked", text, needed.id)

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

    async def reset(self, job_id: int, reason: str | None = None) -> Job:
        """As `retry`; a running job is taken from its worker, which is refused from then on."""
        return await self._decide(job_id, lambda job: lifecycle.reset(job, reason, forced=True))

    async def set_priority(self, job_id: int, priority: int, reason: str | None = None) -> Job:
        """Give a pending job another priority; claims follow it at once."""
        check_priority(priority)
        return await self._decide(job_id, lambda job: lifecycle.reprioritise(job, priority, reason))

    async def delete(self, job_id: int) -> Job:
        """Remove a finished job with its log, and return it as it was.

        Raises `TransitionRefused` for an unfinished one.
        """
        job = await self.get(job_id)
        if job.state.final and await self.store.delete([job]):
            return job
        job = await self.get(job_id)
        raise TransitionRefused(f"job {job_id} is {job.state}; only finished jobs are removed")

    async def _decide(self, job_id: int, decide: Callable[[Job], Move]) -> Job:
        for _ in range(_DECISIONS):
            job = await self.get(job_id)
            (answer,) = await self.store.transition([Change(job, decide(job))], actor=self.actor)
            if answer is not None:
                return bind([answer], self)[0]
        raise PenstockError(f"job {job_id} keeps changing; try again")

    async def queues(self) -> list[Queue]:
        """Every queue with its limits, by name."""
        return await self.store.queues()

    async def pause(self, queue: str, *, duration: timedelta | None = None) -> Queue:
        """Start no more jobs of this queue, in any process; running ones go on.

        After `duration` the pause ends by itself, whatever became of who asked for it; to pause
        again sets a new end. Without one it lasts until `resume`, also if a pause with a
        duration is asked for meanwhile.
        """
        until = None
        if duration is not None:
            check_duration("duration", duration)
            until = from_micros(self.clock()) + duration
        return await self._configure(QueueSettings(name=queue, paused=True, paused_until=until))

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
        promote_after: Ages | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> Queue:
        """Set a queue's limits, for every process; None lifts one, what is not given stays.

        While `max_pending` jobs are pending, new ones are refused with `QueueFull`. At most
        `concurrency` run at a time, and at most `rate[0]` start within any time of `rate[1]`.
        A ready job counts as one priority higher for each `promote_after` that it has waited, or,
        where that is several ages, for each of them that it has reached.
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
        self._task_limits.pop(task, None)

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

    async def mirror(self, mirror: Mirror) -> None:
        """Let rows of your own follow the jobs of a queue, in the transactions that change them.

        It stays in the database, for every program that changes a job there; one of the same name
        takes its place. Jobs that are there already are mirrored with their next change.
        Raises `ConfigurationError` where there is no database.
        """
        check_identifier("mirror", mirror.name)
        check_name("queue", mirror.queue)
        await self.store.mirror(mirror)

    async def workers(self) -> list[WorkerInfo]:
        """Every worker on this store, by name, with how many jobs it runs; idle ones as well.

        One that was killed stays in the list for a day: `seen_at` is when it was last heard of.
        """
        return await self.store.workers()

    async def drain_worker(self, name: str) -> bool:
        """Ask a worker to take no more jobs, finish those that it has, and end.

        It hears of it within ten seconds. Returns whether there is such a worker; one that only
        holds leases, without having said who it is, cannot be asked.
        """
        return await self.store.drain(name)

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


def _until(queue: Queue) -> str:
    return "" if queue.paused_until is None else f" until {_moment(queue.paused_until)}"


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


def _holds(hold: Job | Lease, job: Job) -> bool:
    return (job.state, job.token, job.worker) == (State.RUNNING, hold.token, hold.worker)


def _refusal(hold: Job | Lease, job: Job) -> Move:
    return lifecycle.refuse(job, hold.token, hold.worker or "")


def _lease(job: Job | Lease) -> Lease:
    return job.lease if isinstance(job, Job) else job
