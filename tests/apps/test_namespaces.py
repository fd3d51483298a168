"""Names of applications: which they are, in whatever spelling, and that all of them are covered."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock.apps
from penstock import NewJob
from penstock.apps.ingest.order import key_of
from penstock.apps.namespaces import FIELDS, NAMESPACES, Field, Namespaces
from penstock.server.installed import APPS
from tests.apps.support import registered, served

SOURCE = Path(penstock.apps.__file__).parent
REGISTERING = {
    "entries": {"embedding.py", "operations.py"},
    "events": set(),
    "indexing": {"tasks.py"},
    "ingest": {"handlers.py"},
    "notebooks": {"tasks.py"},
}
"""The modules that register tasks. `support.registered` has to call what a new one offers."""


def registrations(name: str) -> Iterator[str]:
    for file in (SOURCE / name).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "task":
                yield file.name


def test_every_application_is_known_here() -> None:
    packages = {one.parent.name for one in SOURCE.glob("*/__init__.py")}
    assert packages == set(APPS) == set(REGISTERING)


@pytest.mark.parametrize("name", APPS)
def test_every_module_that_registers_tasks_is_known_here(name: str) -> None:
    assert set(registrations(name)) == REGISTERING[name]


@pytest.mark.parametrize("name", APPS)
def test_tasks_and_queues_of_an_application_are_its_own(name: str, tmp_path: Path) -> None:
    tasks = registered(name, tmp_path).tasks
    assert tasks or name == "events"
    for task in tasks.values():
        for field, text in (("task", task.name), ("queue", task.queue)):
            owner = Namespaces().owner(field, text)  # type: ignore[arg-type] # one of both
            assert owner is not None
            assert owner.name == name


def test_routes_to_use_are_served_and_named_for_tasks_that_exist(tmp_path: Path) -> None:
    declared = [route.declared for route in served(tmp_path).routes]
    paths = {f"{one.method} {one.path}" for one in declared}
    paths |= {
        path.replace("{operation}", name)
        for path in paths
        for name in ("import", "rebuild", "reembed", "sync")
    }
    for namespace in NAMESPACES:
        tasks = registered(namespace.name, tmp_path).tasks
        assert namespace.routes.keys() <= tasks.keys()
        for route in (namespace.route, *namespace.routes.values()):
            assert route in paths


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "text",
    [
        "notebooks",
        "notebooks.delete",
        "notebooks:1",
        "notebooks-x",
        "notebooks/x",
        "Notebooks.Delete",
        " notebooks.delete",
        "notebooks.delete ",
        "notebooks ",
        "\uff4eoteboo\uff4bs.delete",
        "notebooks\u2024delete",
        "note\u200bbooks.delete",
        "\ufeffnotebooks.delete",
        "NOTEBOO\u212aS.delete",
        "noteboo\u212as",
        "note\u034fbooks.delete",
        "notebooks\ufe0f.delete",
        "\x01notebooks.delete",
        "note\x7fbooks:1",
        "\x85notebooks.delete",
        "\u3164notebooks",
        "note\u2800books",
        "\u115fnotebooks/x",
        "note\U000e0100books.delete",
        "note\u2065books.delete",
        "\tnotebooks.delete",
        " \x01 notebooks.delete",
    ],
)
def test_name_belongs_to_its_application_in_every_spelling(field: Field, text: str) -> None:
    owner = Namespaces().owner(field, text)
    assert owner is not None
    assert owner.name == "notebooks"


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "text",
    [
        "mail",
        "notebook",
        "notebooksdelete",
        "notebooks_x",
        "my.notebooks",
        "client/0/notebooks",
        "caf\u00e9.notebooks",
    ],
)
def test_other_names_belong_to_nobody(field: Field, text: str) -> None:
    assert Namespaces().owner(field, text) is None


@pytest.mark.parametrize("place", ["/x", "long" * 500])
def test_keys_that_items_have_belong_to_ingest(place: str) -> None:
    owner = Namespaces().owner("key", key_of("events-team", "docs", "main", place))
    assert owner is not None
    assert owner.name == "ingest"


def test_application_of_another_package_has_a_namespace_too() -> None:
    names = Namespaces.with_others(["mine", "events"])
    job = NewJob(task="mine.do", payload="{}")
    assert names.foreign(job, "mine") is None
    found = names.foreign(job, None)
    assert found is not None
    assert (found.field, found.namespace.name) == ("task", "mine")
