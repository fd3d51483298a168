"""Every error that msgspec raises is described in words: the field, and what is allowed there."""

import enum
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from msgspec import Meta, Struct

from penstock.core.decode_errors import mismatch


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Operation(Struct, forbid_unknown_fields=True):
    to: str
    count: int = 0


class Circle(Struct, tag="circle"):
    radius: int


class Square(Struct, tag="square"):
    side: int


class Checked(Struct):
    n: int = 0

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError("n is below the ground")


CASES: list[tuple[Any, str, str]] = [
    # type of the field, JSON of its value, what is said
    (int, '"x"', "must be an integer; got text"),
    (int, "null", "must be an integer; got null"),
    (int, "1.5", "must be an integer; got a number"),
    (int, "1e400", "must be an integer"),
    (str, "3", "must be text; got an integer"),
    (bool, '"true"', "must be true or false; got text"),
    (str, "true", "must be text; got a boolean"),
    (float, "[]", "must be a number; got a list"),
    (bytes, '"x"', "must be text in Base64"),
    (list[int], "{}", "must be a list; got an object"),
    (dict[str, int], "[]", "must be an object; got a list"),
    (Operation, "[]", "must be an object; got a list"),
    (Any, "x", "JSON is malformed: invalid character (byte 9)"),
    # choices
    (Colour, '"green"', "must be one of red, blue; got 'green'"),
    (Colour | None, '"green"', "must be one of red, blue, or null; got 'green'"),
    (Colour, "3", "must be one of red, blue; got an integer"),
    (Level, "7", "must be one of 1, 2; got 7"),
    (Literal["a", "b"], '"c"', "must be one of a, b; got 'c'"),
    (Literal["all"] | int, "[]", "must be an integer or one of all; got a list"),
    # ranges
    (Annotated[int, Meta(ge=0, le=10)], "11", "must be an integer from 0 to 10"),
    (Annotated[int, Meta(ge=0, le=10)], "-1", "must be an integer from 0 to 10"),
    (Annotated[int, Meta(ge=0, le=10)], '"x"', "must be an integer from 0 to 10; got text"),
    (Annotated[int, Meta(ge=1)], "0", "must be an integer of at least 1"),
    (Annotated[int, Meta(ge=1, le=2**63 - 1)], "0", "must be an integer of at least 1"),
    (Annotated[int, Meta(le=5)], "6", "must be an integer of at most 5"),
    (Annotated[int, Meta(ge=1, le=10_000)], "0", "must be an integer from 1 to 10,000"),
    (
        Annotated[float, Meta(gt=0, lt=5)],
        "5",
        "must be a number greater than 0 and less than 5",
    ),
    (
        Annotated[int, Meta(multiple_of=5)],
        "3",
        "must be an integer that is a multiple of 5",
    ),
    # lengths and patterns
    (Annotated[str, Meta(min_length=1, max_length=3)], '""', "must be text of 1 to 3 characters"),
    (Annotated[str, Meta(max_length=3)], '"abcd"', "must be text of at most 3 characters"),
    (Annotated[str, Meta(min_length=1)], '""', "must be text of at least 1 character"),
    (Annotated[str, Meta(min_length=2, max_length=2)], '""', "must be text of 2 characters"),
    (Annotated[str, Meta(pattern="^[a-z]+$")], '"A"', "must be text that matches ^[a-z]+$"),
    (Annotated[list[int], Meta(min_length=1)], "[]", "must be a list of at least 1 item"),
    (Annotated[list[int], Meta(max_length=2)], "[1,2,3]", "must be a list of at most 2 items"),
    (tuple[int, str], "[1]", "must be a list of 2 items"),
    (
        Annotated[dict[str, int], Meta(max_length=2)],
        '{"a":1,"b":2,"c":3}',
        "must be an object of at most 2 fields",
    ),
    # times and other texts
    (datetime, '"x"', "must be a date and time such as 2030-01-31T12:00:00Z"),
    (
        Annotated[datetime, Meta(tz=True)] | None,
        '"2030-01-31T12:00:00"',
        "must be a date and time such as 2030-01-31T12:00:00Z, with a time zone, or null",
    ),
    (date, '"x"', "must be a date such as 2030-01-31"),
    (time, '"x"', "must be a time such as 12:00:00"),
    (timedelta, '"x"', "must be a duration, as a number of seconds or such as PT5M"),
    (UUID, '"x"', "must be a UUID"),
    (Decimal, '"x"', "must be a decimal number"),
    (int | str | None, "[]", "must be an integer or text or null; got a list"),
    # our own words
    (Checked, '{"n":-1}', "n is below the ground"),
]


@pytest.mark.parametrize(("kind", "value", "said"), CASES)
def test_error_is_described_in_words(kind: Any, value: str, said: str) -> None:
    shape = msgspec.defstruct("Shape", [("field", kind)])
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(f'{{"field":{value}}}', type=shape)
    found = mismatch(caught.value, shape)
    assert found.text == said
    assert found.field == ("" if "malformed" in said else "field")
    assert "`" not in str(mismatch(caught.value))  # and in words also where the type is not known


class Request(Struct, forbid_unknown_fields=True, rename={"class_": "class"}):
    operations: list[Operation] = []
    shape: Circle | Square | None = None
    levels: dict[str, Level] = {}
    by_number: dict[int, str] = {}
    pair: tuple[int, str] = (1, "a")
    class_: Colour = Colour.RED


PLACES = [
    ('{"operations":[{}]}', "operations[0].to: is required"),
    ('{"operations":[{"to":1}]}', "operations[0].to: must be text; got an integer"),
    (
        '{"operations":[{"to":"a"},{"to":"b","too":1}]}',
        "operations[1].too: is not a known field; did you mean to? Choose from to, count",
    ),
    ('{"shape":{}}', "shape.type: is required"),
    ('{"shape":{"type":"line"}}', "shape.type: must be one of circle, square; got 'line'"),
    ('{"shape":{"type":"circle","radius":"x"}}', "shape.radius: must be an integer; got text"),
    ('{"levels":{"a.b":3}}', "levels[...]: must be one of 1, 2; got 3"),
    ('{"by_number":{"x":"y"}}', "by_number: a key must be an integer; got text"),
    ('{"pair":[1,2]}', "pair[1]: must be text; got an integer"),
    ('{"class":"green"}', "class: must be one of red, blue; got 'green'"),
    (
        '{"colour":"red"}',
        (
            "colour: is not a known field; choose from operations, shape, levels, by_number, pair, "
            "class"
        ),
    ),
    ("[]", "must be an object; got a list"),
]


@pytest.mark.parametrize(("text", "said"), PLACES)
def test_field_is_named_wherever_it_is(text: str, said: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(text, type=Request)
    assert str(mismatch(caught.value, Request)) == said


def test_text_that_was_read_leniently_is_shown() -> None:
    shape = msgspec.defstruct("Shape", [("limit", Annotated[int, Meta(ge=1, le=9)])])
    given = {"limit": "many"}
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(given, shape, strict=False)
    said = "limit: must be an integer from 1 to 9; got 'many'"
    assert str(mismatch(caught.value, shape, given)) == said


def test_long_values_are_cut() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert("x" * 5_000, Colour)
    assert len(str(mismatch(caught.value, Colour))) < 200


def test_type_that_msgspec_cannot_describe_leaves_the_error_readable() -> None:
    said = str(mismatch("Expected `int`, got `str` - at `$.a.b`", object()))
    assert said == "a.b: must be an integer; got text"
