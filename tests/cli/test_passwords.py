"""No command shows the password of the address that it was given, whatever is wrong with that."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from penstock.cli.main import cli
from penstock.client import connection
from penstock.config import Server, Setting
from tests.cli.support import COMMAND
from tests.environment import SOON

MARK = "Qx7"
ADDRESSES = (
    f"postgresql://me:{MARK}@127.0.0.1:1/jobs",
    f"postgresql://127.0.0.1:1/jobs?password={MARK}&sslpassword={MARK}",
    f"postgresql+psycopg://me:{MARK}@127.0.0.1:1/jobs",
    f"postgresql://me:{MARK}/{MARK}@{MARK}%{MARK}#{MARK} {MARK}@127.0.0.1:1/jobs",
    f"host=127.0.0.1 port=1 password={MARK}",
    f"http://me:{MARK}@127.0.0.1:1",
    f"https://127.0.0.1:1/?token={MARK}",
    f"mysql://me:{MARK}@127.0.0.1/jobs",
    f"sqlite://me:{MARK}@127.0.0.1/jobs",
    f"journal:///none?password={MARK}",
)
CROSSED = [
    address
    if address.startswith(("http:", "host="))
    else pytest.param(address, marks=pytest.mark.repeats("a few commands get every address below"))
    for address in ADDRESSES
]
"""Each of them is given to every command: in the first tier, one of each way to be opened."""

ENDLESS = {"serve", "config", "completion", "top", "watch"}
"""Tested apart, or without a store."""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("{}")
    monkeypatch.setattr(connection, "_LONGEST_PAUSE", 0.0)  # for a missing server


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))
            if command.invoke_without_command:
                yield (*path, name)
        elif name not in ENDLESS:
            yield (*path, name)


def _filled(path: tuple[str, ...], address: str) -> list[str] | None:
    """A command line with something in every place, and the address where one can stand."""
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    arguments = [one for one in command.params if isinstance(one, click.Argument) and one.required]
    anything = address if path == ("migrate",) else "1"
    words = [*path, *("file" if "file" in str(one.name) else anything for one in arguments)]
    names = {option for one in command.params for option in one.opts}
    named = next((name for name in ("--store", "--url") if name in names), None)
    if named is not None:
        return [*words, named, address]
    return words if address in words else None


@pytest.mark.parametrize("address", CROSSED)
def test_no_command_shows_a_password(address: str) -> None:
    seen = 0
    for path in _commands(cli):
        words = _filled(path, address)
        if words is None:
            continue
        for options in ((), ("--json",)):
            result = _invoke([*words, *options])
            assert MARK not in result, (words, result)
            seen += 1
    assert seen > 60


def _invoke(words: list[str], **environment: str | None) -> str:
    return CliRunner().invoke(cli, words, env={"PENSTOCK_STORE": None, **environment}).output


@pytest.mark.parametrize("address", ADDRESSES)
def test_address_of_the_environment_is_hidden_too(address: str) -> None:
    for words in (["jobs"], ["config"], ["config", "--json"], ["top"], ["stats", "--watch"]):
        assert MARK not in _invoke(words, PENSTOCK_STORE=address), words


@pytest.mark.parametrize("address", ADDRESSES[::3])
def test_server_that_does_not_start_shows_no_password(address: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [*COMMAND, "serve", "--port", "0", "--apps", "events", "--store", address],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert ended.returncode in {2, 5}
    assert MARK not in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


def test_wrong_setting_of_the_file_is_not_quoted_with_its_password() -> None:
    Path("penstock.toml").write_text(f'store = ["postgresql://me:{MARK}@127.0.0.1/jobs"]\n')
    said = _invoke(["config"])
    assert "store (from penstock.toml) is ['postgresql://me:***@127.0.0.1/jobs']" in said


def test_settings_are_printed_without_passwords() -> None:
    address = f"postgresql://me:{MARK}@127.0.0.1/jobs"
    assert MARK not in repr(Server(store=address))
    assert MARK not in repr(Setting("store", address, "default"))
    assert MARK not in repr(Setting("entries.embedder", f"openai:m@http://{MARK}@x/", "default"))


def test_word_that_is_no_command_is_not_quoted_with_its_password() -> None:
    assert MARK not in _invoke([f"postgresql://me:{MARK}@127.0.0.1/jobs"])
