"""Errors of decoding in plain words: where a value does not match its type, and what is allowed.

msgspec says "Expected `int`, got `str` - at `$.operations[0].to`". This becomes the field,
`operations[0].to`, and a sentence that says what is allowed: "must be an integer from 0 to 10; got
text". What is allowed is derived from the type, so that the sentence is complete.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec import inspect

_PLACE = re.compile(r"(?s)(?P<text>.*?)(?: - at `(?P<key>key` in `)?\$(?P<path>[^`]*)`)?")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+|\.\.\.)\]")
_MISSING = re.compile(r"(?:Object missing required field|Missing required argument) .(?P<name>.*).")
_UNKNOWN = re.compile(
    r"(?:Object contains unknown field|Unexpected keyword argument) .(?P<name>.*)."
)
_CHOICE = re.compile(r"(?s)Invalid (?:enum )?value (?P<value>.+)")
_KIND = re.compile(r"Expected `(?P<wanted>.+?)`, got `(?P<got>.+)`")
# Other messages of msgspec about values of the right type that are not allowed.
_OTHER = re.compile(
    r"Expected `.*|Invalid (?:RFC3339|ISO8601|UUID|base64|decimal|epoch).*|"
    r"(?:Integer value|Number|Duration|Timestamp) (?:is )?out of range.*"
)
_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
    "bytes": "text in Base64",
    "datetime": "a date and time such as 2030-01-31T12:00:00Z",
    "date": "a date such as 2030-01-31",
    "time": "a time such as 12:00:00",
    "duration": "a duration, as a number of seconds or such as PT5M",
    "uuid": "a UUID",
    "decimal": "a decimal number",
}
_GOT = {**_WORDS, "bool": "a boolean", "datetime": "a date and time", "date": "a date"}
_SHOWN = 80
# Larger limits are those of the machine and mean nothing to people.
_LARGEST = 2**53


class Mismatch(NamedTuple):
    """The field that is wrong, empty for the whole value, and what is wrong with it."""

    field: str
    text: str

    def __str__(self) -> str:
        return f"{self.field}: {self.text}" if self.field else self.text


def mismatch(  # noqa: PLR0911 - a list of cases
    error: Exception | str, kind: Any = None, given: Any = None
) -> Mismatch:
    """Explain an error of msgspec; `kind` is the expected type, if it is known.

    `given` has texts that were decoded leniently, such as parameters by name: a wrong one is
    shown, because all of them are text. An error that is not msgspec's own, such as one that a
    type raised, stays as it is.
    """
    found = _PLACE.fullmatch(str(error))
    text, path = (found["text"], found["path"] or "") if found else (str(error), "")
    field = path.removeprefix(".")
    if found and found["key"]:
        key = mismatch(text, None if kind is None else _key_type(kind, path))
        return Mismatch(field, f"a key {key.text}")
    type_ = None if kind is None else _at(kind, path)
    if named := _MISSING.fullmatch(text):
        return Mismatch(_inside(field, named["name"]), "is required")
    if named := _UNKNOWN.fullmatch(text):
        return Mismatch(_inside(field, named["name"]), _unknown(named["name"], type_))
    if wrong := _CHOICE.fullmatch(text):
        value = wrong["value"][:_SHOWN]
        allowed = f"must be {_wanted(type_)}; got {value}" if type_ else f"{value} is not allowed"
        return Mismatch(field, allowed)
    if wrong := _KIND.fullmatch(text):
        wanted = _wanted(type_) if type_ else _either(wrong["wanted"].split(" | "))
        value = given.get(field) if isinstance(given, Mapping) else given
        got = repr(value)[:_SHOWN] if isinstance(value, str) else _GOT.get(wrong["got"])
        return Mismatch(field, f"must be {wanted}; got {got or wrong['got']}")
    if _OTHER.fullmatch(text):
        return Mismatch(field, f"must be {_wanted(type_)}" if type_ else _plain(text))
    return Mismatch(field, text)


def _inside(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name


def _unknown(name: str, type_: inspect.Type | None) -> str:
    known = [
        field.encode_name for one in _alternatives(type_) for field in getattr(one, "fields", ())
    ]
    if not known:
        return "is not a known field"
    from difflib import get_close_matches

    near = get_close_matches(name[:_SHOWN], known, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"is not a known field; {meant}{'C' if meant else 'c'}hoose from {', '.join(known)}"


# Finding the type at a place


def _key_type(kind: Any, path: str) -> Any:
    """Return the type of the keys of the value at a path."""
    inside = _at(kind, path)
    keys = [one.key_type for one in _alternatives(inside) if isinstance(one, inspect.DictType)]
    return keys[0] if len(keys) == 1 else inspect.StrType()


def _at(kind: Any, path: str) -> inspect.Type | None:
    """Return the type of the value at a path; None if it is unknown."""
    types: list[inspect.Type] = []
    with suppress(Exception):  # msgspec cannot describe every type
        types = [kind if isinstance(kind, inspect.Type) else inspect.type_info(kind)]
    for step in _STEP.finditer(path):
        types = [
            inner for one in types for part in _alternatives(one) for inner in _entered(part, step)
        ]
    if not types:
        return None
    return types[0] if len(types) == 1 else inspect.UnionType(types=tuple(types))


def _alternatives(type_: inspect.Type | None) -> Iterable[inspect.Type]:
    match type_:
        case None:
            return ()
        case inspect.UnionType():
            return [inner for one in type_.types for inner in _alternatives(one)]
        case inspect.Metadata():
            return _alternatives(type_.type)
        case _:
            return (type_,)


def _entered(type_: inspect.Type, step: re.Match[str]) -> Iterable[inspect.Type]:
    """Yield the types inside a type: of a field by name, or of an item or value by index."""
    if step["name"] is not None:
        for field in getattr(type_, "fields", ()):
            if field.encode_name == step["name"]:
                yield field.type
        if getattr(type_, "tag_field", None) == step["name"]:
            yield inspect.LiteralType(values=(type_.tag,))  # type: ignore[attr-defined] # of a StructType
    elif isinstance(type_, inspect.DictType):
        yield type_.value_type
    elif isinstance(type_, inspect.TupleType):
        if step["index"].isdigit() and int(step["index"]) < len(type_.item_types):
            yield type_.item_types[int(step["index"])]
    elif (item := getattr(type_, "item_type", None)) is not None:
        yield item


# Saying what is allowed


def _wanted(type_: inspect.Type | None) -> str:
    """Return what a type allows, such as `an integer from 0 to 10`."""
    said = dict.fromkeys(_described(one) for one in _alternatives(type_))
    choices = [str(value) for one in _alternatives(type_) for value in _values(one)]
    parts = [one for one in said if one and one != "null"]
    if choices:
        parts.append(f"one of {', '.join(dict.fromkeys(choices))}")
    if "null" in said:
        parts.append("null")
    or_ = ", or " if any("," in one for one in parts[:-1]) else " or "
    return or_.join(parts) or "another value"


def _values(type_: inspect.Type) -> Iterable[Any]:
    match type_:
        case inspect.EnumType():
            return [member.value for member in type_.cls]
        case inspect.LiteralType():
            return type_.values
        case _:
            return ()


def _described(type_: inspect.Type) -> str:
    if describe := _DESCRIBED.get(type(type_)):
        return describe(type_)
    if isinstance(type_, inspect.EnumType | inspect.LiteralType | inspect.AnyType):
        return ""
    return "an object" if hasattr(type_, "fields") else "another value"


def _number(word: str) -> Callable[[Any], str]:
    def describe(type_: Any) -> str:
        most = None if type_.le is None or type_.le >= _LARGEST else type_.le
        bounded = type_.ge is not None and most is not None
        limits = [
            f"{words} {_counted(bound)}"
            for words, bound in (
                ("greater than", type_.gt),
                ("of at least", type_.ge if not bounded else None),
                ("less than", type_.lt),
                ("of at most", most if not bounded else None),
            )
            if bound is not None
        ]
        if bounded:
            limits.insert(0, f"from {_counted(type_.ge)} to {_counted(most)}")
        text = " ".join([word, " and ".join(limits)]).strip()
        if type_.multiple_of is not None:
            text += f" that is a multiple of {_counted(type_.multiple_of)}"
        return text

    return describe


def _counted(number: Any) -> str:
    """Return a number with separators, and without decimals that say nothing."""
    return f"{int(number):,}" if number == int(number) else f"{number:,}"


def _sized(word: str, unit: str) -> Callable[[Any], str]:
    def describe(type_: Any) -> str:
        least, most = type_.min_length or None, type_.max_length
        if least is not None and most is not None:
            size = f" of {least:,}" if least == most else f" of {least:,} to {most:,}"
            size += f" {unit}s" if most > 1 else f" {unit}"
        elif least is not None:
            size = f" of at least {least:,} {unit}{'s' if least > 1 else ''}"
        else:
            size = "" if most is None else f" of at most {most:,} {unit}s"
        pattern = getattr(type_, "pattern", None)
        return f"{word}{size}" + ("" if pattern is None else f" that matches {pattern}")

    return describe


def _when(word: str) -> Callable[[Any], str]:
    zones = {None: "", True: ", with a time zone", False: ", without a time zone"}
    return lambda type_: _WORDS[word] + zones[getattr(type_, "tz", None)]


_DESCRIBED: Mapping[type, Callable[[Any], str]] = {
    inspect.IntType: _number("an integer"),
    inspect.FloatType: _number("a number"),
    inspect.StrType: _sized("text", "character"),
    inspect.BytesType: _sized("text in Base64", "byte"),
    inspect.ListType: _sized("a list", "item"),
    inspect.SetType: _sized("a list", "item"),
    inspect.FrozenSetType: _sized("a list", "item"),
    inspect.VarTupleType: _sized("a list", "item"),
    inspect.CollectionType: _sized("a list", "item"),
    inspect.DictType: _sized("an object", "field"),
    inspect.TupleType: lambda type_: f"a list of {len(type_.item_types)} items",
    inspect.BoolType: lambda _: "true or false",
    inspect.NoneType: lambda _: "null",
    inspect.DateTimeType: _when("datetime"),
    inspect.TimeType: _when("time"),
    inspect.DateType: lambda _: _WORDS["date"],
    inspect.TimeDeltaType: lambda _: _WORDS["duration"],
    inspect.UUIDType: lambda _: _WORDS["uuid"],
    inspect.DecimalType: lambda _: _WORDS["decimal"],
}


def _either(names: Iterable[str]) -> str:
    return " or ".join(_WORDS.get(name, name) for name in names)


def _plain(text: str) -> str:
    """Return a message of msgspec about an unknown type, without its markup."""
    for name, words in _WORDS.items():
        text = text.replace(f"`{name}`", words)
    return text.replace("Expected ", "must be ").replace("of length ", "with a length ")
