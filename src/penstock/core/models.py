"""Pydantic models as JSON, for programs that use them; pydantic itself is never imported here.

A program that has a model has imported pydantic. msgspec, which encodes and decodes everything
else, calls these hooks for types that it does not know.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any, get_args

import msgspec

_SHOWN = 3


def is_model(kind: Any) -> bool:
    """Return whether a type is a pydantic model."""
    pydantic = sys.modules.get("pydantic.main")
    return (
        pydantic is not None
        and isinstance(kind, type)
        and issubclass(kind, pydantic.BaseModel)
        and hasattr(kind, "model_validate_json")  # not before pydantic 2
    )


def has_model(annotation: Any) -> bool:
    """Return whether an annotation is a pydantic model, or names one, as `A | B` does."""
    return is_model(annotation) or any(has_model(part) for part in get_args(annotation))


def encode_model(value: Any) -> msgspec.Raw:
    """Return a model as JSON, from which the same model can be made again."""
    if not is_model(type(value)):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return msgspec.Raw(value.model_dump_json(by_alias=True, round_trip=True).encode())


def decode_model(kind: Any, value: Any) -> Any:
    """Return the model that a decoded JSON value describes; raises `ValueError`."""
    # As JSON again: a strict model takes a date from JSON text, but not from a `str`.
    return _explained(kind.model_validate_json, msgspec.json.encode(value))


def decoder(annotation: Any) -> Callable[[bytes | str | msgspec.Raw], Any]:
    """Return a function that decodes JSON to an annotation with models that msgspec cannot hold.

    That is a union of several models, or of models and other types. Raises an error of pydantic
    if pydantic cannot hold it either.
    """
    validate = sys.modules["pydantic"].TypeAdapter(annotation).validate_json
    return lambda text: _explained(validate, text if isinstance(text, str) else bytes(text))


def differs(value: Any, stored: Any) -> bool:
    """Return whether two models of one type have different fields; private ones do not count."""
    return bool(vars(value) != vars(stored))


def _explained(validate: Callable[[Any], Any], text: bytes | str) -> Any:
    """Validate, and say what is wrong without the values, which may be secret."""
    try:
        return validate(text)
    except ValueError as error:
        raise ValueError("; ".join(_complaints(error)) or str(error)) from None


def _complaints(error: Any) -> Iterator[str]:
    if not hasattr(error, "errors"):
        return
    found = error.errors(include_url=False, include_context=False, include_input=False)
    for one in found[:_SHOWN]:
        place = ".".join(str(part) for part in one["loc"])
        yield f"{place}: {one['msg']}" if place else one["msg"]
    if len(found) > _SHOWN:
        yield f"and {len(found) - _SHOWN} more"
