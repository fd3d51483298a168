from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.apps.indexing.support import Embeddings
from tests.apps.ingest.support import Bench, Both, bench, opened


@pytest.fixture
async def table(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as made:
        yield made


@pytest.fixture
def embeddings() -> Iterator[Embeddings]:
    with Embeddings() as service:
        yield service


@pytest.fixture(params=["sqlite", "postgres"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    """Provide a bench on each database."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    async with bench(tmp_path, url) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Both]:
    """Provide a store and a program on each database."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    yield from opened(url)
