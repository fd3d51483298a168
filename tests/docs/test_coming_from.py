"""What the pages for users of other queues say of Penstock is there, name by name."""

import keyword
import re
import shlex
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest

import penstock
import penstock.jobs
import penstock.testing
from penstock import Context, Job, Penstock, RetryPolicy, State, Task
from penstock.cli.main import cli
from penstock.engine.schedules import Recurrence, TaskOptions
from penstock.engine.task import Options
from penstock.jobs import OnFailure, Scope
from tests.applications import all_routes
from tests.docs.support import ROOT

PAGES = sorted((ROOT / "docs" / "coming-from").glob("*.md"))
PYTHON = {*keyword.kwlist, "timedelta", "seconds", "CancelledError"}
MADE_UP = {
    "a",
    "b",
    "f",
    "n",
    "q",
    "id",
    "name",
    "task",
    "actor",
    "resize",
    "job",
    "window",
    "entry",
}
"""Names of a reader's own."""

SPOKEN = {
    *penstock.__all__,
    *penstock.jobs.__all__,
    *penstock.testing.__all__,
    *Job.__struct_fields__,
    *RetryPolicy.__struct_fields__,
    *(str(state) for state in State),
    *(*OnFailure.__members__, *Scope.__members__),
    *(name for kind in (TaskOptions, Recurrence, Options) for name in kind.__annotations__),
    *(name for kind in (Penstock, Context, Task, Job) for name in dir(kind)),
    *("permanent", "concurrency", "rate", "isolation", "recycle", "scope", "connection"),
    *("done", "total", "note"),  # of a progress
    *("put", "pause", "resume", "remove"),  # of app.schedules, which is named before them
}


def quoted(page: Path) -> list[str]:
    """What the right column of the table has in backticks."""
    table = page.read_text("utf-8").partition("\n## Name by name\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ", 1) for line in table.splitlines() if line[:2] == "| "]
    return [one for row in rows[1:] for one in re.findall(r"`([^`]+)`", row[1])]


QUOTED = sorted({one for page in PAGES for one in quoted(page)})


def options_of(command: click.Command) -> set[str]:
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)}


def assert_command(words: list[str]) -> None:
    """A command exists, with its options."""
    command: click.Command = cli
    for word in words:
        if isinstance(command, click.Group):
            command = command.commands[word]
    assert {word for word in words if word.startswith("--")} <= options_of(command)


def assert_imported(path: str) -> None:
    """A module exists, or a name in it."""
    module, _, name = path.rpartition(".")
    assert find_spec(path) if module == "penstock" else hasattr(import_module(module), name)


def reached(start: Any, path: str) -> Any:
    return reduce(getattr, path.split("."), start)


def test_there_is_something_to_compare() -> None:
    assert len(PAGES) == 6
    assert len(QUOTED) > 70


@pytest.mark.parametrize("text", QUOTED)
def test_name_is_one_of_penstock(text: str) -> None:
    if text.startswith("/"):
        assert f"GET {text}" in all_routes()
    elif text.startswith("--"):
        assert any(text in options_of(command) for command in cli.commands.values())
    elif text.startswith("penstock "):
        assert_command(shlex.split(text)[1:])
    elif text.startswith("penstock."):
        assert_imported(text.partition("(")[0])
    else:
        assert_python(text)


def assert_python(text: str) -> None:
    """The attributes of what Penstock offers are there, and so is every other name."""
    app = Penstock("memory://")
    for path in re.findall(r"\bapp\.([\w.]+)", text):
        assert reached(app, path)
    for path in re.findall(r"\bcontext\(\)\.([\w.]+)", text):
        first, _, rest = path.partition(".")
        assert hasattr(Context, first)
        assert not rest or rest in Job.__struct_fields__
    plain = re.sub(r'"[^"]*"|\bapp(\.[\w.]+)?|\bcontext\(\)\.[\w.]+', "", text)
    names = set(re.findall(r"\b[A-Za-z_]\w*", plain))
    assert names - PYTHON - MADE_UP - SPOKEN == set()
