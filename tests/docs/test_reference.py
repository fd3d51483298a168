"""Every public name is described, where it is defined and where users look it up."""

import inspect
import re
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

import penstock
import penstock.core.errors
import penstock.errors
import penstock.testing
import penstock.vectors
from penstock import Penstock, Worker
from penstock.engine.bulk import Selection
from penstock.engine.schedules import Recurrence, TaskOptions
from penstock.engine.task import Options
from tests.docs.support import (
    REFERENCE,
    mentioned,
    methods,
    own_docstring,
    section,
    words,
    words_in,
)

TOPICS = ("jobs", "queues", "schedules", "statistics", "tokens", "leases", "tables")
MODULES = [penstock, penstock.errors, *(import_module(f"penstock.{topic}") for topic in TOPICS)]
PUBLIC = {name: getattr(module, name) for module in MODULES for name in module.__all__}
SIGNATURES = {"JobId", "Outcome"}
"""Names for types, which have no place for a docstring."""

PARTS: dict[str, type] = {
    "app": Penstock,
    "app.bulk(query)": Selection,
    **{
        f"app.{name}": type(part)
        for name, part in vars(Penstock("memory://")).items()
        if type(part).__module__.startswith("penstock.engine.") and name != "connection"
    },
}
"""What users call, by how they reach it."""


def test_parts_are_those_that_the_reference_names() -> None:
    names = "bulk queues limits schedules archive workers tokens statistics tables leases"
    reached = {one.removeprefix("app.").partition("(")[0] for one in PARTS} - {"app"}
    assert reached == set(names.split())


def test_a_newcomer_meets_few_names() -> None:
    """What is rarely needed has a module of its own topic."""
    assert len(penstock.__all__) <= 28
    beside = {"store", "clock", "sync"}
    assert len([name for name in methods(Penstock) if name not in beside]) <= 30


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_public_names_are_sorted_and_there(module: ModuleType) -> None:
    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_all_errors_are_public_but_those_that_stay_inside() -> None:
    tree = {
        name
        for name, value in vars(penstock.core.errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert tree - set(penstock.errors.__all__) == {"Overtaken"}


@pytest.mark.parametrize("topic", TOPICS)
def test_module_exports_only_what_the_root_does_not(topic: str) -> None:
    module = import_module(f"penstock.{topic}")
    assert set(module.__all__) & set(penstock.__all__) <= {"Schedule"}


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - SIGNATURES))
def test_public_name_has_a_docstring_that_begins_with_a_sentence(name: str) -> None:
    docstring = own_docstring(PUBLIC[name])
    first = docstring.split("\n\n", maxsplit=1)[0].strip()
    assert re.search(r"[.`:)]$", first), f"{name}: {first!r}"


@pytest.mark.parametrize(
    "owner",
    [*filter(inspect.isclass, PUBLIC.values()), *PARTS.values()],
    ids=lambda owner: owner.__name__,
)
def test_public_methods_have_docstrings(owner: type) -> None:
    missing = [name for name in methods(owner) if not vars(owner)[name].__doc__]
    assert missing == []


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_name_is_in_the_reference(name: str) -> None:
    assert name in mentioned()


@pytest.mark.parametrize("topic", TOPICS)
def test_name_is_in_the_section_of_its_module(topic: str) -> None:
    names = set(import_module(f"penstock.{topic}").__all__)
    assert names - words_in(f"penstock.{topic}", level=3) == set()


@pytest.mark.parametrize("owner", ["Penstock", "Task", "Worker", "Context"])
def test_what_a_user_calls_is_in_the_reference(owner: str) -> None:
    called = set(methods(PUBLIC[owner]))
    assert called
    assert called - mentioned() == set()


def called_as(call: str) -> set[str]:
    """The names in the parentheses of a call that the reference shows."""
    shown = re.findall(rf"`{re.escape(call)}\(([^`]*)\)`", REFERENCE.read_text("utf-8"))
    assert shown, f"{call}(…) is not shown"
    return {word for one in shown for word in re.findall(r"[a-z_]+", one)}


@pytest.mark.parametrize(
    ("call", "function"),
    [
        pytest.param(f"{reached}.{name}", getattr(owner, name), id=f"{reached}.{name}")
        for reached, owner in {**PARTS, "worker": Worker}.items()
        for name in methods(owner)
        if inspect.iscoroutinefunction(vars(owner)[name])
    ],
)
def test_parameters_of_a_call_are_in_the_reference(call: str, function: Any) -> None:
    parameters = inspect.signature(function).parameters.values()
    named = {one.name for one in parameters if one.kind is not one.VAR_KEYWORD} - {"self"}
    assert named - called_as(call) == set()


def test_reference_shows_no_call_that_is_not_there() -> None:
    page = REFERENCE.read_text("utf-8").replace(".sync.", ".")
    shown = re.findall(r"`(app(?:\.\w+(?:\(query\))?)??)\.(\w+)\(", page)
    assert len(shown) > 60
    wrong = [
        f"{reached}.{name}"
        for reached, name in shown
        if reached not in PARTS or not hasattr(PARTS[reached], name)
    ]
    assert wrong == []


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
    sorted(name for name, value in PUBLIC.items() if hasattr(value, "__struct_fields__")),
)
def test_fields_of_a_value_are_in_its_row(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", section("Values"), re.MULTILINE)
    missing = set(PUBLIC[name].__struct_fields__) - words(row)
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
    assert named - PUBLIC.keys() == set()
