"""A task: a named handler, and the typed way to enqueue jobs for it."""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack

import msgspec
import msgspec.inspect

from penstock.core.errors import ConfigurationError, InvalidJob
from penstock.core.job import DEFAULT_QUEUE, Job, JobId, NewJob, OnFailure, Scope
from penstock.core.jsontext import DEPTH_LIMIT, check_depth
from penstock.core.mismatch import mismatch
from penstock.core.retry import RetryPolicy
from penstock.isolation import Isolation, IsolationOptions

if TYPE_CHECKING:
    from penstock.engine import Penstock

P = ParamSpec("P")
R = TypeVar("R")

_MISFITS = (TypeError, ValueError, OverflowError, RecursionError)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Verdict(StrEnum):
    """What a merge rule says when it does not merge."""

    KEEP = "keep"
    """Both run, one after the other."""
    DROP = "drop"
    """Neither runs: the newer undoes the older."""


Merge = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any] | Verdict]
"""Makes one job's arguments of those of a pending job and of a newer one of the same key."""


class Options(TypedDict, total=False):
    """What a job can ask for, besides its arguments."""

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


class HandlerOptions(Options, IsolationOptions, total=False):
    """What a task can ask for: what its jobs can, and where its handler runs."""


class Arguments:
    """The parameters of a handler as one JSON object, checked against its annotations."""

    def __init__(self, name: str, handler: Callable[..., Any]) -> None:
        parameters = inspect.signature(handler).parameters.values()
        for parameter in parameters:
            if parameter.kind not in _NAMED:
                raise ConfigurationError(
                    f"task {name}: parameter {parameter} has no name of its own; "
                    "arguments are stored by name"
                )
        self._struct = msgspec.defstruct(
            "Arguments",
            [_field(parameter, handler) for parameter in parameters],
            kw_only=True,
        )
        self._positional = [
            parameter.name
            for parameter in parameters
            if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        ]
        self._name = name
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(self._struct).decode
        self._optional = any(p.default is not inspect.Parameter.empty for p in parameters)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The JSON text of these arguments; raises `InvalidJob` if they do not fit."""
        try:
            values = self._struct(**self._bound(args, kwargs))
            payload = self._encode(values).decode()
            check_depth(payload, "the value of an argument", DEPTH_LIMIT + 1)
            stored = self._decode(payload)
        except _MISFITS as error:
            raise self._misfit(error) from error
        if stored != values:
            for name in values.__struct_fields__:
                self._check_unchanged(name, getattr(values, name), getattr(stored, name))
        return payload

    def encode_json(self, arguments: Any) -> str:
        """As `encode`, for arguments that are JSON already: `"2030-01-01"` for a date."""
        if not (isinstance(arguments, Mapping) and all(isinstance(k, str) for k in arguments)):
            raise InvalidJob(f"arguments of task {self._name}: expected names and their values")
        try:
            if unknown := arguments.keys() - set(self._struct.__struct_fields__):
                raise TypeError(f"there is no {', '.join(sorted(unknown))}")
            payload = self._encode(arguments).decode()
            check_depth(payload, "the value of an argument", DEPTH_LIMIT + 1)
            self._decode(payload)
        except _MISFITS as error:
            raise self._misfit(error) from error
        for name, stored in msgspec.json.decode(payload).items():
            self._check_unchanged(name, arguments[name], stored)
        return payload

    def decode(self, payload: str) -> dict[str, Any]:
        """The arguments by name, in the types the handler asks for; raises `InvalidJob`."""
        try:
            values = self._decode(payload)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise self._misfit(error) from error
        arguments = msgspec.structs.asdict(values)
        if self._optional:
            return {k: v for k, v in arguments.items() if v is not msgspec.UNSET}
        return arguments

    def _misfit(self, error: Exception) -> InvalidJob:
        return InvalidJob(f"arguments of task {self._name}: {mismatch(error, self._struct)}")

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        if not args:
            return kwargs
        if len(args) > len(self._positional):
            raise TypeError(f"there are {len(self._positional)} positional ones")
        given = dict(zip(self._positional, args, strict=False))
        if twice := given.keys() & kwargs.keys():
            raise TypeError(f"{', '.join(twice)} is given twice")
        return {**given, **kwargs}

    def _check_unchanged(self, name: str, value: Any, stored: Any) -> None:
        if (changed := changed_by_json(value, stored)) is not None:
            raise InvalidJob(
                f"arguments of task {self._name}: in {name}, {changed[0]!r:.80} would come "
                f"back as {changed[1]!r:.80}; annotate the parameter, or pass plain JSON"
            )


def changed_by_json(value: Any, stored: Any) -> tuple[Any, Any] | None:
    """What storing as JSON would silently turn into something else."""
    if isinstance(value, list | tuple) and isinstance(stored, list | tuple):
        pairs = zip(value, stored, strict=True)
    elif isinstance(value, dict) and isinstance(stored, dict):
        if value.keys() != stored.keys():
            return value, stored
        pairs = zip(value.values(), (stored[key] for key in value), strict=True)
    elif type(value) is type(stored) or value == stored:
        return None
    else:
        return value, stored
    return next((found for pair in pairs if (found := changed_by_json(*pair)) is not None), None)


def _field(parameter: inspect.Parameter, handler: Callable[..., Any]) -> tuple[str, Any, Any]:
    annotation = _resolved(parameter.annotation, handler)
    if not _holds_json(annotation):
        annotation = Any  # left to the handler
    if parameter.default is inspect.Parameter.empty:
        return (parameter.name, annotation, msgspec.NODEFAULT)
    return (parameter.name, annotation | msgspec.UnsetType, msgspec.UNSET)


def _resolved(annotation: Any, handler: Callable[..., Any]) -> Any:
    """An annotation that may be a string, as `from __future__ import annotations` makes it."""
    if not isinstance(annotation, str):
        return annotation
    function = inspect.unwrap(handler)
    function = getattr(function, "__func__", function)
    namespace = getattr(function, "__globals__", None) or getattr(
        type(function).__call__, "__globals__", {}
    )
    try:
        return eval(annotation, namespace)  # noqa: S307 - the program's own annotation
    except Exception:  # noqa: BLE001 - it is any code, such as a name known to type checkers only
        return Any


def _holds_json(annotation: Any) -> bool:
    """Whether JSON can be checked against an annotation and turned into it."""
    try:
        msgspec.json.Decoder(annotation | msgspec.UnsetType)
        return not _is_custom(msgspec.inspect.type_info(annotation), set())
    except Exception:  # noqa: BLE001 - whatever msgspec or the annotated class makes of it
        return False


def _is_custom(info: Any, seen: set[int]) -> bool:
    """Whether a type that only its own program knows is somewhere in it."""
    if isinstance(info, msgspec.inspect.CustomType):
        return True
    if isinstance(info, tuple):
        return any(_is_custom(part, seen) for part in info)
    if not isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field) or id(info) in seen:
        return False
    seen.add(id(info))
    return any(_is_custom(getattr(info, part), seen) for part in info.__struct_fields__)


class Task(Generic[P, R]):
    """A handler with a name, its options and its own `enqueue`. Calling it just calls it."""

    def __init__(
        self,
        penstock: "Penstock",
        name: str,
        handler: Callable[P, R],
        options: Options,
        *,
        permanent: tuple[type[Exception], ...] = (),
        merge: Merge | None = None,
        arguments: Arguments | None = None,
        isolation: Isolation | None = None,
    ) -> None:
        self.name = name
        self.handler = handler
        self.permanent = permanent
        self.merge = merge
        self.isolation = isolation
        self.is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - an object whose call is awaited
        )
        self.arguments = arguments or Arguments(name, handler)
        self._penstock = penstock
        self._options = options
        self._connection = options.get("connection")
        self._fields = _new_job_fields(options)
        functools.update_wrapper(self, handler)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    @property
    def queue(self) -> str:
        """Where its jobs go, unless they are enqueued elsewhere."""
        return self._options.get("queue", DEFAULT_QUEUE)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the handler here and now, without any queue."""
        return self.handler(*args, **kwargs)

    def using(self, **options: Unpack[Options]) -> "Task[P, R]":
        """The same task with other options for the jobs enqueued through it."""
        task = self._with(options)
        self._penstock.check(NewJob(task=self.name, payload="{}", **task._fields))
        return task

    def _with(self, options: Options) -> "Task[P, R]":
        """As `using`, for options that are checked when a job is stored."""
        merged: Options = {**self._options, **options}
        return Task(
            self._penstock,
            self.name,
            self.handler,
            merged,
            permanent=self.permanent,
            merge=self.merge,
            arguments=self.arguments,
            isolation=self.isolation,
        )

    def new(self, /, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """A job for `Penstock.enqueue_many`; raises `InvalidJob` if the arguments do not fit."""
        return NewJob(task=self.name, payload=self.arguments.encode(args, kwargs), **self._fields)

    def of(self, arguments: Any) -> NewJob:
        """As `new`, for arguments by name that are JSON already, from a file or another program."""
        return NewJob(task=self.name, payload=self.arguments.encode_json(arguments), **self._fields)

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Store a job that calls the handler with these arguments; durable on return."""
        (job,) = await self._penstock.enqueue_many(
            (self.new(*args, **kwargs),), connection=self._connection
        )
        return job


def _new_job_fields(options: Options) -> dict[str, Any]:
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise ConfigurationError(f"jobs have no option {', '.join(sorted(unknown))}")
    fields: dict[str, Any] = {k: v for k, v in options.items() if k != "connection"}
    if "tags" in fields:
        if isinstance(fields["tags"], str):
            raise ConfigurationError("tags are a list of strings, not a string")
        fields["tags"] = tuple(fields["tags"])
    if "after" in fields:
        fields["after"] = tuple(
            job.id if isinstance(job, Job) else JobId(job) for job in fields["after"]
        )
    return fields
