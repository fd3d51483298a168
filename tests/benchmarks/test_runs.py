"""Runs say how to repeat them, and leave out what is not installed."""

import subprocess
from pathlib import Path

import pytest

from benchmarks import cli, machine
from benchmarks.contenders import Contender
from benchmarks.contenders.http import BEFORE


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A working tree with one commit."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "code.py").write_text("")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "first"]):
        subprocess.run([*git, *arguments], check=True)
    return tmp_path


def test_commit_is_marked_when_the_package_differs_from_it(tree: Path) -> None:
    clean = machine.commit(tree)
    assert len(clean) >= 7
    (tree / "results.json").write_text("{}")  # what a run writes is no difference
    assert machine.commit(tree) == clean
    (tree / "src" / "code.py").write_text("changed")
    assert machine.commit(tree) == f"{clean}-dirty"


def test_commit_of_no_working_tree_is_unknown(tmp_path: Path) -> None:
    assert machine.commit(tmp_path) == "unknown"


def test_command_has_what_changes_the_figures_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(BEFORE, raising=False)
    arguments = ["http", "--json", "x.json", "--folder", "/srv", "--jobs", "10"]
    assert cli._command(arguments) == "./dev bench http --jobs 10"


def test_command_names_the_other_tree_by_its_commit(
    monkeypatch: pytest.MonkeyPatch, tree: Path
) -> None:
    monkeypatch.setenv(BEFORE, str(tree))
    commit = machine.commit(tree)
    assert cli._command(["http"]) == f"{BEFORE}=../penstock-{commit} ./dev bench http"


def test_machine_is_described_without_its_name(tmp_path: Path) -> None:
    found = machine.describe(tmp_path)
    assert {"processor", "cores", "memory", "load"} <= found.keys()
    assert found["memory"].endswith(" GB")


def test_versions_begin_with_ours() -> None:
    assert list(machine.versions(["click"]))[:2] == ["penstock", "commit"]


def test_contender_needs_its_program() -> None:
    assert Contender("a", "A", "", "click").is_there
    assert not Contender("a", "A", "", "click", program="no-such-program").is_there
    assert not Contender("a", "A", "", "no-such-package").is_there
