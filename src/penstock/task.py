"""A task: a named handler, and the typed way to enqueue jobs for it."""

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack

import msgspec

from penstock.core.errors import ConfigurationError, InvalidJob
from penstock.core.job import Job, NewJob, Scope
from penstock.core.retry import RetryPolicy

if TYPE_CHECKING:
    from penstock.engine import Penstock

P = ParamSpec("P")
R = TypeVar("R")

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Options(TypedDict, total=False):
    """What a job can ask for, besides its arguments."""

    queue: str
    priority: int
    delay: timedelta
    run_at: datetime
    key: str
    dedupe: str
    scope: Scope
    tags: tuple[str, ...] | list[str]
    retry: RetryPolicy
    timeout: timedelta
    lease: timedelta
    connection: Any


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
        types = _annotations(handler)
        self._struct = msgspec.defstruct(
            "Arguments",
            [_field(parameter, types.get(parameter.name, Any)) for parameter in parameters],
        )
        self._positional = sum(
            parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters
        )
        self._name = name
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(self._struct).decode
        self._optional = any(p.default is not inspect.Parameter.empty for p in parameters)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The JSON text of these arguments; raises `InvalidJob` if they do not fit."""
        if len(args) > self._positional:
            raise InvalidJob(f"task {self._name} takes {self._positional} positional arguments")
        try:
            values = self._struct(*args, **kwargs)
            payload = self._encode(values)
            stored = self._decode(payload)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidJob(f"arguments of task {self._name}: {error}") from error
        if stored != values:
            self._check_same(values, stored)
        return payload.decode()

    def _check_same(self, values: msgspec.Struct, stored: msgspec.Struct) -> None:
        for name in values.__struct_fields__:
            if (changed := _changed(getattr(values, name), getattr(stored, name))) is not None:
                raise InvalidJob(
                    f"arguments of task {self._name}: in {name}, {changed[0]!r:.80} would come "
                    f"back as {changed[1]!r:.80}; annotate the parameter, or pass plain JSON"
                )

    def decode(self, payload: str) -> dict[str, Any]:
        """The arguments by name, in the types the handler asks for; raises `InvalidJob`."""
        try:
            values = self._decode(payload)
        except msgspec.MsgspecError as error:
            raise InvalidJob(f"arguments of task {self._name}: {error}") from error
        arguments = msgspec.structs.asdict(values)
        if self._optional:
            return {k: v for k, v in arguments.items() if v is not msgspec.UNSET}
        return arguments


def _changed(value: Any, stored: Any) -> tuple[Any, Any] | None:
    """What storing as JSON would silently turn into something else."""
    if isinstance(value, list | tuple) and isinstance(stored, list | tuple):
        pairs = zip(value, stored, strict=True)
    elif isinstance(value, dict) and isinstance(stored, dict) and value.keys() == stored.keys():
        pairs = zip(value.values(), (stored[key] for key in value), strict=True)
    elif type(value) is type(stored) or value == stored:
        return None
    else:
        return value, stored
    return next((found for pair in pairs if (found := _changed(*pair)) is not None), None)


def _annotations(handler: Callable[..., Any]) -> dict[str, Any]:
    try:
        return inspect.get_annotations(handler, eval_str=True)
    except Exception:  # noqa: BLE001 - annotations are any code; without them nothing is checked
        return {}


def _field(parameter: inspect.Parameter, annotation: Any) -> tuple[str, Any, Any]:
    try:
        msgspec.json.Decoder(annotation)
    except TypeError:  # a type that JSON cannot hold: left to the handler
        annotation = Any
    if parameter.default is inspect.Parameter.empty:
        return (parameter.name, annotation, msgspec.NODEFAULT)
    return (parameter.name, annotation | msgspec.UnsetType, msgspec.UNSET)


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
        arguments: Arguments | None = None,
    ) -> None:
        self.name = name
        self.handler = handler
        self.permanent = permanent
        self.is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - an object whose call is awaited
        )
        self.arguments = arguments or Arguments(name, handler)
        self._penstock = penstock
        self._options = options
        self._connection = options.get("connection")
        self._fields = _new_job_fields(options)
        self.__doc__ = handler.__doc__

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the handler here and now, without any queue."""
        return self.handler(*args, **kwargs)

    def using(self, **options: Unpack[Options]) -> "Task[P, R]":
        """The same task with other options for the jobs enqueued through it."""
        merged: Options = {**self._options, **options}
        return Task(
            self._penstock,
            self.name,
            self.handler,
            merged,
            permanent=self.permanent,
            arguments=self.arguments,
        )

    def new(self, /, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """A job for `Penstock.enqueue_many`; raises `InvalidJob` if the arguments do not fit."""
        return NewJob(task=self.name, payload=self.arguments.encode(args, kwargs), **self._fields)

    def of(self, arguments: Any) -> NewJob:
        """As `new`, with the arguments by name, whatever their names are."""
        if not (isinstance(arguments, Mapping) and all(isinstance(k, str) for k in arguments)):
            raise InvalidJob(f"arguments of task {self.name}: expected names and their values")
        return NewJob(task=self.name, payload=self.arguments.encode((), arguments), **self._fields)

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Store a job that calls the handler with these arguments; durable on return."""
        (job,) = await self._penstock.enqueue_many(
            (self.new(*args, **kwargs),), connection=self._connection
        )
        return job


def _new_job_fields(options: Options) -> dict[str, Any]:
    fields: dict[str, Any] = {k: v for k, v in options.items() if k != "connection"}
    if "tags" in fields:
        fields["tags"] = tuple(fields["tags"])
    return fields
