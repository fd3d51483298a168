"""What is refused because nobody could read it back, and what is not."""

import dataclasses
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Unreadable
from penstock.core.jsontext import DEPTH_LIMIT, encode, is_deeper, read


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("text", "field", "reason"),
    [
        ('{"a":[0,{"b":1e999}]}', "args.a[1].b", "is 1e999, which is larger"),
        ('{"a":-1e999}', "args.a", "is -1e999, which is larger"),
        ('{"a":' + "9" * 5_000 + "}", "args.a", "is an integer of 5,000 digits"),
        ('{"a":-' + "9" * 4_301 + "}", "args.a", "is an integer of 4,301 digits"),
        ('{"a":NaN}', "args.a", "is NaN, which JSON does not have"),
        ('{"a":-Infinity}', "args.a", "is -Infinity, which"),
        ('{"a":{"b":"\\ud800"}}', "args.a.b", "holds half of a surrogate pair"),
        ('{"a":{"\\udc00":1}}', "args.a", "has a name with half of a surrogate pair"),
        ('{"a":"\ud800"}', "args.a", "holds half of a surrogate pair"),
        (f'{{"a":{nested(DEPTH_LIMIT)}}}', "args", "is nested more than 200 levels deep"),
        (nested(100_000), "args", "is nested more than 200 levels deep"),
        ("[" * 100_000, "args", "is nested more than 200 levels deep"),
        ("{", "args", "is not JSON"),
        ("", "args", "is not JSON"),
    ],
)
def test_what_cannot_be_read_back_is_named(text: str, field: str, reason: str) -> None:
    with pytest.raises(Unreadable) as refused:
        read(text, "args")
    assert refused.value.field == field
    assert refused.value.reason.startswith(reason)
    assert str(refused.value) == f"{field} {refused.value.reason}"


@pytest.mark.parametrize(
    "text",
    [
        *("1e308", "-1e-999", "9" * 4_300, '{"a": 1, "a": 2}', '"\\u0000"', '"\\ud83d\\ude00"'),
        *(
            "null",
            "[]",
            '""',
            nested(DEPTH_LIMIT),
            '"' + "[" * 500 + '"',
            '["\\"' + "[" * 500 + '"]',
        ),
    ],
)
def test_all_else_is_read(text: str) -> None:
    assert read(text, "") == json.loads(text)


class Struct(msgspec.Struct):
    a: Any


@dataclasses.dataclass
class Data:
    a: Any


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have_are_refused_and_not_turned_into_null(
    number: float,
) -> None:
    for value in (
        {"a": number},
        {"a": [None, (1, number)]},
        Struct({"b": number}),
        Data([number]),
        [{number}],
    ):
        with pytest.raises(Unreadable, match=str(number)):
            encode(value, "args")
    assert encode({"a": [None, 1.5]}, "args") == '{"a":[null,1.5]}'


@pytest.mark.parametrize(
    "value",
    [object(), 1j, "\ud800", 10**5_000, {(1, 2): object()}],
    ids=["object", "complex", "surrogate", "digits", "key"],
)
def test_value_that_is_no_json_is_refused(value: object) -> None:
    with pytest.raises(Unreadable, match=r"is not JSON|surrogate|more than 4,300 digits"):
        encode(value, "args")


def test_deep_values_are_refused_whatever_they_are_made_of() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(Unreadable, match="nested more than 200"):
        encode(value, "args")
    with pytest.raises(Unreadable, match="nested more than 200"):
        encode(json.loads(nested(DEPTH_LIMIT + 1)), "args")
    while value:  # an interpreter would end with the stack of taking it apart at once
        value = value[0]


values = st.recursive(
    st.none() | st.booleans() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def depth(value: object) -> int:
    match value:
        case dict():
            return 1 + max(map(depth, value.values()), default=0)
        case list():
            return 1 + max(map(depth, value), default=0)
    return 0


@given(values, st.integers(0, 6))
def test_depth_is_counted_as_a_parser_counts_it(value: object, levels: int) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert is_deeper(text, levels) == (depth(value) > levels)
        assert is_deeper(text.encode(), levels) == (depth(value) > levels)
        assert read(text, "") == value
    assert read(encode(value, ""), "") == value
