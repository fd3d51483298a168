from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.apps.notebooks.disk.tree import Tree
from penstock.apps.notebooks.repository.repository import Repository
from tests.apps.notebooks.support import Api, protection_for, served
from tests.contract.support import STORES


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    root = tmp_path / "notebook"
    root.mkdir()
    return Tree(root).prepare()


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The home of the server's user, for whom git is not configured."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder


@pytest.fixture
def root(tree: Tree) -> Path:
    """The folder of a notebook that has a repository of its own."""
    Repository.make(tree.root, protection_for(tree.root))
    return tree.root


@pytest.fixture(params=["sqlite", "postgres"])
async def api(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Api]:
    async with served(STORES[request.param](tmp_path), tmp_path / "data") as api:
        yield api


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Api]:
    """On one store, for what has nothing to do with stores."""
    async with served(f"sqlite:///{tmp_path}/jobs.db", tmp_path / "data") as api:
        yield api
