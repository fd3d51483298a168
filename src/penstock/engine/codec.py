"""Arguments and results as JSON, encoded and decoded by the annotations of a handler."""

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, get_type_hints

import msgspec
import msgspec.inspect

from penstock.core.decode_errors import mismatch
from penstock.core.errors import ConfigurationError, InvalidJob, Unreadable
from penstock.core.job import Job
from penstock.core.jsontext import DEPTH_LIMIT, check_depth
from penstock.core.models import decode_model, decoder, differs, encode_model, has_model, is_model

_MISFITS = (TypeError, ValueError, OverflowError, RecursionError)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# Nothing to decode: also for a handler that only declares a task of another program.
_PLAIN = (inspect.Signature.empty, Any, None, type(None), NoReturn, object)

S = TypeVar("S")
T = TypeVar("T")
Handler = Callable[..., Any]
Decode = Callable[[str | bytes | msgspec.Raw], Any]


class _computed_once(Generic[S, T]):  # noqa: N801 - used as a decorator
    """`functools.cached_property` without its lock, which a forked child could find held.

    Before Python 3.12 that lock is one for all instances. Two threads may compute the value.
    """

    def __init__(self, compute: Callable[[S], T]) -> None:
        self._compute = compute
        self._name = compute.__name__

    def __get__(self, instance: S, _: type[S]) -> T:
        value = instance.__dict__[self._name] = self._compute(instance)
        return value


class Arguments:
    """The parameters of a handler as one JSON object, checked against its annotations."""

    def __init__(self, name: str, handler: Handler) -> None:
        parameters = inspect.signature(handler).parameters.values()
        for parameter in parameters:
            if parameter.kind not in _NAMED:
                raise ConfigurationError(
                    f"task {name}: parameter {parameter} is not supported: arguments are stored by "
                    "name, so every parameter needs one"
                )
        self._positional = [
            parameter.name
            for parameter in parameters
            if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        ]
        self._parameters = tuple(parameters)
        # Without parameters that need their names, the struct takes arguments as the handler does.
        self._takes_positions = len(self._positional) == len(parameters)
        self._optional = any(p.default is not inspect.Parameter.empty for p in parameters)
        self._name = name
        self._handler = handler
        self._encode = msgspec.json.Encoder(enc_hook=encode_model).encode

    @_computed_once
    def _codec(self) -> "_Codec":
        """Made when it is first needed: a string may name a class that is defined later."""
        return _Codec.of(self._parameters, self._handler, kw_only=not self._takes_positions)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the JSON text of these arguments; raise `InvalidJob` if they do not match."""
        codec = self._codec
        try:
            values = self._made(codec.struct, args, kwargs)
            encoded = self._encode(values)
            payload = encoded.decode()
            check_depth(payload, "the value of an argument", DEPTH_LIMIT + 1)
            stored = codec.decode(encoded)
        except _MISFITS as error:
            raise self._misfit(error) from error
        if stored != values:
            for name in values.__struct_fields__:
                self._check_unchanged(name, getattr(values, name), getattr(stored, name))
        return payload

    def encode_json(self, arguments: Any) -> str:
        """Encode arguments that are JSON values already: `"2030-01-01"` for a date."""
        if not (isinstance(arguments, Mapping) and all(isinstance(k, str) for k in arguments)):
            raise InvalidJob(f"arguments of task {self._name}: expected names and their values")
        try:
            if unknown := arguments.keys() - {one.name for one in self._parameters}:
                raise TypeError(f"there is no {', '.join(sorted(unknown))}")
            payload = self._encode(arguments).decode()
            check_depth(payload, "the value of an argument", DEPTH_LIMIT + 1)
            self._codec.decode(payload)
        except _MISFITS as error:
            raise self._misfit(error) from error
        for name, stored in msgspec.json.decode(payload).items():
            self._check_unchanged(name, arguments[name], stored)
        return payload

    def decode(self, payload: str) -> dict[str, Any]:
        """Return the arguments by name, in the types of the handler; raises `InvalidJob`."""
        try:
            values = self._codec.decode(payload)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise self._misfit(error) from error
        arguments = msgspec.structs.asdict(values)
        if self._optional:
            return {k: v for k, v in arguments.items() if v is not msgspec.UNSET}
        return arguments

    def _misfit(self, error: Exception) -> InvalidJob:
        return InvalidJob(f"arguments of task {self._name}: {mismatch(error, self._codec.struct)}")

    def _made(
        self, struct: type[msgspec.Struct], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> msgspec.Struct:
        try:
            if self._takes_positions:
                return struct(*args, **kwargs)
        except TypeError:  # the same below, which says it in the words of the handler
            pass
        return struct(**self._bound(args, kwargs))

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
            unknown = self._codec.unresolved.get(name)
            raise InvalidJob(
                f"arguments of task {self._name}: in {name}, {changed[0]!r:.80} would come "
                f"back as {changed[1]!r:.80}; "
                + (f"{unknown}, " if unknown else "annotate the parameter, ")
                + "or pass plain JSON"
            )


class _Codec(NamedTuple):
    """The arguments of a handler as a struct, by annotations that are evaluated."""

    struct: type[msgspec.Struct]
    decode: Callable[[str | bytes], Any]
    unresolved: Mapping[str, "_Unresolved"]
    """Parameters whose annotations cannot be evaluated; their values are plain JSON."""

    @classmethod
    def of(
        cls, parameters: Sequence[inspect.Parameter], handler: Handler, *, kw_only: bool
    ) -> "_Codec":
        decoders: dict[str, Decode] = {}
        unresolved: dict[str, _Unresolved] = {}
        fields: list[tuple[str, Any, Any]] = []
        for parameter in parameters:
            annotation = _resolved(parameter.annotation, handler)
            if isinstance(annotation, _Unresolved):
                unresolved[parameter.name], annotation = annotation, Any
            if not _holds_json(annotation):
                decode = _model_decoder(annotation)
                if decode is not None:
                    decoders[parameter.name] = decode
                annotation = Any if decode is None else msgspec.Raw  # Any is left to the handler
            if parameter.default is inspect.Parameter.empty:
                fields.append((parameter.name, annotation, msgspec.NODEFAULT))
            else:
                fields.append((parameter.name, annotation | msgspec.UnsetType, msgspec.UNSET))
        struct = msgspec.defstruct("Arguments", fields, kw_only=kw_only, gc=False)
        plain = msgspec.json.Decoder(struct, dec_hook=decode_model).decode
        return cls(struct, _decoding(plain, decoders) if decoders else plain, unresolved)


def _decoding(
    plain: Callable[[str | bytes], Any], decoders: Mapping[str, Decode]
) -> Callable[[str | bytes], Any]:
    """Return a decoder for a struct some of whose fields have decoders of their own."""

    def decode_all(payload: str | bytes) -> Any:
        values = plain(payload)
        for name, decode in decoders.items():
            raw = getattr(values, name)
            if raw is not msgspec.UNSET:
                try:
                    setattr(values, name, decode(raw))
                except ValueError as error:
                    raise msgspec.ValidationError(f"{error} - at `$.{name}`") from error
        return values

    return decode_all


class Result:
    """The result of a handler, decoded by the annotation of what it returns."""

    def __init__(self, name: str, handler: Handler) -> None:
        self._name = name
        self._handler = handler

    @_computed_once
    def _annotation(self) -> Any:
        annotation = inspect.signature(self._handler).return_annotation
        return _resolved(annotation, self._handler)

    @_computed_once
    def _decode(self) -> Decode | None:
        """Made when it is first needed: a string may name a class that is defined later."""
        annotation = self._annotation
        if annotation in _PLAIN:
            return None
        if _holds_json(annotation):
            return msgspec.json.Decoder(annotation, dec_hook=decode_model).decode
        return _model_decoder(annotation)

    def decode(self, job: Job) -> Any:
        """Return the result of a job that is done; raises `Unreadable` if it does not match.

        A result without an annotation, or with one that JSON cannot hold, is plain JSON.
        """
        if job.result_json is None:
            return job.returned
        field = f"result of job {job.id}"
        if isinstance(self._annotation, _Unresolved):
            raise Unreadable(
                field,
                f"cannot be decoded as task {self._name} is annotated: {self._annotation}; "
                "job.returned is the stored value",
            )
        if self._decode is None:
            return job.returned
        try:
            check_depth(job.result_json, field)
            return self._decode(job.result_json)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            _ = job.returned  # says it if this is not JSON at all
            raise Unreadable(
                field,
                f"is not what task {self._name} is annotated to return: "
                f"{mismatch(error, self._annotation)}; job.returned is the stored value",
            ) from error


def changed_by_json(value: Any, stored: Any) -> tuple[Any, Any] | None:
    """Return a value, and what JSON would silently turn it into; None if nothing changes."""
    if isinstance(value, list | tuple) and isinstance(stored, list | tuple):
        pairs = zip(value, stored, strict=True)
    elif isinstance(value, dict) and isinstance(stored, dict):
        if value.keys() != stored.keys():
            return value, stored
        pairs = zip(value.values(), (stored[key] for key in value), strict=True)
    elif type(value) is type(stored):
        return (value, stored) if is_model(type(value)) and differs(value, stored) else None
    elif value == stored:
        return None
    else:
        return value, stored
    return next((found for pair in pairs if (found := changed_by_json(*pair)) is not None), None)


class _Unresolved:
    """An annotation that cannot be evaluated, such as a name that only type checkers import."""

    def __init__(self, annotation: Any, why: Exception) -> None:
        self._annotation = annotation
        self._why = why

    def __str__(self) -> str:
        return (
            f"the annotation {self._annotation!r:.80} cannot be evaluated ({self._why}): define or "
            "import the class at the top of the module, outside of `if TYPE_CHECKING`"
        )


class _Annotated:
    """What `typing.get_type_hints` takes, with one annotation."""

    def __init__(self, annotation: Any) -> None:
        self.__annotations__ = {"value": annotation}


def _resolved(annotation: Any, handler: Handler) -> Any:
    """Evaluate the strings in an annotation, as in `list["User"]`, or the whole if it is one.

    The names are those of the module, and of the functions around the handler as far as it uses
    them.
    """
    if annotation is None or annotation is inspect.Parameter.empty:
        return annotation
    function = inspect.unwrap(handler)
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__globals__"):
        function = type(function).__call__
    known = {**getattr(function, "__globals__", {}), **_enclosed(function)}
    try:
        hints = get_type_hints(_Annotated(annotation), known, include_extras=True)
    except Exception as error:  # noqa: BLE001 - it is any code
        return _Unresolved(annotation, error)
    return hints["value"]


def _enclosed(function: Any) -> dict[str, Any]:
    """Return the variables of functions around this one that it uses, if they have a value."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    found = {}
    for name, cell in zip(code.co_freevars if code else (), cells or (), strict=True):
        with contextlib.suppress(ValueError):  # it is assigned later
            found[name] = cell.cell_contents
    return found


def _holds_json(annotation: Any) -> bool:
    """Return whether JSON can be validated against an annotation and converted to it."""
    try:
        msgspec.json.Decoder(annotation | msgspec.UnsetType, dec_hook=decode_model)
        return not _is_custom(msgspec.inspect.type_info(annotation), set())
    except Exception:  # noqa: BLE001 - whatever msgspec or the annotated class makes of it
        return False


def _model_decoder(annotation: Any) -> Decode | None:
    """Return a decoder for an annotation with models that msgspec cannot hold, if it is one."""
    try:
        return decoder(annotation) if has_model(annotation) else None
    except Exception:  # noqa: BLE001 - whatever pydantic or the annotated class makes of it
        return None


def _is_custom(info: Any, seen: set[int]) -> bool:
    """Return whether it contains a type that neither msgspec nor pydantic knows."""
    if isinstance(info, msgspec.inspect.CustomType):
        return not is_model(info.cls)
    if isinstance(info, tuple):
        return any(_is_custom(part, seen) for part in info)
    if not isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field) or id(info) in seen:
        return False
    seen.add(id(info))
    return any(_is_custom(getattr(info, part), seen) for part in info.__struct_fields__)
