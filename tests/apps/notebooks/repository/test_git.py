from pathlib import Path

import pytest

from penstock.apps.notebooks.errors import Permanent, Transient
from tests.apps.notebooks.support import (
    committed,
    opened,
    write,
)


def test_environment_of_the_server_has_no_say(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    write(root, "a", "1")
    committed(root, "a")


def test_git_that_takes_too_long_is_ended(root: Path) -> None:
    slow = opened(root).git
    with pytest.raises(Transient, match="longer"):
        slow("-c", "alias.slow=!sleep 60", "slow", timeout=0.05)
    with pytest.raises(Transient, match="longer"):
        slow.head_of("-c", "alias.slow=!exec sleep 60", "slow", limit=9, timeout=0.05)


def test_git_that_is_not_installed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Permanent, match="not installed"):
        opened(root)
