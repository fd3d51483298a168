from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apps.indexing.support import Embeddings, Indexed


@pytest.fixture
def indexed(tmp_path: Path) -> Indexed:
    return Indexed(tmp_path / "collection")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


@pytest.fixture
def embeddings() -> Iterator[Embeddings]:
    with Embeddings() as service:
        yield service
