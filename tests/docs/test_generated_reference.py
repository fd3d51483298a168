"""The generated pages of the reference name everything, and their examples are accepted."""

import json
from collections.abc import Mapping
from typing import Any

import click
import msgspec
import pytest

from docs.generate import http, settings
from docs.generate.python import MODULES
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
    import importlib

    names = importlib.import_module(module).__all__
    text = page("names")
    assert [name for name in names if f"\n### `{name}`\n" not in text] == []


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
