from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.apps.indexing.support import Embeddings
from tests.apps.ingest.support import Bench, bench


@pytest.fixture
async def table(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as made:
        yield made


@pytest.fixture
def embeddings() -> Iterator[Embeddings]:
    with Embeddings() as service:
        yield service
