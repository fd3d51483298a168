"""Every route that is served is described in the reference, with all that it takes."""

import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.applications import served_routes

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "http.md").read_text("utf-8")
SECTIONS = re.split(r"^## ", REFERENCE, flags=re.MULTILINE)
ROW = re.compile(r"^\| `(\w+ /\S*)` \| (\w+) \|", re.MULTILINE)


ROUTES = {f"{route.declared.method} {route.declared.path}": route for route in served_routes()}


def structs(kind: Any) -> Iterator[Any]:
    """The Structs that a type consists of."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for field in msgspec.structs.fields(kind):
            yield from structs(field.type)
    for part in typing.get_args(kind) if not isinstance(kind, types.GenericAlias) else ():
        yield from structs(part)
    if isinstance(kind, types.GenericAlias):
        for part in kind.__args__:
            yield from structs(part)


def words(text: str) -> set[str]:
    return {word for one in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"\w+", one)}


@pytest.mark.parametrize("name", sorted(ROUTES))
def test_route_is_described_with_its_scope_and_all_that_it_takes(name: str) -> None:
    route = ROUTES[name]
    [section] = [one for one in SECTIONS if f"| `{name}` |" in one]
    assert dict(ROW.findall(section))[name] == str(route.declared.access or "none")
    taken = {
        field
        for kind in (route.query_type, route.body_type)
        for struct in structs(kind)
        for field in struct.__struct_fields__
    }
    assert taken - words(section) == set()


def test_nothing_is_described_that_is_not_served() -> None:
    assert {name for name, _ in ROW.findall(REFERENCE)} == ROUTES.keys()


def test_every_route_says_what_it_does_in_the_document() -> None:
    for name, route in ROUTES.items():
        assert route.summary, name
        assert route.description.endswith("."), name
