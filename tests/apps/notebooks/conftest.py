from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.apps.notebooks.files import Tree
from tests.apps.notebooks.serving import Api, served
from tests.contract.support import STORES


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    root = tmp_path / "notebook"
    root.mkdir()
    return Tree(root).prepare()


@pytest.fixture(params=["sqlite", "postgres"])
async def api(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Api]:
    async with served(STORES[request.param](tmp_path), tmp_path / "data") as api:
        yield api


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Api]:
    """On one store, for what has nothing to do with stores."""
    async with served(f"sqlite:///{tmp_path}/jobs.db", tmp_path / "data") as api:
        yield api
