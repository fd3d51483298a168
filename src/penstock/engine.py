"""Penstock: the object users hold."""

import asyncio
import uuid
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, Unpack, cast, overload

import msgspec
from msgspec.structs import replace

from penstock.access import AccessTokens
from penstock.admin import Administration
from penstock.checks import (
    PAYLOAD_LIMIT,
    JobChecker,
    check_concurrency,
    check_jobs,
    check_places,
)
from penstock.compose import chain
from penstock.core import lifecycle
from penstock.core.errors import (
    ConfigurationError,
    InvalidJob,
    Overtaken,
    PenstockError,
    UnknownTask,
)
from penstock.core.job import (
    Change,
    Job,
    JobQuery,
    NewJob,
    Tail,
    bind,
)
from penstock.core.lifecycle import Event, State
from penstock.core.secrets import Secrets
from penstock.core.store import Clock, Store
from penstock.explaining import Explaining
from penstock.history import History
from penstock.isolation import Origin, take_isolation
from penstock.opening import admit, replaces_all
from penstock.periodic import Periodic, TaskOptions, recurrence_of
from penstock.results import Ends
from penstock.steering import Steering
from penstock.stores import open_store, system_clock
from penstock.tables import OwnTables, joined
from penstock.task import Merge, Options, Task, Verdict
from penstock.tracing import current_trace
from penstock.working import Working

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# A move is decided anew this often when others keep changing the job, before giving up.
_DECISIONS = 100


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


class Penstock(
    Working, Steering, Explaining, Administration, Periodic, History, OwnTables, AccessTokens
):
    """A queue of jobs in one store, and the tasks that this program knows.

    The store is opened by the first call that needs it, and created if it is not there, unless
    `create` is false; `opener` opens it, for who wants to stand between. `origin` tells child
    processes how to make the app again, where it stands in no module. `secret_fields` are names of
    arguments whose values servers and commands do not show, and do not search. All methods are
    coroutines; from synchronous code, wrap a call in `run_sync`.
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
        secret_fields: Collection[str] = (),
    ) -> None:
        super().__init__(
            url,
            actor=actor,
            clock=clock,
            create=create,
            opener=opener,
            secrets=Secrets(secret_fields),
        )
        self.origin = origin
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.check = JobChecker(payload_limit).check
        self._declared = {}
        self._complaints = {}
        self._task_limits = {}
        self._ends = Ends(lambda: self.store)

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
        admit(jobs)
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
        if not (replaces_all() or await self._is_own(found[0])):
            return Tail(job=found[0]), new  # it stays, and the new one waits behind it
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

    async def _is_own(self, job: Job) -> bool:
        """Whether the actor of this call enqueued a job, by the audit. That never changes."""
        first = await self.log(job.id, limit=1)
        return any(entry.event is Event.ENQUEUED and entry.actor == self.actor for entry in first)
