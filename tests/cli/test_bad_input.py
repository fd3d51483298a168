"""No command answers what a user may type with a traceback."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from penstock import NewJob, Penstock, run_sync
from penstock.cli.errors import Exit
from penstock.cli.main import cli

WORDS = (
    "",
    "   ",
    "\t\n",
    "../none",
    "-1",
    "0",
    "99999999999999999999",
    "ü" * 300,
    "{",
)
ENDLESS = {"serve", "top", "watch", "worker"}
"""Run until they are stopped; what they refuse is tested beside them."""


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))
        elif name not in ENDLESS:
            yield (*path, name)


def _command(path: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    return command


def _lines(path: tuple[str, ...]) -> Iterator[list[str]]:
    """A command with each of its arguments and options being odd, the others in order."""
    command = _command(path)
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    options = [
        one
        for one in command.params
        if isinstance(one, click.Option) and not one.is_flag and one.name not in {"store", "url"}
    ]
    for word in WORDS:
        for odd in arguments:
            yield [*path, "--", *(word if one is odd else "1" for one in arguments)]
    for word in ("", " ", "-1"):
        for option in options:
            needed = ["1"] * sum(one.required for one in arguments)
            yield [*path, option.opts[0], word, "--", *needed]


@pytest.fixture
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = Penstock("sqlite:///penstock.db")
    run_sync(app.enqueue_many([NewJob(task="t", payload="{}")]))
    run_sync(app.close())


@pytest.mark.usefixtures("_store")
@pytest.mark.parametrize("path", list(_commands(cli)), ids=" ".join)
def test_no_command_ends_with_a_traceback(path: tuple[str, ...]) -> None:
    for line in _lines(path):
        result = CliRunner().invoke(cli, line, input="")
        assert result.exit_code != Exit.UNEXPECTED, (line, result.output)
        assert "Traceback" not in result.output


@pytest.mark.usefixtures("_store")
@pytest.mark.parametrize("command", [["search", ""], ["ingest", "search", ""]], ids=" ".join)
def test_search_for_nothing_names_what_is_missing(command: list[str]) -> None:
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == Exit.USAGE
    assert result.stderr.startswith("penstock: query: ")


def test_setting_with_a_type_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_INGEST_LEASES", "folder=9,foo=1")
    result = CliRunner().invoke(cli, ["config"])
    assert result.exit_code == Exit.USAGE
    assert "ingest.leases has 'foo=1'" in result.stderr
    assert "folder" in result.stderr
