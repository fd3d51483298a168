"""A task: a named handler, and the typed way to enqueue jobs for it."""

import functools
import inspect
from collections.abc import Callable, Collection, Coroutine, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.core.job import DEFAULT_LEASE, DEFAULT_QUEUE, Job, JobId, NewJob, OnFailure, Scope
from penstock.core.retry import DEFAULT_RETRY, RetryPolicy
from penstock.core.tasks import (
    FIRST_VERSION,
    HIGHEST_VERSION,
    MOST_VERSIONS,
    AnnouncedRetry,
    AnnouncedTask,
)
from penstock.engine.codec import Arguments, Result
from penstock.engine.sync_calls import SyncTask

if TYPE_CHECKING:
    from penstock.engine.penstock import Penstock

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")
R_co = TypeVar("R_co", covariant=True)
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault  # Python has it from 3.13 on

    V_co = TypeVarWithDefault("V_co", covariant=True, default=R_co)
else:
    V_co = TypeVar("V_co", covariant=True)

RECYCLE = 100
LEAST_MEMORY = 32_000_000


class Verdict(StrEnum):
    """What a merge rule returns when it does not merge."""

    KEEP = "keep"
    """Both run, one after the other."""
    DROP = "drop"
    """Neither runs: the newer undoes the older."""


Merge = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any] | Verdict]
"""Merges the arguments of a pending job with those of a newer one of the same key."""


class Options(TypedDict, total=False):
    """The options of a job, besides its arguments."""

    queue: str
    priority: int
    delay: timedelta
    run_at: datetime
    key: str
    dedupe: str
    scope: Scope
    tags: Collection[str]
    retry: RetryPolicy
    timeout: timedelta
    lease: timedelta
    correlation: str
    tenant: str
    parent: int
    after: Collection[int | Job]
    on_failure: OnFailure
    supersede: bool
    throttle: str
    connection: Any


class IsolationOptions(TypedDict, total=False):
    """Where the handler of a task runs."""

    isolation: Literal["process"] | None
    memory: int
    recycle: int


class HandlerOptions(Options, IsolationOptions, total=False):
    """The options of a task: those of its jobs, and where its handler runs."""


class Isolation(msgspec.Struct, frozen=True, gc=False):
    """A child process for the handlers of a task; tasks with equal isolation share children.

    `memory` is how many bytes of data the process may hold, including its interpreter; `recycle`
    is how many jobs it runs before it is replaced.
    """

    memory: int | None = None
    recycle: int = RECYCLE


class AppFactory(msgspec.Struct, frozen=True):
    """How a child process builds an app again that is not defined in a module.

    `function` is `module:name`. It is called with `argument`, any text, and returns a `Penstock`
    with the same isolated tasks.
    """

    function: str
    argument: str


class Versions(msgspec.Struct, frozen=True, gc=False):
    """The version of a task, and the versions of jobs that its handler takes."""

    own: int
    accepted: range


FIRST_ONLY = Versions(FIRST_VERSION, range(FIRST_VERSION, FIRST_VERSION + 1))


def versions_of(task: str, version: int, accepts: Collection[int] | None) -> Versions:
    """Check the versions of a task; raises `ConfigurationError`."""
    numbers = [version] if accepts is None else sorted(accepts)
    for number in (version, *numbers):
        if type(number) is not int or not FIRST_VERSION <= number <= HIGHEST_VERSION:
            raise ConfigurationError(
                f"task {task}: a version must be an integer of at least 1, not {number!r:.80}"
            )
    accepted = range(numbers[0], numbers[-1] + 1) if numbers else range(0)
    if [*accepted] != numbers or version not in accepted or len(accepted) > MOST_VERSIONS:
        raise ConfigurationError(
            f"task {task}: accepts must be a range that includes the task's own version, of "
            f"at most {MOST_VERSIONS} versions, such as range(1, {version + 1})"
        )
    return Versions(version, accepted)


def take_isolation(task: str, options: HandlerOptions) -> tuple[Options, Isolation | None]:
    """Split the options of the jobs of a task from its isolation; raises `ConfigurationError`."""
    own: dict[str, Any] = {**options}
    kind = own.pop("isolation", None)
    given = {name: own.pop(name) for name in ("memory", "recycle") if name in own}
    if kind not in (None, "process"):
        raise ConfigurationError(
            f'task {task}: isolation must be "process" or None, not {kind!r:.80}'
        )
    if kind is None:
        if given:
            words = " and ".join(given)
            raise ConfigurationError(f'task {task}: {words} need isolation="process"')
        return cast("Options", own), None
    memory, recycle = given.get("memory"), given.get("recycle", RECYCLE)
    if memory is not None and (type(memory) is not int or memory < LEAST_MEMORY):
        raise ConfigurationError(
            f"task {task}: memory must be a number of bytes, at least {LEAST_MEMORY}, "
            f"not {memory!r:.80}; a bare interpreter needs about that much"
        )
    if type(recycle) is not int or recycle < 1:
        raise ConfigurationError(
            f"task {task}: recycle must be a number of jobs, at least 1, not {recycle!r:.80}"
        )
    return cast("Options", own), Isolation(memory, recycle)


class Task(Generic[P, R_co, V_co]):
    """A handler with a name, its options and its own `enqueue`. Calling it just calls it.

    Its type arguments are the parameters, what a call returns, and the result of a job. For a
    coroutine function the last two differ; otherwise the last one can be left out.
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, _: Any) -> type[Self]:
            return cls  # before 3.13, Python would demand the argument that can be left out

    def __init__(
        self,
        penstock: "Penstock",
        name: str,
        handler: Callable[P, R_co],
        options: Options,
        *,
        permanent: tuple[type[Exception], ...] = (),
        merge: Merge | None = None,
        arguments: Arguments | None = None,
        returns: Result | None = None,
        isolation: Isolation | None = None,
        versions: Versions = FIRST_ONLY,
    ) -> None:
        self.name = name
        self.versions = versions
        self.handler = handler
        self.permanent = permanent
        self.merge = merge
        self.isolation = isolation
        self.is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - an object whose call is awaited
        )
        self.arguments = arguments or Arguments(name, handler)
        self.returns = returns or Result(name, handler)
        self._penstock = penstock
        self._options = options
        self._connection = options.get("connection")
        self._fields = _new_job_fields(options)
        if versions.own != FIRST_VERSION:
            self._fields["task_version"] = versions.own
        functools.update_wrapper(self, handler)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    @property
    def sync(self) -> "SyncTask[P, V_co]":
        """The same calls from synchronous code, without `await`."""
        return SyncTask(self)

    @property
    def queue(self) -> str:
        """The queue of its jobs, unless they are enqueued elsewhere."""
        return self._options.get("queue", DEFAULT_QUEUE)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the handler directly, without a queue."""
        return self.handler(*args, **kwargs)

    def using(self, **options: Unpack[Options]) -> "Task[P, R_co, V_co]":
        """Return the same task with other options for the jobs enqueued through it."""
        task = self._with(options)
        self._penstock.connection.check(NewJob(task=self.name, payload="{}", **task._fields))
        return task

    def _with(self, options: Options) -> "Task[P, R_co, V_co]":
        """Do the same as `using`, for options that are checked when a job is stored."""
        merged: Options = {**self._options, **options}
        return Task(
            self._penstock,
            self.name,
            self.handler,
            merged,
            permanent=self.permanent,
            merge=self.merge,
            arguments=self.arguments,
            returns=self.returns,
            isolation=self.isolation,
            versions=self.versions,
        )

    def new(self, /, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return a job for `Penstock.enqueue_many`; raises `InvalidJob` for wrong arguments."""
        return NewJob(task=self.name, payload=self.arguments.encode(args, kwargs), **self._fields)

    def of(self, arguments: Any) -> NewJob:
        """Return a job for arguments by name that are JSON values, as other programs send them."""
        return NewJob(task=self.name, payload=self.arguments.encode_json(arguments), **self._fields)

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[V_co]:
        """Store a job that calls the handler with these arguments; durable on return.

        Raises `InvalidJob` for arguments that do not match the handler or are not JSON, `QueueFull`
        and `TooManyQueues` at a limit, and `StoreUnavailable`; then nothing is stored. After any
        other `StoreError`, the job may or may not be stored.
        """
        payload = self.arguments.encode(args, kwargs)
        new = NewJob(task=self.name, payload=payload, **self._fields)
        self._penstock.connection.check_encoded(new)
        return (await self._penstock._add((new,), self._connection))[0]  # noqa: SLF001 - checked


class Registration(Protocol):
    """What `Penstock.task` returns when it is called with options: a decorator."""

    @overload
    def __call__(
        self, handler: Callable[P, Coroutine[Any, Any, V]], /
    ) -> Task[P, Coroutine[Any, Any, V], V]: ...
    @overload
    def __call__(self, handler: Callable[P, R], /) -> Task[P, R]: ...


_ANNOUNCED_AS_THEY_ARE = ("key", "tags", "tenant", "throttle")


def announcement(task: Task[..., Any], name: str) -> AnnouncedTask:
    """Return what a worker announces of a task under its name, or under a former one."""
    fields = {**task._fields, "supersede": False}
    job = NewJob(task=name, payload="{}", **fields)
    return AnnouncedTask(
        name=name,
        version=task.versions.own,
        oldest=task.versions.accepted.start,
        newest=task.versions.accepted.stop - 1,
        alias_of=None if name == task.name else task.name,
        queue=job.queue,
        priority=job.priority,
        retry=None if job.retry == DEFAULT_RETRY else _announced_retry(job.retry),
        timeout=None if job.timeout is None else job.timeout.total_seconds(),
        lease=None if job.lease == DEFAULT_LEASE else job.lease.total_seconds(),
        delay=None if job.delay is None else job.delay.total_seconds(),
        **{name: getattr(job, name) for name in _ANNOUNCED_AS_THEY_ARE},
    )


def _announced_retry(retry: RetryPolicy) -> AnnouncedRetry:
    return AnnouncedRetry(
        attempts=retry.attempts,
        delay=retry.delay.total_seconds(),
        factor=retry.factor,
        max_delay=retry.max_delay.total_seconds(),
        jitter=retry.jitter,
    )


def announced_options(task: AnnouncedTask | None) -> dict[str, Any]:
    """Return the fields of a `NewJob` that a task has of its own, as its worker announced them."""
    if task is None:
        return {}
    options: dict[str, Any] = {
        "task": task.alias_of or task.name,
        "task_version": task.version,
        "queue": task.queue,
        "priority": task.priority,
    }
    if task.retry is not None:
        spans = {
            name: timedelta(seconds=getattr(task.retry, name)) for name in ("delay", "max_delay")
        }
        options["retry"] = RetryPolicy(**{**msgspec.structs.asdict(task.retry), **spans})
    for name in ("timeout", "lease", "delay"):
        if (seconds := getattr(task, name)) is not None:
            options[name] = timedelta(seconds=seconds)
    for name in _ANNOUNCED_AS_THEY_ARE:
        if value := getattr(task, name):
            options[name] = value
    return options


def _new_job_fields(options: Options) -> dict[str, Any]:
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise ConfigurationError(f"jobs have no option {', '.join(sorted(unknown))}")
    fields: dict[str, Any] = {k: v for k, v in options.items() if k != "connection"}
    if "tags" in fields:
        if isinstance(fields["tags"], str):
            raise ConfigurationError("tags must be a list of strings, not a string")
        fields["tags"] = tuple(fields["tags"])
    if "after" in fields:
        fields["after"] = tuple(
            job.id if isinstance(job, Job) else JobId(job) for job in fields["after"]
        )
    return fields


def check_owner(task: Task[..., Any, Any], penstock: "Penstock") -> None:
    """Refuse a task of another Penstock, whose jobs would go to another store."""
    if task._penstock is not penstock:  # noqa: SLF001 - of this module
        raise ConfigurationError(
            f"task {task.name} belongs to another Penstock than these jobs: register it with the "
            "one that is given here"
        )
