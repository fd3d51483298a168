"""JSON that can be read back, by every store, worker, client and page that meets it later.

Some parsers accept more than others can read. A number of 5,000 digits, `1e999` or nine hundred
nested lists are easily stored, and crash a reader a day later. They are rejected wherever something
is stored, by the same rule.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

import msgspec

from penstock.core.errors import Unreadable
from penstock.core.models import encode_model, is_model

DEPTH_LIMIT = 200
"""How many levels deep a value may be nested: its readers need room on the stack for them."""
DIGITS_LIMIT = 4_300
"""How many digits an integer may have: Python does not convert longer ones to or from text."""

_ESCAPES = re.compile(rb"\\.", re.DOTALL)
_TEXTS = re.compile(rb'"[^"]*"')
_HALF = "holds half of a surrogate pair, which is no text"
_BITS_LIMIT = int(DIGITS_LIMIT * math.log2(10))
_UNMARKED = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1, ord('"'): 0}
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(enc_hook=encode_model).encode
_REFUSALS = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


def read(text: str, field: str, levels: int = DEPTH_LIMIT) -> Any:
    """Decode a JSON text; raises `Unreadable`, which names what is wrong below `field`."""
    try:
        check_depth(text, field, levels)
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise _explained(text, field, error) from error


def is_object(text: str, field: str, levels: int = DEPTH_LIMIT) -> bool:
    """Return whether a JSON text is an object; raises `Unreadable`. Faster than `read`."""
    try:
        if text.count("[") + text.count("{") <= levels:
            return type(_decode(text)) is dict
    except (msgspec.MsgspecError, UnicodeError, RecursionError):  # `read` says what is wrong
        pass
    return isinstance(read(text, field, levels), dict)


def encode(value: Any, field: str, levels: int = DEPTH_LIMIT) -> str:
    """Encode a value as JSON; raises `Unreadable` for one that would not be read back unchanged.

    NaN and the infinities have no JSON. Most encoders write null for them, silently.
    """
    try:
        text = _encode(value).decode()
        if "null" in text:
            _check_leaves(value, field)
        check_depth(text, field, levels)
    except RecursionError:
        raise _too_deep(field) from None
    except Unreadable:
        raise
    except _REFUSALS as error:
        _check_leaves(value, field)
        raise Unreadable(field, f"is not JSON: {error}") from error
    return text


def _check_leaves(value: Any, field: str) -> None:
    """Raise for the part of a value that has no JSON, or none that can be read back."""
    for path, leaf in _leaves(value, field):
        match leaf:
            case float() if not math.isfinite(leaf):
                raise Unreadable(path, f"is {leaf}, which JSON does not have")
            case int() if leaf.bit_length() > _BITS_LIMIT:
                raise Unreadable(path, f"is an integer of more than {DIGITS_LIMIT:,} digits")
            case str() if not _is_text(leaf):
                raise Unreadable(path, _HALF)


def check_depth(text: str, field: str, levels: int = DEPTH_LIMIT) -> None:
    """Raise `Unreadable` for a JSON text that is nested more than `levels` deep."""
    if text.count("[") + text.count("{") > levels and is_deeper(text, levels):  # nearly never
        raise _too_deep(field)


def is_deeper(text: str | bytes, levels: int = DEPTH_LIMIT) -> bool:
    """Return whether a JSON text is nested more than `levels` deep."""
    if isinstance(text, str):
        if text.count("[") + text.count("{") <= levels:  # nearly always
            return False
        text = text.encode()
    if text.count(b"[") + text.count(b"{") <= levels:
        return False
    if b"\\" in text:
        text = _ESCAPES.sub(b"", text)
    marks = _TEXTS.sub(b"", text.translate(None, _UNMARKED))
    return max(accumulate(map(_STEPS.__getitem__, marks)), default=0) > levels


def _too_deep(field: str) -> Unreadable:
    return Unreadable(field, f"is nested more than {DEPTH_LIMIT} levels deep")


class _Odd:
    """A placeholder, in a decoded text, for what cannot be read."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def _explained(text: str, field: str, error: Exception) -> Unreadable:
    """Return the error that names which part of a text is wrong."""
    import json

    try:
        found = json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=_constant)
        path, odd = next(_odd(found, field), (field, None))
    except (ValueError, RecursionError):
        path, odd = field, None
    return Unreadable(path, f"is not JSON: {error}" if odd is None else odd)


def _integer(digits: str) -> Any:
    count = len(digits.lstrip("-"))
    if count <= DIGITS_LIMIT:
        return 0
    return _Odd(f"is an integer of {count:,} digits; at most {DIGITS_LIMIT:,} can be read back")


def _float(text: str) -> Any:
    if math.isfinite(float(text)):
        return 0.0
    return _Odd(f"is {text:.20}, which is larger than any number that can be read back")


def _constant(name: str) -> Any:
    return _Odd(f"is {name}, which JSON does not have")


def _odd(value: Any, path: str) -> Iterator[tuple[str, str]]:
    match value:
        case _Odd():
            yield path, value.reason
        case str() if not _is_text(value):
            yield path, _HALF
        case dict():
            for name, one in value.items():
                if not _is_text(name):
                    yield path, "has a name with half of a surrogate pair, which is no text"
                yield from _odd(one, _below(path, name))
        case list():
            for n, one in enumerate(value):
                yield from _odd(one, f"{path}[{n}]")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    match value:
        case float() | int() | str():
            yield path, value
        case Mapping():
            for name, one in value.items():
                yield from _leaves(one, _below(path, str(name)))
        case list() | tuple() | set() | frozenset():
            for n, one in enumerate(value):
                yield from _leaves(one, f"{path}[{n}]")
        case _:
            for name in _names_of_fields(value):
                yield from _leaves(getattr(value, name), _below(path, name))


def _names_of_fields(value: Any) -> Iterable[str]:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    from dataclasses import fields, is_dataclass

    if is_dataclass(value) and not isinstance(value, type):
        return [one.name for one in fields(value)]
    return vars(value) if is_model(type(value)) else ()


def _below(path: str, name: str) -> str:
    shown = name if name.isprintable() and len(name) <= 80 else f"{name[:80]!a}"  # noqa: PLR2004
    return f"{path}.{shown}" if path else shown
