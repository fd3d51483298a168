"""`--url` and `--store` name the place a command works on, in the same way for all commands."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from penstock import NewJob, Penstock, run_sync
from penstock.cli.main import cli
from tests.client.support import Server, free_port, serving

NO_STORE = {"serve", "config", "worker", "migrate", "migrate-legacy", "completion"}
"""Commands that work on a store that is theirs, or on none."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as running:
        app = Penstock(running.store)
        run_sync(app.enqueue_many([NewJob(task="t", payload="{}", queue="there")]))
        run_sync(app.close())
        yield running


def run(*args: str, **environment: str | None) -> Result:
    variables = {"PENSTOCK_STORE": None, "PENSTOCK_URL": None, **environment}
    return CliRunner().invoke(cli, args, env=variables)


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = {name: command for name, command in leaves(cli) if name not in NO_STORE}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_both_options_and_variables(name: str) -> None:
    options: dict[str, Any] = {one.name or "": one for one in COMMANDS[name].params}
    assert options["url"].envvar == "PENSTOCK_URL"
    assert options["store"].envvar == "PENSTOCK_STORE"


def arguments(command: click.Command, tmp_path: Path) -> list[str]:
    """Something for every argument that is needed, such as a file that exists."""
    (tmp_path / "file.csv").touch()
    given = []
    for one in command.params:
        if isinstance(one, click.Argument) and one.required:
            kind = one.type
            if isinstance(kind, click.Path):
                given.append(str(tmp_path / "file.csv" if kind.file_okay else tmp_path))
            elif isinstance(kind, click.Choice):
                given.append(kind.choices[0])
            else:
                given.append("1")
        elif one.required:  # an option
            given += [one.opts[0], "read"]
    return given


@pytest.mark.parametrize("name", COMMANDS)
def test_options_that_differ_are_refused(name: str, tmp_path: Path) -> None:
    both = ("--url", "http://127.0.0.1:1", "--store", "http://127.0.0.1:2")
    result = run(*name.split(), *arguments(COMMANDS[name], tmp_path), *both)
    assert result.stderr == (
        "penstock: --url (http://127.0.0.1:1) and --store (http://127.0.0.1:2) name different "
        f"places: leave one of them out; try: penstock {name} --help\n"
    )
    assert result.exit_code == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_variables_that_differ_are_refused(name: str, tmp_path: Path) -> None:
    result = run(
        *name.split(),
        *arguments(COMMANDS[name], tmp_path),
        PENSTOCK_URL="http://127.0.0.1:1",
        PENSTOCK_STORE="http://u:secret@127.0.0.1:2",
    )
    assert "PENSTOCK_URL (http://127.0.0.1:1) and PENSTOCK_STORE (http://" in result.stderr
    assert "secret" not in result.stderr
    assert result.exit_code == 2


@pytest.mark.parametrize(
    "command",
    ["explain 7", "top --json", "notebook list", "search x", "ingest content x", "entries export"],
)
def test_four_ways_lead_to_the_same_server(command: str, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"  # nobody answers there
    given = command.split()
    if given[0] == "entries":
        given.append(str(tmp_path / "out.csv"))
    ways = [
        run(*given, "--url", url),
        run(*given, "--store", url),
        run(*given, PENSTOCK_URL=url),
        run(*given, PENSTOCK_STORE=url),
    ]
    assert len({result.stderr for result in ways}) == 1
    assert {result.exit_code for result in ways} == {5}
    assert url in ways[0].stderr


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (["--url", "URL"], {}),
        (["--store", "URL"], {}),
        (["--url", "URL", "--store", "URL/"], {}),
        ([], {"PENSTOCK_URL": "URL"}),
        ([], {"PENSTOCK_STORE": "URL"}),
        ([], {"PENSTOCK_STORE": "URL", "PENSTOCK_URL": "URL/"}),
        (["--url", "URL"], {"PENSTOCK_STORE": "sqlite:///elsewhere.db"}),
        (["--store", "URL"], {"PENSTOCK_URL": "http://127.0.0.1:1"}),
    ],
)
def test_options_win_over_variables(
    options: Sequence[str], environment: dict[str, str], server: Server
) -> None:
    given = [one.replace("URL", server.url) for one in options]
    variables = {name: one.replace("URL", server.url) for name, one in environment.items()}
    result = run("status", *given, **variables)
    assert result.exit_code == 0, result.stderr
    assert "there" in result.stdout


def test_suggestions_name_the_same_server(server: Server) -> None:
    said = run("explain", "999", "--url", server.url).stderr
    assert said.endswith(f"try: penstock jobs --url {server.url}\n")


@pytest.mark.parametrize("url", ["sqlite:///x.db", "localhost:8000", "ftp://x"])
def test_url_is_the_address_of_a_server(url: str) -> None:
    result = run("status", "--url", url)
    assert f"{url!r} is not the address of a server, such as http://127.0.0.1:8000" in result.stderr
    assert result.exit_code == 2


def test_notebooks_need_a_server() -> None:
    said = run("notebook", "list", "--store", "sqlite:///x.db")
    assert "'penstock notebook list' needs a server, as in --store http://127.0.0.1:8000" in (
        said.stderr
    )
    port = free_port()
    result = run(
        "notebook", "list", PENSTOCK_STORE="sqlite:///x.db", PENSTOCK_URL=f"http://127.0.0.1:{port}"
    )
    assert f":{port}" in result.stderr  # a store in the environment is for other commands


def test_folder_here_and_a_server_are_refused() -> None:
    result = run("search", "x", "--data", "here", "--url", "http://127.0.0.1:1")
    assert "--data names a folder of this machine" in result.stderr
    assert result.exit_code == 2


def test_option_before_the_command_of_a_group_is_refused() -> None:
    result = run("cron", "--url", "http://127.0.0.1:1", "list")
    assert "--store, --url and --json go after the command: cron list" in result.stderr
