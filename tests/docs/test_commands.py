"""The commands that pages show exist with their options; those that only read are run."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import click
import pytest
from click.testing import CliRunner

from penstock import NewJob, Penstock, run_sync
from penstock.cli.main import cli
from tests.docs.support import ROOT

PAGES = sorted({ROOT / "README.md", *ROOT.glob("docs/**/*.md")})
BLOCK = re.compile(r"^ *```console\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
READING = {"status", "jobs", "explain", "log", "workers", "stats", "verify", "config", "--version"}
"""Commands that change nothing and end by themselves."""

ELSEWHERE = ("--url", "--follow", "http", "postgresql:", "journal:", ":////", "…", "$", "--repair")
"""What needs a server, goes on for ever, or is to be filled in."""


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every `$ penstock …` of a page, without what follows a pipe."""
    for block in BLOCK.findall(page.read_text("utf-8")):
        joined = block.replace("\\\n", " ")
        for line in re.findall(r"^ *\$ (?:\S+=\S+ )*penstock (.*)$", joined, re.MULTILINE):
            words = shlex.split(line.split(" | ")[0].split(" > ")[0], comments=True)
            yield words[: words.index("&")] if "&" in words else words


SHOWN = [
    pytest.param(words, id=f"{page.relative_to(ROOT)}-{n}")
    for page in PAGES
    for n, words in enumerate(commands(page))
]


def only_reads(words: list[str]) -> bool:
    """Whether a command can be run here without consequences."""
    return words[0] in READING and not any(part in word for word in words for part in ELSEWHERE)


def test_there_are_commands() -> None:
    assert len(SHOWN) > 100


@pytest.mark.parametrize("words", SHOWN)
def test_command_exists_with_its_options(words: list[str]) -> None:
    command: click.Command = cli
    rest = list(words)
    context = click.Context(cli)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest.pop(0))
        assert found is not None, words
        command = found
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    known |= {"--help", "-h", "--version"}
    used = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
    assert used <= known, words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stores of the names that pages use, with jobs of low numbers in them."""
    made = tmp_path_factory.mktemp("stores")
    (made / "penstock-data").mkdir()
    for name in ("jobs.db", "penstock.db", "penstock-data/penstock.db", "restored.db"):
        app = Penstock(f"sqlite:///{made}/{name}")
        run_sync(app.enqueue_many([NewJob(task="send", payload="{}", queue="mail")] * 60))
        run_sync(app.close())
    return made


@pytest.mark.parametrize(
    "words",
    [shown for shown in SHOWN if only_reads(cast("list[str]", shown.values[0]))],
)
def test_command_that_only_reads_runs(
    words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    ran = CliRunner().invoke(cli, words)
    assert ran.exit_code == 0, f"{words}: {ran.output}"
