from pathlib import Path

import pytest

from penstock.apps.notebooks.files import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    root = tmp_path / "notebook"
    root.mkdir()
    return Tree(root).prepare()
