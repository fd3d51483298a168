"""JSON that can be read back: by every store, worker, client and page that meets it later.

What a parser takes is more than what all of them can read. A number of 5,000 digits, `1e999` or
nine hundred nested lists are stored in a moment, and end whoever reads them a day later. So they
are refused at every door that stores something, by the same rule.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import accumulate
from typing import Any

import msgspec

from penstock.core.errors import Unreadable

DEPTH_LIMIT = 200
"""Levels that a value may be nested: whoever reads it later needs room on the stack for them."""
DIGITS_LIMIT = 4_300
"""Digits that an integer may have: Python converts no longer ones to and from text."""

_ESCAPES = re.compile(rb"\\.", re.DOTALL)
_TEXTS = re.compile(rb'"[^"]*"')
_HALF = "holds half of a surrogate pair, which is no text"
_BITS_LIMIT = int(DIGITS_LIMIT * math.log2(10))
_UNMARKED = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1, ord('"'): 0}
_REFUSALS = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


def read(text: str, field: str, levels: int = DEPTH_LIMIT) -> Any:
    """Decode a JSON text; raises `Unreadable`, which names what is wrong below `field`."""
    try:
        check_depth(text, field, levels)
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise _explained(text, field, error) from error


def encode(value: Any, field: str, levels: int = DEPTH_LIMIT) -> str:
    """Encode a value as JSON; raises `Unreadable` for one that would not come back as it is.

    NaN and the infinities have no JSON. Most encoders write null for them, silently.
    """
    try:
        text = msgspec.json.encode(value).decode()
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
    """Name what in a value has no JSON, or none that could be read back."""
    for path, leaf in _leaves(value, field):
        match leaf:
            case float() if not math.isfinite(leaf):
                raise Unreadable(path, f"is {leaf}, which JSON does not have")
            case int() if leaf.bit_length() > _BITS_LIMIT:
                raise Unreadable(path, f"is an integer of more than {DIGITS_LIMIT:,} digits")
            case str() if not _is_text(leaf):
                raise Unreadable(path, _HALF)


def check_depth(text: str, field: str, levels: int = DEPTH_LIMIT) -> None:
    """Raise `Unreadable` for a JSON text that is nested more deeply than this."""
    if is_deeper(text, levels):
        raise _too_deep(field)


def is_deeper(text: str | bytes, levels: int = DEPTH_LIMIT) -> bool:
    """Whether a JSON text is nested more deeply than this."""
    if isinstance(text, str):
        if text.count("[") + text.count("{") <= levels:  # as in nearly all
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
    """Stands in a decoded text for what cannot be read."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def _explained(text: str, field: str, error: Exception) -> Unreadable:
    """Return the error that names which part of a text is wrong."""
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
        case msgspec.Struct():
            for name in value.__struct_fields__:
                yield from _leaves(getattr(value, name), _below(path, name))
        case _ if is_dataclass(value) and not isinstance(value, type):
            for one in fields(value):
                yield from _leaves(getattr(value, one.name), _below(path, one.name))


def _below(path: str, name: str) -> str:
    shown = name if name.isprintable() and len(name) <= 80 else f"{name[:80]!a}"  # noqa: PLR2004
    return f"{path}.{shown}" if path else shown
