"""The generated pages of the reference name everything, and their examples are accepted."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click
import msgspec
import pytest

from docs.generate import http, settings
from docs.generate.python import MODULES, public_names
from penstock import Penstock, Task
from penstock.cli.main import cli
from tests.applications import all_routes
from tests.docs.support import ROOT

REFERENCE = ROOT / "docs" / "reference"
ROUTES = all_routes()
OPERATIONS = {name: (operation, schemas) for name, operation, schemas in http.routes()}


def page(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text("utf-8")


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_example_body_is_one_that_the_route_takes(name: str) -> None:
    operation, schemas = OPERATIONS[name]
    body = http.body_of(operation, schemas)
    if body is not None:
        msgspec.json.decode(json.dumps(body).encode(), type=ROUTES[name].body_type)


def texts(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Every text in an example, with the name of its field."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from texts(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner, field)
    elif isinstance(value, str):
        yield field, value


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_example_answer_has_values_that_read_like_values(name: str) -> None:
    """A text is not the name of its field, and what a job waits for matches its state."""
    operation, schemas = OPERATIONS[name]
    answer = http.answer_of(operation, schemas)
    assert [field for field, text in texts(answer) if field and field == text] == []
    shown = json.dumps(answer)
    assert '"waiting": "' not in shown or '"state": "pending"' in shown


def test_uploads_show_what_is_uploaded() -> None:
    assert http.UPLOADS.keys() <= OPERATIONS.keys()
    for name in http.UPLOADS:
        section = page("routes").partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        assert " --data-binary " in section


@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - {"GET /", "GET /dashboard/{name}"}))
def test_route_has_its_scope_and_an_example(name: str) -> None:
    section = page("routes").partition(f"\n### {name}\n")[2].partition("\n### ")[0]
    access = ROUTES[name].declared.access
    assert (f"Scope `{access}`." if access else "No token needed.") in section
    assert "$ curl " in section
    assert all(f"| `{field}` |" in section for field in _required(name))


def _required(name: str) -> list[str]:
    operation, schemas = OPERATIONS[name]
    body: Mapping[str, Any] = (
        operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    )
    return list(http.resolve(body.get("schema", {}), schemas).get("required", ()))


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_there(module: str) -> None:
    names = public_names(module)
    assert names
    text = page("names")
    assert [name for name in names if f"\n### `{name}`\n" not in text] == []


@pytest.mark.parametrize(
    ("call", "errors"),
    [
        (Task.enqueue, {"InvalidJob", "QueueFull", "TooManyQueues", "StoreUnavailable"}),
        (Penstock.enqueue, {"UnknownTask", "InvalidJob", "QueueFull"}),
        (Penstock.enqueue_many, {"InvalidJob", "QueueFull", "TooManyQueues", "StoreUnavailable"}),
        (Penstock.get, {"JobNotFound"}),
        (Penstock.cancel, {"JobNotFound", "TransitionRefused"}),
        (Penstock.retry, {"JobNotFound", "TransitionRefused"}),
        (Penstock.reset, {"JobNotFound", "TransitionRefused"}),
        (Penstock.set_priority, {"InvalidJob", "JobNotFound", "TransitionRefused"}),
        (Penstock.delete, {"TransitionRefused"}),
    ],
)
def test_reference_says_what_a_call_raises(call: Callable[..., Any], errors: set[str]) -> None:
    signature = page("names").partition(f"async def {call.__name__}(")
    for _ in range(10):  # a method of the same name of another class may come first
        line = re.search(r"^Raises: (.*)$", signature[2].partition("\n```py\n")[0], re.MULTILINE)
        if line and errors <= set(re.findall(r"`(\w+)`", line[1])):
            return
        signature = signature[2].partition(f"async def {call.__name__}(")
    pytest.fail(f"{call.__qualname__} does not say that it raises {errors}")


def test_nothing_in_the_names_depends_on_the_process() -> None:
    assert " at 0x" not in page("names")


def test_every_command_is_there_with_its_subcommands() -> None:
    text = page("commands")
    for name, command in cli.commands.items():
        assert f"\n## penstock {name}\n" in text
        if isinstance(command, click.Group):
            for inner in command.commands:
                assert f"\n### penstock {name} {inner}\n" in text


@pytest.mark.parametrize("section", settings.SECTIONS)
def test_every_setting_is_there_with_its_variable_and_meaning(section: str) -> None:
    for field in msgspec.structs.fields(settings.SECTIONS[section]):
        name = f"{section}.{field.name}".lstrip(".")
        [row] = [line for line in page("settings").splitlines() if line.startswith(f"| `{name}` |")]
        assert f"`PENSTOCK_{name.upper().replace('.', '_')}`" in row
        assert row.rsplit("|", 2)[1].strip(), "a docstring below the field says what it means"
