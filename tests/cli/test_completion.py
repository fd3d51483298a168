import json
import os
import subprocess
import sys

import pytest

from penstock import Penstock, run_sync
from tests.cli.support import Shell


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_script_is_printed(app: Penstock, shell_name: str) -> None:
    command = [sys.executable, "-m", "penstock.cli.main", "completion", shell_name]
    script = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "_PENSTOCK_COMPLETE" in script


def test_shell_can_ask_for_commands_and_queues(app: Penstock, url: str) -> None:
    run_sync(app.queues.pause("mail"))
    assert "explain" in complete(url, "penstock exp", "1")
    assert "mail" in complete(url, "penstock enqueue greet --queue ma", "4")


def complete(url: str, words: str, place: str) -> str:
    environment = {
        **os.environ,
        "_PENSTOCK_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": place,
        "PENSTOCK_STORE": url,
    }
    command = [sys.executable, "-m", "penstock.cli.main"]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    ).stdout


def test_unknown_shell_is_refused(shell: Shell) -> None:
    assert "tcsh" in shell("completion", "tcsh", code=2).stderr


def test_script_as_json(shell: Shell) -> None:
    answer = json.loads(shell("completion", "bash", "--json").stdout)
    assert answer["shell"] == "bash"
    assert "_PENSTOCK_COMPLETE" in answer["script"]
