from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Penstock, run_sync
from tests.apps.indexing.support import Embeddings
from tests.cli.support import Shell


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def app(url: str) -> Iterator[Penstock]:
    """A program that uses the store that the commands look at; its store exists."""
    app = Penstock(url)
    app.task("greet", lambda name: f"Hello, {name}!")
    _ = app.store
    yield app
    run_sync(app.close())


@pytest.fixture
def shell(url: str) -> Shell:
    return Shell(url)


@pytest.fixture
def embeddings() -> Iterator[Embeddings]:
    """A service that embeds texts."""
    with Embeddings() as service:
        yield service
