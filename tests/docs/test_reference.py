"""Every public name is described, where it is defined and where users look it up."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.testing
import penstock.vectors
from penstock.periodic import Recurrence, TaskOptions
from penstock.task import Options

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference" / "python.md"
SIGNATURES = {"JobId", "Outcome"}
"""Names for types, which have no place for a docstring."""


def public(name: str) -> Any:
    return getattr(penstock, name)


def own_docstring(value: Any) -> str:
    """The one it was given itself, not one it inherits."""
    return vars(value).get("__doc__") or "" if inspect.isclass(value) else value.__doc__ or ""


def words(text: str) -> set[str]:
    """All that stands in backticks."""
    quoted = re.findall(r"`([^`\n]+)`", text)
    return {word for one in quoted for word in re.findall(r"\w+", one)}


def mentioned() -> set[str]:
    return words(REFERENCE.read_text("utf-8"))


def section(title: str) -> str:
    return REFERENCE.read_text("utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def words_in(title: str) -> set[str]:
    return words(section(title))


def methods(owner: type) -> list[str]:
    return [
        name
        for name, value in vars(owner).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    ]


def test_public_names_are_sorted_and_there() -> None:
    assert penstock.__all__ == sorted(penstock.__all__)
    assert all(hasattr(penstock, name) for name in penstock.__all__)


@pytest.mark.parametrize("name", sorted(set(penstock.__all__) - SIGNATURES))
def test_public_name_has_a_docstring_that_begins_with_a_sentence(name: str) -> None:
    docstring = own_docstring(public(name))
    first = docstring.split("\n\n", maxsplit=1)[0].strip()
    assert re.search(r"[.`:)]$", first), f"{name}: {first!r}"


@pytest.mark.parametrize(
    "owner", [name for name in penstock.__all__ if inspect.isclass(public(name))]
)
def test_public_methods_have_docstrings(owner: str) -> None:
    missing = [name for name in methods(public(owner)) if not vars(public(owner))[name].__doc__]
    assert missing == []


@pytest.mark.parametrize("name", penstock.__all__)
def test_public_name_is_in_the_reference(name: str) -> None:
    assert name in mentioned()


@pytest.mark.parametrize("owner", ["Penstock", "Task", "Worker", "Context"])
def test_what_a_user_calls_is_in_the_reference(owner: str) -> None:
    called = {
        name
        for kind in public(owner).__mro__
        if kind.__module__.startswith("penstock")
        for name in methods(kind)
        if owner != "Penstock" or inspect.iscoroutinefunction(vars(kind)[name])
    }
    assert called
    assert called - mentioned() == set()


def called_as(owner: str, name: str) -> set[str]:
    """The names in the brackets of a call that the reference shows."""
    shown = re.findall(rf"`{owner}\.{name}\(([^`]*)\)`", REFERENCE.read_text("utf-8"))
    assert shown, f"{owner}.{name}(…) is not shown"
    return {word for one in shown for word in re.findall(r"[a-z_]+", one)}


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (owner, name)
        for owner in (penstock.Penstock, penstock.Worker)
        for kind in owner.__mro__
        if kind.__module__.startswith("penstock")
        for name in methods(kind)
        if inspect.iscoroutinefunction(vars(kind)[name])
    ],
)
def test_parameters_of_a_call_are_in_the_reference(owner: type, name: str) -> None:
    parameters = inspect.signature(getattr(owner, name)).parameters.values()
    named = {one.name for one in parameters if one.kind is not one.VAR_KEYWORD} - {"self"}
    alias = "app" if owner is penstock.Penstock else "worker"
    assert named - called_as(alias, name) == set()


@pytest.mark.parametrize("name", penstock.testing.__all__)
def test_name_for_tests_is_in_the_reference_with_its_methods(name: str) -> None:
    section = words_in("penstock.testing")
    value = getattr(penstock.testing, name)
    called = set(methods(value)) if inspect.isclass(value) else set()
    assert {name, *called} - section == set()


@pytest.mark.parametrize("name", penstock.vectors.__all__)
def test_name_for_searching_is_described_with_its_methods_and_fields(name: str) -> None:
    value = getattr(penstock.vectors, name)
    called = (
        {*methods(value), *getattr(value, "__struct_fields__", ())}
        if inspect.isclass(value)
        else set()
    )
    assert {name, *called} - words_in("penstock.vectors") == set()
    assert own_docstring(value)


@pytest.mark.parametrize(
    "name",
    [name for name in penstock.__all__ if hasattr(public(name), "__struct_fields__")],
)
def test_fields_of_a_value_are_in_its_row(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", REFERENCE.read_text("utf-8"), re.MULTILINE)
    missing = set(public(name).__struct_fields__) - words(row)
    if name == "NewJob":
        missing -= words_in("Options")
    assert missing == set()


def test_every_option_is_in_the_reference() -> None:
    options = {
        name for kind in (TaskOptions, Recurrence, Options) for name in kind.__annotations__
    } | {"permanent", "merge", "concurrency"}
    assert options - words_in("Options") == set()


@pytest.mark.parametrize("title", ["Values", "Errors"])
def test_reference_names_nothing_that_is_not_there(title: str) -> None:
    """First cells of its tables, where they look like a name of ours."""
    rows = re.findall(r"^\| ((?:`\w+`[,: ]*)+) \|", section(title), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named
    assert named - set(penstock.__all__) == set()
