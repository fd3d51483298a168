import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import penstock.cli
from penstock import Penstock, run_sync
from penstock.cli.errors import Exit
from penstock.cli.main import GROUPS, cli
from penstock.engine.queues import Queues
from tests.cli.support import COMMAND, Shell, read_all
from tests.environment import SOON


def test_help_lists_commands_and_exit_codes(shell: Shell) -> None:
    printed = shell("--help").stdout
    for name in cli.commands:
        assert f"\n  {name} " in printed
    for heading, modules in GROUPS.items():
        section = printed.partition(f"\n{heading}:\n")[2].partition("\n\n")[0]
        names = [name for names in modules.values() for name in names]
        assert [line.split()[0] for line in section.splitlines()] == names
        assert "..." not in section  # every summary fits
    for code in Exit:
        assert f"\n  {code.value:<5}{code.meaning}\n" in printed


@pytest.mark.parametrize("module", sorted(set().union(*GROUPS.values())))
def test_every_command_of_a_module_is_listed(module: str) -> None:
    [names] = [modules[module] for modules in GROUPS.values() if module in modules]
    commands: Sequence[click.Command] = import_module(f"penstock.cli.{module}").COMMANDS
    assert [command.name for command in commands] == list(names)
    assert [cli.commands[name] for name in names] == list(commands)


def test_no_module_with_commands_is_left_out() -> None:
    folder = Path(penstock.cli.__file__).parent
    listed = set().union(*GROUPS.values())
    for path in folder.rglob("*.py"):
        module = ".".join(path.relative_to(folder).with_suffix("").parts)
        assert (module in listed) == bool(
            re.search("^COMMANDS\\b", path.read_text("utf-8"), re.MULTILINE)
        )


def test_no_command_is_help(shell: Shell) -> None:
    assert shell().stdout == shell("--help").stdout


def test_version(shell: Shell) -> None:
    assert shell("--version").stdout == f"penstock {version('penstock')}\n"


def test_every_command_takes_json() -> None:
    for name, command in cli.commands.items():
        if isinstance(command, click.Group) or name == "completion":  # prints a script
            continue
        assert any("--json" in parameter.opts for parameter in command.params)


def test_wrong_command_line_is_one_line(shell: Shell) -> None:
    assert shell.error("job", code=2).startswith("penstock: No such command 'job'")
    assert shell.error("explain", code=2) == (
        "penstock: Missing argument 'ID'; try: penstock explain --help"
    )


def test_wrong_command_line_as_json(shell: Shell) -> None:
    error = json.loads(shell.error("explain", "--json", "--nope", code=2))
    assert error["type"] == "NoSuchOption"
    assert error["try"] == "penstock explain --help"


def test_unexpected_error_is_code_1(
    app: Penstock, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("nobody foresaw this")

    monkeypatch.setattr(Queues, "statuses", broken)
    assert "Traceback" in shell("status", code=1).stderr
    error = json.loads(shell.error("status", "--json", code=1))
    assert error == {"error": "nobody foresaw this", "type": "ZeroDivisionError"}


def test_interrupted_command_is_code_130(
    app: Penstock, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Queues, "statuses", interrupted)
    assert "penstock: interrupted" in shell("status", code=130).stderr


def test_commands_work_as_a_process(app: Penstock, url: str, tmp_path: Path) -> None:
    run_sync(app.tasks["greet"].enqueue("Ada"))
    command = [*COMMAND, "jobs", "--json", "--store", url]
    found = subprocess.run(command, capture_output=True, check=True, timeout=SOON, cwd=tmp_path)
    assert json.loads(found.stdout)["jobs"][0]["task"] == "greet"
    assert found.stderr == b""


def test_reader_that_goes_away_is_no_error(app: Penstock, url: str) -> None:
    for _ in range(300):
        run_sync(app.tasks["greet"].enqueue("x" * 1000))
    command = [*COMMAND, "jobs", "--limit", "300", "--json", "--store", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_terminal_gets_colour(app: Penstock, url: str) -> None:
    run_sync(app.tasks["greet"].enqueue("Ada"))
    main, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    subprocess.run(
        [*COMMAND, "jobs", "--store", url],
        stdout=terminal,
        env=environment,
        check=True,
        timeout=SOON,
    )
    os.close(terminal)
    assert b"\x1b[33mready" in read_all(main)


def test_help_and_json_do_not_load_rich(app: Penstock, url: str) -> None:
    for arguments in (["--help"], ["jobs", "--json", "--store", url]):
        program = (
            "import sys\n"
            "from penstock.cli.main import cli\n"
            "try:\n"
            f"    cli.main({arguments})\n"
            "finally:\n"
            "    assert 'rich' not in sys.modules\n"
        )
        subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, timeout=SOON
        )


def test_drain_ends_on_ctrl_c(app: Penstock, url: str, tmp_path: Path) -> None:
    run_sync(app.tasks["greet"].enqueue("Ada"))
    program = (
        "import os, signal, threading\n"
        "from penstock.cli.main import cli\n"
        "from penstock.stores.waiter import Waiter\n"
        "wait = Waiter.wait\n"
        "def interrupted(self, timeout):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return wait(self, timeout)\n"
        "Waiter.wait = interrupted\n"
        f"cli.main(['drain', '--store', {url!r}])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=False, timeout=SOON, text=True
    )
    assert ended.returncode == 128 + signal.SIGINT
    assert ended.stderr.strip() == "penstock: interrupted"


def options(command: click.Command) -> list[str]:
    return [
        option
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
    ]


REFERENCE = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text()


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_reference_describes_command_and_options(name: str) -> None:
    _, found, section = REFERENCE.partition(f"\n### `penstock {name}")
    assert found
    section = section.partition("\n##")[0]
    for option in options(cli.commands[name]):
        assert f"`{option}" in section, f"{option} of {name} is not described"


def test_reference_describes_no_other_commands() -> None:
    headings = [line for line in REFERENCE.splitlines() if line.startswith("### ")]
    described = {line.split("`")[1].split()[1] for line in headings}
    assert described == cli.commands.keys()


def test_reference_has_the_exit_codes() -> None:
    for code in Exit:
        assert f"| {code.value} | {code.meaning} |\n" in REFERENCE


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_and_option_has_help(name: str) -> None:
    command = cli.commands[name]
    assert CliRunner().invoke(cli, [name, "--help"]).exit_code == 0
    assert command.help
    for parameter in command.params:
        assert not isinstance(parameter, click.Option) or parameter.help


def test_python_m_penstock_is_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "--version"]
    ran = subprocess.run(command, capture_output=True, check=True, timeout=SOON, text=True)
    assert ran.stdout.startswith("penstock ")
