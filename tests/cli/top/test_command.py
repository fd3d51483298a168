import sys

import pytest

from penstock import ConfigurationError, NewJob, Penstock, run_sync
from penstock.cli.top.command import _is_light, _require_textual
from tests.cli.support import Shell


def test_pipe_is_refused(app: Penstock, shell: Shell) -> None:
    assert "in a pipe, use --json" in shell.error("top", code=2)


def test_json_has_the_figures_once(app: Penstock, shell: Shell) -> None:
    run_sync(app.enqueue_many([NewJob(task="greet", payload="{}", queue="mail")] * 3))
    run_sync(app.leases.claim(worker="w"))
    found = shell.json("top")
    (mail,) = found["queues"]
    assert (mail["queue"], mail["pending"], mail["running"]) == ("mail", 2, 1)
    assert mail["rate_in"] > 0
    assert mail["time_to_empty"] is None
    assert [worker["name"] for worker in found["workers"]] == ["w"]


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'penstock\[top\]'"):
        _require_textual()


def test_missing_store_is_said(shell: Shell) -> None:
    shell.url = "sqlite:////nowhere/jobs.db"
    assert "nowhere" in shell.error("top", "--json", code=5)


@pytest.mark.parametrize(("says", "light"), [("15;0", False), ("0;15", True), ("", False)])
def test_colours_follow_the_terminal(
    monkeypatch: pytest.MonkeyPatch, says: str, light: bool
) -> None:
    monkeypatch.setenv("COLORFGBG", says)
    assert _is_light() is light
